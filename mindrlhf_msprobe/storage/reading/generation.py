"""What the manifests of a run say of generation: the settings of each phase, and their changes.

A manifest may hold anything; what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.run_file import RunFile


class Generated(NamedTuple):
    """What a phase generated with on one rank.

    Attributes:
        step: of the first call.
        settings: of the first call.
        changes: name → (step, value) of each later call in which it was another one.
    """

    rank: int | None
    phase: str
    step: int
    settings: Mapping[str, Any]
    changes: Mapping[str, list[tuple[int, Any]]]


def generated(files: Iterable[RunFile]) -> Iterator[Generated]:
    """Yield what each phase of each rank generated with.

    Of a further attempt only where it generated with something else than the first.
    """
    for file in files:
        for part in (file, *file.attempts):
            for phase, content in part.generation.items():
                if content.step is not None:
                    changes: dict[str, list[tuple[int, Any]]] = {}
                    for change in content.changes:
                        if change.step is not None:
                            name = str(change.name)
                            changes.setdefault(name, []).append((change.step, change.value))
                    yield Generated(file.rank, phase, content.step, content.settings, changes)


def steps_with_states(file: RunFile) -> dict[str, list[int]]:
    """Return the steps in which the state of each random generator is known, in order."""
    return {
        name: sorted(step for step, state in states.items() if state != random_states.UNKNOWN)
        for name, states in random_states.by_step(file.random_states).items()
    }
