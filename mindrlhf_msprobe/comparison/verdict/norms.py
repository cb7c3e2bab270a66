"""A normalisation: with which epsilon it was computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.findings import Change
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Record

_DTYPES = ("Float32", "Float64")
_WEIGHTS = ("weight", "gamma")
_BIASES = ("bias", "beta")
_RUNNING = ("moving_mean", "moving_variance", "running_mean", "running_var")
_NEAR = 1e-4  # relative, of an output computed again
_UNCERTAIN = 2.0**-20  # relative, of the mean square of a row in float32
_CLEAR = 8.0
_MOST_ELEMENTS = 1 << 24


def epsilons(first: FirstDifference) -> Change | None:
    """Return that a norm was computed with another epsilon, where that is all.

    Over the last axis, or of a batch: over all but the second one, by the statistics of that batch.
    Its elements and those of its input and weight have to be at hand, in float32 or float64.
    """
    pair = first.pair
    if pair.entry is None or (first.finding.io, first.finding.path) != ("output", "0"):
        return None
    try:
        a, b = map(_epsilon, _operands(first))
    except (ArrayFileError, OSError, ValueError, TypeError):
        return None
    if a is None or b is None or abs(a[0] - b[0]) <= _CLEAR * max(a[1], b[1]):
        return None
    values = [float(f"{max(value, 0.0):.2g}") for value, _ in (a, b)]
    return Change("epsilon", {"a": values[0], "b": values[1]})


def _operands(first: FirstDifference) -> tuple[dict[str, Record], dict[str, Record]]:
    """Return what the norm was given in either run and agrees, by name, and what it made, as y."""
    place = (first.event.phase, first.event.name)
    pairs = [("y", first.pair)]
    for pair, finding in first.before:
        if (pair.event.phase, pair.event.name) == place and finding and finding.status.agrees:
            pairs.append((_name(pair.record), pair))
    sides = ("a", "b")
    found: list[dict[str, Record]] = [
        {name: record for name, pair in pairs if name and (record := getattr(pair, side))}
        for side in sides
    ]
    return found[0], found[1]


def _name(record: Record) -> str:
    """Return what the formula calls a record; "" of what is not in it."""
    if record.io != "parameters":
        return "x" if (record.io, record.path) == ("input", "0") else ""
    path = record.path
    return "weight" if path in _WEIGHTS else "bias" if path in _BIASES else path


def _epsilon(records: Mapping[str, Record]) -> tuple[float, float] | None:
    """Return the epsilon of a norm and how uncertain it is; None of what is no norm."""
    records = {name: record for name, record in records.items() if name not in _RUNNING}
    if not {"x", "y", "weight"} <= {*records} or not {*records} <= {"x", "y", "weight", "bias"}:
        return None
    if any(
        r.location is None or r.leaf.dtype not in ("Float32", "Float64") for r in records.values()
    ):
        return None
    arrays = {name: np.asarray(record.array(), np.float64) for name, record in records.items()}
    x, y, weight = arrays["x"], arrays["y"], arrays["weight"]
    if x.size != y.size or weight.ndim != 1 or not 1 < x.size <= _MOST_ELEMENTS:
        return None
    for rows in _forms(x, y, weight, arrays.get("bias", np.zeros(weight.size))):
        value = _of_rows(*rows)
        if value is not None:
            return value
    return None


def _forms(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield what may be normalised row by row: x, y without its bias, and the weight."""
    if x.size % weight.size == 0:
        of_last, plain = x.reshape(-1, weight.size), y.reshape(-1, weight.size) - bias
        yield of_last, plain, weight
        yield of_last - of_last.mean(axis=1, keepdims=True), plain, weight
    if x.ndim >= 2 and x.shape == y.shape and x.shape[1] == weight.size == bias.size:
        rows, made = (np.moveaxis(v, 1, 0).reshape(weight.size, -1) for v in (x, y))
        yield rows - rows.mean(axis=1, keepdims=True), made - bias[:, None], weight[:, None]


def _of_rows(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float] | None:
    """Return the epsilon with which every row is weight · x / √(mean x² + epsilon).

    Args:
        x, y: [rows, elements].
        weight: [elements], or one of each row, [rows, 1].
    """
    scaled = x * weight
    squares, norms = (x * x).mean(axis=1), (scaled * scaled).sum(axis=1)
    if not (norms > 0).all():
        return None
    factors = (scaled * y).sum(axis=1) / norms
    left = y - scaled * factors[:, None]
    if not (factors > 0).all() or (abs(left) > _NEAR * abs(y).max()).any():
        return None
    row = int(squares.argmin())
    value = float(factors[row] ** -2 - squares[row])
    again = scaled / np.sqrt(squares + value)[:, None]
    if not np.isfinite(again).all() or (abs(again - y) > _NEAR * abs(y).max()).any():
        return None
    return value, float(squares[row] + abs(value)) * _UNCERTAIN
