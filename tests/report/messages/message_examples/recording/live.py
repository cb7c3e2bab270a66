"""Parameters of what is said of findings while a training runs."""

from mindrlhf_msprobe.common.message import message

_SAID = message("check_rl.kl_negative", mean=-0.5, steps=3)
_FINDING = {"rule": "rl.kl_negative", "step": 3, "said": _SAID, "name": "kl"}

EXAMPLES = {
    "finding": [
        {"severity": severity, "phase": phase, **_FINDING}
        for severity in ("error", "warning", "note")
        for phase in ("", "actor_update")
    ],
    "stops": [{"rule": ""}, {"rule": "rl.ratio"}],
}
