"""A trainer's configurations → plain JSON values."""

from __future__ import annotations

import argparse
import enum
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.tree import MAX_DEPTH, fields_of, printable_integer
from mindrlhf_msprobe.storage.atomic import number_to_json

#: Told the path and the value of what could only be written as text.
TextNote = Callable[[str, Any], None]

_MAX_ELEMENTS = 1000  # of an array that is written in full
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def to_plain(
    value: Any, written_as_text: TextNote, path: str = "", around: tuple[int, ...] = ()
) -> Any:
    """Return `value` as JSON values.

    Takes mappings, sequences, sets, dataclasses, named tuples, namespaces, objects with
    `to_dict()`, enums, paths, numpy and MindSpore dtypes, numpy scalars and small arrays. Anything
    else is written as its text, memory addresses left out so that two runs can be compared.

    Args:
        written_as_text: told about each value of which only the text is written.
        path: where the value stands.
        around: the ids of the values it lies in, so that one which holds itself ends.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (int, float)) and type(value).__module__ == "builtins":
        return number_to_json(printable_integer(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value) if isinstance(os.fspath(value), str) else str(value)
    if isinstance(value, np.longdouble):
        return number_to_json(float(value))
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return to_plain(value.item(), written_as_text, path, around)
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biuf":
        return to_plain(value[()], written_as_text, path, around)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if _is_mindspore_dtype(value):
        return str(value)
    children = None
    if len(around) < MAX_DEPTH and id(value) not in around:
        children = _children(value)
        around = (*around, id(value))
    if isinstance(children, Mapping):
        plain: dict[str, Any] = {}
        for key, item in children.items():
            name = _key_text(key)
            while name in plain:  # 1 and "1" are two keys of a dict, but one of JSON
                name += "~"
            plain[name] = to_plain(item, written_as_text, f"{path}.{name}", around)
        return plain
    if children is not None:
        return [
            to_plain(item, written_as_text, f"{path}.{i}", around)
            for i, item in enumerate(children)
        ]
    written_as_text(path.lstrip("."), value)
    return as_text(value)


def as_text(value: Any) -> str:
    """Return a value's text without memory addresses."""
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


def _key_text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        return key.name
    return key if isinstance(key, str) else as_text(key)


def _is_mindspore_dtype(value: Any) -> bool:
    kind = type(value)
    module = kind.__module__ or ""
    return module.startswith(("mindspore._c_expression", "mindspore.common.dtype"))


def _children(value: Any) -> Any:
    """Return what a container holds, as a mapping or a sequence; None if it is not one."""
    try:
        return _contents(value)
    except Exception:  # a trainer's own container may raise whatever it likes
        return None


def _contents(value: Any) -> Any:
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return vars(value)
    if isinstance(value, np.ndarray):
        return list(value) if value.size <= _MAX_ELEMENTS else None
    items = fields_of(value)
    if items is not None:
        return dict(items)
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=as_text)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, type):
        content = to_dict()
        return content if isinstance(content, Mapping) else None
    return None
