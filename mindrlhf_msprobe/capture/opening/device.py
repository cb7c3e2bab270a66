"""Statistics and fingerprints reduced where the tensors are, and the entries that wait for them.

On an accelerator, bringing every tensor to the host would wait for the device every time. Here each
tensor is reduced to a few numbers by operators queued behind those of the training, so that they
see its value of that moment; the numbers of a whole phase are stacked and fetched at once, when it
ends or many entries wait for theirs. What is found agrees with summary.py on the host to rounding;
fingerprints have an algorithm of their own.

Tried on CPU; not yet run on Ascend.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework.private import no_gradients
from mindrlhf_msprobe.capture.opening.opening import HostEntries, ParameterLog
from mindrlhf_msprobe.capture.opening.overflow import HELD
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, is_tensor, local_of, shard_of
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf, Shard

FINGERPRINT_ALGORITHM = "fmix32x2"

# Murmur3's finaliser (Austin Appleby, public domain), on bits that were mixed with their position.
_POSITION = (-1640531527, 668265263)  # odd: the golden ratio and a prime of xxHash, as int32
_FACTORS = (-2048144789, -1028477387)
_SHIFTS = (16, 13, 16)
_WORD = {1: ms.uint8, 2: ms.int16, 4: ms.int32, 8: ms.int32, 16: ms.int32}
_FLOATS = ("max", "min", "mean", "norm")
_MASK = 0xFFFFFFFF


def can_fingerprint() -> bool:
    """Return whether this MindSpore reads a tensor's bits on the device (`Tensor.view(dtype)`)."""
    return hasattr(ops.auto_generate, "ViewDtype")


@dataclass(frozen=True)
class _Pending:
    """One tensor whose numbers are still on the device.

    Attributes:
        floats: max, min, mean and norm of a tensor of floats: float32, float64 of one of float64.
        integers: how many are NaN, how many infinite; max and min of integers; the fingerprint.
        shard: which part of a tensor that is spread over ranks this is; or None.
    """

    dtype: str
    shape: tuple[int, ...]
    floats: Tensor | None
    integers: Tensor | None
    shard: Shard | None


class DeviceSummaries:
    """Reduces tensors one by one and reads the results of all of them at once.

    Args:
        fingerprint: whether fingerprints are computed; needs `can_fingerprint()`.
    """

    def __init__(self, *, fingerprint: bool) -> None:
        self._fingerprint = fingerprint
        self._pending: list[_Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, tensor: Tensor) -> int:
        """Queue the reductions of a tensor and return its number among those not read yet."""
        with no_gradients():
            self._pending.append(self._reduced(local_of(tensor), shard_of(tensor)))
        return len(self._pending) - 1

    def copy(self, tensor: Tensor) -> Tensor:
        """Queue a copy of a tensor, outside the graph of gradients."""
        with no_gradients():
            return local_of(tensor).copy()

    def read(self) -> list[Leaf]:
        """Fetch what was found of all tensors, in one transfer a dtype, and forget them."""
        pending, self._pending = self._pending, []
        parts = [t for p in pending for t in (p.floats, p.integers) if t is not None]
        with no_gradients():
            numbers = {
                dtype: iter(
                    ops.cat([part for part in parts if part.dtype == dtype]).asnumpy().tolist()
                )
                for dtype in {part.dtype for part in parts}
            }

        def fetched(part: Tensor | None) -> list[Any]:
            return [] if part is None else [next(numbers[part.dtype]) for _ in range(part.size)]

        return [self._leaf(p, fetched(p.floats), fetched(p.integers)) for p in pending]

    def _reduced(self, tensor: Tensor, shard: Shard | None) -> _Pending:
        dtype, shape = str(tensor.dtype), tuple(tensor.shape)
        if tensor.size == 0:
            return _Pending(dtype, shape, None, None, shard)
        flat = tensor.reshape(-1)
        floats = None
        counts: list[Tensor] = []
        wide = ms.float64 if dtype in ("Float64", "Complex128") else ms.float32
        if tensor.is_complex():
            values = ops.abs(flat).astype(wide)
        elif tensor.is_floating_point():
            values = flat.astype(wide)
        else:
            values = None
        if values is not None:
            floats = _reduce_floats(values)
            counts = [
                ops.isnan(values).astype(ms.int32).sum(),
                ops.isinf(values).astype(ms.int32).sum(),
            ]
        else:
            exact = flat.astype(ms.int64)
            counts = [exact.max(), exact.min()]
            if tensor.dtype != ms.bool_:
                floats = _reduce_floats(flat.astype(ms.float32))
        if self._fingerprint:
            # A word an element, or one for each 4 of its bytes.
            bits = flat if flat.dtype == ms.bool_ else flat.view(_WORD[flat.itemsize])
            counts += [_hash(bits.astype(ms.int32), position) for position in _POSITION]
        integers = ops.stack([c.astype(ms.int64) for c in counts])
        return _Pending(dtype, shape, floats, integers, shard)

    def _leaf(self, p: _Pending, floats: Sequence[float], integers: list[int]) -> Leaf:
        leaf: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": p.dtype}
        leaf |= {"shape": p.shape, "shard": p.shard}
        if not integers:
            empty = _named(p.dtype, p.shape, [0] * len(_POSITION)) if self._fingerprint else None
            return Leaf(**leaf, nan_count=0, inf_count=0, fingerprint=empty)
        first, second, *words = integers
        if p.dtype == "Bool":
            leaf |= {"max": bool(first), "min": bool(second), "nan_count": 0, "inf_count": 0}
        elif "Int" in p.dtype:
            leaf |= dict(zip(_FLOATS, floats))
            leaf |= {"max": first, "min": second, "nan_count": 0, "inf_count": 0}
        else:
            found = [math.nan] * len(_FLOATS) if first else floats
            leaf |= dict(zip(_FLOATS, found)) | {"nan_count": first, "inf_count": second}
        if words:
            leaf["fingerprint"] = _named(p.dtype, p.shape, words)
        return Leaf(**leaf)


def _reduce_floats(values: Tensor) -> Tensor:
    """Return max, min, mean and L2 norm of floats, as a tensor of shape (4,) of their dtype.

    The norm is taken of the values over the largest of them, so that no square overflows; so is
    the mean of float64, for which the host takes care of that, too.
    """
    largest, smallest = values.max(), values.min()
    size = ops.maximum(ops.abs(largest), ops.abs(smallest))
    scale = ops.select(ops.logical_and(size > 0, ops.isfinite(size)), size, ops.ones_like(size))
    scaled = values / scale
    norm = ops.sqrt((scaled * scaled).sum()) * scale
    mean = scaled.mean() * scale if values.dtype == ms.float64 else values.mean()
    return ops.stack([largest, smallest, mean, norm])


def _hash(words: Tensor, position: int) -> Tensor:
    mixed = ops.bitwise_xor(words, ops.arange(1, words.size + 1).astype(ms.int32) * position)
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None)):
        low = ops.bitwise_and(
            ops.bitwise_right_shift(mixed, Tensor(shift, ms.int32)),
            Tensor((1 << (32 - shift)) - 1, ms.int32),
        )
        mixed = ops.bitwise_xor(mixed, low)
        mixed = mixed if factor is None else mixed * factor
    return mixed.sum()


def _named(dtype: str, shape: tuple[int, ...], words: Sequence[int]) -> str:
    kind = zlib.crc32(f"{dtype}{list(shape)}".encode())
    return f"{FINGERPRINT_ALGORITHM}:" + "".join(f"{word & _MASK:08x}" for word in (kind, *words))


class DeviceEntries(HostEntries):
    """Reduces MindSpore's tensors where they are, and reads the results together.

    Args:
        device: reduces them.
        parameters: an unchanged one is left out once its fingerprint is known.
        shared: what `HostEntries` takes, but `elements` and `sketches`.
    """

    def __init__(self, device: DeviceSummaries, parameters: ParameterLog, **shared: Any) -> None:
        super().__init__(**shared)
        self._device = device
        self._parameters = parameters
        self._first = 0  # the number of the first tensor that waits
        self._found: dict[int, Leaf] = {}
        self._waiting: list[JournalLine] = []
        self.describer = self.of_graphs = TreeDescriber(
            lambda value: isinstance(value, _Difference) or is_tensor(value), self._queue
        )

    def append(self, line: JournalLine) -> None:
        """Take an entry that ended, until its numbers are known."""
        with self.charge:
            self._waiting.append(line)
            if len(self._device) >= 4096:  # tensors whose numbers are there
                self._fetch()

    def state_of(self, parameter: Any) -> str | None:
        """Return None: the fingerprint is still on the device; without one, that is all."""
        return None if self.fingerprint else "recorded"

    def glance(self, parameter: Any) -> bytes | None:
        """Return None: to read any element would wait for the device."""
        return None

    def taken(self, gradient: Any) -> Any:
        """Return it as it is."""
        return gradient

    def keep(self, gradient: Any) -> Any:
        """Return a copy on the device."""
        return self._device.copy(gradient)

    def difference(self, gradient: Any, kept: Any) -> tuple[Any, float | None]:
        """Return the difference, computed on the device; None where the kept one has overflowed.

        Whether it has is known when the numbers are fetched: until then it stands for both.
        """
        return _Difference(gradient - kept, self._first + self._device.add(kept)), None

    def flush(self) -> None:
        """Fetch all numbers and hand over the entries that waited for them."""
        self._fetch()
        super().flush()

    def _fetch(self) -> None:
        with self.charge:
            waiting, self._waiting = self._waiting, []
            leaves = self._device.read()
            self._found.update(enumerate(leaves, self._first))
            self._first += len(leaves)
            for line in waiting:
                line.values = values = self._resolved(line.values)
                call_name = line.entry.rpartition(".")[0]
                changed = {
                    name: leaf
                    for name, leaf in (values.get("parameters") or {}).items()
                    if self._parameters.changes(f"{call_name}.{name}", leaf.get("fingerprint"))
                }
                if changed:
                    values["parameters"] = changed
                else:
                    values.pop("parameters", None)
                self._ended(line)

    def _queue(self, value: Any, record: str) -> Any:
        device = isinstance(value, _Difference) or hasattr(value, "asnumpy")
        if isinstance(value, HostTensor) or not device:
            known = self.overflows is not None and not isinstance(value, HostTensor)
            return (self._held if known else self._describe)(value, record)
        with self.charge:
            try:
                if isinstance(value, _Difference):
                    number = self._first + self._device.add(value.tensor)
                    held = self._held_there(value.tensor, record, lambda own: own)
                    return {_PENDING: number, _KEPT: value.kept, **held}
                number = self._first + self._device.add(value)
                return {_PENDING: number, **self._held_there(value, record, self._device.copy)}
            except Exception as error:
                return self._failed(value, error)

    def _held_there(self, tensor: Any, record: str, copy: Callable[[Any], Any]) -> dict[str, Any]:
        """Hold a copy on the device; where there is no room, entries that have ended make it."""
        if self.overflows is None or not self.overflows.run.wanted:
            return {}
        holder = self.overflows.run.holder
        if not holder.has_room(local_of(tensor).nbytes):
            self._fetch()
        return {HELD: (record, holder.hold_on_device(tensor, copy))}

    def _resolved(self, content: Any) -> Any:
        if isinstance(content, list):
            return [self._resolved(item) for item in content]
        if not isinstance(content, dict):
            return content
        number = content.get(_PENDING)
        if isinstance(number, int):
            more = {name: item for name, item in content.items() if name not in (_PENDING, _KEPT)}
            leaf = self._found.pop(number)
            if (kept := content.get(_KEPT)) is not None:
                other = self._found.pop(kept)
                if other.nan_count or other.inf_count:
                    leaf = Leaf("NoneType", opaque=True)
            return {**leaf.to_json(), **more}
        return {key: self._resolved(item) for key, item in content.items()}


#: Stand in the JSON of a leaf whose numbers are on the device: its number, and of a difference that
#: of the tensor that was taken off.
_PENDING, _KEPT = "msprobe pending", "msprobe kept"


@dataclass(frozen=True)
class _Difference:
    """A difference on the device, and the number of the tensor that was taken off."""

    tensor: Any
    kept: int
