"""Files that appear whole or not at all, and JSON that is always valid JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place and rename it in, so that readers see all of it or none."""
    temporary = path.with_name(f".{path.name[:80]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, *, indent: int | None = 1) -> None:
    """Write `content` as valid UTF-8 JSON, whole or not at all."""
    write_atomic(path, lambda file: file.write(dump_json(content, indent=indent)))


def dump_json(content: Any, *, indent: int | None = None) -> bytes:
    """Return `content` as UTF-8 JSON; NaN and infinities must have been named already."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=indent)
    # A lone surrogate has no UTF-8 form; its escape \udcxx is valid JSON.
    return text.encode("utf-8", errors="backslashreplace")


def number_to_json(value: float | int | bool | complex | None) -> Any:
    """Return a number as JSON takes it: NaN and infinities become the strings msprobe uses."""
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def number_from_json(value: Any) -> Any:
    """Undo `number_to_json`; what is not a number is returned as it is."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    return value
