"""Copies of tensors that wait to be written, in buffers that are used again.

Fresh memory costs a page fault for every 4 KiB, several times the copy itself.
"""

from __future__ import annotations

import threading

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass

_SMALLEST = 1 << 16  # bytes; below, the allocator keeps its memory anyway


@dataclass(frozen=True, eq=False, slots=True)
class Copy:
    """A copy of an array.

    Attributes:
        array: the elements, C-contiguous.
        size: the bytes it occupies.
    """

    array: np.ndarray
    size: int
    buffer: np.ndarray | None = None


class BufferPool:
    """Copies arrays into buffers of a few sizes; may be used by several threads.

    Args:
        budget: bytes of memory that free buffers and copies in use together may hold; copies in
            use are bounded by whoever asks for them, free buffers are dropped to keep within it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0  # bytes, free and in use
        self._free: dict[int, list[np.ndarray]] = {}
        # How many free buffers of a size were never needed since the last trim.
        self._idle: dict[int, int] = {}
        self._lock = threading.RLock()

    def size_for(self, array: np.ndarray) -> int:
        """Return the bytes that a copy of `array` will occupy."""
        size = array.nbytes
        if size < _SMALLEST:
            return size
        unit = 1 << (size.bit_length() - 3)  # at most a quarter of a buffer is unused
        return -(-size // unit) * unit

    def copy(self, array: np.ndarray) -> Copy:
        """Return a copy of `array`, to be given back by `release`."""
        size = self.size_for(array)
        if size < _SMALLEST:
            return Copy(np.array(array, order="C"), size)
        buffer = self._take(size)
        copy = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return Copy(copy, buffer.nbytes, buffer)

    def release(self, copy: Copy) -> None:
        """Take back a copy, whose elements nobody may look at any more."""
        if copy.buffer is None:
            return
        with self._lock:
            if self._held > self._budget:
                self._held -= copy.size
            else:
                self._free.setdefault(copy.size, []).append(copy.buffer)

    def trim(self) -> None:
        """Drop the free buffers that were not needed since the last trim."""
        with self._lock:
            for size, free in self._free.items():
                idle = min(self._idle.get(size, len(free)), len(free))
                del free[:idle]  # the last one given back is the first one taken
                self._held -= idle * size
            self._idle = {size: len(free) for size, free in self._free.items()}

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            free = self._free.get(size)
            if free:
                buffer = free.pop()
                self._idle[size] = min(self._idle.get(size, 0), len(free))
                return buffer
            self._held += size
            for other, buffers in self._free.items():
                while buffers and self._held > self._budget:
                    buffers.pop()
                    self._held -= other
        return np.empty(size, np.uint8)
