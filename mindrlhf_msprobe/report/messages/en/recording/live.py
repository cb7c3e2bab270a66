"""What is said of findings while a training runs."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _finding(severity: str, rule: str, step: int, phase: str, name: str, said: str) -> str:
    at = ", ".join(filter(None, (f"step {step}", phase, name)))
    return f"{severity} at {at}: {said} [{rule}]"


def _stops(rule: str) -> str:
    if rule == "compare_to":
        return "on_divergence: stop: the training diverged from compare_to; it ends here"
    if not rule:
        return (
            "another rank found something (on_finding: stop) or diverged (on_divergence: stop); "
            "the training ends here"
        )
    return f"on_finding: stop: {rule} was found; the training ends here"


def _diverged(step: int, phase: str, record: str, path: str, why: str) -> str:
    at = ", ".join(filter(None, (f"step {step}", phase)))
    return f"DIVERGED from {path} at {at}: {record}: {why}"


def _not_compared(step: int, last: int, path: str, running: bool = False) -> str:
    holds = "no step of this rank" if last < 0 else f"whole steps up to {last}"
    still = ", and is still being recorded" if running else ""
    return f"{path} holds {holds}{still}: from step {step} on nothing is compared with it"


TEXTS: dict[str, Text] = {
    "finding": _finding,
    "diverged": _diverged,
    "cause": lambda cause, reasons: f"cause: {cause}. {' '.join(map(str, reasons))}",
    "not_compared": _not_compared,
    "nothing_in_common": (
        "nothing of step {step} could be compared with {path}: what both recorded has no names in "
        "common, or was not recorded by choice. Give the run of the same network, with the same "
        "phases, keys and level"
    ),
    "compared_run_is_damaged": (
        "{path} cannot be read at step {step} ({why}): from there on nothing is compared with it"
    ),
    "compared_run_is_gone": (
        "{path} is not there any more: from step {step} on nothing is compared with it"
    ),
    "nothing_closer": (
        "on_divergence: record: {record} is of no cell, so nothing more is recorded of it"
    ),
    "more": "{count} more finding(s), most of which follow from those above: {file}",
    "not_observed": (
        "{count} step(s) from {first} to {last} were recorded but not looked at while training: "
        "what looks at them was behind, or had failed. "
        "`mindrlhf-msprobe check` looks at all of them."
    ),
    "stops": _stops,
    "ranks_apart": (
        "on_divergence: stop: a rank did not come to the end of this step in time: ranks do not "
        "wait for each other at the end of later steps. A divergence ends all of them a step later"
    ),
    "cannot_stop": (
        "The training is to stop, but rank(s) {ranks} of this job do not take part: they have "
        "another dump_path, on_finding or on_divergence, or have ended. One rank alone would leave "
        "the others in a collective, so the training goes on."
    ),
}
