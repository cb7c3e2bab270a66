"""What the manifests of a run say of generation: the settings of each phase, and their changes.

A manifest may hold anything; what cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mindrlhf_msprobe.storage.arrays.bounds import is_place
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.manifest import GENERATION, RANDOM_STATES
from mindrlhf_msprobe.storage.reading.missing import rank_of


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


def generated(manifests: Iterable[Mapping[str, Any]]) -> Iterator[Generated]:
    """Yield what each phase of each rank generated with.

    Of a further attempt only where it generated with something else than the first.
    """
    for manifest in manifests:
        attempts = manifest.get("attempts")
        parts = [manifest, *(attempts if isinstance(attempts, list) else ())]
        for part in parts:
            phases = part.get(GENERATION) if isinstance(part, Mapping) else None
            for phase, content in phases.items() if isinstance(phases, Mapping) else ():
                if isinstance(content, Mapping) and is_place(content.get("step")):
                    settings = content.get("settings")
                    yield Generated(
                        rank_of(manifest),
                        str(phase),
                        content["step"],
                        settings if isinstance(settings, Mapping) else {},
                        _changes(content.get("changes")),
                    )


def steps_with_states(manifest: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the steps in which the state of each random generator is known, in order."""
    known = random_states.by_step(manifest.get(RANDOM_STATES))
    return {
        name: sorted(step for step, state in states.items() if state != random_states.UNKNOWN)
        for name, states in known.items()
    }


def _changes(changes: Any) -> dict[str, list[tuple[int, Any]]]:
    found: dict[str, list[tuple[int, Any]]] = {}
    for change in changes if isinstance(changes, list) else ():
        if isinstance(change, Mapping) and is_place(change.get("step")):
            found.setdefault(str(change.get("name")), []).append(
                (change["step"], change.get("value"))
            )
    return found
