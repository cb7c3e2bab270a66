"""One phase as a mismatch needs it: its tokens, and the values of its cells by call.

Of a value few bytes are kept a call: there may be a million of them.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from types import MappingProxyType

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.names import Name, around
from mindrlhf_msprobe.phases import PHASE_TOKENS
from mindrlhf_msprobe.phases import PHASES as KNOWN
from mindrlhf_msprobe.sequences.batch import Sample, Sequences
from mindrlhf_msprobe.sequences.calls import NoTokens, PhaseTokens, read_tokens
from mindrlhf_msprobe.sequences.inputs import Starts, given_by_trainer, prints_of_ids
from mindrlhf_msprobe.sequences.layouts import Keys, Layout, Shape, only_layout
from mindrlhf_msprobe.sequences.routers import are_integers, is_topk
from mindrlhf_msprobe.sequences.saved import (
    NO_PADDING,
    are_tokens,
    may_be_padded,
    pad_of_prompts,
    saved_samples,
)
from mindrlhf_msprobe.sequences.step_data import StepData
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, roundoff
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record, cell_of_parameter, end_of, network_name

_NO_SKETCH = -1
_NUMBER = "\0"  # in where elements lie: the number of the call, which no other file name has
_EXTREMES = 128  # that are kept

#: What records of unlike calls have in common: all but their places, and what is computed of them.
Kinds = dict[tuple[object, ...], Record]


class Value:
    """One value over the calls of a phase: of a cell, the n-th time it runs in a call.

    Args and attributes:
        time: when it was known first, on its process's clock.
        entry: the name of the first entry that has it.
        calls: of the network, int64, rising.
    """

    def __init__(self, time: int, entry: str) -> None:
        self.time, self.entry = time, entry
        self.calls = array("q")
        self._kinds: list[Record] = []
        self._numbers = array("q")  # of the entries, which stand in the names of files
        self._norms, self._prints, self._offsets = array("d"), array("q"), array("q")
        #: The largest and smallest elements of its tensors, of the first of them.
        self.extremes = array("d")
        self._without_print = False

    def add(self, call: int, number: int, record: Record, kinds: Kinds) -> None:
        """Add what was recorded in a call; calls come in their order.

        Args:
            number: of the entry among those of its cell.
            kinds: of all values; equal ones are kept once.
        """
        if self.calls and self.calls[-1] >= call:
            return
        leaf, sketch = record.leaf, record.leaf.sketch
        shown = f".{number}.{record.io}.{record.path}"
        before, named, behind = (record.location or "").rpartition(shown)
        location = f"{before}.{_NUMBER}{shown.removeprefix(f'.{number}')}{behind}"
        where = location if named else record.location
        what = leaf.type, leaf.dtype, leaf.shape, str(leaf.why)
        of_sketch = None if sketch is None else (sketch.algorithm, sketch.block, str(sketch.why))
        key = record.io, record.path, where, record.sketches, *what, of_sketch
        if key not in kinds:
            own = Leaf(leaf.type, leaf.dtype, leaf.shape or (), why=leaf.why, sketch=sketch)
            kinds[key] = replace(record, leaf=own, location=where, argument="")
        self._kinds.append(kinds[key])
        self.calls.append(call)
        self._numbers.append(number)
        norm = leaf.norm
        self._norms.append(float(norm) if isinstance(norm, (int, float)) else math.nan)
        if len(self.extremes) < _EXTREMES:
            self.extremes.extend(x for x in (leaf.max, leaf.min) if isinstance(x, float))
        self._prints.append(hash(leaf.fingerprint))
        self._without_print |= leaf.fingerprint is None
        self._offsets.append(_NO_SKETCH if sketch is None else sketch.offset)

    def dtype(self, call: int) -> str:
        """Return the dtype in a call."""
        return str(self._kinds[self._at(call)].leaf.dtype)

    def shape(self, call: int) -> Shape:
        """Return the shape in a call."""
        return self._kinds[self._at(call)].leaf.shape or ()

    def leaves(self) -> list[Leaf]:
        """Return what its calls have in common, each once."""
        return [record.leaf for record in {id(record): record for record in self._kinds}.values()]

    def norm(self, call: int) -> float:
        """Return the L2 norm of a call's tensor; NaN where it is not known."""
        return self._norms[self._at(call)]

    @property
    def prints(self) -> set[int] | None:
        """What tells the tensors of its calls apart; None where some have no fingerprint."""
        return None if self._without_print else {*self._prints}

    @property
    def prints_in_order(self) -> bytes | None:
        """What tells all its calls' tensors from those of another value; None without prints."""
        return None if self._without_print else self.calls.tobytes() + self._prints.tobytes()

    @cached_property
    def has_elements(self) -> bool:
        """Whether elements were stored in all calls."""
        return all(record.location is not None for record in self._kinds)

    def record(self, call: int) -> Record:
        """Return the record of a call, as far as it is needed to read its elements or sketch."""
        at = self._at(call)
        kind, number = self._kinds[at], str(self._numbers[at])
        leaf = kind.leaf
        if leaf.sketch is not None:
            leaf = replace(leaf, sketch=replace(leaf.sketch, offset=self._offsets[at]))
        location = None if kind.location is None else kind.location.replace(_NUMBER, number)
        name = f"{self.entry.rpartition('.')[0]}.{number}.{kind.io}.{kind.path}"
        return replace(kind, name=name, leaf=leaf, location=location)

    def layouts(
        self, tokens: PhaseTokens, *, heads: bool = False
    ) -> dict[tuple[Shape, int, int], Layout]:
        """Return how its axes stand, by shape, batch and width; without what nothing decides.

        Args:
            heads: [b, h, s, s] are heads of that size, no scores.
        """
        calls = zip((tokens.calls[call] for call in self.calls), self._kinds)
        seen = {(kind.leaf.shape or (), of.batch, of.width) for of, kind in calls}
        return only_layout(seen, heads=heads)

    def _at(self, call: int) -> int:
        at = bisect_left(self.calls, call)
        if at == len(self.calls) or self.calls[at] != call:
            raise KeyError(call)
        return at


_IOS = ("input", "output")


@dataclass
class Side:
    """One phase of one step and rank.

    Attributes:
        samples: prompts and responses that the step saved.
        own: with how many ids of padding their prompts begin; see `saved_samples`.
        is_open: whether it is not known what prompts that were saved as token ids are padded with.
        values: by name, in time.
        parameters: by their names in the network, as they were first recorded.
        changed: the parameters that were recorded again, and not with the same values.
        updates: call of the network → the parameters that had other values from it on.
        cells: cell → class, in the order of their first calls.
        choices: of operators that choose the largest values, by the cell in which they run: the
            places of these.
        aligned_by: the fingerprints of the ids and positions that its tokens were read from.
    """

    run: Run
    phase: str
    step: int
    rank: int
    tokens: PhaseTokens
    samples: tuple[Sample, ...] = ()
    own: Mapping[bytes, int] = field(default_factory=dict)
    is_open: bool = False
    values: dict[Name, Value] = field(default_factory=dict)
    parameters: dict[str, Record] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    updates: dict[int, dict[str, Record]] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    choices: dict[Name, Value] = field(default_factory=dict)
    aligned_by: set[int] = field(default_factory=set)

    @property
    def window(self) -> tuple[int, float]:
        """The first and the last token that were to be recorded; see `coverage`."""
        of = next((known for known in KNOWN if known.name == self.phase), None)
        config = self.run.config()
        if of is None or not of.counts_tokens or config is None:
            return 0, math.inf
        return config.token_range_start, config.token_range_end

    @cached_property
    def inside(self) -> Counter[str]:
        """How many cells are inside each."""
        return Counter(outer for cell in self.cells for outer in around(cell))

    def lowest(self, cell: str) -> str:
        """Return the lowest floating dtype of a cell: its values, parameters and inner cells."""
        return self._lowest.get(cell, "float32")

    @cached_property
    def _lowest(self) -> dict[str, str]:
        values = ((name.cell, value.dtype(value.calls[0])) for name, value in self.values.items())
        own = ((cell_of_parameter(n), str(r.leaf.dtype)) for n, r in self.parameters.items())
        found: dict[str, str] = {}
        for cell, dtype in (*values, *own):
            for outer in (cell, *around(cell)) if roundoff(dtype) else ():
                found[outer] = max(found.get(outer, dtype), dtype, key=roundoff)
        return found

    @cached_property
    def keys(self) -> Keys:
        """Which token each column of a mask or of scores is; known once the tokens are."""
        return Keys(self.tokens)


def read_side(
    run: Run,
    phase: str,
    step: int,
    rank: int,
    pad: int | None = None,
    own: Mapping[bytes, int] = MappingProxyType({}),
) -> Side:
    """Read one phase.

    Args:
        pad: what is taken for the token id of padding where the run does not say it.
        own: with how many ids of padding prompts begin, by the tokens of the sample without them.

    Raises:
        NoTokens: nothing says which tokens went through it.
    """
    found = Side(run, phase, step, rank, PhaseTokens((), ()), own=own)
    outermost: list[Entry] = []
    number = -1
    seen: dict[str, int] = {}
    kinds: Kinds = {}
    try:
        given = given_by_trainer(run.key_data(PHASE_TOKENS, step, rank), phase)
    except (ArrayFileError, ValueError, TypeError, KeyError) as error:
        raise NoTokens.saying("tokens.not_stored", record=PHASE_TOKENS, why=error) from None
    starts = Starts(given)
    for entry in run.each_entry(phase, step, rank):
        if is_operator(entry.name):  # its calls have other numbers, and cells tell enough
            if is_topk(entry.cell) and entry.around and number >= 0:
                _take_choices(found, entry, number, seen.get(entry.around, 0), kinds)
            continue
        if entry.direction != "forward":
            continue
        if entry.parent is None:
            outermost.append(entry)
            if (what := starts.at(entry)) is not None:
                number, seen = number + 1, {}
                found.aligned_by |= prints_of_ids(entry, what)
        nth = seen[entry.cell] = seen.get(entry.cell, -1) + 1
        found.cells.setdefault(entry.cell, entry.class_name)
        _take(found, entry, number, nth, kinds)
    data = StepData.at(run, step, rank)
    known = Sequences(data).pad
    pad = known if known is not None else pad

    def saved(key: str) -> Sequence[KeyDatum]:
        return run.key_data(key, step, rank)

    guess = pad_of_prompts(saved) if pad is None else None
    pad = guess if pad is None else pad
    found.samples = saved_samples(saved, pad, own)
    found.is_open = pad is None and may_be_padded(saved)
    found.tokens = read_tokens(outermost, given, pad, found.samples)
    if guess is not None and are_tokens(guess, saved, found.tokens.sequences):
        found.samples = saved_samples(saved, NO_PADDING, own)
        found.tokens = read_tokens(outermost, given, None, found.samples)
    found.values = dict(sorted(found.values.items(), key=lambda item: item[1].time))
    return found


def read_parameters(run: Run, phase: str, step: int, rank: int) -> dict[str, Record]:
    """Return the parameters of a phase by their names in the network, as first recorded."""
    found: dict[str, Record] = {}
    for entry in run.each_entry(phase, step, rank):
        _parameters(found, entry)
    return found


def _take(side: Side, entry: Entry, number: int, nth: int, kinds: Kinds) -> None:
    again = _parameters(side.parameters, entry)
    for parameter, record in again.items():
        own, first = record.leaf.fingerprint, side.parameters[parameter].leaf.fingerprint
        if own is None or own != first:
            side.changed.add(parameter)
    if number < 0:
        return
    if again:
        side.updates.setdefault(number, {}).update(again)
    for record in entry.records:
        if record.io not in _IOS or not record.leaf.is_tensor:
            continue
        name = Name(entry.cell, nth, record.io, record.path)
        time = entry.seq if record.io == "input" else end_of(entry)
        value = side.values.get(name)
        if value is None:
            value = side.values[name] = Value(time, entry.name)
        value.add(number, entry.call, record, kinds)


def _take_choices(side: Side, entry: Entry, number: int, nth: int, kinds: Kinds) -> None:
    for record in entry.records:
        if record.io == "output" and are_integers(record.leaf.dtype):
            name = Name(entry.around or "root", nth, "output", f"{entry.cell}.{record.path}")
            value = side.choices.setdefault(name, Value(entry.seq, entry.name))
            value.add(number, entry.call, record, kinds)


def _parameters(found: dict[str, Record], entry: Entry) -> dict[str, Record]:
    """Put the parameters of an entry into `found`; return those that are there already, as new."""
    changed = {}
    for record in entry.records:
        if record.io == "parameters" and record.leaf.is_tensor:
            name = network_name(entry.cell, record.path)
            if found.setdefault(name, record) is not record:
                changed[name] = record
    return changed
