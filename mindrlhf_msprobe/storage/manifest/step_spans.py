"""What a manifest lists of a rank's steps: what was written, and what `keep_mb` has removed of it.

Under `recorded`, how much of what it wrote, in which steps, so that what is missing from the
directory later is seen to be missing. A span `[first, last, n]` says that there are n entries of a
phase, or n saves of a key, in each of the steps from `first` to `last`; n is null where that is not
known any more.

Under `thinned`, steps of which `keep_mb` has removed something. It is written before anything is
removed: what is listed is not missing, whatever of it is left. A span `[first, last]` says that of
the steps from `first` to `last` nothing of the kind is kept.

Under `others` it lists directories of steps and ranks that no run recorded, each by its path below
the run's directory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.storage.arrays import bounds

#: What `recorded` has by name; key data stand under `thinned`, too.
PHASES, KEY_DATA = "phases", "key_data"
CONFIGURATIONS = "configurations"
#: The kinds of which not every name is listed; what is not is not missed either.
UNLISTED = "unlisted"

#: Keys that are listed. A trainer may make up new ones at every step; phases are configured.
MOST_KEYS = 500

#: Spans that are kept of one phase or key: run.json is written anew at every step.
MOST_SPANS = 64

#: Spans that are read of one phase or key: a run that was merged lists those of all its parts.
MOST_READ = 4096

Span = list[Any]


def with_counts(
    recorded: Mapping[str, Any], kind: str, step: int, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return what a manifest lists, with how many entries or saves a step has of each name.

    Args:
        recorded: as `read_recorded` returns it, here and below.
        kind: PHASES or KEY_DATA.
    """
    listed = {**recorded}
    for each in (PHASES, KEY_DATA):
        listed.setdefault(each, {})
    names = listed[kind] = {**listed[kind]}
    for name, count in counts.items():
        if count and kind == KEY_DATA and name not in names and len(names) >= MOST_KEYS:
            listed[UNLISTED] = [KEY_DATA]
        elif count:
            spans = names.get(name, ())
            kept = [[*span] for span in before(spans, step)]  # what they said of the step goes
            if kept and kept[-1][1] == step - 1 and kept[-1][2] == count:
                kept[-1][1] = step
            else:
                kept.append([step, step, count])
            kept += [[*span] for span in spans if span[0] > step]
            names[name] = _joined(kept, max(MOST_SPANS, len(spans)))
    return listed


def before(spans: Sequence[Span], step: int) -> list[Span]:
    """Return what spans say of the steps before one."""
    return [[first, min(last, step - 1), n] for first, last, n in spans if first < step]


def recorded_before(recorded: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return what a manifest lists of the steps before one."""
    found = {**recorded}
    for kind in (PHASES, KEY_DATA):
        clipped = {name: before(spans, step) for name, spans in found.get(kind, {}).items()}
        found[kind] = {name: spans for name, spans in clipped.items() if spans}
    return found


def both_recorded(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two manifests of one rank list together: every step of either, as it is read."""
    merged: dict[str, Any] = {**one}
    merged.update((name, other[name]) for name in (CONFIGURATIONS, UNLISTED) if name in other)
    for kind in (PHASES, KEY_DATA):
        names = {**one.get(kind, {}), **other.get(kind, {})}
        merged[kind] = {}
        for name in names:
            spans = [span for of in (one, other) for span in of.get(kind, {}).get(name, [])]
            united = _as_one(sorted(spans, key=lambda span: (span[0], span[1])), 0)
            if len(united) > MOST_READ:
                # Those that follow each other are one; those that lie apart stay so: a step between
                # them was not recorded, and is not missing.
                united = _joined(_as_one(united, 1), MOST_READ)
            merged[kind][name] = united
    return merged


def _as_one(spans: Iterable[Span], most: int) -> list[Span]:
    """Return sorted spans, as one those that overlap or begin at most `most` steps behind another.

    How many there are in each step is not known then, unless both say the same.
    """
    found: list[Span] = []
    for first, last, n in spans:
        if found and first <= found[-1][1] + most:
            begin, end, count = found[-1]
            same = n == count and (first > end or (first, last) == (begin, end))
            found[-1] = [begin, max(last, end), n if same else None]
        else:
            found.append([first, last, n])
    return found


def _joined(spans: list[Span], most: int) -> list[Span]:
    """Return at most `most`: of the oldest, how many there are in each step is forgotten."""
    while len(spans) > most:
        first, second = spans[0], spans[1]
        apart = first[1] + 1 < second[0]  # nothing says that there is anything between
        spans = spans[1:] if apart else [[first[0], second[1], None], *spans[2:]]
    return spans


def read_recorded(recorded: object) -> dict[str, Any]:
    """Return what a manifest lists, as far as it is what this package writes."""
    found: dict[str, Any] = {}
    if not isinstance(recorded, dict):
        return found
    for kind in (PHASES, KEY_DATA):
        listed = recorded.get(kind)
        names = listed.items() if isinstance(listed, dict) else ()
        found[kind] = {
            name: [list(span) for span in spans[:MOST_READ] if _is_span(span, counted=True)]
            for name, spans in names
            if isinstance(spans, list)
        }
    if recorded.get(CONFIGURATIONS) is True:
        found[CONFIGURATIONS] = True
    if recorded.get(UNLISTED) == [KEY_DATA]:
        found[UNLISTED] = [KEY_DATA]
    return found


def _is_span(span: object, *, counted: bool = False) -> bool:
    if not (isinstance(span, list) and len(span) == 2 + counted):
        return False
    first, last, count = span if counted else (*span, None)
    known = count is None or bounds.is_place(count)
    return known and bounds.is_place(first) and bounds.is_place(last) and 0 <= first <= last


def gaps(spans: Sequence[Span], there: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the steps that spans list and that are not there.

    Args:
        there: steps, sorted.
    """
    for first, last, _ in spans:
        begin = first
        for step in there[bisect_left(there, first) : bisect_right(there, last)]:
            if begin < step:
                yield begin, step - 1
            begin = step + 1
        if begin <= last:
            yield begin, last


def count_at(recorded: Mapping[str, Any], kind: str, name: str, step: int) -> int | None:
    """Return how many entries or saves are listed of one step; None where that is not known."""
    for first, last, n in recorded.get(kind, {}).get(name, ()):
        if first <= step <= last:
            return n if isinstance(n, int) else None
    return None


#: What `keep_mb` removes, beside key data: the elements of layer data, and layer data as a whole.
TENSORS, LAYERS = "tensors", "layers"
#: In the order in which they go.
THINNED_KINDS = (TENSORS, LAYERS, KEY_DATA)

#: Kind → sorted spans that lie apart.
Thinned = Mapping[str, Sequence[Sequence[int]]]


def read_thinned(found: object) -> dict[str, list[list[int]]]:
    """Return what a manifest lists, as far as it is what this package writes."""
    listed = found if isinstance(found, dict) else {}
    spans: dict[str, list[list[int]]] = {}
    for kind in THINNED_KINDS:
        of_kind = listed.get(kind)
        of_kind = of_kind[:1_000_000] if isinstance(of_kind, list) else []
        spans[kind] = united(filter(_is_span, of_kind))
    return spans


def united(spans: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return spans sorted, as one those that overlap or follow each other."""
    found: list[list[int]] = []
    for first, last in sorted((first, last) for first, last in spans):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def holds(thinned: Thinned, kind: str, step: int) -> bool:
    """Return whether what a step had of a kind is listed as removed."""
    spans = thinned.get(kind, ())
    at = bisect_right(spans, step, key=lambda span: span[0]) - 1
    return at >= 0 and step <= spans[at][1]


def with_steps(
    thinned: Thinned, kind: str, steps: Iterable[int], kept: Sequence[int]
) -> dict[str, list[list[int]]]:
    """Return what is listed with more steps of a kind.

    Args:
        kept: the steps that keep what they have of the kind, sorted. Spans with none of them in
            between become one, so that there are never more spans than steps that are kept.
    """
    found: list[list[int]] = []
    for first, last in united([*thinned.get(kind, ()), *([step, step] for step in steps)]):
        if found and bisect_left(kept, first) == bisect_right(kept, found[-1][1]):
            found[-1][1] = last
        else:
            found.append([first, last])
    return {**{each: [*map(list, thinned.get(each, ()))] for each in THINNED_KINDS}, kind: found}


def thinned_before(thinned: Thinned, step: int) -> dict[str, list[list[int]]]:
    """Return what is listed of the steps before one."""
    return {
        kind: [[first, min(last, step - 1)] for first, last in spans if first < step]
        for kind, spans in thinned.items()
    }


def both_thinned(one: Thinned, other: Thinned) -> dict[str, list[list[int]]]:
    """Return what two manifests of one rank list together."""
    return {kind: united([*one.get(kind, ()), *other.get(kind, ())]) for kind in THINNED_KINDS}


def outside(thinned: Thinned, kind: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the steps in a span of which nothing is listed as removed."""
    for begin, end in thinned.get(kind, ()):
        if end >= first and begin <= last:
            if first < begin:
                yield first, begin - 1
            first = end + 1
    if first <= last:
        yield first, last
