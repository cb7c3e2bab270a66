"""Names that differ in numbers alone: those of layers, of experts, of what a list holds."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=1 << 16)
def pattern_of(name: str) -> str:
    """Return what names have in common that differ in numbers alone."""
    return _NUMBER.sub("#", name)
