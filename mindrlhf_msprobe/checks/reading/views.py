"""Steps as rules see them: the journals of all ranks, and key data, read when they are asked for.

What is held at once is one journal, and the key data of one step as far as rules ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.reading.entries import EntryView, RecordView
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.records import Layouts, Records
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings.health import Place
from mindrlhf_msprobe.phases import phase_order, usual_place
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record

__all__ = ["EntryView", "RecordView", "Step", "numbers_in", "place_of", "steps", "value_of"]

_MOST_BYTES = 1 << 28  # of one step's key data that are held
_PHASE_SPAN = 1 << 40  # as `storage.foreign` spaces phases that carry no time


def steps(run: Run) -> Iterator[Step]:
    """Yield the steps of a run in order. What cannot be read is in `run.problems` afterwards."""
    places: dict[int, list[int]] = {}
    for at_step, rank in sorted(run.places):
        places.setdefault(at_step, []).append(rank)
    last = max(places, default=None)
    for number, ranks in places.items():
        yield Step(run, number, ranks, last=number == last)


class _Arrays:
    """The arrays of a step's key data, up to a bound."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._room = _MOST_BYTES

    def array(self, location: str | None, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array that was read before, or read it."""
        found = self._held.get(location or "")
        if found is None:
            found = read()
            if location is not None and found.nbytes <= self._room:
                self._room -= found.nbytes
                self._held[location] = found
        return found


@dataclass(frozen=True, slots=True)
class _Held(Record):
    """An element of key data whose array is held while its step is looked at."""

    arrays: _Arrays = field(default_factory=_Arrays)

    def array(self) -> np.ndarray:
        """Return the record's elements; see `Record.array`."""
        return self.arrays.array(self.location, partial(Record.array, self))


class Step:
    """One step of a run, with all of its ranks.

    Attributes:
        run: the run.
        number: the step.
        last: whether it is the run's last one.
        ranks: those that recorded anything in it.
        complete: whether every rank ended it; the last step of a killed run may be cut off.
        parameters, gradients: (rank, phase) → parameters of cells, gradients of them, of those
            journals that `journals` gave.
    """

    def __init__(self, run: Run, number: int, ranks: Sequence[int], *, last: bool = False) -> None:
        self.run, self.number, self.ranks, self.last = run, number, tuple(ranks), last
        self.parameters: dict[tuple[int, str], Records] = {}
        self.gradients: dict[tuple[int, str], Records] = {}
        self._arrays = _Arrays()
        self._saves: dict[tuple[str | None, int], list[KeyDatum]] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank ended the step."""
        return all(self.run.completed(self.number, rank) for rank in self.ranks)

    def journals(self, layouts: Layouts | None = None) -> Iterator[Journal]:
        """Yield its journals, each read when it is asked for, and not held.

        Of each rank in turn the phases as a step usually runs them.

        Args:
            layouts: those of the steps before, so that what is alike is computed once.
        """
        known = Layouts() if layouts is None else layouts
        for rank in self.ranks:
            for phase in sorted(self.phases(rank), key=lambda name: (phase_order(name), name)):
                journal = Journal(self.run, phase, self.number, rank, known)
                yield journal
                if parameters := journal.records("parameters"):
                    self.parameters[rank, phase] = parameters
                if gradients := journal.records(PARAMETERS_GRAD):
                    self.gradients[rank, phase] = gradients

    def keys(self, rank: int | None = None) -> list[str]:
        """Return the names of the key data of the step, or of one rank of it."""
        of = self.ranks if rank is None else (rank,)
        return sorted({key for one in of for key in self.run.keys_at(self.number, one)})

    def key_data(self, *names: str, rank: int | None = None) -> list[KeyDatum]:
        """Return what was saved under the first of these names that there is, by rank.

        It is read when it is first asked for, and kept until the step ends.
        """
        of = self.ranks if rank is None else (rank,)
        for name in names:
            found = [datum for one in of for datum in self._of(name, one)]
            if found:
                return found
        return []

    def saved(self, *names: str) -> Iterator[KeyDatum]:
        """Yield what each rank saved under the first of these names that it has."""
        for rank in self.ranks:
            yield from self.key_data(*names, rank=rank)

    def _of(self, name: str, rank: int) -> list[KeyDatum]:
        at = name, rank
        if at not in self._saves:
            there = name in self.run.keys_at(self.number, rank)
            found = self.run.key_data(name, self.number, rank) if there else []
            self._saves[at] = [self._held(datum) for datum in found]
        return self._saves[at]

    def _held(self, datum: KeyDatum) -> KeyDatum:
        """Return key data whose arrays are read once, as far as there is room for them."""
        records = [_Held(*[*Record.__reduce__(one)[1], self._arrays]) for one in datum.records]
        return replace(datum, records=tuple(records))

    def phases(self, rank: int) -> list[str]:
        """Return the phases of which a rank recorded layer data."""
        return self.run.phases_at(self.number, rank)


def place_of(datum: KeyDatum, path: str = "") -> Place:
    """Return where key data are; those without a time stand where they usually do."""
    seq: float = usual_place(datum.key) * _PHASE_SPAN if datum.seq is None else datum.seq
    record = f"{datum.key}.{path}" if path else datum.key
    at = datum.key, datum.micro_step
    return Place(datum.step, datum.rank, datum.phase, None, record, *at, seq=seq)


def value_of(datum: KeyDatum) -> Any:
    """Return what was saved, or None where it cannot be read."""
    try:
        return datum.value
    except (ArrayFileError, ValueError, OSError, KeyError):
        return None


def numbers_in(datum: KeyDatum) -> np.ndarray | None:
    """Return what was saved as a float64 array of any shape; None if it holds other things."""
    try:
        return np.asarray(value_of(datum), np.float64)
    except (TypeError, ValueError):
        return None
