"""What two runs generated with, and in which states their random generators were, step by step."""

from __future__ import annotations

from typing import NamedTuple

from mindrlhf_msprobe.comparison.preflight.changing import last_step, settings_apart
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    Notes,
    Ranks,
    is_known,
    named,
    same_versions,
)
from mindrlhf_msprobe.findings import Difference
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN
from mindrlhf_msprobe.storage.manifest.run_file import Generation, RunFile, Timeline, timelines
from mindrlhf_msprobe.storage.reading.reader import Run

SEEDS, GENERATION = "seeds", "generation"


class OwnStep(NamedTuple):
    """A step of one rank, by the run's own numbers."""

    run: Run
    step: int
    rank: int


def compare_generation(rank: int, a: RunFile, b: RunFile, merged: Ranks, notes: Notes) -> None:
    """Add which settings of generation differ on one rank, given both manifests."""
    left, right = a.generation, b.generation
    if not is_known("generation_settings", left or None, right or None, notes, neither=False):
        return
    last = min(last_step(a), last_step(b))
    for phase in dict.fromkeys([*left, *right]):
        both = _timelines(left.get(phase)), _timelines(right.get(phase))
        if not (both[0] and both[1]):
            notes.only_in(GENERATION, bool(both[0]), phase)
            continue
        table, whose = phase_table({}), (GENERATION, phase)
        role = table[phase].role if phase in table else None
        unknown = None if same_versions(a, b) else notes
        begin = max(min(timeline[0][0] for timeline in side.values()) for side in both)
        for setting, step, *values in settings_apart(*both, last, whose, unknown, begin=begin):
            name = named((phase, setting))
            what = Difference(GENERATION, name, None, None, role, (phase,), step)
            merged.add_one(what, rank, *values)


def _timelines(content: Generation | None) -> dict[str, Timeline]:
    if content is None or content.step is None:
        return {}
    found: dict[str, Timeline] = {n: [(content.step, v)] for n, v in content.settings.items()}
    for name, changes in timelines(content.changes, lambda change: str(change.name)).items():
        found.setdefault(name, [(content.step, ABSENT)]).extend(changes)
    return found


def compare_random_states(rank: int, a: RunFile, b: RunFile, merged: Ranks) -> None:
    """Add the generators whose states are equal at first, and differ from a later step on.

    Those that differ in the first step stand among the seeds already. A step counts in which both
    states are known, and in which neither is that of a generator which nobody seeded or used.
    """
    sides = random_states.by_step(a.random_states), random_states.by_step(b.random_states)
    for name, of_a in sides[0].items():
        of_b = sides[1].get(name, {})
        both = {step: (state, of_b.get(step, UNKNOWN)) for step, state in sorted(of_a.items())}
        known = [step for step, states in both.items() if UNKNOWN not in states]
        first = next((step for step in known if both[step][0] != both[step][1]), None)
        if first is not None and first != known[0]:
            merged.add_one(Difference(SEEDS, name, None, None, step=first), rank, *both[first])


def states_differ(a: OwnStep, b: OwnStep, name: str) -> bool | None:
    """Return whether a random generator began two steps in other states; None if it is not known.

    Args:
        a, b: what is compared; the same step of the same rank says nothing.
    """
    if a == b:
        return None
    states = []
    for side in (a, b):
        files = (file for file in side.run.run_files if (file.rank or 0) == side.rank)
        of_rank = next((file.random_states for file in files), None)
        states.append(random_states.by_step(of_rank).get(name, {}).get(side.step, UNKNOWN))
    return None if UNKNOWN in states else states[0] != states[1]
