"""The compiled float32 arithmetic, where it was built; see _float32.c."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.comparison.judging.metrics.sums import SHARES


class Float32Sums(ctypes.Structure):
    """What the library computes of two blocks, as `float32_sums` in _float32.c lays it out."""

    _fields_ = (
        ("equal", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("below", ctypes.c_int64 * 3),
        ("aa", ctypes.c_double),
        ("bb", ctypes.c_double),
        ("ab", ctypes.c_double),
        ("dd", ctypes.c_double),
        ("ad", ctypes.c_double),
        ("abs_at", ctypes.c_int64),
        ("rel_at", ctypes.c_int64),
        ("max_abs", ctypes.c_float),
        ("max_rel", ctypes.c_float),
        ("non_finite", ctypes.c_int32),
        ("outside", ctypes.c_int32),
    )


def _load() -> Any:
    """Return the library's function, None where it was not built."""
    function = getattr(library_beside(__file__, "_float32"), "msprobe_float32_exactly", None)
    if function is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_float
        function.argtypes = (
            *(pointer, pointer, ctypes.c_int64, pointer),
            *(ctypes.c_int32, number, number, ctypes.POINTER(Float32Sums)),
        )
        function.restype = None
    return function


#: The library's function, or None.
FUNCTION = _load()
_SHARES = (ctypes.c_double * len(SHARES))(*SHARES)


def float32_sums(
    a: np.ndarray,
    b: np.ndarray,
    tolerance: tuple[float, float] | None,
) -> Float32Sums | None:
    """Compare two float32 arrays of one length; None where the library cannot.

    It was not built, or the arrays do not begin at a multiple of their element's size.

    Args:
        a, b: contiguous, in native byte order.
        tolerance: rtol and atol; the library says `outside` where a distance exceeds
            rtol · max(|a|, |b|) + atol, all of it rounded to float32. None: it does not look.
    """
    if FUNCTION is None or not (a.flags.aligned and b.flags.aligned):
        return None
    sums = Float32Sums()
    looks, (rtol, atol) = tolerance is not None, tolerance or (0.0, 0.0)
    FUNCTION(a.ctypes.data, b.ctypes.data, a.size, _SHARES, looks, rtol, atol, ctypes.byref(sums))
    return sums
