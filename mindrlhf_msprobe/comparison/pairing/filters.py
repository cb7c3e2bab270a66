"""Which part of two runs is compared: steps, keys, records, and what only one of them has."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import PatternError, pattern
from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepData
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.phases import INPUT_KEYS

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.pairing.planner import CutStep

K = TypeVar("K")

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_STEPS = message("error.steps_form")
_KEYS = message("error.keys_form")
_SHOWN = 8
_SEARCHED = 2000  # names among which the nearest ones are looked for

_LEFT_OUT = message("coverage.records_left_out")


@dataclass(frozen=True)
class Filters:
    """What the caller wants compared; empty: everything.

    Attributes:
        steps: first and last step of each range, inclusive, by A's numbers.
        include, exclude: regular expressions, searched in the names of records; a record counts if
            any of `include` and none of `exclude` matches its name in A or in B.
        keys: key of A → key of B that it is compared with; no other key, and no cell, is compared.
        common: what one run alone has is coverage.
        first_only: nothing is compared after the first divergence.
    """

    steps: tuple[tuple[int, int], ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    common: bool = False
    first_only: bool = False

    @property
    def by_name(self) -> bool:
        """Whether records are left out by their names."""
        return bool(self.include or self.exclude)

    def takes_step(self, step: int) -> bool:
        """Return whether a step is compared."""
        return not self.steps or any(first <= step <= last for first, last in self.steps)

    def leaves_out(self, pair: Pair) -> bool:
        """Return whether a pair is left out by its name; what could not be read never is."""
        if not self.by_name or pair.record.leaf.type == "unreadable":
            return False
        names = [record.name for record in pair.records]
        include, exclude = (
            any(pattern(text).search(name) for text in texts for name in names)
            for texts in (self.include, self.exclude)
        )
        return exclude or (bool(self.include) and not include)


def filters(
    steps: object = None,
    include: object = (),
    exclude: object = (),
    keys: object = (),
    *,
    first_only: bool = False,
    common: bool = False,
) -> Filters:
    """Check a caller's choice.

    Args:
        steps: `2-5`, `2,4-6`, a number, or numbers; None for all.
        include, exclude: one regular expression, or several.
        keys: names with commas between, names, or a mapping from A's keys to B's. `x=y` is a name
            of A's and the one of B's that it is compared with.

    Raises:
        UsageError: one of them is wrong.
    """
    for name, flag in (("first_only", first_only), ("common", common)):
        if not isinstance(flag, bool):
            raise UsageError.saying("error.flag", name=name, flag=flag)
    return Filters(
        _steps(steps),
        _patterns("include", include),
        _patterns("exclude", exclude),
        _key_pairs(keys),
        common,
        first_only,
    )


def _steps(given: object) -> tuple[tuple[int, int], ...]:
    if given is None:
        return ()
    ranges = []
    by_comma = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    for part in _several(by_comma):
        if isinstance(part, int) and not isinstance(part, bool) and part >= 0:
            ranges.append((part, part))
            continue
        match = _RANGE.fullmatch(part) if isinstance(part, str) else None
        if match is None:
            raise UsageError.saying("error.expected", name="steps", value=given, what=_STEPS)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError.saying(
                "error.steps_order", given=given, last=last, first=first, steps=_STEPS
            )
        ranges.append((first, last))
    if not ranges:
        raise UsageError.saying("error.steps_none", given=given, steps=_STEPS)
    return tuple(ranges)


def _several(given: object) -> list[Any]:
    """Return what is given as a list: nothing, one, or several."""
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return list(given) if several else [given]  # type: ignore[call-overload]


def _patterns(name: str, given: object) -> tuple[str, ...]:
    patterns = _several(given)
    for text in patterns:
        if not isinstance(text, str) or not text:
            raise UsageError.saying("error.pattern", name=name, text=text)
        try:
            pattern(text)
        except PatternError as error:
            raise UsageError.saying(
                "error.pattern_unusable", name=name, text=text, error=error
            ) from None
    return tuple(patterns)


def _key_pairs(given: object) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[Any, Any]] = [*given.items()] if isinstance(given, Mapping) else []
    for item in () if isinstance(given, Mapping) else _several(given):
        if not isinstance(item, str):
            raise UsageError.saying("error.expected", name="keys", value=given, what=_KEYS)
        for name in item.split(","):  # `key` or `key_of_a=key_of_b`
            left, two, right = (part.strip() for part in name.partition("="))
            pairs.append((left, right if two else left))
    seen: set[str] = set()
    for left, right in pairs:
        for name in (left, right):
            if not isinstance(name, str) or not name:
                raise UsageError.saying("error.expected", name="keys", value=given, what=_KEYS)
        if left in seen:
            raise UsageError.saying("error.key_twice", given=given, left=left)
        seen.add(left)
    return tuple(pairs)


def check_steps(chosen: Filters, steps: Collection[int]) -> None:
    """Refuse a range of steps of which neither run recorded anything.

    Raises:
        UsageError: one of the ranges matches nothing.
    """
    for first, last in chosen.steps:
        if not any(first <= step <= last for step in steps):
            wanted = str(first) if first == last else f"{first}-{last}"
            raise UsageError.saying(
                "error.steps_unknown",
                wanted=wanted,
                value=spans(sorted({*steps})) or message("error.no_step_at_all"),
            )


def check_paths(paths: Mapping[str, object]) -> None:
    """Refuse a path that is an empty text.

    Args:
        paths: by the names of the arguments.
    """
    for name in (name for name, path in paths.items() if path == ""):
        raise UsageError.saying("error.empty_path", name=name)


def check_keys(chosen: Filters, a: Sequence[str], b: Sequence[str]) -> None:
    """Refuse a key that no run saved; of two that are compared, each in its own run.

    Raises:
        UsageError: one of them is not there.
    """
    for left, right in chosen.keys:
        lacks = [message("error.does_not_hold", side=side) for side in "AB"]
        sides = [(left, {*a}, lacks[0]), (right, {*b}, lacks[1])]
        if left == right:
            sides = [(left, {*a, *b}, message("error.neither_holds"))]
        for name, known, who in sides:
            if name not in known:
                listed = sorted(known)
                more = message("error.more", count=len(listed) - _SHOWN)
                shown = {"names": ", ".join(listed[:_SHOWN])}
                some = message("error.some", **shown, more=more if len(listed) > _SHOWN else "")
                held = some if listed else message("console.none")
                near = nearest_of(name, known)
                raise UsageError.saying(
                    "error.no_key", who=who, name=name, nearest=near, value=held
                )


def record_names(sides: Iterable[StepData]) -> set[str]:
    """Return the names of all records of both sides of one step."""
    parts = (part for side in sides for found in (side.entries, side.key_data) for part in found)
    return {record.name for part in parts for record in part.records}


def unmatched(searches: Mapping[K, Callable[[str], object]], names: Iterable[set[str]]) -> list[K]:
    """Return which of several searches find nothing, given the names of one step after another."""
    left = dict(searches)
    for found in names if left else ():
        left = {what: search for what, search in left.items() if not any(map(search, found))}
        if not left:
            break
    return list(left)


def check_names(chosen: Filters, steps: Callable[[], Iterable[tuple[StepData, StepData]]]) -> None:
    """Refuse a pattern that matches no record of either run, before any tensor is read.

    Args:
        steps: returns both sides of one step after another.

    Raises:
        UsageError: one of them matches nothing.
    """
    searches = {("include", p): pattern(p).search for p in chosen.include}
    searches |= {("exclude", p): pattern(p).search for p in chosen.exclude}
    for option, text in unmatched(searches, map(record_names, steps())):
        words = re.sub(r"\\(.)|[\^$?*+()\[\]{}|]", lambda m: m[1] or "", text)
        import difflib  # slow to import, and only a mistake needs it

        names: dict[str, None] = {}  # the keys, and of each cell its path and its own name
        for sides in steps():
            names |= dict.fromkeys(datum.key for side in sides for datum in side.key_data)
            for cell in dict.fromkeys(entry.cell for side in sides for entry in side.entries):
                names |= dict.fromkeys((cell, cell.rpartition(".")[2]))
        seen = list(itertools.islice(names, _SEARCHED))
        near = difflib.get_close_matches(words, seen, n=3, cutoff=0.3)
        hint = message("error.nearest_records", names=", ".join(near or seen[:3])) if seen else ""
        raise UsageError.saying("error.pattern_unused", option=option, text=text, hint=hint)


class StepFilter:
    """What is not compared in one step, and why.

    Args:
        unlike_phases: two phases that are called by other names are compared: each may do what the
            other never does.
        cut: both sides, and how batches of unlike size were brought together.
    """

    def __init__(self, chosen: Filters, cut: CutStep, unlike_phases: bool = False) -> None:
        self._chosen, self._cut, self._data = chosen, cut, cut.data
        self._unlike, self._rules = unlike_phases, cut.rules

    def why(self, pair: Pair) -> Message | None:
        """Return why a pair is not compared, None if it is."""
        if self._chosen.leaves_out(pair):
            return _LEFT_OUT
        if pair.event.kind == DATA and pair.event.name in self._texts_beside_tokens:
            return message("coverage.texts_beside_tokens")
        one_sided = (pair.a is None) != (pair.b is None)
        if not one_sided or pair.unreadable is not None or pair.record.leaf.why is not None:
            return None
        missing = 0 if pair.a is None else 1
        by_rows = pair.entry is None or pair.event.phase in self._cut.of_phase
        if by_rows and (why := self._cut.why_alone(1 - missing, pair)) is not None:
            return why
        if self._unlike and pair.entry is not None and (why := self._unlike_phase(pair, missing)):
            return why
        if self._chosen.common:
            return message("coverage.only_one_has", what=self._what(pair, missing))
        return None

    @cached_property
    def _texts_beside_tokens(self) -> set[str]:
        """The keys that enter a step, as texts in one run and as token ids in the other."""
        found = set()
        for key in INPUT_KEYS:
            kinds = []
            for side in self._data:
                saves = (datum for datum in side.key_data if datum.key == key)
                leaves = [record.leaf for datum in saves for record in datum.records]
                texts = {leaf.type == "str" for leaf in leaves}
                ids = all(leaf.is_integer for leaf in leaves)
                kinds.append("text" if texts == {True} else "ids" if ids and leaves else "other")
            if {*kinds} == {"text", "ids"}:
                found.add(key)
        return found

    def _unlike_phase(self, pair: Pair, missing: int) -> Message | None:
        assert pair.entry is not None
        entries = self._data[missing].entries
        if pair.entry.direction != "forward":
            has = any(entry.direction != "forward" for entry in entries)
            return (
                self._cut.why_alone(1 - missing, pair)
                if has
                else message("coverage.phase_without_backward")
            )
        if (why := self._cut.why_alone(1 - missing, pair)) is not None:
            return why
        if self._cut.across is not None:  # a dump of PyTorch has no phases: it is the same one
            return None
        names = {pair.entry.cell}
        if missing == 1:
            names |= self._rules.names_of(pair.entry.cell)
        if names & self._forward_cells[missing]:
            return message("coverage.phase_with_fewer_calls")
        # A network runs in another wrapper, with a loss beside it, say. Where no cell of one phase
        # runs in the other, they have other names, which is no reason to leave them out.
        both = self._forward_cells[0] & self._forward_cells[1]
        return message("coverage.phase_without_cells") if both else None

    @cached_property
    def _forward_cells(self) -> list[set[str]]:
        cells = [{e.cell for e in side.entries if e.direction == "forward"} for side in self._data]
        cells[0] |= {new for cell in cells[0] for new in self._rules.names_of(cell)}
        return cells

    def _what(self, pair: Pair, missing: int) -> str:
        """Return what the other run lacks, as the codes call it: the outermost, or the key."""
        side = self._data[missing]
        if not (side.entries or side.key_data):
            return "steps"
        if pair.event.kind == DATA:
            return "keys" if pair.event.name not in {d.key for d in side.key_data} else "saves"
        if pair.event.phase not in {entry.phase for entry in side.entries}:
            return "phases"
        return "cells"
