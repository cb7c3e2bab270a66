"""What is said of findings while a training runs."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _finding(severity: str, rule: str, step: int, phase: str, name: str, said: str) -> str:
    at = ", ".join(filter(None, (f"step {step}", phase, name)))
    return f"{severity} at {at}: {said} [{rule}]"


def _stops(rule: str) -> str:
    by = f"{rule} was found" if rule else "another rank found something"
    return f"on_finding: stop: {by}; the training ends here"


TEXTS: dict[str, Text] = {
    "finding": _finding,
    "more": "{count} more finding(s), most of which follow from those above: {file}",
    "not_observed": (
        "{count} step(s) from {first} to {last} were recorded but not looked at while training: "
        "what looks at them was behind, or had failed. "
        "`mindrlhf-msprobe check` looks at all of them."
    ),
    "stops": _stops,
    "cannot_stop": (
        "on_finding: stop: something was found, but rank(s) {ranks} of this job do not take part: "
        "they have another dump_path or on_finding, or have ended. One rank alone would leave the "
        "others in a collective, so the training goes on."
    ),
}
