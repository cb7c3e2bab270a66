"""What MindFormers' Trainer in PyNative mode writes to its log of each step: `info.log`.

MindFormers 2.0's TrainStateMonitor has no files of its own. A line of its log ends with one of

    {"step": 1, "micro_step": 2, "local_loss": 1.73}            a number
    { "step": 1, "micro_step": 2 }                              where the norms that follow belong
    { "local_norm": decoder.layers.0.mlp.fc1.weight:   0.0024 } the norm of a parameter's gradient
    {"iter": 2, "step": 1, "micro_step": 2, "block": "decoder", "layer": 3, "tpe": [[5, 3]]}
                                                                MoeMonitor: tokens of each expert
    { step:[    1/    2], loss:   3.468179, lr: 1.0e-02, … }    what LossCallback prints

All else is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from mindrlhf_msprobe.storage.arrays import bounds

#: The log, and what was moved aside when it had grown, the latest first.
LOG_FILE = re.compile(r"info\.log(?:\.([0-9]{1,4}))?")
_NORM = re.compile(r'\{ "(local_norm|device_norm)": (.{1,1024}?): +(\S{1,32}) \}')
_PRINTED = re.compile(r"\{ step:\[ *([0-9]{1,12})/ *[0-9]{1,12}\], (.*) \}")
_NUMBERS = ("local_loss", "device_loss")
_EXPERTS = "tokens_per_expert"
_MICRO_STEPS = ("local_loss", "local_norm", _EXPERTS)
#: The clock's, which differs between two runs that compute the same.
_OF_TIME = ("per_step_time", "throughput")
#: LossCallback prints the rate of the step that follows.
_NAMES = {"lr": "next_lr"}
_NONE = "NaN"  # printed where there is none; one that is not a number is printed as nan


class Logged(NamedTuple):
    """A number of one step.

    Attributes:
        path: below the key: the parameter, the micro-step, from 0 on, or both.
    """

    step: int
    key: str
    path: str
    value: float


class _At(NamedTuple):
    step: int
    micro_step: int | None


def numbers_of(file: BinaryIO) -> Iterator[Logged]:
    """Yield the numbers of a log, in its order; lines that are none of these are passed over."""
    at: _At | None = None
    for line in iter(lambda: file.readline(bounds.LINE), b""):
        start = line.find(b"{")
        if start < 0 or not line.rstrip().endswith(b"}"):
            continue
        text = line[start:].decode("utf-8", "replace").rstrip()
        if printed := _PRINTED.fullmatch(text):
            yield from _printed(int(printed[1]), printed[2])
        elif norm := _NORM.fullmatch(text):
            value = _number(norm[3])
            if at is not None and value is not None:
                yield Logged(at.step, norm[1], _path(norm[1], norm[2], at.micro_step), value)
        elif text.startswith('{"iter"'):
            yield from _tokens_per_expert(text)
        elif text.startswith(('{"step"', '{ "step"')) and (found := _object(text)) is not None:
            at = found[0]
            for key in _NUMBERS:
                if (value := _plain_number(found[1].get(key))) is not None:
                    yield Logged(at.step, key, _path(key, "", at.micro_step), value)


def _object(text: str) -> tuple[_At, dict[str, Any]] | None:
    """Return where a JSON object belongs, and what it holds; None where it is of another form."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    step: Any = content.get("step")
    micro_step: Any = content.get("micro_step")
    if not bounds.is_place(step) or not (micro_step is None or bounds.is_place(micro_step)):
        return None
    return _At(step, micro_step), content


def _tokens_per_expert(text: str) -> Iterator[Logged]:
    """Yield how many tokens each expert of a layer got in a micro-step."""
    found = _object(text)
    if found is None:
        return
    at, content = found
    block, layer, outer = (content.get(name) for name in ("block", "layer", "mtp_idx"))
    counts = content.get("tpe")
    if not (isinstance(block, str) and len(block) <= bounds.NAME and bounds.is_place(layer)):
        return
    if not (isinstance(counts, list) and len(counts) == 1 and isinstance(counts[0], list)):
        return
    layers = f"{block}.layers.{outer}.layers" if bounds.is_place(outer) else f"{block}.layers"
    for expert, count in enumerate(counts[0]):
        if (value := _plain_number(count)) is not None:
            path = _path(_EXPERTS, f"{layers}.{layer}.mlp.{expert}", at.micro_step)
            yield Logged(at.step, _EXPERTS, path, value)


def _plain_number(value: Any) -> float | None:
    """Return a number of JSON; None of anything else, and of one that no float can be."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None


def _path(key: str, parameter: str, micro_step: int | None) -> str:
    """Return where a number stands below its key; MindFormers counts micro-steps from 1 on."""
    parts = [parameter] if parameter else []
    if key in _MICRO_STEPS and micro_step is not None:
        parts.append(f"{micro_step - 1}")
    return ".".join(parts)


def _printed(step: int, text: str) -> Iterator[Logged]:
    for part in text.split(", "):
        name, _, printed = part.partition(":")
        name = name.strip()
        value = None if printed.strip() == _NONE else _number(printed.strip())
        if name and value is not None and name not in _OF_TIME and len(name) <= bounds.NAME:
            yield Logged(step, _NAMES.get(name, name), "", value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
