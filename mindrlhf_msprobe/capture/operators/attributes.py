"""The attributes of a primitive that is called → what the journal has of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mindspore import Type, ops

from mindrlhf_msprobe.storage.attributes import MOST_ATTRIBUTES, Attributes, is_attribute

_SIMPLE = (bool, int, float, str)


def attributes_of(original: Callable[..., Any]) -> Attributes | None:
    """Return what a primitive was made with, by the names of its class's arguments.

    An attribute that was set to another value of the same type since counts as it is now. What is
    neither a bool, a number, a text, a dtype, None nor a list of these is left out.

    Args:
        original: what is called, or the primitive itself.

    Returns:
        None where that is no primitive.
    """
    primitive = getattr(original, "__self__", original)
    if not isinstance(primitive, ops.Primitive):
        return None
    held = vars(primitive)
    given = held.get("init_attrs")
    if not isinstance(given, dict):
        return None
    found = {}
    for name, value in itertools.islice(given.items(), MOST_ATTRIBUTES):
        now = held.get(name, value)
        plain = _plain(now if type(now) is type(value) and type(value) in _SIMPLE else value)
        if is_attribute(plain):
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    """Return the value of an attribute as JSON has it; an object that JSON has not stays."""
    if isinstance(value, Type):
        return {"dtype": str(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
