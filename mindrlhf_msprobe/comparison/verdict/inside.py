"""What differs inside one record: which of its elements, and by what.

Nothing is said that does not hold for every element that differs, exactly or within the rounding of
the dtype; and from statistics alone, nothing that does not hold for all four of them. Nor is it
where another explanation holds, too, or the values are too few or too much the same to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.rules import first_answer
from mindrlhf_msprobe.comparison.judging.moves import (
    CHUNK,
    MOST_SPANS,
    Fitting,
    are_several,
    moved,
    moves,
    tells_one_number,
)
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.changes import (
    epsilons,
    of_another_cell,
    rotary_bases,
    standardised,
)
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, of_saves
from mindrlhf_msprobe.findings import Change, Inside, Some, Status
from mindrlhf_msprobe.phases import PROMPTS
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, give_back
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

#: Half the distance of 1 from the next number of each dtype.
ROUNDING = {"Float64": 2.0**-53, "Float32": 2.0**-24, "Float16": 2.0**-11, "BFloat16": 2.0**-8}
_ROUNDINGS = {"Float64": 4, "Float32": 4}  # of each element that may lie between A and B; else 2
# The smallest normal number of each dtype.
_NORMAL = {"Float64": 2.0**-1022, "Float32": 2.0**-126, "Float16": 2.0**-14, "BFloat16": 2.0**-126}
_CLEAR = 8  # how many times its own uncertainty a factor or an offset must be away from none
_TWO_VALUES = 1e-4  # relative: so near to the largest variance, all elements are either extreme
_NORM_ERROR = 2.5e-6  # relative, of two norms that were summed in float32 over short blocks

_MOST_ELEMENTS = 1 << 26  # of a tensor that is looked into
_FEW = 1 << 12  # of them, which refute most of what may have been done to all
_MOST_ULPS = 16
_MOST_SOME = 1 << 12  # elements that differ, of which all are kept
_SEVERAL = 8  # elements that differ, without which nearly one number is none
_NARROW = 0.01
_MOST_WITHIN = 0.75  # of them, that may have one factor within rounding where it is only nearly one


def inside(first: FirstDifference) -> Inside | None:
    """Return what differs inside the first divergence; None where nothing certain can be said."""
    pair, finding = first.pair, first.finding
    if pair.a is None or pair.b is None:
        return None
    if finding.status is Status.SHAPE_MISMATCH:
        return _turned(pair.a, pair.b)
    if finding.status not in (Status.DIFFERENT, Status.NON_FINITE):
        return None
    found = differs(pair.a, pair.b)
    if pair.event.kind == DATA and _is_padding(first, pair.a, pair.b):
        found = replace(found or Inside("elements"), change=Change("padding", {}))
    if found is None or found.change is None:
        change = first_answer((epsilons, of_another_cell), first)
        if change is not None:
            basis = "elements" if pair.a.location and pair.b.location else "statistics"
            found = replace(found or Inside(basis), change=change)
    same = [f for p, f in first.pairs if p.event == first.event and f is not None]
    flags = np.array([not f.status.agrees for f in same])
    # Of a key that holds a list, which of its elements differ, if not all do.
    if pair.event.kind == DATA and len(same) > 1 and not flags.all():
        part = Inside("records") if found is None else found
        elements = Some("element", 0, len(same), *_spans(flags))
        found = replace(part, where=(elements, *part.where))
    return None if found is None else _with_prompts(found, first)


def _turned(a: Record, b: Record) -> Inside | None:
    """Return that a matrix of another shape is the other one with rows and columns exchanged."""
    if all(said.code != "inside.transposed" for said in moved(a, b)):
        return None
    rows, columns = a.leaf.shape or (0, 0)
    return Inside("elements", (), Change("transposed", {"size": rows}), None, rows * columns)


def _is_padding(first: FirstDifference, a: Record, b: Record) -> bool:
    """Return whether all that differs stands where neither run has a token that counts."""
    shape, finding = a.leaf.shape or (), first.finding
    if a.path or len(shape) != 2 or shape != b.leaf.shape or None in (a.location, b.location):
        return False
    try:
        x, y = a.array(), b.array()
        apart = (x != y) & ~((x != x) & (y != y))
    except (ArrayFileError, OSError, TypeError, ValueError):
        return False
    # Much is loaded for it.
    from mindrlhf_msprobe.sequences.batch import Sequences
    from mindrlhf_msprobe.sequences.step_data import StepData

    for run in first.runs:
        data = StepData.at(run, finding.step, finding.rank)
        saves = data.saved((first.event.name,))
        datum = next((d for d in saves if d.micro_step == (finding.micro_step or 0)), None)
        counted = None if datum is None else Sequences(data).counted(datum, x, saves)
        if counted is None or bool((apart & counted.mask).any()):
            return False
    return bool(apart.any())


def differs(a: Record, b: Record) -> Inside | None:
    """Return what differs inside two records of one dtype and shape.

    Raises:
        nothing: a file that cannot be read tells nothing.
    """
    if a.leaf.shape is None or a.leaf.shape != b.leaf.shape:
        return None
    stored = a.location is not None and b.location is not None
    try:
        if a.leaf.dtype != b.leaf.dtype:  # with a tolerance: they may be tables of unlike floats
            few = math.prod(a.leaf.shape) <= _MOST_ELEMENTS
            if not (stored and few and {a.leaf.dtype, b.leaf.dtype} <= {*ROUNDING}):
                return None
            x, y = (np.squeeze(record.array()) for record in (a, b))
            change = rotary_bases(x, y)
            return None if change is None else Inside("elements", (), change, None, x.size)
        if a.leaf.type == "str" or b.leaf.type == "str":
            return None
        if not stored:
            return of_statistics(a.leaf, b.leaf)
        return of_elements(a.array(), b.array(), a.leaf.dtype or "")
    except (ArrayFileError, OSError, TypeError, ValueError):
        return None


# Elements


@dataclass
class _Range:
    """The ratios, or the distances, that all elements allow within their rounding.

    Attributes:
        low, high: what each element allows, cut with what the others do.
        smallest, largest: what the elements themselves show.
        known: whether each element that differs shows something.
    """

    low: float = -math.inf
    high: float = math.inf
    smallest: float = math.inf
    largest: float = -math.inf
    possible: bool = True
    known: bool = True

    @property
    def are_near(self) -> bool:
        """Whether what the elements show is much nearer to each other than to 1."""
        apart = self.largest - self.smallest
        return self.known and apart <= _NARROW * abs(self.middle - 1)

    def add(self, values: np.ndarray, errors: np.ndarray) -> None:
        """Add what some elements show, each exact to its error."""
        if not values.size:
            return
        self.low = max(self.low, float((values - errors).max()))
        self.high = min(self.high, float((values + errors).min()))
        self.smallest = min(self.smallest, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        self.possible = self.possible and self.low <= self.high

    @property
    def middle(self) -> float:
        """The value that is nearest to what all elements show."""
        if self.smallest == self.largest:
            return self.smallest
        return (self.smallest + self.largest) / 2


@dataclass
class _Seen:
    """What the blocks of two arrays showed so far; `some` are elements of B that differ."""

    dtype: str
    axes: list[np.ndarray]
    different: int = 0
    finite: bool = True
    ratios: _Range = field(default_factory=_Range)
    distances: _Range = field(default_factory=_Range)
    largest_error: float = 0.0
    magnitudes: tuple[float, float] = (math.inf, -math.inf)
    all_nonzero_differ: bool = True
    all_differ: bool = True
    ulps: int | None = 0
    some: list[np.ndarray] = field(default_factory=list)
    rounded: dict[tuple[str, str], bool] = field(default_factory=dict)

    @classmethod
    def nothing(cls, dtype: str, sizes: Sequence[int]) -> _Seen:
        """Return what is known before the first block of arrays of `sizes`."""
        narrower = ("BFloat16", "Float16") if dtype == "Float32" else ()
        rounded = {(kind, side): True for kind in narrower for side in "AB"}
        return cls(dtype, [np.zeros(n, bool) for n in sizes], rounded=rounded)

    @property
    def may_be_one_change(self) -> bool:
        """Whether the values of further elements can still tell anything."""
        close = self.ulps is not None and self.ulps <= _MOST_ULPS
        near = self.ratios.possible or self.ratios.are_near
        known = near or self.distances.possible or any(self.rounded.values())
        return close or (self.finite and known)

    def are_several(self) -> bool:
        """Return whether the elements of B that differ are not all one value."""
        return are_several(self.some)

    def tell_one_number(self) -> bool:
        """Return whether a factor that fits is no offset that fits, too, nor chance."""
        return self.magnitudes[0] < self.magnitudes[1] and tells_one_number(self.some)


def of_elements(a: np.ndarray, b: np.ndarray, dtype: str) -> Inside | None:
    """Return what differs between two arrays of one shape; None if nothing does, or too much.

    Args:
        dtype: as it was recorded; bfloat16 comes as float32.

    Raises:
        TypeError, ValueError: they cannot be compared.
    """
    comparable = a.shape == b.shape and a.dtype == b.dtype
    if not comparable or not 0 < a.size <= _MOST_ELEMENTS or a.dtype.kind not in "biuf":
        return None
    sizes = [n for n in a.shape if n != 1] or [1]
    numbers = [i for i, n in enumerate(a.shape) if n != 1] or [0]
    x, y = a.reshape(sizes), b.reshape(sizes)
    seen = _Seen.nothing(dtype, sizes)
    for place in _chunks(sizes):
        with np.errstate(all="ignore"):
            _add(seen, place, x[place], y[place])
        give_back(a)
        give_back(b)
    if not seen.different:
        return None
    where = tuple(  # the axes of which only some places differ
        Some("axis", number, len(places), *_spans(places))
        for number, places in zip(numbers, seen.axes)
        if len(places) > 1 and not places.all()
    )
    change = rotary_bases(x, y)
    if change is None:
        fitting = [*_changes(seen), *moves(x, y, numbers)]
        if not fitting and seen.ulps is not None and 0 < seen.ulps <= _MOST_ULPS:
            change = Change("rounding", {"ulps": seen.ulps})
        elif len(fitting) == 1 and fitting[0].is_certain():
            change = fitting[0].change
        if change is None or (change.kind != "rounded" and "ddof" not in change.parameters):
            change = standardised(x, y) or change or _nearly(seen, x, y)
    if change is None and not where:
        return None
    return Inside("elements", where, change, seen.different, a.size)


def _chunks(sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into places of no more than CHUNK elements, in row-major order."""
    inside = math.prod(sizes[1:])
    if inside <= CHUNK:
        rows = max(1, CHUNK // max(1, inside))
        for start in range(0, sizes[0], rows):
            yield slice(start, min(sizes[0], start + rows)), *map(slice, sizes[1:])
        return
    for row in range(sizes[0]):
        for rest in _chunks(sizes[1:]):
            yield slice(row, row + 1), *rest


def _add(seen: _Seen, place: tuple[slice, ...], a: np.ndarray, b: np.ndarray) -> None:
    """Add the elements that stand in a place of the whole."""
    unlike = a != b
    if a.dtype.kind == "f":
        unlike &= ~(np.isnan(a) & np.isnan(b))
    count = int(np.count_nonzero(unlike))
    if count < a.size:
        seen.all_differ = False
        equal = ~unlike
        seen.all_nonzero_differ &= not bool((equal & (a != 0)).any())
    few = np.flatnonzero(unlike)[:_FEW] if count > 2 * _FEW else np.empty(0, int)
    if few.size:
        _check_rounded(seen, np.take(a, few), np.take(b, few))
    _check_rounded(seen, a, b)
    if not count:
        return
    seen.different += count
    if sum(map(len, seen.some)) < _MOST_SOME:
        seen.some.append(b[unlike][:_MOST_SOME])
    for axis, (found, along) in enumerate(zip(seen.axes, place)):
        others = tuple(i for i in range(unlike.ndim) if i != axis)
        found[along] |= unlike.any(axis=others)
    if a.dtype.kind == "b":
        seen.finite = False
        return
    if few.size and seen.may_be_one_change:
        _add_values(seen, np.take(a, few), np.take(b, few))
    if seen.may_be_one_change:
        _add_values(seen, a[unlike], b[unlike])


def _check_rounded(seen: _Seen, a: np.ndarray, b: np.ndarray) -> None:
    """Note which roundings of one side to the other these elements refute."""
    for name, (kind, side) in ((key, key) for key, holds in seen.rounded.items() if holds):
        wide, narrow = (a, b) if side == "B" else (b, a)
        if kind == "Float16":
            cast = wide.astype(np.float16).astype(np.float32)
        else:
            bits = np.ascontiguousarray(wide).view(np.uint32).astype(np.uint64)
            nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            cast = nearest.astype(np.uint32).view(np.float32).reshape(wide.shape)
        seen.rounded[name] = bool(np.array_equal(cast, narrow))


def _add_values(seen: _Seen, a: np.ndarray, b: np.ndarray) -> None:
    """Add the elements that differ, as one-dimensional arrays."""
    _add_ulps(seen, a, b)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        seen.finite = False
    if not seen.finite:
        return
    bound = _rounding_of(seen.dtype)
    wide = np.longdouble if seen.dtype == "Float64" or a.dtype.itemsize == 8 else np.float64
    x, y = a.astype(wide), b.astype(wide)
    size_x, size_y = np.abs(x), np.abs(y)
    low, high = seen.magnitudes
    seen.magnitudes = min(low, float(size_x.min())), max(high, float(size_x.max()))
    errors = bound * np.maximum(size_x, size_y)
    seen.largest_error = max(seen.largest_error, float(errors.max()))
    seen.distances.add(y - x, errors)
    normal = _NORMAL.get(seen.dtype, 0.0)
    tiny = (size_x < normal) & (size_y < normal)  # rounded to whole steps: they tell no ratio
    if bool(((x == 0) | (y == 0)).any()):
        seen.ratios.possible = seen.ratios.known = False
        return
    ratios = (y / x)[~tiny]
    seen.ratios.add(ratios, bound * np.abs(ratios))


def _rounding_of(dtype: str) -> float:
    """Return how far rounding may take A from B, relative to an element."""
    return ROUNDING.get(dtype, 0.0) * _ROUNDINGS.get(dtype, 2)


def _add_ulps(seen: _Seen, a: np.ndarray, b: np.ndarray) -> None:
    """Count how many numbers of the dtype lie between two elements, at most."""
    if seen.ulps is None:
        return
    integer = {2: np.int16, 4: np.int32, 8: np.int64}.get(a.dtype.itemsize)
    finite = a.dtype.kind == "f" and np.isfinite(a).all() and np.isfinite(b).all()
    if integer is None or not finite or bool(((a < 0) != (b < 0)).any()):
        seen.ulps = None
        return
    steps = [np.abs(x).view(integer).astype(np.int64) for x in (a, b)]
    largest = int(np.abs(steps[0] - steps[1]).max())
    if seen.dtype == "BFloat16":
        largest = -(-largest >> 16)
    seen.ulps = max(seen.ulps, largest)


def _changes(seen: _Seen) -> list[Fitting]:
    """Return what may have been done to the value of each element that differs."""
    if seen.different < 2 or not seen.finite:
        return []
    found = [
        Fitting(Change("rounded", {"dtype": kind, "side": side, "every": True}), seen.are_several)
        for (kind, side), holds in seen.rounded.items()
        if holds
    ]
    numbers = [change for change in (_factor(seen), _offset(seen)) if change is not None]
    return found or [Fitting(change, seen.tell_one_number) for change in numbers]


def _factor(seen: _Seen) -> Change | None:
    bound = _rounding_of(seen.dtype)
    ratios = seen.ratios
    if not ratios.possible or math.isinf(ratios.low):
        return None
    factor = ratios.middle
    if not math.isfinite(factor) or abs(factor - 1) <= _CLEAR * bound:
        return None
    if not bound and ratios.smallest != ratios.largest:
        return None
    known = {"factor": factor, "every": seen.all_nonzero_differ, "within": bound}
    return Change("factor", known | ({} if not bound else named(factor, bound)))


def _nearly(seen: _Seen, a: np.ndarray, b: np.ndarray) -> Change | None:
    """Return that B is A times nearly one number, as where an epsilon stands beside a divisor.

    Where nearly all elements have one factor and a few another one, these few are to be explained.
    """
    ratios = seen.ratios
    if not (ratios.are_near and seen.finite and seen.different >= _SEVERAL):
        return None
    if not seen.tell_one_number():
        return None
    found = (b[a != b] / a[a != b]).astype(np.float64)
    typical = np.median(found)
    if np.mean(abs(found - typical) <= _rounding_of(seen.dtype) * abs(typical)) > _MOST_WITHIN:
        return None
    known = {"factor": ratios.middle, "smallest": ratios.smallest, "largest": ratios.largest}
    return Change("nearly", known | {"every": seen.all_nonzero_differ})


def _offset(seen: _Seen) -> Change | None:
    distances = seen.distances
    if not distances.possible or math.isinf(distances.low):
        return None
    if abs(distances.middle) <= _CLEAR / 2 * seen.largest_error:
        return None
    known = {"offset": distances.middle, "every": seen.all_differ, "within": seen.largest_error}
    return Change("offset", known)


def named(factor: float, bound: float) -> dict[str, Any]:
    """Return what a factor is, if it is one of the simple ones and no other is as near.

    `fraction` [p, q] is p/q, `root` [p, q] is √(p/q), and `ddof` n means that a standard deviation
    of n values divides by n on one side and by n − 1 on the other.
    """
    if factor <= 0:
        return {}
    square = factor * factor
    larger = max(square, 1 / square)
    n = round(larger / max(larger - 1, 1e-9))
    near = n >= 2 and abs(larger - n / (n - 1)) <= 3 * bound * larger
    if near and 1 / (2 * n * n) > _CLEAR * bound:  # the next n would give another factor
        return {"root": [n, n - 1] if factor > 1 else [n - 1, n], "ddof": n}
    if fractions := _simple_near(factor, bound * factor):
        return {"fraction": fractions[0]} if len(fractions) == 1 else {}
    roots = _simple_near(square, 2 * bound * square)
    return {"root": roots[0]} if len(roots) == 1 else {}


def _simple_near(value: float, error: float) -> list[list[int]]:
    """Return the fractions [p, q] of numbers up to 16 that are as near to a value as its error."""
    pairs = ([p, q] for p in range(1, 17) for q in range(1, 17) if math.gcd(p, q) == 1)
    return [[p, q] for p, q in pairs if abs(value - p / q) <= error]


def _spans(flags: np.ndarray) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the spans of true flags, the first of them at least, and how many flags are true."""
    edges: list[int] = []
    before = False
    for start in range(0, flags.size, CHUNK):
        part = flags[start : start + CHUNK]
        changes = np.flatnonzero(part != np.concatenate(([before], part[:-1])))
        edges += (changes[: 2 * MOST_SPANS] + start).tolist()
        before = bool(part[-1])
        if len(edges) >= 2 * MOST_SPANS:
            break
    ends = [*edges, flags.size][: 2 * MOST_SPANS]
    spans = [(i, j - 1) for i, j in zip(ends[::2], ends[1::2])]
    return tuple(spans), int(np.count_nonzero(flags))


# Statistics


def of_statistics(a: Leaf, b: Leaf) -> Inside | None:
    """Return what holds for the statistics of two tensors of one dtype and shape."""
    size = math.prod(a.shape or ())
    if size < 2 or not (_all_known(a) and _all_known(b)):
        return None
    x, y = ([float(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)] for leaf in (a, b))
    typical = max(x[3], y[3]) / math.sqrt(size)  # root of the mean square
    change = None
    known = None not in (a.fingerprint, b.fingerprint)
    if x[:2] == y[:2] and known and a.fingerprint != b.fingerprint:
        same_mean = abs(x[2] - y[2]) <= size * 2.0**-52 * typical
        if same_mean and abs(x[3] - y[3]) <= _NORM_ERROR * x[3]:
            change = Change("same_statistics", {})
    elif x[0] != x[1]:
        rounding = _rounding_of(a.dtype or "")
        bounds = rounding, rounding + _NORM_ERROR
        found = [_factor_of(x, y, typical, *bounds), _offset_of(x, y, size, typical, *bounds)]
        fitting = [c for c in found if c is not None]
        change = fitting[0] if len(fitting) == 1 and _tell(y, size) else None
    return None if change is None else Inside("statistics", (), change, None, size)


def _all_known(leaf: Leaf) -> bool:
    """Return whether max, min, mean and norm are known, and every element is finite."""
    known = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < math.inf
        for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)
    )
    return known and not leaf.nan_count and not leaf.inf_count


def _tell(y: Sequence[float], size: int) -> bool:
    """Return whether statistics are those of more than two values, and not of a few small ones."""
    high, low, mean, norm = y
    square = norm * norm / size
    if square - mean**2 > (1 - _TWO_VALUES) * (high - mean) * (mean - low):
        return False
    sums = (float(f"{x:.5g}") for x in (mean * size, norm * norm))
    return tells_one_number([np.array([high, low, *sums])])


def _factor_of(
    x: Sequence[float], y: Sequence[float], typical: float, exact: float, summed: float
) -> Change | None:
    if not (x[3] and y[3]):
        return None
    larger = 0 if abs(x[0]) >= abs(x[1]) else 1
    for ends in ((y[0], y[1]), (y[1], y[0])):
        if not x[larger] or not ends[larger]:
            continue
        factor = ends[larger] / x[larger]
        if (factor > 0) != (ends[0] == y[0]) or abs(factor - 1) <= _CLEAR * summed:
            continue
        near = all(abs(ends[i] - factor * x[i]) <= 2 * exact * abs(ends[i]) for i in (0, 1))
        near &= abs(y[2] - factor * x[2]) <= summed * typical
        near &= abs(y[3] - abs(factor) * x[3]) <= summed * y[3]
        if near:
            known = {"factor": factor, "every": True, "within": summed}
            return Change("factor", known | named(factor, max(exact, 2.0**-50)))
    return None


def _offset_of(
    x: Sequence[float], y: Sequence[float], size: int, typical: float, exact: float, summed: float
) -> Change | None:
    offset = y[2] - x[2]
    error = max(2 * exact * max(map(abs, (*x[:2], *y[:2]))), summed * typical)
    if abs(offset) <= _CLEAR / 2 * error:
        return None
    near = all(abs(y[i] - x[i] - offset) <= error for i in (0, 1))
    squares = x[3] * x[3], y[3] * y[3], size * offset * offset
    square = squares[0] + 2 * offset * size * x[2] + squares[2]
    near &= abs(squares[1] - square) <= 4 * summed * max(squares)
    if not near:
        return None
    return Change("offset", {"offset": offset, "every": True, "within": error})


# Key data


def _with_prompts(found: Inside, first: FirstDifference) -> Inside:
    """Add the prompts that all samples which differ belong to, if some others have another."""
    rows = next((some for some in found.where if some.what == "element" or some.axis == 0), None)
    if rows is None or len(rows.spans) == MOST_SPANS:
        return found
    saves = of_saves(first.pairs, *PROMPTS, micro_step=first.finding.micro_step or 0)
    texts = _texts([pair.a for pair, _ in saves if pair.a is not None])
    if len(texts) != rows.size:
        return found
    numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    if len(numbers) in (1, len(texts)):
        return found
    different = [i for first, last in rows.spans for i in range(first, last + 1)]
    prompts = sorted({numbers[texts[i]] for i in different})
    if len(prompts) == len(numbers):
        return found
    return replace(found, prompts=tuple(prompts))


def _texts(records: Sequence[Record]) -> list[Any]:
    """Return one value a sample that tells prompts apart: texts, or rows of token ids."""
    if len(records) == 1 and records[0].leaf.type != "str":
        try:
            array = records[0].array()
        except (ArrayFileError, OSError, ValueError):
            return []
        return [row.tobytes() for row in np.ascontiguousarray(array)] if array.ndim == 2 else []
    if all(record.leaf.type == "str" for record in records):
        return [record.leaf.value for record in records]
    return [record.leaf.fingerprint or i for i, record in enumerate(records)]
