"""Does the rollout network have the parameters of the training network, fused ones included?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.rows.distance import distances, roundoff
from mindrlhf_msprobe.comparison.mismatch.weights.fused import (
    ROUNDED,
    Fused,
    find_fused,
    find_reordered,
    parts_of,
)
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import FusedRule
from mindrlhf_msprobe.comparison.pairing.names import Names
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    ArrayFileError,
    bfloat16_bits_to_float32,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter, network_name

_CACHE = "cache"  # part of the name of a parameter that holds keys or values
#: What one parameter of a cell is called in one class or another.
_SAME_PARAMETERS = (
    ("weight", "embedding_weight", "embedding_table", "gamma"),
    ("bias", "beta"),
)


@dataclass(frozen=True)
class WeightPair:
    """One parameter of the rollout network, and what it is in the training network.

    Attributes:
        rollout: its name.
        training: the names of its parts; one, unless it is fused.
        equal: whether all values are equal, of two dtypes those that are left when both are
            rounded to the lower one; None where nothing says so.
        relative: the L2 distance relative to the training's norm; None where it is not known.
        dtypes: of the rollout's and the training's.
        rounded: the lower dtype to which the training's values are rounded in the rollout, where
            that is all they differ by; None where it is not.
    """

    rollout: str
    training: tuple[str, ...]
    equal: bool | None
    relative: float | None = None
    dtypes: tuple[str, str] = ("", "")
    rounded: str | None = None

    @property
    def is_brought_over(self) -> bool:
        """Whether it is the training's, as it is or rounded."""
        return bool(self.equal) or self.rounded is not None


@dataclass(frozen=True)
class Weights:
    """The parameters of both networks.

    Attributes:
        pairs: those that both have, in the order of the rollout network.
        fused: cell of the rollout network → its parts.
        alone: parameters of the rollout network that the training network has not, and the other
            way round, each by its own network's names; without the caches of either.
    """

    pairs: tuple[WeightPair, ...] = ()
    fused: Mapping[str, Fused] = field(default_factory=dict)
    alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def unequal(self) -> tuple[WeightPair, ...]:
        """Those that differ."""
        return tuple(pair for pair in self.pairs if pair.equal is False)

    @property
    def unknown(self) -> tuple[WeightPair, ...]:
        """Those of which nothing says whether they are equal."""
        return tuple(pair for pair in self.pairs if pair.equal is None)


def compare_weights(
    rollout: Mapping[str, Record],
    training: Mapping[str, Record],
    names: Names,
    rules: Sequence[FusedRule] = (),
) -> Weights:
    """Compare the parameters of both networks.

    Args:
        rollout, training: by name in their networks.
        names: what cells of the rollout are called in the training.
        rules: what a user says of fused cells.
    """
    common_b = _common(training, names.common_b)
    common_a = _with_names_of(common_b, _common(rollout, names.common_a))
    both = [n for n in common_a if n in common_b and _same_shape(common_a, common_b, n)]
    left_a, left_b = _without(common_a, both), _without(common_b, both)
    fused = find_fused(left_a, left_b, rules)
    pairs = [_plain(name, common_a[name], common_b[name]) for name in both]
    unlike = {pair.rollout for pair in pairs if pair.equal is False}
    reordered = find_reordered(
        {name: common_a[name] for name in common_a if name in unlike}, common_b
    )
    pairs = [
        _fused_pair(pair.rollout, common_a[pair.rollout], of, common_b)
        if (of := reordered.get(cell_of_parameter(pair.rollout))) is not None
        else pair
        for pair in pairs
    ]
    joined = [
        _fused_pair(name, record, fused[cell_of_parameter(name)], left_b)
        for name, record in left_a.items()
        if cell_of_parameter(name) in fused
    ]
    used = {name for pair in joined for name in (pair.rollout, *pair.training)}
    alone = (
        _alone(rollout, {*map(id, _without(common_a, {*both, *used}).values())}, names.common_a),
        _alone(training, {*map(id, _without(common_b, {*both, *used}).values())}, names.common_b),
    )
    return Weights((*pairs, *joined), {**fused, **reordered}, alone)


def _alone(
    records: Mapping[str, Record], left: Collection[int], common: Callable[[str], str | None]
) -> tuple[str, ...]:
    """Return the names of parameters that are left, or outside of what both networks have.

    Args:
        left: identities of records.
    """
    return tuple(
        name
        for name, record in records.items()
        if (id(record) in left or common(cell_of_parameter(name)) is None)
        and _CACHE not in name.rpartition(".")[2]
    )


def _without(records: Mapping[str, Record], names: Collection[str]) -> dict[str, Record]:
    return {name: record for name, record in records.items() if name not in names}


def _common(
    records: Mapping[str, Record], common: Callable[[str], str | None]
) -> dict[str, Record]:
    """Return parameters by the names that both networks have."""
    found = {}
    for name, record in records.items():
        if (cell := common(cell_of_parameter(name))) is not None:
            found[network_name(cell, name.rpartition(".")[2])] = record
    return found


def _with_names_of(
    training: Mapping[str, Record], rollout: Mapping[str, Record]
) -> dict[str, Record]:
    """Return parameters of the rollout under the names that the training's classes have for them.

    A table of embeddings is `weight`, `embedding_weight` or `embedding_table` of its cell.
    """
    found = {}
    for name, record in rollout.items():
        cell, _, own = name.rpartition(".")
        alike = next((each for each in _SAME_PARAMETERS if own in each), ())
        known = [o for n in alike if (o := f"{cell}.{n}".lstrip(".")) in training]
        found[known[0] if name not in training and len(known) == 1 else name] = record
    return found


def _same_shape(a: Mapping[str, Record], b: Mapping[str, Record], name: str) -> bool:
    shapes = a[name].leaf.shape, b[name].leaf.shape
    return shapes[0] == shapes[1] or shapes[0] == (shapes[1] or ())[::-1]


def _plain(name: str, a: Record, b: Record) -> WeightPair:
    dtypes = (str(a.leaf.dtype), str(b.leaf.dtype))
    prints = a.leaf.fingerprint, b.leaf.fingerprint
    comparable = None not in prints and dtypes[0] == dtypes[1]
    if comparable and prints[0] == prints[1]:
        return WeightPair(name, (name,), True, 0.0, dtypes)
    measured = _measured(a, (b,), None)
    if (measured is None or not measured[0]) and len(a.leaf.shape or ()) == 2:
        turned = _measured(a, (b,), None, (True, False))
        measured = turned if turned is not None and (turned[0] or measured is None) else measured
    if measured is None:
        alike = comparable and _algorithm(prints[0]) == _algorithm(prints[1])
        return WeightPair(name, (name,), False if alike else None, None, dtypes)
    return WeightPair(name, (name,), *measured[:2], dtypes, measured[2])


def _fused_pair(
    name: str, record: Record, fused: Fused, training: Mapping[str, Record]
) -> WeightPair:
    names = tuple(f"{part}.{name.rpartition('.')[2]}" for part in fused.parts)
    parts = parts_of(fused, name, training)
    if parts is None:
        return WeightPair(name, names, None)
    dtypes = (str(record.leaf.dtype), str(parts[0].leaf.dtype))
    turned = fused.transposed, fused.parts_transposed
    if len(record.leaf.shape or ()) != 2:  # a bias is what it is
        turned = False, False
    equal, relative, rounded = _measured(record, parts, fused.order, turned) or (None, None, None)
    return WeightPair(name, names, equal, relative, dtypes, rounded)


def _measured(
    a: Record,
    parts: tuple[Record, ...],
    order: np.ndarray | None,
    transposed: tuple[bool, bool] = (False, False),
) -> tuple[bool, float, str | None] | None:
    """Return whether a parameter is equal to others, row by row, and their relative distance.

    Args:
        transposed: whether columns of the parameter are its rows; and those of the others theirs.

    Returns:
        Also the lower dtype that the others are rounded to, if that is why they differ. None where
        neither elements nor sketches were stored, or they have other rows.
    """
    whole = all(record.location is not None for record in (a, *parts))
    if any(transposed) and not whole:
        return None
    try:
        mine = _rows(a, whole, transposed=transposed[0])
        theirs = _rows_of_all(parts, order, whole, transposed=transposed[1])
    except ArrayFileError:
        return None
    if theirs is None or mine[0].shape != theirs[0].shape:
        return None
    own, (rows, prints) = mine[0], theirs
    found = distances(own, rows)
    norm, apart = float(found.norms.sum()), float(found.squared.sum())
    relative = math.sqrt(apart / norm) if norm else (0.0 if apart == 0 else math.inf)
    dtypes = a.leaf.dtype, parts[0].leaf.dtype
    low = max(dtypes, key=roundoff)
    if roundoff(dtypes[0]) == roundoff(dtypes[1]):
        same = not found.unequal.any() if whole else bool(np.array_equal(mine[1], prints))
    elif whole:
        same = np.array_equal(_rounded(own, low), _rounded(rows, low), equal_nan=True)
    elif relative <= roundoff(low):
        return None  # sums do not tell rounding from a small difference
    else:
        same = False
    rounded = _rounded_to(own, rows) if whole and not same else None
    return same, relative, rounded


def _rows_of_all(
    parts: tuple[Record, ...], order: np.ndarray | None, whole: bool, *, transposed: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what `_rows` does of several parameters, in an order; None if that has more rows.

    Raises:
        ArrayFileError: they were not stored.
    """
    each = [_rows(part, whole, transposed=transposed) for part in parts]
    rows = np.concatenate([values for values, _ in each])
    prints = np.concatenate([found for _, found in each])
    if order is None:
        return rows, prints
    if int(order.max(initial=0)) >= len(rows):
        return None
    return rows[order], prints[order]


def _rounded_to(values: np.ndarray, others: np.ndarray) -> str | None:
    """Return the lower dtype to which others are rounded in float32 values; None if to none."""
    if (values.dtype, others.dtype) != (np.float32, np.float32):
        return None
    return next((d for d in ROUNDED if np.array_equal(values, _rounded(others, d))), None)


def _rounded(values: np.ndarray, dtype: str | None) -> np.ndarray:
    """Return values rounded to the nearest ones of a lower dtype, float32."""
    if dtype == BFLOAT16:
        return bfloat16_bits_to_float32(float32_to_bfloat16_bits(values.astype(np.float32)))
    with np.errstate(over="ignore"):
        return values.astype((dtype or "float32").lower()).astype(np.float32)


def _rows(
    record: Record, whole: bool, *, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a parameter, or their sketches; and the fingerprints of these.

    Args:
        transposed: take its columns instead.

    Raises:
        ArrayFileError: they were not stored.
    """
    if whole:
        values = np.asarray(record.array())
        rows = values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1)
        rows = rows.T if transposed else rows
        return rows, np.zeros(len(rows))
    sketch = record.sketch()
    if not sketch.block:
        raise ArrayFileError.saying("unread.no_sketch")
    return sketch.sums, sketch.fingerprints


def _algorithm(fingerprint: str | None) -> str:
    return (fingerprint or "").partition(":")[0]
