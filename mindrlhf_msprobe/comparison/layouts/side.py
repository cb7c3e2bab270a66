"""One side of a comparison whose ranks hold parts: presented as one rank that has the whole.

Which sample of a data-parallel batch is which row of the whole one, and when what several ranks did
happened in the whole, is found here, too: their clocks are not comparable.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.layouts.joining import (
    Held,
    Order,
    batch_axes,
    join_both,
    same_value,
)
from mindrlhf_msprobe.comparison.layouts.layout import CONTEXT, DATA, EXPERT, PIPELINE, Layout
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.sequences.beginnings import longest_common
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.run_file import Network
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Record

#: The rank under which a run of several is compared as a whole.
WHOLE = 0
_Entries = Mapping[tuple[str, str], Mapping[int, Entry]]
_Data = Mapping[tuple[str, int], Mapping[int, KeyDatum]]
_Name = tuple[Any, ...]
_MOST_ROWS = 4096
#: (phase, entry, io, path), or ("", key, micro-step, path).
_Records = Mapping[tuple[Any, ...], Held]
#: (phase, opening)
_Opened = tuple[str, int]
#: What events are ordered by, an entry or a save, and which of its times it is.
_Event = tuple[tuple[int, bool, int, int], tuple[str, Any], str]


@dataclass
class LaidOutView(View):
    """A run of several ranks, or of one, as a side whose records are whole.

    Attributes:
        layout: of the run.
    """

    layout: Layout = field(default_factory=Layout.of_one)

    def rank_steps(self) -> set[StepPlace]:
        """Return every (step, rank) of the comparison: one rank."""
        return {StepPlace(step, WHOLE) for step, _ in View.rank_steps(self)}

    def own(self, step: int, rank: int) -> StepPlace:
        """Return the run's own numbers of a step and of its lowest rank."""
        return StepPlace(self.steps.get(step, step), min(self.all_ranks, default=rank))

    @property
    def all_ranks(self) -> list[int]:
        """The ranks of the run that are put together."""
        return sorted(self.layout.places)

    def first_weights(self, phase: str, role: str, rank: int) -> Mapping[str, str]:
        """Return nothing: fingerprints of parts tell nothing of the whole."""
        whole = not self.layout.axes
        return View.first_weights(self, phase, role, self.all_ranks[0]) if whole else {}

    def network_of(self, phase: str, rank: int) -> Network | None:
        """Return the network that ran in a phase, as the lowest rank has it."""
        return View.network_of(self, phase, min(self.all_ranks, default=rank))

    def entries(self, phase: str, step: int, rank: int) -> list[Entry]:
        """Read the entries of one phase in one step, whole."""
        return [entry for entry in self.load(step, rank).entries if entry.phase == phase]

    def load(self, step: int, rank: int, *, layers: bool = True) -> StepData:
        """Read one step as it is cut where the layout says it; see `load_both`."""
        return _joined([_Side(self, step, layers=layers)])[0]

    @property
    def by_rank(self) -> View:
        """The same run, rank by rank under their own numbers."""
        return View(self.run, self.phases, self.steps, {}, False, self.key_data_only, self.keys)

    def unread(
        self, rank_steps: Iterable[tuple[int, int]], *, common: bool = False
    ) -> list[Message]:
        """Return what could not be read so far, of any rank."""
        every = [(step, rank) for step, _ in rank_steps for rank in self.all_ranks]
        return self.by_rank.unread(every, common=common)


def load_both(sides: Sequence[LaidOutView], step: int) -> tuple[StepData, StepData]:
    """Read one step of two runs, each as a whole; shapes of the one tell how the other is cut."""
    a, b = _joined([_Side(view, step, layers=True) for view in sides])
    return a, b


class _Side:
    """What the ranks of one run recorded in one step, by the names in the whole network."""

    def __init__(self, view: LaidOutView, step: int, *, layers: bool) -> None:
        self.view, self.layout = view, view.layout
        by_rank = view.by_rank
        self.of_ranks = {r: by_rank.load(step, r, layers=layers) for r in view.all_ranks}
        own_step = view.steps.get(step, step)
        places = view.run.places
        self.recorded = frozenset(r for r in view.all_ranks if (own_step, r) in places)
        entries: dict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
        data: dict[tuple[str, int], dict[int, KeyDatum]] = defaultdict(dict)
        for rank, of in self.of_ranks.items():
            for entry in of.entries:
                name = self.layout.shifted(entry.name, rank)
                entries[entry.phase, name].setdefault(rank, entry)
            for datum in of.key_data:
                data[datum.key, datum.micro_step][rank] = datum
        self.entries: _Entries = entries
        self.data: _Data = data
        self._calls: dict[tuple[str, str], list[str]] = defaultdict(list)
        for phase, name in entries:
            self._calls[phase, name.rpartition(".")[0]].append(name)
        self.divided = frozenset({DATA, CONTEXT, *([EXPERT] if self._experts_divide() else [])})
        self.batches = batch_axes(self.layout, self.divided)
        self.records = {**self._of_entries(), **self._of_data()}

    def _experts_divide(self) -> bool:
        """Return whether the places of experts were given unlike samples, as those of dp are."""
        if EXPERT not in self.layout.cut:
            return False
        begun: dict[str, tuple[int, Mapping[int, Entry]]] = {}
        for (phase, _), of_ranks in self.entries.items():
            first = of_ranks[min(of_ranks)]
            if first.direction == "forward" and first.seq < begun.get(phase, (math.inf,))[0]:
                begun[phase] = first.seq, of_ranks
        given = [
            {rank: [r for r in entry.records if r.io == "input"] for rank, entry in of.items()}
            for _, of in begun.values()
        ]
        given = given or [
            {rank: list(datum.records) for rank, datum in of.items()} for of in self.data.values()
        ]
        others = [axis for axis in self.layout.cut if axis != EXPERT]
        for held in given:  # whether they have unlike tensors where all else is the same
            groups: dict[tuple[Any, ...], list[Leaf]] = defaultdict(list)
            for rank, records in held.items():
                where = tuple(self.layout.place(rank, axis) for axis in others)
                for record in records:
                    if record.leaf.is_tensor:
                        groups[record.io, record.path, where].append(record.leaf)
            if not all(map(same_value, groups.values())):
                return True
        return False

    def place(self, rank: int) -> tuple[int, ...]:
        """Return which of the batches a rank was given."""
        return tuple(self.layout.place(rank, axis) for axis in self.batches)

    def calls(self, name: _Name) -> list[_Name]:
        """Return the names that a record has in all calls of its cell, or saves of its key."""
        if name[0] == "":
            return [("", key, *n, name[3]) for key, *n in self.data if key == name[1]]
        calls = self._calls.get((name[0], name[1].rpartition(".")[0]), [])
        return [(name[0], entry, *name[2:]) for entry in calls]

    def _of_entries(self) -> dict[_Name, Held]:
        found: dict[_Name, Held] = {}
        pipeline = PIPELINE in self.layout.cut
        for (phase, name), of_ranks in self.entries.items():
            by_path: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
            stages = {r: self.layout.place(r, PIPELINE) if pipeline else 0 for r in of_ranks}
            for rank, entry in of_ranks.items():
                forward = entry.direction == "forward"
                for record in entry.records:
                    # What the first stage was given and the last one returned is the network's.
                    if record.io in ("input", "output"):
                        pick = min if (record.io == "input") == forward else max
                        if stages[rank] != pick(stages.values()):
                            continue
                    by_path[record.io, record.path][rank] = record
            for (io, path), records in by_path.items():
                own = next(iter(records.items()))
                whole = name + own[1].name[len(of_ranks[own[0]].name) :]
                shifts = (of for of in self.layout.shifts if f".{of.after}." in f".{name}")
                opened = {PIPELINE, *(of.axis for of in shifts)}
                found[phase, name, io, path] = self._held(whole, records, opened)
        return found

    def _of_data(self) -> dict[_Name, Held]:
        found: dict[_Name, Held] = {}
        for (key, micro_step), of_ranks in self.data.items():
            by_path: dict[str, dict[int, Record]] = defaultdict(dict)
            for rank, datum in of_ranks.items():
                for record in datum.records:
                    by_path[record.path][rank] = record
            for path, records in by_path.items():
                name = next(iter(records.values())).name
                found["", key, micro_step, path] = self._held(name, records, {PIPELINE})
        return found

    def lists(self, other: _Side) -> None:
        """Put lists that have an item for each sample behind each other, as the other run has."""
        if not self.batches:
            return
        for (key, micro_step), of_ranks in self.data.items():
            sizes: dict[tuple[int, ...], int] = {}
            for rank, datum in of_ranks.items():
                if not all(record.path.isdecimal() for record in datum.records):
                    break
                sizes.setdefault(self.place(rank), len(datum.records))
            else:
                whole = other.data.get((key, micro_step), {})
                counts = {len(datum.records) for datum in whole.values()}
                if not other.batches and counts == {sum(sizes.values())} and len(sizes) > 1:
                    self._behind_each_other(key, micro_step, sizes, self.order(other, micro_step))

    def order(self, other: _Side, micro_step: int) -> Order:
        """Return how the rows of key data are brought together; see `order_of_rows`.

        Those without ids have the rows of the first phase that has some.
        """
        phases = dict.fromkeys(phase for phase, _ in self.entries)
        batches = [("", micro_step), *((phase, micro_step) for phase in phases)]
        orders = (order_of_rows(self.records, other.records, of) for of in batches)
        return next((order for order in orders if order is not None), ())

    def _behind_each_other(
        self, key: str, micro_step: int, sizes: Mapping[tuple[int, ...], int], order: Order
    ) -> None:
        for name in [n for n in self.records if n[:3] == ("", key, micro_step)]:
            del self.records[name]
        items: dict[int, dict[int, Record]] = defaultdict(dict)
        total = sum(sizes.values())
        where = {own: at for at, own in enumerate(order)} if len(order) == total else {}
        for rank, datum in self.data[key, micro_step].items():
            place = self.place(rank)
            before = sum(size for at, size in sizes.items() if at < place)
            for record in datum.records:
                number = before + int(record.path)
                items[where.get(number, number)][rank] = record
        for number, records in sorted(items.items()):
            moved = {r: replace(x, path=str(number)) for r, x in records.items()}
            held = self._held(f"{key}.{number}", moved, {*self.batches, PIPELINE})
            self.records["", key, micro_step, str(number)] = held

    def _held(self, name: str, records: Mapping[int, Record], opened: set[str]) -> Held:
        """Return what ranks hold of a value, which may be in some places alone of axes."""
        axes = frozenset(opened & {*self.layout.cut})
        return Held(name, records, self.layout, self.recorded, axes, self.divided)


def _joined(sides: Sequence[_Side]) -> list[StepData]:
    """Return one step of one or two runs, each as one rank would have recorded it."""
    for own, other in (sides, sides[::-1]) if len(sides) == 2 else ():
        own.lists(other)
    known: dict[tuple[str, int], Order] = {}
    found: list[dict[_Name, Record]] = [{}, {}]
    for name in dict.fromkeys(name for side in sides for name in side.records):
        held = [side.records.get(name) for side in sides]
        if len(sides) < 2:
            joined = join_both((held[0], None))
        else:
            calls, like = _calls(sides, name)
            orders = _orders(sides, name, known) if calls[0] == calls[1] else ((), ())
            joined = join_both((held[0], held[1]), orders, calls, like)
        for records, record in zip(found, joined):
            if record is not None:
                records[name] = record
    return [_whole(side, records) for side, records in zip(sides, found)]


def _calls(
    sides: Sequence[_Side], name: _Name
) -> tuple[tuple[int, int], tuple[Held | None, Held | None]]:
    """Return how often each run made a call, and its first where it did not make this one."""
    made = [side.calls(name) for side in sides]
    if len(made[0]) == len(made[1]) or not (made[0] and made[1]):
        return (1, 1), (None, None)
    first = [
        next((held for other in own if (held := side.records.get(other)) is not None), None)
        for side, own in zip(sides, made)
    ]
    return (len(made[0]), len(made[1])), (first[0], first[1])


def _orders(
    sides: Sequence[_Side], name: _Name, known: dict[tuple[str, int], Order]
) -> tuple[Order, Order]:
    """Return how the rows of a record's batch are brought together.

    Args:
        known: those of the batches that were looked at.
    """
    cut = [bool(side.batches) for side in sides]
    if cut[0] == cut[1]:
        return (), ()
    mine, other = sides[cut[1]], sides[cut[0]]
    of_phase, number = name[0] != "", name[2]
    if of_phase:  # the call of a phase; of key data the micro-step
        of_ranks = mine.entries.get((name[0], name[1]), {})
        number = next((entry.call for entry in of_ranks.values()), 0)
    batch = name[0], number
    if batch not in known:
        found = order_of_rows(mine.records, other.records, batch) if of_phase else None
        known[batch] = found or () if of_phase else mine.order(other, batch[1])
    return ((), known[batch]) if cut[1] else (known[batch], ())


def _whole(side: _Side, records: Mapping[_Name, Record]) -> StepData:
    first = side.of_ranks[side.view.all_ranks[0]]
    by_entry: dict[tuple[str, str], list[Record]] = defaultdict(list)
    by_save: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for name, record in records.items():
        if name[0] == "":
            by_save[name[1], name[2]].append(record)
        else:
            by_entry[name[0], name[1]].append(record)
    entries, seqs = in_time(side.entries, side.data, side.layout)
    return replace(
        first,
        entries=[
            replace(entry, records=tuple(by_entry.get((entry.phase, entry.name), ())))
            for entry in entries
        ],
        key_data=[
            replace(
                of_ranks[min(of_ranks)], records=tuple(by_save[at]), rank=WHOLE, seq=seqs.get(at)
            )
            for at, of_ranks in side.data.items()
        ],
        unreadable=_all(side, lambda of: of.unreadable),
        unreadable_keys=_all(side, lambda of: of.unreadable_keys),
        stop=next((of.stop for of in side.of_ranks.values() if of.stop), None),
        timeless=any(of.timeless for of in side.of_ranks.values()),
    )


def _all(side: _Side, of: Callable[[StepData], Mapping[Any, Message]]) -> dict[Any, Message]:
    found: dict[Any, Message] = {}
    for data in side.of_ranks.values():
        for name, why in of(data).items():
            found.setdefault(name, why)
    return found


def laid_out(view: View, layout: Layout | None) -> LaidOutView:
    """Return a side as it is compared where at least one of the two is laid out."""
    whole = layout or Layout.of_one(*view.run.ranks[:1])
    chosen = view.key_data_only, view.keys
    return LaidOutView(view.run, view.phases, view.steps, {}, False, *chosen, layout=whole)


def order_of_rows(mine: _Records, other: _Records, batch: tuple[str, int]) -> list[int] | None:
    """Return which row each row of the whole batch is, counted over the ranks of `mine`.

    Rows are the same that begin with the same tokens, as far as ids were recorded with all their
    elements. One without a partner takes the place that is left. [] where the rows stand in the
    order of the ranks, None where nothing tells.

    Args:
        mine: records of the run whose batches are divided.
        batch: (phase, call), or ("", micro-step).
    """
    for name, held in mine.items():
        whole = other.get(name)
        if name[0] == "":
            is_of_batch = batch == ("", name[2])
        else:  # what a call of the phase was given
            own = name[0] == batch[0] and name[2] == "input"
            is_of_batch = own and name[1].endswith(f".forward.{batch[1]}")
        if whole is None or not is_of_batch:
            continue
        ids = (
            of.leaf.is_integer and len(of.leaf.shape or ()) == 2 and of.location is not None
            for of in (held.first, whole.first)
        )
        if not all(ids):
            continue
        rows, wanted = _rows(held), _rows(whole)
        if not rows or len(rows) != len(wanted) or len(rows) > _MOST_ROWS:
            continue
        found = _order(rows, wanted)
        return found if found != [*range(len(rows))] else []
    return None


def _rows(held: Held) -> list[np.ndarray]:
    """Return the rows that the ranks hold, those of one place after those of the one before."""
    ranks: dict[tuple[int, ...], int] = {}
    for rank in sorted(held.records):
        place = tuple(held.layout.place(rank, axis) for axis in held.batches)
        ranks.setdefault(place, rank)
    try:
        arrays = [held.records[ranks[place]].array() for place in sorted(ranks)]
    except (ArrayFileError, OSError, ValueError):
        return []
    return [row for array in arrays if array.ndim == 2 for row in array.astype(np.int64)]


def _order(rows: list[np.ndarray], wanted: list[np.ndarray]) -> list[int]:
    partners, _ = longest_common(rows, wanted)
    places: dict[int, int] = {}
    for row, place in enumerate(partners.tolist()):
        if (
            place >= 0
            and len(rows[row]) == len(wanted[place])
            and (rows[row] == wanted[place]).all()
        ):
            places.setdefault(place, row)
    taken = {*places.values()}
    for row, place in enumerate(partners.tolist()):
        if row not in taken and place >= 0 and place not in places:
            places[place] = row
            taken.add(row)
    left = iter([row for row in range(len(rows)) if row not in taken])
    return [places[place] if place in places else next(left) for place in range(len(wanted))]


def in_time(
    entries: _Entries, data: _Data, layout: Layout
) -> tuple[list[Entry], dict[tuple[str, int], int | None]]:
    """Return the entries of the whole, without records, and when each key was saved.

    Without a pipeline all ranks run the same, so the clock of the lowest that ran it counts. With
    one, of every opening of a phase the stages follow each other, forward and then back.

    Args:
        entries: (phase, name in the whole) → rank → entry.
        data: (key, micro-step) → rank → save.
    """
    if PIPELINE not in layout.cut:
        found = [_of_whole(name, of, layout, min(of)) for (_, name), of in entries.items()]
        saves = {at: of[min(of)].seq for at, of in data.items()}
        return sorted(found, key=lambda entry: entry.seq), saves
    return _by_stages(entries, data, layout)


def _of_whole(name: str, of_ranks: Mapping[int, Entry], layout: Layout, rank: int) -> Entry:
    entry = of_ranks[rank]
    parent = entry.parent
    if parent is not None:
        parent = layout.shifted(parent, rank)
    return replace(entry, name=name, parent=parent, rank=0, records=())


def _by_stages(
    entries: _Entries, data: _Data, layout: Layout
) -> tuple[list[Entry], dict[tuple[str, int], int | None]]:
    begun: dict[int, dict[_Opened, int]] = {}  # of each opening, by the clock of each rank
    for of_ranks in entries.values():
        for rank, entry in of_ranks.items():
            own, opened = begun.setdefault(rank, {}), (entry.phase, entry.opening)
            own[opened] = min(own.get(opened, entry.seq), entry.seq)
    turn: dict[_Opened, int] = {}  # of each opening of a phase, by the lowest ranks
    for rank in sorted(begun):
        for opened in sorted(begun[rank], key=begun[rank].__getitem__):
            turn.setdefault(opened, len(turn))
    events = [*_entry_events(entries, turn, layout)]
    for save, of_save in data.items():  # behind the openings that its lowest rank had begun before
        rank = min(of_save)
        seq = of_save[rank].seq
        if seq is not None:
            before = (turn[opened] for opened, at in begun.get(rank, {}).items() if at < seq)
            events.append(((2 * max(before, default=-1) + 2, False, 0, seq), save, "save"))
    times: dict[tuple[Any, str], int] = {}
    for number, (_, at, kind) in enumerate(sorted(events, key=lambda event: event[0])):
        times[at, kind] = number
    found = []
    for at, of_entry in entries.items():
        entry = _of_whole(at[1], of_entry, layout, min(of_entry))
        found.append(replace(entry, seq=times[at, "seq"], end=times.get((at, "end"))))
    saves = {save: times.get((save, "save")) for save in data}
    return sorted(found, key=lambda entry: entry.seq), saves


def _entry_events(
    entries: _Entries, turn: Mapping[_Opened, int], layout: Layout
) -> Iterator[_Event]:
    """Yield the begin and the end of each entry, by the stages that ran it first and last."""
    for at, of_entry in entries.items():
        stages: dict[int, int] = {}  # the lowest rank of each
        for rank in sorted(of_entry):
            stages.setdefault(layout.place(rank, PIPELINE), rank)
        back = next(iter(of_entry.values())).direction != "forward"
        first, last = (min(stages), max(stages))[:: -1 if back else 1]
        begin, end = of_entry[stages[first]], of_entry[stages[last]]
        number = turn[begin.phase, begin.opening]
        sign = -1 if back else 1
        yield (2 * number + 1, back, sign * first, begin.seq), at, "seq"
        if end.end is not None:
            yield (2 * number + 1, back, sign * last, end.end), at, "end"
