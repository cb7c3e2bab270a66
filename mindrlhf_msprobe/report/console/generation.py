"""What a run generated with, and which random states it noted, as lines for the console."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.common.spans import spans
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.reading.generation import Generated, generated, steps_with_states

_LINE = 100  # characters
_LONGEST_VALUE = 40
_CHANGES = 3  # of one setting
_GENERATORS = {"numpy_state": "numpy", "random_state": "Python", "mindspore_state": "MindSpore"}


def render_generation(files: Iterable[RunFile], rank: int | None = None) -> list[str]:
    """Return what each phase generated with, a line a setting that changed, and random states.

    Ranks that say the same stand together.

    Args:
        files: the manifests of all ranks.
        rank: of this one alone; None for all.
    """
    chosen = [file for file in files if rank is None or file.rank in (None, rank)]
    blocks: dict[tuple[str, tuple[str, ...]], list[int | None]] = {}
    for found in generated(chosen):
        blocks.setdefault((_head(found), tuple(_settings(found))), []).append(found.rank)
    for file in chosen:
        states = _states(steps_with_states(file))
        if states:
            blocks.setdefault((states, ()), []).append(file.rank)
    lines = []
    for (head, inner), ranks in blocks.items():
        numbers = sorted({number for number in ranks if number is not None})
        some = numbers and len(numbers) < len(chosen)
        whose = say("listing.of_ranks", ranks=spans(numbers)) if some else ""
        lines += [f"{head}{whose}:" if inner else f"{head}{whose}", *inner]
    return [printable(line) for line in lines]


def _head(found: Generated) -> str:
    return say("listing.generation", phase=found.phase, step=found.step)


def _settings(found: Generated) -> list[str]:
    """Return the settings that stayed, those that are None left out, and those that changed."""
    stayed = [
        f"{name}={_value(value)}"
        for name, value in found.settings.items()
        if value is not None and name not in found.changes
    ]
    lines = textwrap.wrap(
        ", ".join(stayed),
        _LINE,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    for name, changes in found.changes.items():
        first = _value(found.settings[name]) if name in found.settings else None
        then = [(step, _value(value)) for step, value in changes]
        left = max(0, len(then) - _CHANGES)
        then = [*then[: _CHANGES - 1], then[-1]] if left else then
        lines.append(f"  {name}: {say('listing.changes', first=first, then=then, left=left)}")
    return lines or [f"  {say('listing.no_settings')}"]


def _states(known: Mapping[str, Sequence[int]]) -> str:
    """Return of which generators the states are noted, and in which steps; "" if of none."""
    steps: dict[str, list[str]] = {}
    for name, of_name in known.items():
        if of_name:
            steps.setdefault(spans(of_name), []).append(_GENERATORS.get(name, name))
    parts = [
        say("listing.states_in", names=", ".join(names), steps=of) for of, names in steps.items()
    ]
    return say("listing.states_noted", states="; ".join(parts)) if parts else ""


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
