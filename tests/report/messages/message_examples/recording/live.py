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
    "ranks_apart": [{}],
    "stops": [{"rule": ""}, {"rule": "rl.ratio"}, {"rule": "compare_to"}],
    "not_compared": [
        {"step": 3, "last": last, "path": "run_a", **running}
        for last in (-1, 2)
        for running in ({}, {"running": True})
    ],
    "nothing_in_common": [{"step": 3, "path": "run_a"}],
    "compared_run_is_damaged": [{"step": 3, "path": "run_a", "why": "…"}],
    "compared_run_is_gone": [{"step": 3, "path": "run_a"}],
    "diverged": [
        {"step": 3, "phase": phase, "record": "loss", "path": "run_a", "why": "…"}
        for phase in ("", "actor_update")
    ],
    "cause": [{"cause": "parameter", "reasons": ["…", "…"]}],
}
