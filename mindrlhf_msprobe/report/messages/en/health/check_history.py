"""What the checks of a run against its own past say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _jump(factor: float, others: int) -> str:
    more = f", and so do {others} other records of this step" if others else ""
    return f"the norm jumps by a factor of {factor:.3g} against the steps before{more}"


def _gradients(ratio: float, explode: bool) -> str:
    how = "explode" if explode else "vanish"
    return f"gradients {how} towards the first layer: {ratio:.3g} times between first and last"


def _kurtosis(kurtosis: float, median: float, others: int) -> str:
    more = f", and so does that of {others} other outputs of this step" if others else ""
    return (
        f"kurtosis rises to {kurtosis:.3g} from {median:.3g} in the steps before "
        f"(normal distribution: 3): some elements are far beyond the others{more}"
    )


def _kurtosis_high(kurtosis: float, others: int) -> str:
    more = f", and that of {others} other outputs is high as well" if others else ""
    return f"kurtosis is {kurtosis:.3g} (normal distribution: 3){more}"


TEXTS: dict[str, Text] = {
    "jump": _jump,
    "gradients": _gradients,
    "dead": "{count} activations are zero everywhere, two steps in a row, while their input is not",
    "routing": "one expert takes {share:.0%} of the tokens",
    "kurtosis": _kurtosis,
    "kurtosis_high": _kurtosis_high,
    "cause_outlier": "a channel whose weights grow beyond the others, or a token unlike others",
    "cause_batch": "a batch unlike the others (lengths, rewards, empty responses)",
    "cause_learning_rate": "an update that was too large in the step before",
    "cause_initialisation": "the scale of the initial weights",
    "cause_normalisation": "a normalisation or a residual connection that is missing",
    "cause_dead": "weights or biases that drive the activation into its flat part",
    "cause_balance": "the loss that balances experts is missing or too small",
    "cause_router": "the router's weights or its input have collapsed",
}
