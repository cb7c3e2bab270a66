"""The elements of two parameters, read and compared in spans of a few MiB."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.metrics.arrays import (
    SMALL,
    ArrayComparison,
    compare_arrays,
    sum_part,
    summed,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import BLOCK, Tolerance
from mindrlhf_msprobe.comparison.judging.metrics.sums import Sums
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_parts
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    bfloat16_bits_to_float32,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import StoredTensor
from mindrlhf_msprobe.storage.leaves import Leaf

#: Elements that are read and compared at once; a multiple of BLOCK.
SPAN = 4 * BLOCK
_AHEAD = 2  # spans that each thread may be ahead of the one whose turn it is
_FLOATS = {BFLOAT16: 16, "Float16": 16, "Float32": 32, "Float64": 64}  # and their bits
_FLOAT16 = "Float16"

_Found = TypeVar("_Found")
#: Told how many elements more are done.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Compared:
    """How far two parameters are apart.

    Attributes:
        rounded_to: the dtype to which the one was rounded, if that makes it the other one.
    """

    elements: ArrayComparison
    rounded_to: str | None = None


@dataclass(frozen=True)
class Transposed:
    """A matrix is another one transposed.

    Attributes:
        rounded_to: the dtype to which the one was rounded; None if all values are equal.
    """

    rounded_to: str | None = None


class Reading:
    """Compares parameters with several threads.

    Args:
        workers: how many; each holds a few spans of both sides.
        progress: told how much is done.
    """

    def __init__(self, workers: int, progress: Progress | None = None) -> None:
        self._workers = workers
        self._progress = progress
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def compare(self, a: StoredTensor, b: StoredTensor, tolerance: Tolerance) -> Compared:
        """Compare the elements of two parameters of one shape.

        Raises:
            CheckpointError: a file cannot be read.
            TypeError: the elements are no numbers.
        """
        lower = _lower(a.dtype, b.dtype)
        if a.size <= SMALL:
            x, y = (t.read(0, t.size) if t.size else np.empty(0, np.float32) for t in (a, b))
            self._told(a.size)
            rounded = lower is not None and _is_rounded(*_lower_last(a, x, y, lower), lower)
            return Compared(compare_arrays(x, y, tolerance), lower if rounded else None)
        spans = [(at, min(at + SPAN, a.size)) for at in range(0, a.size, SPAN)]
        each = partial(_compare_span, a, b, tolerance, lower)
        rounded = lower is not None
        sums: list[Sums] = []
        for of_span, is_rounded in self._in_order(each, spans):
            sums.append(of_span)
            rounded = rounded and is_rounded
        return Compared(summed(sums, a.size, tolerance), lower if rounded else None)

    def transposed(self, a: StoredTensor, b: StoredTensor) -> Transposed | None:
        """Return whether B is A transposed, and how exactly; None if it is not.

        Read in blocks of rows of A, up to the first one that is another.

        Args:
            a: a matrix.
            b: of as many rows as A has columns, and as many columns as A has rows.

        Raises:
            CheckpointError: a file cannot be read.
        """
        rows, columns = a.shape
        lower = _lower(a.dtype, b.dtype)
        whole = b.read(0, b.size).reshape(columns, rows) if b.size <= SPAN else None
        equal, rounded, at = True, lower is not None, 0
        while at < rows and (equal or rounded):
            # The first row alone: most matrices are no transpose, and few of its elements say so.
            end = min(rows, at + max(1, SPAN // columns)) if at else 1
            x = a.read(at * columns, end * columns)
            if whole is None:
                parts = [b.read(row * rows + at, row * rows + end) for row in range(columns)]
                y = np.stack(parts, axis=1).reshape(-1)
            else:
                y = np.ascontiguousarray(whole[:, at:end].T).reshape(-1)
            equal = equal and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
            if lower is not None:
                rounded = rounded and _is_rounded(*_lower_last(a, x, y, lower), lower)
            at = end
        if equal:
            return Transposed()
        return Transposed(lower) if rounded else None

    def describe(self, tensor: StoredTensor) -> Leaf:
        """Return the statistics and the fingerprint of a parameter, as a run records them.

        Raises:
            CheckpointError: a file cannot be read.
        """
        found = _Statistics()
        spans = [(at, min(at + SPAN, tensor.size)) for at in range(0, tensor.size, SPAN)]

        def parts() -> Iterator[np.ndarray]:
            for part in self._in_order(lambda start, stop: tensor.read(start, stop), spans):
                found.add(part)
                yield part

        fingerprint = fingerprint_of_parts(tensor.dtype, tensor.shape, parts())
        return found.leaf(tensor, fingerprint)

    def _in_order(
        self, work: Callable[[int, int], _Found], spans: list[tuple[int, int]]
    ) -> Iterator[_Found]:
        """Yield what is found of each span, in their order; few are held at once."""
        if self._pool is None or len(spans) == 1:
            for start, stop in spans:
                yield work(start, stop)
                self._told(stop - start)
            return
        left = iter(spans)
        running: deque[tuple[int, Future[_Found]]] = deque()
        for start, stop in itertools.islice(left, _AHEAD * self._workers):
            running.append((stop - start, self._pool.submit(work, start, stop)))
        while running:
            size, first = running.popleft()
            yield first.result()
            self._told(size)
            for start, stop in itertools.islice(left, 1):
                running.append((stop - start, self._pool.submit(work, start, stop)))

    def _told(self, elements: int) -> None:
        if self._progress is not None:
            self._progress(elements)


def _compare_span(
    a: StoredTensor, b: StoredTensor, tolerance: Tolerance, lower: str | None, start: int, stop: int
) -> tuple[Sums, bool]:
    x, y = a.read(start, stop), b.read(start, stop)
    rounded = lower is not None and _is_rounded(*_lower_last(a, x, y, lower), lower)
    return sum_part(x, y, start, tolerance), rounded


def _lower_last(
    a: StoredTensor, x: np.ndarray, y: np.ndarray, lower: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of A and of B, those of the lower dtype last."""
    return (y, x) if a.dtype == lower else (x, y)


def _lower(a: str, b: str) -> str | None:
    """Return the dtype of 16 bits that one side has where the other one has more; else None."""
    bits = {name: _FLOATS.get(name, 0) for name in (a, b)}
    low, high = min(bits, key=lambda n: bits[n]), max(bits, key=lambda n: bits[n])
    return low if bits[low] == 16 < bits[high] else None


def _is_rounded(a: np.ndarray, b: np.ndarray, lower: str) -> bool:
    """Return whether both are equal once they have been rounded to a dtype of 16 bits."""
    for at in range(0, a.size, BLOCK):
        x, y = a[at : at + BLOCK], b[at : at + BLOCK]
        if x.dtype == y.dtype == np.float32 and lower == BFLOAT16 and _same_bfloat16(x, y):
            continue
        if not np.array_equal(_rounded(x, lower), _rounded(y, lower), equal_nan=True):
            return False
    return True


def _same_bfloat16(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether float32 values are surely equal once rounded; of NaN it is not sure."""
    x, y = a.view(np.uint32), b.view(np.uint32)
    apart = x - y  # of bits: how far the one lies above the other, of one sign
    near = (apart + np.uint32(0x7FFF)) < np.uint32(0xFFFF)  # less than half of a step
    if not near.all():
        return False
    return not ((y & np.uint32(0xFFFF)).any() or np.isnan(b).any() or np.isnan(a).any())


def _rounded(values: np.ndarray, lower: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        if lower == _FLOAT16:
            return values.astype(np.float16)
        return bfloat16_bits_to_float32(float32_to_bfloat16_bits(values.astype(np.float32)))


class _Statistics:
    """What is accumulated over the parts of a parameter; IEEE rules: one NaN makes them NaN."""

    def __init__(self) -> None:
        self._extremes: list[np.generic] = []
        self._sum = self._squares = 0.0
        self._nan = self._inf = 0
        self._size = 0

    def add(self, part: np.ndarray) -> None:
        """Add a part."""
        self._extremes += [part.max(), part.min()]
        self._size += part.size
        wide = part.astype(np.float64)
        with np.errstate(all="ignore"):
            self._sum += float(wide.sum())
            self._squares += float(wide @ wide)
        if part.dtype.kind == "f":
            self._nan += int(np.isnan(part).sum())
            self._inf += int(np.isinf(part).sum())

    def leaf(self, tensor: StoredTensor, fingerprint: str) -> Leaf:
        """Return the description of the parameter whose parts were added."""
        kind = "mindspore.Tensor"
        if not self._size:
            return Leaf(kind, tensor.dtype, tensor.shape, fingerprint=fingerprint)
        extremes = np.array(self._extremes)
        described = Leaf(
            kind,
            tensor.dtype,
            tensor.shape,
            extremes.max().item(),
            extremes.min().item(),
            fingerprint=fingerprint,
        )
        if tensor.dtype == "Bool":
            return described
        return replace(
            described,
            mean=self._sum / self._size,
            norm=float(np.sqrt(self._squares)),
            nan_count=self._nan,
            inf_count=self._inf,
        )
