"""Two phases, or two keys, that hold the same rows in batches of unlike size.

They are two phases of one network, or one in two runs: one rank may accumulate gradients over four
micro-batches where two ranks, whose calls were put together before, need two.
The larger batches are cut to the smaller ones: of a tensor whose sizes in both phases differ along
one axis only, as the batch sizes do, the rows of a micro-batch are a piece of the whole. Which rows
those are is known by what the network was given: rows with the same bytes in every input are the
same row, in whatever order a trainer shuffled them. Of statistics there are no pieces. The larger
saves of a key are cut likewise, by the bytes of their rows, or by which are nearest.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.batch_rows import (
    FORWARD,
    Batches,
    Given,
    Row,
    Rows,
    unlike_axes,
)
from mindrlhf_msprobe.comparison.pairing.composed import (
    Assembly,
    Shard,
    composed,
    cut_out,
    gap_of,
    marked,
)
from mindrlhf_msprobe.comparison.pairing.names import NameRules, match_names
from mindrlhf_msprobe.comparison.pairing.planner import Alone, CutStep, StepData
from mindrlhf_msprobe.storage.arrays.expression import Tile
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import MEAN, Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

_STATISTICS = message("coverage.batch_statistics")
_UNEVEN = message("coverage.batch_uneven_calls")
_GRADIENTS = message("coverage.batch_gradients")
_AFTER_UPDATE = message("coverage.batch_after_update")
_UNKNOWN_ROWS = message("coverage.batch_unknown_rows")
_OPERATORS = message("coverage.batch_operators")

#: A record of a cell: the cell, which of its calls for one batch, io and path.
_Place = tuple[str, int, str, str]
_Axes = dict[_Place, "tuple[int, int] | Message | None"]


def cut(
    a: StepData, b: StepData, rules: NameRules, phases: tuple[str, str], *, regroup: bool = False
) -> CutStep | None:
    """Cut the larger batches of two phases to the smaller ones; None where they are of one size.

    Args:
        a, b: each holds one phase.
        rules: how cells of A are called in B.
        phases: what the phases are called, for the note.
        regroup: cut batches of one size, too, where they hold the same rows in other places.
    """
    operators = [[e for e in side.entries if is_operator(e.name)] for side in (a, b)]
    if any(operators):
        a, b = (
            replace(side, entries=[e for e in side.entries if not is_operator(e.name)])
            for side in (a, b)
        )
    names = match_names({e.cell for e in a.entries}, {e.cell for e in b.entries}, rules)
    sides = (
        Batches(a.entries, names.common_a, phases[0]),
        Batches(b.entries, names.common_b, phases[1]),
    )
    if not all(side.usable for side in sides) or sides[0].leading != sides[1].leading:
        return None
    kept = sides[0].first_updated(), sides[1].first_updated()
    given = Given.of([side.given() for side in sides], kept, regroup=regroup)
    if given is None or (given.of_one_size and not (regroup and given.regrouped)):
        return None
    return _cut(sides, given, (a, b), operators, phases)


def _cut(
    sides: tuple[Batches, Batches],
    given: Given,
    both: tuple[StepData, StepData],
    operators: list[list[Entry]],
    phases: tuple[str, str],
) -> CutStep:
    """Cut the larger batches of two sides; see `cut`."""
    a, b = both
    small = given.small
    if not given.stored:
        data, extra, updated = _by_statistics(sides, small, given)
        how = message("pairing.batch_statistics")
    else:
        rows = Rows.of(given, small, given.digests)
        data, extra, updated = _Cutter(sides, small, given, rows).result()
        how = rows.how()
    entries = {small: sides[small].entries, 1 - small: data}
    # The axis of rows moves in operators.
    kept = [
        [*entries[i], *(marked(operator, _OPERATORS) for operator in operators[i])]
        for i in range(2)
    ]
    both = replace(a, entries=kept[0]), replace(b, entries=kept[1])
    a_rows, b_rows = (list(dict.fromkeys(rows)) for rows in given.rows)
    what = {"a": phases[0], "b": phases[1], "a_rows": a_rows, "b_rows": b_rows}
    note = message("pairing.batch_sizes", **what, how=how, updated=updated)
    return CutStep(both, (note,), extra, {None: 1 - small} if given.stored else {}, _GRADIENTS)


def _axes(sides: tuple[Batches, Batches], given: Given) -> _Axes:
    """Return for each record that both sides have the axis of its rows, and how many places each
    row has along it; or why it cannot be cut, None where it holds no rows. A record that is not
    named has another shape.
    """
    found: dict[_Place, tuple[list[tuple[Record, int]], ...]] = defaultdict(lambda: ([], []))
    for i, side in enumerate(sides):
        for number in range(given.kept[i]):
            for cell, call, entry in side.entries_of(number):
                for record in entry.records:
                    if record.io in ("input", "output") and record.leaf.is_tensor:
                        place = cell, call, record.io, record.path
                        found[place][i].append((record, given.rows[i][number]))
    axes: _Axes = {}
    for place, (a, b) in found.items():
        unlike = unlike_axes([record for record, _ in (*a, *b)])
        if not a or not b or unlike is None:
            continue
        if not unlike:
            rows = _each([*a, *b], 0) if given.of_one_size else None
            prints = {record.leaf.fingerprint for record, _ in (*a, *b)}
            changes = len(prints) > 1 or None in prints  # else it holds no rows of its batch
            axes[place] = (0, rows) if rows and changes else None
            continue
        each = [_each([*a, *b], axis) for axis in unlike]
        if len(unlike) == 1 and each[0]:
            axes[place] = unlike[0], each[0]
        elif len(unlike) == 1 or all(each):  # rows against rows
            axes[place] = message("coverage.batch_other_sizes")
    return axes


def _each(records: Sequence[tuple[Record, int]], axis: int) -> int:
    """Return how many places along an axis each row has, 0 where that is not the same for all."""
    shapes = [(record.leaf.shape or (0,), rows) for record, rows in records]
    sizes = [(shape[axis], rows) for shape, rows in shapes]
    each = {size / rows for size, rows in sizes if rows}
    known = each.pop() if len(each) == 1 and all(rows for _, rows in sizes) else 0
    return int(known) if known == int(known) else 0


_Result = tuple[list[Entry], dict[Alone, Message], bool]


def _by_statistics(sides: tuple[Batches, Batches], small: int, given: Given) -> _Result:
    """Return the entries of the larger side with what cannot be compared marked so."""
    axes, large = _axes(sides, given), sides[1 - small]
    places = {
        entry.name: (cell, call)
        for number in range(large.count)
        for cell, call, entry in large.entries_of(number)
    }
    uneven = _uneven(large, sides[small])

    def as_known(entry: Entry, record: Record) -> Record:
        if entry.direction != FORWARD:
            return composed(record, gap=_GRADIENTS)
        if record.io == "parameters":
            return record
        if entry.name in uneven and record.leaf.why is None:
            return composed(record, gap=_UNEVEN)
        place = (*places.get(entry.name, ("", 0)), record.io, record.path)
        return _not_cut(record, place, axes) or composed(record, gap=_STATISTICS)

    entries = [
        replace(entry, records=tuple(as_known(entry, record) for record in entry.records))
        for entry in large.entries
    ]
    extra: dict[Alone, Message] = {
        (i, entry.name, None): _AFTER_UPDATE if number >= given.kept[i] else _STATISTICS
        for i, side in enumerate(sides)
        for number in range(1, side.count)
        for _, _, entry in side.entries_of(number)
    }
    return entries, extra, False


def _uneven(side: Batches, other: Batches) -> set[str]:
    """Return the entries of cells that both sides have, and do not run equally often in a batch."""
    return {
        entry.name
        for cell, calls in side.cells.items()
        if cell in other.cells and not side.is_even(cell, other)
        for entry in calls
    }


def _not_cut(record: Record, place: _Place, axes: _Axes) -> Record | None:
    """Return a record as it counts beside one of other rows; None where rows are to be cut of it.

    A number may be made of batches of unlike size, as may a tensor without rows.
    """
    leaf = record.leaf
    if leaf.why is not None or (leaf.is_tensor and place not in axes):
        return record
    axis = axes[place] if leaf.is_tensor else None
    if isinstance(axis, Message):
        return composed(record, gap=axis)
    if axis is not None:
        return None
    number = leaf.is_tensor or leaf.type in ("int", "float")
    return composed(record, gap_if_unlike=message("coverage.batch_no_rows")) if number else record


def _called(record: Record, name: str, entry: Entry) -> Record:
    """Return a record of an entry under another name of that."""
    return replace(record, name=name + record.name[len(entry.name) :])


def _later(entry: Entry, by: int = 0, *, times: int = 1) -> Entry:
    """Return an entry with its times multiplied, and then moved."""
    end = None if entry.end is None else by + entry.end * times
    return replace(entry, seq=by + entry.seq * times, end=end)


class _Cutter:
    """Makes entries of the larger batches as if these had been run in the smaller ones."""

    def __init__(
        self, sides: tuple[Batches, Batches], small: int, given: Given, rows: Rows
    ) -> None:
        self._small, self._large = sides[small], sides[1 - small]
        self._number, self._given, self._rows = small, given, rows
        self._axes = _axes(sides, given)
        self._uneven = _uneven(self._large, self._small)
        self._with_parameters: set[str] = set()  # entries of which a piece has the parameters
        self._given_parameters: set[tuple[str, int]] = set()
        self._cells = [cell for cell in self._large.cells if self._large.is_even(cell, self._small)]

    def result(self) -> _Result:
        """Return the entries, which stand alone and why, and whether an update came between."""
        extra: dict[Alone, Message] = {}
        made: list[Entry] = []
        kept = self._given.kept[self._number]
        spans = []
        for number in range(self._large.count):
            entries = [entry for *_, entry in self._large.entries_of(number)]
            begin = min(entry.seq for entry in entries)
            spans.append((begin, max(entry.time for entry in entries)))
        width = max(last - first for first, last in spans) + 1
        for number in range(self._small.count):
            rows = self._rows.of_batch[number]
            if rows is None:
                why = _AFTER_UPDATE if number >= kept else _UNKNOWN_ROWS
                own = self._small.entries_of(number)
                extra |= {(self._number, entry.name, None): why for _, _, entry in own}
            else:
                shift = number * width - spans[rows[0][0]][0]
                made += self._pieces(number, rows, shift)
        cut = {entry.name for c in self._cells for entry in self._large.cells[c]}
        updated = range(self._given.kept[1 - self._number], self._large.count)
        later = {entry.name for n in updated for *_, entry in self._large.entries_of(n)}
        shift = self._small.count * width
        for entry in self._large.entries:
            if entry.name in cut and entry.name in self._with_parameters:
                continue
            rest = self._rest(entry, entry.name in cut, shift)
            if entry.name in cut:
                why = _AFTER_UPDATE if entry.name in later else _UNKNOWN_ROWS
                extra[1 - self._number, rest.name, None] = why
            made.append(rest)
        return made, extra, kept < self._small.count

    def _pieces(self, number: int, rows: tuple[Row, ...], shift: int) -> Iterator[Entry]:
        runs = [
            (batch, tuple(row for _, row in run))
            for batch, run in itertools.groupby(rows, key=lambda row: row[0])
        ]
        calls = [
            (cell, call, own, other)
            for cell in self._cells
            for call, (own, other) in enumerate(
                zip(self._large.batch(cell, rows[0][0]), self._small.batch(cell, number))
            )
        ]
        names = {own.name: f"{own.call_name}.{other.call}" for _, _, own, other in calls}
        for cell, call, own, other in calls:
            held: list[Record] = []  # parameters, with the first piece of each call
            if (cell, call) not in self._given_parameters:
                self._given_parameters.add((cell, call))
                first = self._large.batch(cell, 0)[call]
                self._with_parameters.add(first.name)
                named = names[own.name]
                held += (_called(r, named, first) for r in first.records if r.io == "parameters")
            sources = [(self._large.batch(cell, batch)[call], kept) for batch, kept in runs]
            made = []
            for record in own.records:
                if record.io != "parameters":
                    piece = _called(record, names[own.name], own)
                    place = cell, call, record.io, record.path
                    kept_whole = _not_cut(piece, place, self._axes)
                    made.append(kept_whole or self._cut(piece, sources, place))
            yield replace(
                _later(own, shift),
                name=names[own.name],
                parent=names.get(own.parent or ""),
                opening=other.opening,
                records=(*made, *held),
            )
            self._with_parameters.update(source.name for source, _ in sources)

    def _cut(
        self, named: Record, sources: Sequence[tuple[Entry, tuple[int, ...]]], place: _Place
    ) -> Record:
        each_source = [
            (next((r for r in entry.records if (r.io, r.path) == place[2:]), None), rows)
            for entry, rows in sources
        ]
        found = [(other, rows) for other, rows in each_source if other is not None]
        for other, _ in found:
            if other.leaf.why is not None:  # a part that was lost is more than one not recorded
                return replace(other, name=named.name)
        axis = self._axes[place]
        if len(found) < len(sources) or any(other.location is None for other, _ in found):
            return composed(named, gap=_STATISTICS)
        assert isinstance(axis, tuple)
        return cut_out(named, found, *axis)

    def _rest(self, entry: Entry, rename: bool, shift: int) -> Entry:
        """Return an entry that is no piece: behind all pieces, and called like none of them."""
        why = _GRADIENTS if entry.direction != FORWARD else None
        if entry.name in self._uneven:
            why = _UNEVEN
        records = marked(entry, why).records if why else entry.records
        name = entry.name
        if rename:
            most = max((e.call for calls in self._small.cells.values() for e in calls), default=0)
            name = f"{entry.call_name}.{most + 1 + entry.call}"
            records = tuple(_called(record, name, entry) for record in records)
        return replace(_later(entry, shift), name=name, records=records)


#: Of each run, whether the gradients of a batch are the MEAN or the SUM of those of its
#: micro-batches; None: not said.
Reductions = tuple[str | None, str | None]


def regrouped(
    a: StepData, b: StepData, rules: NameRules, reductions: Reductions = (None, None)
) -> CutStep | None:
    """Cut the larger batches of each phase to the smaller ones; None where all are of one size.

    Args:
        rules: how cells of A are called in B.
        reductions: where they are said, gradients of parameters are those of the whole batch.
    """
    phases = [dict.fromkeys(entry.phase for entry in side.entries) for side in (a, b)]
    of_phase: dict[str, CutStep] = {}
    for phase in (phase for phase in phases[0] if phase in phases[1]):
        one, other = (
            replace(side, entries=[e for e in side.entries if e.phase == phase]) for side in (a, b)
        )
        found = _cut_of_phase(one, other, phase, rules, reductions)
        if found is not None:
            backward = (any(e.direction != "forward" for e in s.entries) for s in found.data)
            of_phase[phase] = found if all(backward) else replace(found, gradients=None)
    if not of_phase:
        return None
    # The saves of each key whose rows are in other micro-batches, or of other ones. What cannot be
    # cut and was saved another number of times is not compared.
    a, b = _merged(a, of_phase, 0), _merged(b, of_phase, 1)
    counts = [Counter(datum.key for datum in side.key_data) for side in (a, b)]
    unlike = {key for key, n in counts[0].items() if counts[1][key] not in (0, n)}
    saved = {key for key, n in counts[0].items() if key in unlike or n == counts[1][key] > 1}
    of_keys = cut_keys(a, b, {key: key for key in sorted(saved)}, regroup=True) or CutStep((a, b))
    left, gap = unlike - {*of_keys.cut}, message("coverage.of_micro_batch")
    one, other = (
        replace(side, key_data=[marked(d, gap) if d.key in left else d for d in side.key_data])
        for side in of_keys.data
    )
    notes = [note for step in (*of_phase.values(), of_keys) for note in step.notes]
    return CutStep((one, other), tuple(notes), of_keys.extra, of_phase=of_phase)


def _cut_of_phase(
    a: StepData, b: StepData, phase: str, rules: NameRules, reductions: Reductions
) -> CutStep | None:
    """Cut the batches of one phase, with gradients of the whole batch where these are known."""
    whole = [_whole_gradients(side, how) for side, how in zip((a, b), reductions)]
    known = None not in whole
    if known:
        a, b = (
            replace(side, entries=[e for e in side.entries if e.direction != PARAMETERS_GRAD])
            for side in (a, b)
        )
    found = cut(a, b, rules, (phase, phase), regroup=True)
    if found is None or not known:
        return found
    data = []
    for side, gradients in zip(found.data, whole):  # they follow all that was cut
        after = max((entry.time for entry in side.entries), default=0) + 1
        moved = [replace(e, seq=after + n, end=after + n) for n, e in enumerate(gradients or ())]
        data.append(replace(side, entries=[*side.entries, *moved]))
    return replace(found, data=(data[0], data[1]))


def _whole_gradients(side: StepData, how: str | None) -> list[Entry] | None:
    """Return the gradients of parameters of all micro-batches of a phase together.

    None where they are not known: nothing says how, weights were updated in between, or
    micro-batches of unlike size were to be averaged.
    """
    calls: dict[str, list[Entry]] = defaultdict(list)
    given: dict[str, set[object]] = defaultdict(set)  # the shapes of what each cell was given
    for entry in side.entries:
        if entry.direction == PARAMETERS_GRAD:
            calls[entry.call_name].append(entry)
        elif entry.direction == "forward" and not is_operator(entry.name):
            if entry.call_name in given and any(r.io == "parameters" for r in entry.records):
                return None  # they are recorded anew after an update
            shapes = tuple(record.leaf.shape for record in entry.records if record.io == "input")
            given[entry.call_name].add(shapes)
    if not calls:
        return None
    if all(len(entries) == 1 for entries in calls.values()):
        return [entry for entries in calls.values() for entry in entries]
    if how is None or (how == MEAN and any(len(shapes) > 1 for shapes in given.values())):
        return None
    found = []
    for first, *others in calls.values():
        records = []
        for record in first.records:
            place, each = (record.io, record.path), [first, *others]
            terms = [r for entry in each for r in entry.records if (r.io, r.path) == place]
            records.append(_sum_of(record, terms, how) if len(terms) == len(each) else record)
        found.append(replace(first, records=tuple(records)))
    return found


def _sum_of(record: Record, terms: Sequence[Record], how: str) -> Record:
    """Return the gradient of the batch; the parts have no ranks to be named."""
    leaf = record.leaf
    unlike = leaf.shape is None or any(r.leaf.shape != leaf.shape for r in terms)
    if unlike or any(r.leaf.why is not None or gap_of((r,)) for r in terms):
        return composed(record, gap=_GRADIENTS)
    if len(terms) == 1:
        return record
    if any(r.location is None for r in terms):
        return composed(record, gap=message("layout.partial_statistics"))
    shape = leaf.shape or ()
    zeros = (0,) * len(shape)
    of = Leaf(leaf.type, leaf.dtype, shape, data_name=leaf.data_name)
    divided_by = len(terms) if how == MEAN else 1
    tiles = [Tile(zeros, shape, 0, zeros)]
    parts = [(tuple(map(Shard, range(len(terms)), terms)),)]
    made = Assembly(parts, tiles, leaves=[of], divided_by=divided_by)
    return composed(record, leaf=of, sketches=None, expression=made)


def _merged(side: StepData, of_phase: Mapping[str, CutStep], number: int) -> StepData:
    """Return one side with the entries of the phases that were cut.

    Their clock begins anew: they stand where their phase began, between two ticks of the others.
    """
    made = {phase: step.data[number].entries for phase, step in of_phase.items()}
    own = {phase: [e for e in side.entries if e.phase == phase] for phase in made}
    moved = {phase for phase, entries in made.items() if [*entries] != own[phase]}
    latest = [entry.time for p in moved for entry in made[p]]
    factor = max(latest, default=0) + 2

    entries = [_later(entry, times=factor) for entry in side.entries if entry.phase not in moved]
    for phase in moved:
        begin = min(entry.seq for entry in own[phase]) * factor
        entries += [_later(entry, begin) for entry in made[phase]]
    key_data = [replace(d, seq=None if d.seq is None else d.seq * factor) for d in side.key_data]
    entries.sort(key=lambda entry: entry.seq)
    return replace(side, entries=entries, key_data=key_data)


_MOST_DISTANCES = 1 << 28  # elements that are compared to find the nearest rows
_UNKNOWN_SAVE = message("coverage.key_unknown_rows")


def cut_keys(
    a: StepData, b: StepData, keys: Mapping[str, str], *, regroup: bool = False
) -> CutStep | None:
    """Cut the larger saves of two keys to the smaller ones; None where there are none such.

    Args:
        keys: the comparison's name of a key, A's own → B's, another one.
        regroup: cut saves of one size, too, where their rows stand in other places.
    """
    sides = [list(a.key_data), list(b.key_data)]
    notes: list[Message] = []
    extra: dict[Alone, Message] = {}
    cut: dict[str | None, int] = {}
    for key, own in keys.items():
        saves = [sorted((d for d in s if d.key == key), key=lambda d: d.micro_step) for s in sides]
        tensors = all(
            len(datum.records) == 1
            and (of := datum.records[0]).location is not None
            and of.leaf.shape
            and of.leaf.type != "str"
            and of.leaf.why is None
            for datum in itertools.chain(*saves)
        )
        found = _cut_saves(saves, regroup=regroup) if all(saves) and tensors else None
        if found is None:
            continue
        large, pieces, unknown, how = found
        cut[key] = large
        sides[large] = [d for d in sides[large] if d.key != key] + pieces
        extra |= {(1 - large, key, micro_step): _UNKNOWN_SAVE for micro_step in unknown}
        notes.append(message("pairing.key_rows", a=key, b=own, how=how))
    if not notes:
        return None
    both = replace(a, key_data=sides[0]), replace(b, key_data=sides[1])
    return CutStep(both, tuple(notes), extra, cut)


def _cut_saves(
    saves: Sequence[Sequence[KeyDatum]], *, regroup: bool = False
) -> tuple[int, list[KeyDatum], list[int], Message] | None:
    """Return which side is the larger one, its pieces, the saves without one, and how."""
    records = [[datum.records[0] for datum in side] for side in saves]
    axes = unlike_axes([*records[0], *records[1]])
    inputs = [[{"": record} for record in side] for side in records]
    given = Given.of(inputs, (len(records[0]), len(records[1])), regroup=regroup)
    if axes is None or len(axes) > 1 or given is None or (given.of_one_size and not regroup):
        return None  # nothing tells along which axis rows lie
    ((_, axis),) = given.paths
    large = int(max(given.rows[1]) > max(given.rows[0]))
    small, by = 1 - large, "bytes"  # what the rows have in common
    try:
        for record in (*records[0], *records[1]):
            record.array()
    except (ArrayFileError, OSError):
        return None  # said of the record itself
    found = Rows.of(given, small, given.digests, same_given=False)
    if not found.matched and (near := _nearest(records[small], records[large], axis)):
        starts = [0, *itertools.accumulate(given.rows[large])]

        def names(side: int, number: int) -> list[bytes]:
            own = range(starts[number], starts[number + 1]) if side == large else near[number]
            return [f"row {row}".encode() for row in own]

        found, by = Rows.of(given, small, names, same_given=False), "nearest"
    if regroup and given.rows[0] == given.rows[1] and not found.moved:
        return None
    pieces, unknown = [], []
    for datum, own in zip(saves[small], found.of_batch):
        if own is None:
            unknown.append(datum.micro_step)
            continue
        sources = [(records[large][number], (row,)) for number, row in own]
        piece = cut_out(sources[0][0], sources, axis)
        first = saves[large][own[0][0]]
        pieces.append(replace(first, micro_step=datum.micro_step, records=(piece,)))
    return large, pieces, unknown, found.how(by)


def _nearest(small: Sequence[Record], large: Sequence[Record], axis: int) -> list[list[int]] | None:
    """Return the number of the row that each smaller save's row is nearest to; None: not certain.

    It is certain where every other row is ten times as far away, and no two rows of a save are
    nearest to the same one.
    """
    try:
        tables = [np.moveaxis(record.array(), axis, 0) for record in (*small, *large)]
        tables = [table.reshape(len(table), -1) for table in tables]
        saves, whole = tables[: len(small)], np.concatenate(tables[len(small) :])
    except (ArrayFileError, OSError, ValueError):
        return None
    if len(whole) < 2 or whole.dtype.kind != "f" or len(whole) * whole.size > _MOST_DISTANCES:
        return None
    found = []
    for rows in saves:
        nearest: list[int] = []
        for row in rows:
            with np.errstate(all="ignore"):
                distances = np.abs(whole - row).astype(np.float64).sum(axis=1)
            first, second = np.argsort(distances)[:2]
            if not 10 * distances[first] <= distances[second]:  # nor where one is NaN
                return None
            nearest.append(int(first))
        if len({*nearest}) < len(nearest):
            return None
        found.append(nearest)
    return found
