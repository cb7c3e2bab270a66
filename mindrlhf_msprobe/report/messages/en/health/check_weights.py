"""What the checks of weights and gradients say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.health.check_rl import BOTH_RANDOM


def _not_synchronised(count: int, first: str, total: int, still: int | None) -> str:
    since = "" if still is None else f"; they are those that the training had in step {still}"
    return (
        f"{count} of {total} parameters are not those of the network that is trained, "
        f"e.g. {first}{since}"
    )


def _reference(count: int, first: str, total: int, random: bool) -> str:
    said = (
        f"the reference is not the initial actor: {count} of {total} parameters differ before the "
        f"first update, e.g. {first}"
    )
    return said + BOTH_RANDOM * random


TEXTS: dict[str, Text] = {
    "steps_apart": "no two steps that follow each other were recorded",
    "not_synchronised": _not_synchronised,
    "reference": _reference,
    "moved_inside": "{count} parameters change within a phase that only computes, e.g. {first}",
    "moved_reference": "{count} parameters of the reference have changed, e.g. {first}",
    "frozen": (
        "{count} of {total} parameters do not move in {updates} steps although their gradient is "
        "not zero, e.g. {first}"
    ),
    "frozen_without_gradient": (
        "{count} of {total} parameters have no gradient and do not move in {updates} steps, while "
        "the others do, e.g. {first}"
    ),
    "zero_gradient": "the gradients of {count} of {total} parameters are all zero, e.g. {first}",
    "large_update": "the norm of {count} parameters changes by up to {share:.0%}, e.g. {first}",
    "cause_no_synchronisation": "the weights were not copied after the update",
    "cause_partly_synchronised": "some parameters are left out of the copy, or copied elsewhere",
    "cause_shared": "the network shares parameters with one that is trained",
    "cause_in_place": "an operation in the network assigns to a parameter",
    "cause_not_in_optimizer": "the optimizer was not given these parameters",
    "cause_requires_grad": "requires_grad is False, or a stop_gradient lies before them",
    "cause_detached": "what follows them does not reach the loss (stop_gradient, a mask, detach)",
    "cause_no_tokens": "the router gave these experts no tokens",
    "cause_dead": "the activations behind them are zero",
    "cause_learning_rate": "the learning rate is too large, or its warm-up is missing",
    "cause_clipping": "gradients are not clipped, or the loss scale was not taken out",
}
