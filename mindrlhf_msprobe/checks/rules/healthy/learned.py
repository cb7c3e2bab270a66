"""What healthy runs held of one record, and of records that are alike."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

from mindrlhf_msprobe.checks.reading.alike import pattern_of
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, is_float, non_finite, statistic
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_SEVERAL = 2  # times that something is seen before it is known whether it varies


class Span:
    """Between which numbers all lie that were seen."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf

    def take(self, *numbers: float) -> None:
        """Widen it to hold these numbers."""
        self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)

    def holds(self, number: float, margin: float = 0.0) -> bool:
        """Return whether a number lies in it, made wider by itself and by a margin."""
        more = margin + (self.high - self.low)
        return self.low - more <= number <= self.high + more


class Learned:
    """What healthy runs held of one record, or of several that are alike.

    Attributes:
        shape: the one that each had; None if they differ.
        times: how often it was seen.
        routed: whether it was empty, zero everywhere or not there in a step in which others were:
            how much reaches it depends on the data, as with the experts of a mixture.
    """

    __slots__ = ("_dtypes", "_finite", "_means", "_norms", "routed", "shape", "times")

    def __init__(self) -> None:
        self._dtypes: set[Any] = set()
        self._finite = True
        self._norms, self._means = Span(), Span()
        self.shape: str | None = None
        self.times = 0
        self.routed = False

    def take(self, leaf: LeafJson) -> None:
        """Take one leaf of a healthy run."""
        shape = str(leaf.get("shape"))
        self.shape = shape if self.shape == shape or not self.times else None
        self.times += 1
        self._dtypes.add(leaf.get("dtype"))
        self._finite = self._finite and non_finite(leaf) is None
        sizes = _sizes(leaf)
        if sizes is not None:
            self._norms.take(sizes[0])
            self._means.take(sizes[1])
        elif _is_nothing(leaf):
            self.routed = True

    def join(self, other: Learned) -> None:
        """Take what was learned of another record that is alike."""
        self.shape = other.shape if self.shape == other.shape or not self.times else None
        self.times += other.times
        self._dtypes |= other._dtypes
        self._finite = self._finite and other._finite
        self._norms.take(other._norms.low, other._norms.high)
        self._means.take(other._means.low, other._means.high)
        self.routed = self.routed or other.routed

    def broken_by(self, leaf: LeafJson, margin: float) -> str | None:
        """Return how a leaf differs from all that was learned; None if it does not."""
        return self._other_kind(leaf) or ("range" if self._is_out_of_range(leaf, margin) else None)

    def _other_kind(self, leaf: LeafJson) -> str | None:
        if self._finite and non_finite(leaf) is not None:
            return "finite"
        if leaf.get("dtype") not in self._dtypes:
            return "dtype"
        fixed = self.shape is not None and self.times >= _SEVERAL and not self.routed
        if fixed and str(leaf.get("shape")) != self.shape:
            return "shape"
        return None

    def _is_out_of_range(self, leaf: LeafJson, margin: float) -> bool:
        sizes = _sizes(leaf)
        if sizes is None or self._norms.low > self._norms.high:
            return False
        # Of what is added up over rows the norm grows with their number, of a mean it falls.
        known = [*zip((self._norms, self._means), sizes)]
        from_nothing = self.routed or math.prod(leaf["shape"]) == 1  # a number may cross 0
        if from_nothing and all(size < span.low for span, size in known):
            return False
        return not any(span.holds(size, margin) for span, size in known)


def _sizes(leaf: LeafJson) -> tuple[float, float] | None:
    """Return the logarithms (base 10) of a float tensor's norm and root mean square, or None."""
    size = log_norm(leaf)
    return None if size is None else (size, size - math.log10(math.prod(leaf["shape"])) / 2)


def log_norm(leaf: LeafJson) -> float | None:
    """Return the logarithm (base 10) of a float tensor's norm; None for others, and for 0."""
    norm = statistic(leaf, "Norm") if is_float(leaf) else None
    return None if norm is None or norm <= 0 or not math.isfinite(norm) else math.log10(norm)


def _is_nothing(leaf: LeafJson) -> bool:
    """Return whether a tensor of floats is empty, or zero everywhere."""
    shape = leaf.get("shape")
    return (type(shape) is list and 0 in shape) or (is_float(leaf) and statistic(leaf, "Norm") == 0)


def pattern_of_record(entry: str, io: str, path: str) -> Hashable:
    """Return what records have in common whose cells or parameters differ in numbers alone.

    Those of all calls of a cell do: a bias that is zero at the first call moves by the next one.
    """
    is_parameter = io in ("parameters", PARAMETERS_GRAD)
    return pattern_of(entry), io, pattern_of(path) if is_parameter else path


def joined(those: Iterable[Learned]) -> Learned:
    """Return what was learned of several records."""
    whole = Learned()
    for one in those:
        whole.join(one)
    return whole
