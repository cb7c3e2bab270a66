"""What the log says while a training is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Joined, joined

PIECES: Mapping[str, Any] = {
    "each": joined("what", "; "),
    "kinds": lambda lost, **_: ", ".join(f"{what}: {count}" for what, count in lost),
}

TEXTS: Mapping[str, Any] = {
    "recording": Joined("recording to {root} from step {step} on: {what}", "; "),
    "continuing": Joined("continuing the run in {root} from step {step} on: {what}", "; "),
    "layers": Joined("layers of {phases} in {steps}", ", "),
    "left_out": Joined("{what} are not recorded: {why}", "; "),
    "gap": Joined("{cell}: {why}", "; "),
    "gaps": Joined(
        "the {role} network is compiled, and of these cells something cannot be recorded (see "
        "coverage.graph_mode in run.json): {cells}",
        "; ",
    ),
    "operators_replaced": Joined(
        "in the place of operators stands what is not MindSpore's own; its calls are recorded "
        "by their names (coverage.operators in run.json): {operators}",
        ", ",
    ),
    "operators_held": Joined(
        "operators are held where their calls are not recorded; hold them as an attribute of a "
        "module or a cell (coverage.operators in run.json): {places}",
        ", ",
    ),
    "look_at": Joined("look at {what}", ", "),
    "took": lambda step, size, parts: (
        f"step {step} took {size} of this rank ({', '.join(map(' '.join, parts))})"
    ),
    "other_version": Joined(
        "{trainer} is not the version this integration was written for. {missing}. The rest is "
        "recorded.",
        "; ",
    ),
    "no_key_data": Joined("{keys} are not recorded as key data: {why}", " and "),
    "switched_off": Joined("{trainer}: {keys} are not recorded: {why}", " and "),
}


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


#: What is said of findings while a training runs.
LIVE: Mapping[str, Any] = {
    "finding": _finding,
    "diverged": _diverged,
    "cause": lambda cause, reasons: f"cause: {cause}. {' '.join(map(str, reasons))}",
    "not_compared": _not_compared,
    "stops": _stops,
}


#: Why something of a trainer could not be had.
TRAINER: Mapping[str, Any] = {
    "no_vllm_network": Joined(
        "the network with which vLLM generates was not found. Looked for in {worker}: "
        "{looked}. Prompts and responses are recorded",
        "; ",
    ),
    "no_variables": Joined("{of} has no variable {names}", " or "),
    "no_keys": Joined("{keys} are not recorded", " and "),
}
