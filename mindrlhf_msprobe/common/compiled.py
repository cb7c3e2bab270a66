"""The small C libraries beside the modules that use them, where they were built (setup.py)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any


def library_beside(module_file: str, name: str) -> Any:
    """Return the library `name` in the directory of a module, None where it was not built."""
    for suffix in EXTENSION_SUFFIXES:
        file = Path(module_file).with_name(f"{name}{suffix}")
        if file.is_file():
            with suppress(OSError):  # of another system
                return ctypes.CDLL(str(file))
    return None
