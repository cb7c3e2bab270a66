"""Places of two runs that are put together alike: what agrees in them is counted by the line.

Of most lines of two journals nothing differs but where they were recorded. Such a line, with a
fingerprint for every tensor and with finite numbers only, is identical whatever the comparison
allows, so no record, pair or finding is made of it. All other lines, and key data, are paired and
compared as ever. A step that is not put together alike on both sides, or in which anything is
unusual, is not for this way: the planner pairs it as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
from mindrlhf_msprobe.comparison.pairing.alignment import Alignment
from mindrlhf_msprobe.comparison.pairing.planner import BEGIN_IO, Pair, Planner, StepData, StepPlan
from mindrlhf_msprobe.comparison.pairing.timeline import (
    BEGIN,
    DATA,
    EventKey,
    made_before_updates,
    merge,
    order_of,
)
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.steps.tally import Counted
from mindrlhf_msprobe.storage.code_lines import users_line
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import (
    Entry,
    has_plain_call,
)

_STATISTICS = ("Max", "Min", "Mean", "Norm")
_LARGE = 1e300  # larger ones are left to those who know what may overflow
_ENTRY = re.compile(rb'\{"entry": ("(?:[^"\\]|\\.)*"), ')
_SCALARS = frozenset({"int", "float", "bool", "NoneType"})


@dataclass(frozen=True)
class Wholesale:
    """A step of which the lines that agree were counted.

    Attributes:
        plan: all other pairs, in causal order; its `parents` are left out.
        positions: for each of these pairs what `StepResult.positions` holds.
        data: what both runs recorded there, without the records of entries.
    """

    plan: StepPlan
    data: tuple[StepData, StepData]
    positions: list[tuple[int, int]]
    counted: Counted


def count_wholesale(
    sides: tuple[View, View], tolerances: Tolerances, step: int, rank: int
) -> Wholesale | None:
    """Count what agrees in one step; None where it has to be paired as a whole."""
    rank_steps = [view.own(step, rank) for view in sides]
    if any(view.phases or view.key_data_only or not view.run.dialect.timed for view in sides):
        return None
    runs = sides[0].run, sides[1].run
    phases = [run.phases_at(*at) for run, at in zip(runs, rank_steps)]
    if phases[0] != phases[1]:
        return None
    lines = _Lines(step, rank)
    for phase in phases[0]:
        if not lines.add(phase, runs, rank_steps):
            return None
    if not lines.in_one_order():
        return None
    data = [view.load(step, rank, layers=False) for view in sides]
    if any(side.unreadable or side.unreadable_keys for side in data):
        return None
    return _counted(lines, data, tolerances, step, rank)


#: Of each side: number of a stack → its frames.
_OfJournal = dict[int | None, tuple[str, ...]]
_Stacks = tuple[_OfJournal, _OfJournal]


@dataclass
class _Lines:
    """The lines of both journals of one step.

    Attributes:
        shells: the entries of each side, without records.
        counted: for the n-th entry, how many of its records are known when it begins and when it
            ends; None for an entry that is compared by its records.
        special: (phase, name) → the entries of both sides that are compared by their records.
        content: the line of the n-th entry that was counted.
    """

    step: int
    rank: int
    shells: tuple[list[Entry], list[Entry]] = field(default_factory=lambda: ([], []))
    counted: list[tuple[int, int] | None] = field(default_factory=list)
    special: dict[tuple[str, str], tuple[Entry, Entry]] = field(default_factory=dict)
    content: list[JournalLine] = field(default_factory=list)

    def add(self, phase: str, runs: tuple[Run, Run], rank_steps: list[tuple[int, int]]) -> bool:
        """Take in one phase; False where it has to be paired."""
        journals = [run.journal_lines(phase, *at) for run, at in zip(runs, rank_steps)]
        a, b = journals
        if a is None or b is None or len(a) != len(b):
            return False
        b = _in_order_of(a, b)
        stacks: _Stacks = {}, {}
        try:
            special = self._add_lines(phase, zip(a, b), stacks)
        except (ValueError, RecursionError):
            return False
        if special is None:
            return False
        return self._add_special(phase, special, stacks, runs, rank_steps)

    def _add_lines(
        self, phase: str, lines: Iterable[tuple[bytes, bytes]], stacks: _Stacks
    ) -> list[tuple[JournalLine, JournalLine]] | None:
        """Take in the lines of both journals; None where they have to be paired.

        Returns:
            Those that are compared by their records.

        Raises:
            ValueError, RecursionError: a line is damaged.
        """
        names: set[str] = set()
        special = []
        for raw_a, raw_b in lines:
            line = JournalLine.read(raw_a)
            other, same = (line, True) if raw_a == raw_b else _other_line(line, raw_a, raw_b)
            name = line.entry
            if name in names or not has_plain_call(name) or _where(line) != _where(other):
                return None
            names.add(name)
            self._add_shells(phase, (line, other), stacks)
            if is_operator(name) and _lines_differ((line, other), stacks):
                return None
            self.counted.append(_ordinary(line) if same else None)
            self.content.append(line)
            if self.counted[-1] is None:
                special.append((line, JournalLine.read(raw_b) if same else other))
        return special

    def _add_shells(
        self, phase: str, lines: tuple[JournalLine, JournalLine], stacks: _Stacks
    ) -> None:
        for shells, known, side in zip(self.shells, stacks, lines):
            if side.frames:
                known[side.stack] = side.frames
            shells.append(
                Entry(
                    name=side.entry,
                    phase=phase,
                    step=self.step,
                    rank=self.rank,
                    seq=side.seq,
                    end=side.end,
                    opening=side.opening,
                    token=side.token,
                    around=side.around,
                    attributes=side.attributes,
                )
            )

    def _add_special(
        self,
        phase: str,
        lines: list[tuple[JournalLine, JournalLine]],
        stacks: _Stacks,
        runs: tuple[Run, Run],
        rank_steps: list[tuple[int, int]],
    ) -> bool:
        """Make entries of lines that differ; False where one of them is not for this way.

        Parameters that one side alone recorded again are compared with earlier ones, and files of
        elements are shared among workers: both is the planner's.
        """
        sides = []
        for i, (run, at) in enumerate(zip(runs, rank_steps)):
            known = stacks[i]
            whole = [
                replace(pair[i], frames=pair[i].frames or known.get(pair[i].stack, ()))
                for pair in lines
            ]
            made = run.entries_of(whole, phase, *at)
            if made is None:
                return False
            sides.append(made)
        for a, b in zip(*sides):
            if any(r.leaf.why is not None or r.leaf.data_name for e in (a, b) for r in e.records):
                return False
            if _parameters(a) != _parameters(b):
                return False
            self.special[phase, a.name] = a, b
        return True

    def in_one_order(self) -> bool:
        """Return whether the entries of both sides began in one order."""
        orders = []
        for shells in self.shells:
            starts = [entry.seq for entry in shells]
            if len(set(starts)) < len(starts):
                return False
            orders.append(sorted(range(len(starts)), key=starts.__getitem__))
        return orders[0] == orders[1]


def _in_order_of(a: list[bytes], b: list[bytes]) -> list[bytes]:
    """Return B's lines in the order of A's entries, if it has the same.

    Entries are written as they become known: those of gradients not always in one order.
    """
    heads = [[_ENTRY.match(line) for line in lines] for lines in (a, b)]
    names = [[head and head[1] for head in found] for found in heads]
    if names[0] == names[1] or None in names[0] or None in names[1]:
        return b
    by_name = dict(zip(names[1], b))
    if by_name.keys() != set(names[0]) or len(by_name) < len(b):
        return b
    return [by_name[name] for name in names[0]]


def _where(line: JournalLine) -> tuple[object, ...]:
    """Return where an entry stands among the others, but for its time."""
    return line.entry, line.parent, line.opening, line.token, line.end is None


def _lines_differ(lines: tuple[JournalLine, JournalLine], stacks: _Stacks) -> bool:
    """Return whether an operator was called from two lines of code: they tell which is which."""
    a, b = (known.get(line.stack, ()) for line, known in zip(lines, stacks))
    if a == b:
        return False
    users = [users_line(frames) for frames in (a, b)]
    keys = {None if line is None else line.key for line in users}
    return len(keys) > 1


def _parameters(entry: Entry) -> set[str]:
    return {record.path for record in entry.records if record.io == "parameters"}


def _other_line(line: JournalLine, raw: bytes, other: bytes) -> tuple[JournalLine, bool]:
    """Read the line of the other run, and return whether its values are the same bytes.

    They follow what tells where the entry stands; where they are the same, that alone is read.

    Args:
        line: what `raw`, the line of the one run, holds.

    Raises:
        ValueError, RecursionError: it is damaged.
    """
    first = next(iter(line.values), None)
    if first is not None:
        # Inside a text a quotation mark has a backslash before it, so this is the member's name.
        name = b', "%s": ' % first.encode("utf-8", errors="surrogatepass")
        starts = raw.find(name), other.find(name)
        if min(starts) > 0 and raw[starts[0] :] == other[starts[1] :]:
            return JournalLine.read(other[: starts[1]] + b"}"), True
    return JournalLine.read(other), False


def _ordinary(line: JournalLine) -> tuple[int, int] | None:
    """Return how many records of an entry are known at its begin and at its end.

    None unless each of them is identical to one of the same JSON, and deserves no look: a tensor
    has a fingerprint and finite statistics, any other value is at hand and finite.
    """
    begin = end = 0
    for io, _, content in line.parts():
        number = _count(content)
        if number < 0:
            return None
        if io in BEGIN_IO:
            begin += number
        else:
            end += number
    return (begin + end, 0) if line.end is None else (begin, end)


def _count(content: Any) -> int:
    """Return how many values a JSON structure describes, all of them ordinary; else -1."""
    if type(content) is list:
        parts: Iterable[Any] = content
    elif type(content) is not dict:
        return -1
    elif type(content.get("type")) is str:
        return 1 if _is_ordinary(content) else -1
    elif "shape" in content:  # may be a value without a type
        return -1
    else:
        parts = content.values()
    total = 0
    for part in parts:
        number = _count(part)
        if number < 0:
            return -1
        total += number
    return total


def _is_ordinary(leaf: Mapping[str, Any]) -> bool:
    if "error" in leaf or "opaque" in leaf or "data_name" in leaf:
        return False
    shape = leaf.get("shape")
    if shape is None:
        return _is_ordinary_scalar(leaf["type"], leaf.get("value"))
    if not _is_described(leaf, shape) or leaf.get("nan_count") or leaf.get("inf_count"):
        return False
    for size in shape:
        if type(size) is not int or size < 0:
            return False
    for name in _STATISTICS:
        value = leaf.get(name, leaf)
        if not (type(value) is float and -_LARGE < value < _LARGE) and not _is_plain(value):
            return False
    return True


def _is_ordinary_scalar(kind: Any, value: Any) -> bool:
    if kind == "str" or (value is None) != (kind == "NoneType"):  # null is no number: not known
        return kind == "str" and type(value) is str
    return kind in _SCALARS and _is_plain(value)


def _is_described(leaf: Mapping[str, Any], shape: Any) -> bool:
    """Return whether a tensor is described by dtype, shape and fingerprint, and is no text."""
    if type(leaf.get("fingerprint")) is not str or type(leaf.get("dtype")) is not str:
        return False
    return type(shape) is list and leaf["type"] != "str" and "text" not in leaf


def _is_plain(value: Any) -> bool:
    """Return whether a value is None, a truth value, or a finite number of no unusual size."""
    return value is None or (type(value) in (float, int, bool) and -_LARGE < value < _LARGE)


def _counted(
    lines: _Lines, data: list[StepData], tolerances: Tolerances, step: int, rank: int
) -> Wholesale:
    """Put the pairs that are left into causal order, and count the others."""
    planner = _planner(lines, data, step, rank)
    numbers = {(e.phase, e.name): n for n, e in enumerate(lines.shells[0])}
    pairs: list[Pair] = []
    positions: list[tuple[int, int]] = []
    identical: Counter[str] = Counter()
    first: dict[str, int] = {}
    openings: set[tuple[str | None, int]] = set()
    seen = 0
    for event in _order(lines, data):
        known = None
        if event.phase is not None and event.kind != DATA:
            number = numbers[event.phase, event.name]
            known = lines.counted[number]
            records = 0 if known is None else known[event.kind != BEGIN]
            if records:
                identical[event.phase] += records
                first.setdefault(event.phase, len(pairs))
        found = list(planner.pairs_of(event)) if known is None else []
        if event.kind != DATA:
            if not (found or records):
                continue
            openings.add((event.phase, lines.shells[0][number].opening))
        pairs += found
        positions += [(len(openings), seen)] * len(found)
        seen += event.kind != DATA
    counted = Counted(
        dict(identical),
        tuple((n, phase) for phase, n in first.items()),
        _rules(lines, tolerances, identical.total()),
    )
    whole = [replace(side, entries=shells) for side, shells in zip(data, lines.shells)]
    return Wholesale(StepPlan(step, rank, tuple(pairs)), (whole[0], whole[1]), positions, counted)


def _planner(lines: _Lines, data: list[StepData], step: int, rank: int) -> Planner:
    """Return what pairs the entries that are left, and key data."""
    ids = {at: at[1] for at in lines.special}
    sides = [
        replace(
            side,
            entries=[entries[i] for entries in lines.special.values()],
            coverage=side.coverage,
        )
        for i, side in enumerate(data)
    ]
    return Planner(step, rank, sides[0], sides[1], Alignment(ids, dict(ids)))


def _order(lines: _Lines, data: list[StepData]) -> list[EventKey]:
    earlier = made_before_updates(*(side.key_data for side in data))
    a = order_of(lines.shells[0], data[0].key_data, earlier=earlier)
    keys = [{(d.key, d.micro_step) for d in side.key_data} for side in data]
    return (
        a
        if keys[1] <= keys[0]
        else merge(a, order_of(lines.shells[1], data[1].key_data, earlier=earlier))
    )


def _rules(lines: _Lines, tolerances: Tolerances, total: int) -> dict[Messages, int]:
    if not tolerances.rules:
        by = tolerances.matching("")[1]
        return {by: total} if by and total else {}
    used: Counter[Messages] = Counter()
    for counted, line in zip(lines.counted, lines.content):
        if counted is not None:
            used.update(_said(tolerances, n) for n, *_ in line.records())
    del used[()]
    return dict(used)


@lru_cache(maxsize=1 << 16)
def _said(tolerances: Tolerances, name: str) -> Messages:
    return tolerances.matching(name, name)[1]
