"""What calls are given and return: leaves in tuples, lists and dicts, walked in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def leaves_of(value: Any) -> list[Any]:
    """Return what stands in tuples, lists and dicts, in order; one value where it is one."""
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def replaced(value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return a structure with each leaf in its tuples, lists and dicts replaced, in order."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(item, of_leaf) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(replaced(item, of_leaf) for item in value)
    if type(value) is dict:
        return {key: replaced(item, of_leaf) for key, item in value.items()}
    return of_leaf(value)
