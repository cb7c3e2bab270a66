"""The attributes of a primitive, e.g. `transpose_b`, as a journal has them: small plain JSON.

A value is a bool, a number, a text, None, `{"dtype": "Float32"}`, or a list of such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: How many attributes there are, how many items a list has, how many characters a text.
MOST_ATTRIBUTES = 64
MOST_ITEMS = 64
LONGEST_TEXT = 100

Attributes = Mapping[str, Any]


def is_attribute(value: Any) -> bool:
    """Return whether a value of JSON is one that an attribute may have."""
    if isinstance(value, list):
        return len(value) <= MOST_ITEMS and all(map(_is_one, value))
    return _is_one(value)


def _is_one(value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) == ["dtype"] and _is_text(value["dtype"])
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int)) or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def attributes_from_json(content: Any) -> Attributes | None:
    """Return the attributes that a line of a journal has; None where it has none that are good."""
    if not isinstance(content, dict) or len(content) > MOST_ATTRIBUTES:
        return None
    good = all(_is_text(name) and is_attribute(value) for name, value in content.items())
    return content if good else None


def in_words(value: Any) -> str:
    """Return the value of an attribute as text, as Python writes it; a dtype by its name."""
    if isinstance(value, dict):
        return str(value.get("dtype"))
    if isinstance(value, list):
        return f"[{', '.join(map(in_words, value))}]"
    return repr(value)


def other_attributes(
    a: Attributes | None, b: Attributes | None
) -> tuple[tuple[str, str, str], ...]:
    """Return (name, value in A, value in B) of the attributes that differ.

    One that is not known on one side is none of them.
    """
    if a is None or b is None or a == b:
        return ()
    both = [name for name in a if name in b]
    pairs = [(name, in_words(a[name]), in_words(b[name])) for name in both]
    return tuple((name, one, other) for name, one, other in pairs if one != other)
