"""JSON that is read many times: a journal has a line an entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_orjson: Callable[[bytes], Any] | None
try:
    from orjson import loads as found

    _orjson = found
except ImportError:  # a platform without a wheel: slower, the same values
    _orjson = None


def loads(raw: bytes) -> Any:
    """Return what JSON bytes hold; whole numbers beyond 64 bits may come as float.

    Raises:
        ValueError, RecursionError: they are none.
    """
    if _orjson is not None:
        try:
            return _orjson(raw)
        except ValueError:  # it refuses NaN and lone surrogates, which older files may hold
            pass
    return json.loads(raw)
