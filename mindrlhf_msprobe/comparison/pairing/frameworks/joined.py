"""Records in the form that the other framework has: in another shape, transposed, or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_nan, is_number
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record


@dataclass(frozen=True)
class Joined(Record):
    """Elements of one record or of several, brought into another form.

    Attributes:
        sources: the records, one behind the other along `axis`.
        axis: of the sources, after `turned`.
        order: the place, along `axis`, of each row in the sources; None: as they are.
        turned: the sources are transposed before.
        turned_back: the result is transposed.
        beside: the largest element of what it stands beside; 0 where that is unknown.
    """

    sources: tuple[Record, ...] = ()
    axis: int = 0
    order: tuple[int, ...] | None = None
    turned: bool = False
    turned_back: bool = False
    beside: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.sources, self.axis, self.order, self.turned, self.turned_back, self.beside)
        return Joined, (*Record.__reduce__(self)[1], *own)

    def array(self) -> np.ndarray:
        """Return the elements; see `Record.array`."""
        parts = [source.array() for source in self.sources]
        parts = [part.T for part in parts] if self.turned else parts
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)
        if self.order is not None:
            found = np.take(found, np.array(self.order), self.axis)
        found = found.T if self.turned_back else found
        shape = self.leaf.shape or ()
        if found.size != math.prod(shape):
            shapes = {"held": str(list(found.shape)), "recorded": str(list(shape))}
            raise ArrayFileError.saying("unread.other_shape", **shapes)
        return found.reshape(shape)


def reshaped(record: Record, shape: tuple[int, ...]) -> Record:
    """Return a record with the same elements, in the same order, in another shape."""
    if record.leaf.shape == shape:
        return record
    return _joined(record, replace(record.leaf, shape=shape), sources=(record,))


def beside_of(record: Record) -> float:
    """Return the largest element of what a record stands beside; 0 where that is unknown."""
    return record.beside if isinstance(record, Joined) else 0.0


def among(record: Record, largest: float) -> Record:
    """Return a record with the largest element of what it stands beside."""
    if isinstance(record, Joined):
        return replace(record, beside=largest)
    return _joined(record, record.leaf, sources=(record,), beside=largest)


def transposed(record: Record) -> Record:
    """Return a matrix with rows for columns."""
    shape = (record.leaf.shape or ())[::-1]
    leaf = replace(record.leaf, shape=shape, fingerprint=None, md5=None)
    return _joined(record, leaf, sources=(record,), turned=True)


def joined(
    records: Sequence[Record],
    name: str,
    *,
    axis: int = 0,
    order: Sequence[int] | None = None,
    turned: bool = False,
    turned_back: bool = False,
) -> Record:
    """Return several records as one, by the name that it is to have.

    Args:
        axis, order, turned, turned_back: as `Joined` has them.
    """
    shapes = [list((r.leaf.shape or ())[::-1] if turned else r.leaf.shape or ()) for r in records]
    at = axis % max(len(shapes[0]), 1)
    shape = list(shapes[0])
    shape[at] = sum(each[at] for each in shapes)
    whole = tuple(shape[::-1] if turned_back else shape)
    leaf = together([record.leaf for record in records], whole)
    stored = all(record.location is not None for record in records)
    found = _joined(
        records[0],
        leaf,
        sources=tuple(records),
        axis=at,
        order=None if order is None else tuple(map(int, order)),
        turned=turned,
        turned_back=turned_back,
    )
    return replace(found, name=name, location=found.location if stored else None)


def _joined(record: Record, leaf: Leaf, **changes: Any) -> Joined:
    own = Record.__reduce__(record)[1] if type(record) is Record else _plain(record)
    return replace(Joined(*own), leaf=leaf, **changes)


def _plain(record: Record) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in Record.__slots__)


def together(leaves: Sequence[Leaf], shape: tuple[int, ...]) -> Leaf:
    """Return what statistics say of tensors that are put together."""
    first = leaves[0]
    norms = [leaf.norm for leaf in leaves]
    return Leaf(
        first.type,
        first.dtype,
        shape,
        max=_extreme(max, [leaf.max for leaf in leaves]),
        min=_extreme(min, [leaf.min for leaf in leaves]),
        mean=_mean(leaves),
        norm=math.hypot(*norms) if all(map(is_number, norms)) else None,
        nan_count=_sum([leaf.nan_count for leaf in leaves]),
        inf_count=_sum([leaf.inf_count for leaf in leaves]),
        data_name=first.data_name,
        why=next((leaf.why for leaf in leaves if leaf.why is not None), None),
        dialect=first.dialect,
    )


def _extreme(choose: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Return an extreme of several, None where one is unknown; one NaN makes it NaN."""
    if not all(map(is_number, values)):
        return None
    return next((value for value in values if is_nan(value)), choose(values))


def _mean(leaves: Sequence[Leaf]) -> float | None:
    """Return the mean of all elements; None where that of one is unknown, or there are none."""
    means: list[Any] = [leaf.mean for leaf in leaves]
    sizes = [math.prod(leaf.shape or ()) for leaf in leaves]
    if not all(map(is_number, means)) or not sum(sizes):
        return None
    return sum(mean * size for mean, size in zip(means, sizes)) / sum(sizes)


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(n for n in counts if n)
