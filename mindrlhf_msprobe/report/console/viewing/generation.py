"""What a run generated with, and which random states it noted, as lines for the console."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from mindrlhf_msprobe.common.text.numbers import spans
from mindrlhf_msprobe.common.text.printable import printable
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.run_file import Generation, RunFile, timelines

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
    lines = []
    for (head, inner), ranks in _blocks(chosen).items():
        numbers = sorted({number for number in ranks if number is not None})
        some = numbers and len(numbers) < len(chosen)
        whose = say("listing.of_ranks", ranks=spans(numbers)) if some else ""
        lines += [say("listing.block", head=head + whose) if inner else head + whose, *inner]
    return [printable(line) for line in lines]


def _blocks(chosen: list[RunFile]) -> dict[tuple[str, tuple[str, ...]], list[int | None]]:
    """Return a head and the lines below it → the ranks of which they are."""
    blocks: dict[tuple[str, tuple[str, ...]], list[int | None]] = {}
    parts = [(file.rank, part) for file in chosen for part in (file, *file.attempts)]
    for own, part in parts:
        for phase, found in part.generation.items():
            if found.step is not None:
                head = say("listing.generation", phase=phase, step=found.step)
                blocks.setdefault((head, tuple(_settings(found))), []).append(own)
    for file in chosen:
        if states := _states(file):
            blocks.setdefault((states, ()), []).append(file.rank)
    return blocks


def _settings(found: Generation) -> list[str]:
    """Return the settings that stayed, those that are None left out, and those that changed."""
    changed = timelines(found.changes, lambda change: str(change.name))
    stayed = [
        f"{name}={_value(value)}"
        for name, value in found.settings.items()
        if value is not None and name not in changed
    ]
    lines = textwrap.wrap(
        ", ".join(stayed),
        _LINE,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    for name, changes in changed.items():
        first = _value(found.settings[name]) if name in found.settings else None
        then = [(step, _value(value)) for step, value in changes]
        left = max(0, len(then) - _CHANGES)
        then = [*then[: _CHANGES - 1], then[-1]] if left else then
        lines.append(f"  {name}: {say('listing.changes', first=first, then=then, left=left)}")
    return lines or [f"  {say('listing.no_settings')}"]


def _states(file: RunFile) -> str:
    """Return of which generators the states are noted, and in which steps; "" if of none."""
    steps: dict[str, list[str]] = {}
    for name, states in random_states.by_step(file.random_states).items():
        if known := sorted(n for n, state in states.items() if state != random_states.UNKNOWN):
            steps.setdefault(spans(known), []).append(_GENERATORS.get(name, name))
    parts = [
        say("listing.states_in", names=", ".join(names), steps=of) for of, names in steps.items()
    ]
    return say("listing.states_noted", states="; ".join(parts)) if parts else ""


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
