"""The initial weights of two runs, role by role."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.comparison.preflight.values import (
    Notes,
    is_known,
    named,
    shortened,
)
from mindrlhf_msprobe.findings import Weights
from mindrlhf_msprobe.storage.manifest.run_file import RunFile


def compare_weights(
    by_rank: list[tuple[int, RunFile, RunFile]], notes: Notes
) -> tuple[Weights, ...]:
    """Compare the initial weights of every role, given (rank, manifest of A, manifest of B)."""
    found: dict[str, _RoleWeights] = {}
    for rank, a, b in by_rank:
        left, right = a.initial_weights, b.initial_weights
        if not is_known("initial_weights", left, right, notes) or left is None or right is None:
            continue
        for role in dict.fromkeys([*left, *right]):
            names = left.get(role), right.get(role)
            shown = shortened(role)
            if isinstance(names[0], dict) and isinstance(names[1], dict):
                together = found.setdefault(shown, _RoleWeights(shown))
                together.add(rank, names[0], names[1], notes)
                continue
            for run, theirs, others in zip("AB", names, reversed(names)):
                if theirs is not None and not isinstance(theirs, dict):
                    notes.add("weights_unreadable", role=shown, side=run)
                elif theirs is not None and others is None:
                    notes.about("weights_only_in", shown, side=run)
    return tuple(weights.result() for weights in found.values())


class _RoleWeights:
    """The initial weights of one role over the ranks."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._ranks: list[int] = []
        self._compared: dict[str, list[int]] = {}
        self._different: dict[str, list[int]] = {}
        self._only: tuple[dict[str, list[int]], ...] = ({}, {})

    def add(self, rank: int, a: dict[str, Any], b: dict[str, Any], notes: Notes) -> None:
        self._ranks.append(rank)
        unread = unlike = 0
        for name in dict.fromkeys([*a, *b]):
            if name not in a or name not in b:
                self._only[name not in a].setdefault(name, []).append(rank)
                continue
            left, right = a[name], b[name]
            if not (isinstance(left, str) and isinstance(right, str)):
                unread += 1
            elif left.partition(":")[0] != right.partition(":")[0]:
                unlike += 1
            else:
                self._compared.setdefault(name, []).append(rank)
                if left != right:
                    self._different.setdefault(name, []).append(rank)
        if unread:
            notes.add("weights_without_fingerprint", role=self._role, count=unread)
        if unlike:
            notes.add("weights_other_algorithm", role=self._role, count=unlike)

    def result(self) -> Weights:
        return Weights(
            self._role,
            len(self._compared),
            tuple(
                self._named(name, r, self._compared[name]) for name, r in self._different.items()
            ),
            *(
                tuple(self._named(name, ranks, self._ranks) for name, ranks in only.items())
                for only in self._only
            ),
        )

    def _named(self, name: str, ranks: list[int], of: list[int]) -> str:
        name = named((name,))
        return name if len(ranks) == len(of) else f"{name} (rank {few_numbers(ranks)})"
