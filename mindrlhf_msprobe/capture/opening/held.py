"""Tensors that are held in memory until it is known whether their elements are to be written.

They are to be written as they were when they were described. What may be written in place before
its entry ends is copied, into buffers that are used again; the rest is held where it is, and its
fingerprint is computed once more before it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.tensors.summary import HostTensor, fingerprint_of, to_host
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays.buffers import BufferPool, Copy

_SMALL = 1 << 16  # bytes; what is smaller is copied in any case, and not counted


class NotHeldError(Exception):
    """The elements of a tensor that are to be written are not held any more.

    Attributes:
        kind: why; it is counted by it.
    """

    def __init__(self, code: str) -> None:
        self.kind = message(code)
        super().__init__(str(self.kind))


class Held:
    """A tensor that is held for one record or several.

    Attributes:
        tensor: None once it has been given up.
        size: bytes that are held for it.
        fingerprint: of the elements; None where nobody else can write into `tensor`.
        copy: what the pool takes back, of a copy.
        users: records whose entries have not ended.
    """

    __slots__ = ("copy", "fingerprint", "size", "tensor", "users")

    def __init__(self, tensor: Any, size: int, fingerprint: str | None = None) -> None:
        self.tensor, self.size, self.fingerprint = tensor, size, fingerprint
        self.copy: Copy | None = None
        self.users = 1

    def elements(self) -> HostTensor:
        """Return the tensor as it was when it was described.

        Raises:
            NotHeldError: it was given up, or has been written in place since.
        """
        if self.tensor is None:
            raise NotHeldError("lost.not_held")
        host = to_host(self.tensor)
        may_differ = self.copy is None and self.fingerprint is not None
        if may_differ and fingerprint_of(host) != self.fingerprint:
            raise NotHeldError("lost.overwritten")
        return host


class Holder:
    """Holds tensors within a budget; where it is used up, what came first is given up.

    That is what the outermost cells were given. May be used by several threads.

    Args:
        budget: bytes.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._pool = BufferPool(budget)
        self._held: dict[Held, None] = {}  # in the order in which they are given up
        self._copies: dict[str, Held] = {}  # by fingerprint
        self._size = 0
        self._lock = threading.RLock()

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes fit in without anything being given up."""
        return self._size + size <= self._budget

    def hold(
        self, host: HostTensor, fingerprint: str, *, changes: bool, lives: bool
    ) -> Held | HostTensor:
        """Hold a tensor in host memory; what is small is returned as it is to be written.

        Args:
            changes: whether it may be written in place before its entry ends.
            lives: whether it would be there as long without being held, and so is not counted.
        """
        array = host.array
        if array.nbytes < _SMALL:
            if type(array.base) is bytes:  # a copy already
                return host
            return HostTensor(host.type, host.dtype, np.array(array, order="C"))
        with self._lock:
            if lives:
                return Held(host, 0, fingerprint)
            if not changes:
                return self._add(Held(host, array.nbytes, fingerprint))
            known = self._copies.get(fingerprint)
            if known is not None:
                known.users += 1
                return known
            held = self._add(Held(host, self._pool.size_for(array), fingerprint))
            if held.tensor is not None:
                held.copy = self._pool.copy(array)
                held.tensor = HostTensor(host.type, host.dtype, held.copy.array)
                self._copies[fingerprint] = held
            return held

    def hold_on_device(self, tensor: Any, copy: Callable[[Any], Any]) -> Held:
        """Hold a copy of a tensor that stays where the tensor is.

        What is on a device is looked at much later, and may have been written in place by then.
        """
        held = Held(None, tensor.nbytes)
        with self._lock:
            self._add(held)
            if held in self._held:
                held.tensor = copy(tensor)
        return held

    def keep(self, held: Held) -> None:
        """Give up all others before this one."""
        with self._lock:
            if held in self._held:
                del self._held[held]
                self._held[held] = None

    def release(self, held: Held) -> None:
        """Note that one record more does not need a tensor any longer."""
        with self._lock:
            held.users -= 1
            if not held.users:
                self._drop(held)

    def _add(self, held: Held) -> Held:
        while held.size <= self._budget and not self.has_room(held.size):
            self._drop(next(iter(self._held)))
        if self.has_room(held.size):
            self._held[held] = None
            self._size += held.size
        else:
            held.tensor = None
        return held

    def _drop(self, held: Held) -> None:
        if held not in self._held:
            return
        del self._held[held]
        self._size -= held.size
        held.tensor = None
        if held.copy is not None:
            del self._copies[held.fingerprint or ""]
            self._pool.release(held.copy)
            held.copy = None
