"""What a rank's manifest lists under `thinned`: steps of which `keep_mb` has removed something.

It is written before anything is removed: what is listed is not missing, whatever of it is left. A
span `[first, last]` says that of the steps from `first` to `last` nothing of the kind is kept.

Under `others` it lists directories of steps and ranks that no run recorded, each by its path below
the run's directory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mindrlhf_msprobe.storage.arrays import bounds

#: The elements of layer data; layer data as a whole; key data: in the order in which they go.
TENSORS, LAYERS, KEY_DATA = "tensors", "layers", "key_data"
KINDS = (TENSORS, LAYERS, KEY_DATA)


#: Kind → sorted spans that lie apart.
Thinned = Mapping[str, Sequence[Sequence[int]]]


def checked(found: object) -> dict[str, list[list[int]]]:
    """Return what a manifest lists, as far as it is what this package writes."""
    listed = found if isinstance(found, dict) else {}
    spans = {kind: listed[kind] if isinstance(listed.get(kind), list) else [] for kind in KINDS}
    return {kind: united(filter(_is_span, spans[kind][:1_000_000])) for kind in KINDS}


def _is_span(span: object) -> bool:
    if not (isinstance(span, list) and len(span) == 2):
        return False
    return all(map(bounds.is_place, span)) and 0 <= span[0] <= span[1]


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
    return {**{each: [*map(list, thinned.get(each, ()))] for each in KINDS}, kind: found}


def without_steps_from(thinned: Thinned, step: int) -> dict[str, list[list[int]]]:
    """Return what is listed of the steps before one."""
    return {
        kind: [[first, min(last, step - 1)] for first, last in spans if first < step]
        for kind, spans in thinned.items()
    }


def both(one: Thinned, other: Thinned) -> dict[str, list[list[int]]]:
    """Return what two manifests of one rank list together."""
    return {kind: united([*one.get(kind, ()), *other.get(kind, ())]) for kind in KINDS}


def outside(thinned: Thinned, kind: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the steps in a span of which nothing is listed as removed."""
    for begin, end in thinned.get(kind, ()):
        if end >= first and begin <= last:
            if first < begin:
                yield first, begin - 1
            first = end + 1
    if first <= last:
        yield first, last
