"""Steps and journals as rules see them: journals of all ranks, key data; read when they are needed.

What is held at once is one journal, and the key data of one step as far as rules ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.phases import (
    OR_EARLIER,
    UPDATE_PHASES,
    key_data_home,
    phase_order,
    usual_place,
)
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.step_data import Settings, StepData
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.columns.rows import Records
from mindrlhf_msprobe.storage.place import LayerPlace, Place, StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record

_MOST_BYTES = 1 << 28  # of one step's key data that are held
_PHASE_SPAN = 1 << 40  # as `storage.foreign` spaces phases that carry no time


def steps(run: Run) -> Iterator[Step]:
    """Yield the steps of a run in order. What cannot be read is in `run.problems` afterwards."""
    places: dict[int, list[int]] = {}
    for at_step, rank in sorted(run.places):
        places.setdefault(at_step, []).append(rank)
    last = max(places, default=None)
    settings = cache(partial(Settings.read, run))
    for number, ranks in places.items():
        yield Step(run, number, ranks, last=number == last, settings=settings)


@dataclass(frozen=True, slots=True)
class _HeldRecord(Record):
    """An element of key data whose array is held while its step is looked at."""

    held: dict[str, np.ndarray] = field(default_factory=dict)  # by where it is read from

    def array(self) -> np.ndarray:
        """Return the record's elements; see `Record.array`."""
        found = self.held.get(self.location or "")
        if found is None:
            found = Record.array(self)
            room = _MOST_BYTES - sum(array.nbytes for array in self.held.values())
            if self.location is not None and found.nbytes <= room:
                self.held[self.location] = found
        return found


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
        spans: (rank, phase) → when its entries began and ended, of these journals.
    """

    def __init__(
        self,
        run: Run,
        number: int,
        ranks: Sequence[int],
        *,
        last: bool = False,
        settings: Callable[[], Settings] | None = None,
    ) -> None:
        self.run, self.number, self.ranks, self.last = run, number, tuple(ranks), last
        self.parameters: dict[tuple[int, str], Records] = {}
        self.gradients: dict[tuple[int, str], Records] = {}
        self.spans: dict[tuple[int, str], tuple[int, int]] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._saves: dict[tuple[str, int], list[KeyDatum]] = {}
        self._settings = settings or partial(Settings.read, run)
        self._sequences: dict[int, Sequences] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank ended the step."""
        return all(self.run.completed(self.number, rank) for rank in self.ranks)

    def journals(self, layouts: Layouts | None = None) -> Iterator[Columns]:
        """Yield its journals, each read when it is needed, and not held.

        Of each rank in turn the phases as a step usually runs them.

        Args:
            layouts: those of the steps before, so that what is the same is computed once.
        """
        known = Layouts() if layouts is None else layouts
        for rank in self.ranks:
            phases = self.run.phases_at(StepPlace(self.number, rank))
            for phase in sorted(phases, key=lambda name: (phase_order(name), name)):
                at = LayerPlace(phase, self.number, rank)
                journal = columns_of(self.run, at, known)
                yield journal
                if span := journal.span:
                    self.spans[rank, phase] = span
                if parameters := journal.records("parameters"):
                    self.parameters[rank, phase] = parameters
                if gradients := journal.records(PARAMETERS_GRAD):
                    self.gradients[rank, phase] = gradients

    def keys(self, rank: int | None = None) -> list[str]:
        """Return the names of the key data of the step, or of one rank of it."""
        of = self.ranks if rank is None else (rank,)
        return sorted({key for one in of for key in self.run.keys_at(StepPlace(self.number, one))})

    def key_data(self, *names: str, rank: int | None = None) -> list[KeyDatum]:
        """Return what was saved under the first of these names that there is, by rank.

        It is read when it is first needed, and kept until the step ends.
        """
        of = self.ranks if rank is None else (rank,)
        for name in names:
            found = [datum for one in of for datum in self._saved(name, one)]
            if found:
                return found
        return []

    def _saved(self, name: str, rank: int) -> list[KeyDatum]:
        at = name, rank
        if at not in self._saves:
            there = name in self.run.keys_at(StepPlace(self.number, rank))
            held = []
            for datum in self.run.key_data(name, self.number, rank) if there else ():
                # Arrays are read once, as far as there is room for them.
                fields = ([*Record.__reduce__(one)[1], self._arrays] for one in datum.records)
                held.append(replace(datum, records=tuple(_HeldRecord(*of) for of in fields)))
            self._saves[at] = held
        return self._saves[at]

    def placed(self, datum: KeyDatum) -> KeyDatum:
        """Return key data where they arose, however late they were saved.

        The result of a phase stands behind it, or before the phase that usually follows; what the
        trainer computes between the phases before the first update. Of several saves under one key
        it is not known which is of which opening: they stay where they were saved.
        """
        home, rank = key_data_home(datum.key), datum.rank
        if home is None or home.after_updates or datum.seq is None:
            return datum
        if len(self.key_data(datum.key, rank=rank)) > 1:
            return datum
        own = self.spans.get((rank, home.phase or ""))
        if own is not None:
            at = own[0] - 0.5 if home.before_phase else own[1] + 0.5
        else:
            place = usual_place(datum.key)
            later = [
                begin
                for (of, phase), (begin, _) in self.spans.items()
                if of == rank and phase_order(phase) > place
            ]
            at = min(later, default=datum.seq + 1) - 0.5
        if at >= datum.seq:
            return datum
        # Between two entries there is no whole number.
        return replace(datum, seq=at, phase=home.phase)  # type: ignore[arg-type]

    def sequences(self, rank: int) -> Sequences:
        """Return which tokens of a rank's prompts and responses are real, trained or padding."""
        if rank not in self._sequences:
            data = StepData(self.keys(rank), partial(self._saved, rank=rank), self._settings())
            self._sequences[rank] = Sequences(data)
        return self._sequences[rank]

    def mask_of(self, datum: KeyDatum, array: np.ndarray) -> np.ndarray | None:
        """Return which elements of a save by token count, bool in its shape; None: not known.

        Behind the ends of responses nothing counts, nor what the mask of the loss leaves out.
        """
        saves = self.key_data(datum.key, rank=datum.rank)
        counted = self.sequences(datum.rank).counted(datum, array, saves)
        return None if counted is None else counted.mask

    def counted_in(self, datum: KeyDatum) -> np.ndarray | None:
        """Return the numbers of a save that count, float64; None if it holds other things."""
        array = numbers_in(datum)
        mask = None if array is None or array.ndim < 2 else self.mask_of(datum, array)
        return array if array is None or mask is None else array[mask]


def place_of(datum: KeyDatum, path: str = "") -> Place:
    """Return where key data are; those without a time stand where they usually do.

    They are of the phase whose result they are, whichever was the last to begin when they were
    saved; of an unknown key nothing else tells.
    """
    seq: float = usual_place(datum.key) * _PHASE_SPAN if datum.seq is None else datum.seq
    record = f"{datum.key}.{path}" if path else datum.key
    home, at = key_data_home(datum.key), (datum.key, datum.micro_step)
    phase = datum.phase if home is None else home.phase
    if datum.key in OR_EARLIER and datum.phase not in (None, *UPDATE_PHASES):
        phase = None  # made before an update
    return Place(datum.step, datum.rank, phase, None, record, *at, seq=seq)


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
