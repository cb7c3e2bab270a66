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

from mindrlhf_msprobe.capture.tree import MAX_DEPTH, fields_of
from mindrlhf_msprobe.storage.atomic import number_to_json

#: Told the path and the value of what could only be written as text.
TextNote = Callable[[str, Any], None]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def to_plain(value: Any, written_as_text: TextNote, path: str = "", depth: int = 0) -> Any:
    """Return `value` as JSON values.

    Takes mappings, sequences, sets, dataclasses, named tuples, namespaces, objects with
    `to_dict()`, enums, paths, numpy and MindSpore dtypes, numpy scalars and small arrays. Anything
    else is written as its text, memory addresses left out so that two runs can be compared.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (int, float)) and type(value).__module__ == "builtins":
        return number_to_json(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value) if isinstance(os.fspath(value), str) else str(value)
    if isinstance(value, np.generic):
        return to_plain(value.item(), written_as_text, path, depth)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if _is_mindspore_dtype(value):
        return str(value)
    if depth < MAX_DEPTH:
        children = _children(value)
        if isinstance(children, Mapping):
            return {
                str(_plain_key(key)): to_plain(item, written_as_text, f"{path}.{key}", depth + 1)
                for key, item in children.items()
            }
        if children is not None:
            return [
                to_plain(item, written_as_text, f"{path}.{i}", depth + 1)
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


def _plain_key(key: Any) -> Any:
    return key.name if isinstance(key, enum.Enum) else key


def _is_mindspore_dtype(value: Any) -> bool:
    kind = type(value)
    module = kind.__module__ or ""
    return module.startswith(("mindspore._c_expression", "mindspore.common.dtype"))


def _children(value: Any) -> Any:
    """Return what a container holds, as a mapping or a sequence; None if it is not one."""
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return vars(value)
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 1000 and value.ndim else None
    items = fields_of(value)
    if items is not None:
        return dict(items)
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, type):
        try:
            content = to_dict()
        except Exception:
            return None
        return content if isinstance(content, Mapping) else None
    return None
