"""A trainer's configurations → plain JSON values."""

from __future__ import annotations

import argparse
import enum
import os
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.tensors.tree import MAX_DEPTH, fields_of, printable_integer
from mindrlhf_msprobe.common.printable import address_free, cut
from mindrlhf_msprobe.common.secret import could_be_secret
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, number_to_json
from mindrlhf_msprobe.storage.layout import WITHHELD

#: Takes the path and the value of what could only be written as text.
TextNote = Callable[[str, Any], None]
#: Takes the path of what could not be written at all, and why; a description stands in its place.
FailureNote = Callable[[str, Exception], None]


def named_configurations(
    value: Any, written_as_text: TextNote, failed: FailureNote
) -> dict[str, Any]:
    """Return what a trainer saves, name → configuration, as JSON values.

    Args:
        value: a mapping, a dataclass, a named tuple, or an object with attributes.
        written_as_text, failed: as for `to_plain`.
    """
    items = _items_of(value)
    named = dict(vars(value) if items is None else items)
    plain: dict[str, Any] = to_plain(named, written_as_text, failed=failed)
    for name, item in plain.items():
        try:
            dump_json(item)
        except Exception as error:  # a value that is not what its type says
            failed(name, error)
            plain[name] = _described(item, error)
    return plain


def to_plain(
    value: Any,
    written_as_text: TextNote,
    path: str = "",
    around: tuple[int, ...] = (),
    *,
    failed: FailureNote | None = None,
) -> Any:
    """Return `value` as JSON values.

    Takes mappings, sequences, sets, dataclasses, named tuples, namespaces, objects with
    `to_dict()`, enums, paths, numpy and MindSpore dtypes, numpy scalars and small arrays, masked
    ones as `data` and `mask`. Anything else is written as its text, memory addresses left out so
    that two runs can be compared. Of what raises when it is looked at, a description is written.

    Args:
        written_as_text: called with each value of which only the text is written.
        path: where the value stands.
        around: the ids of the values it lies in, so that one which holds itself ends.
        failed: called with each value that raised.
    """

    def inner(item: Any, at: str = path) -> Any:
        return to_plain(item, written_as_text, at, around, failed=failed)

    try:
        if type(value) is _Unreadable:
            raise value.error
        if isinstance(value, np.ma.MaskedArray):
            data, mask = np.ma.getdata(value, subok=False), np.ma.getmaskarray(value)
            return inner({"data": data, "mask": mask})
        if (single := _plain_single(value)) is not _OTHER:
            return single
        if (number := _number_in_numpy(value)) is not _OTHER:
            return inner(number)
        children = None
        if len(around) < MAX_DEPTH and id(value) not in around:
            with suppress(Exception):  # a trainer's own container may raise whatever it likes
                children = _contents(value)
            around = (*around, id(value))
        if isinstance(children, Mapping):
            plain: dict[str, Any] = {}
            for key, item in children.items():
                name = _key_text(key)
                while name in plain:  # 1 and "1" are two keys of a dict, but one of JSON
                    name += "~"
                plain[name] = inner(item, f"{path}.{name}")
            return plain
        if children is not None:
            return [inner(item, f"{path}.{i}") for i, item in enumerate(children)]
        written_as_text(path.lstrip("."), value)
        return as_text(value)
    except Exception as error:
        if failed is not None:
            failed(path.lstrip("."), error)
        return _described(value, error)


def _described(value: Any, error: Exception) -> str:
    """Return what stands for a value that could not be looked at."""
    kind = "value" if type(value) is _Unreadable else type(value).__name__
    return f"<{kind} that cannot be recorded: {reason_of(error)}>"


def reason_of(error: BaseException) -> str:
    """Return an error's type and text, as `error_in_words`."""
    name, text = error_in_words(error)
    return f"{name}: {text}" if text else name


def error_in_words(error: BaseException) -> tuple[str, str]:
    """Return an error's type and its text, of bounded length; one that could be a secret is not."""
    try:
        text = address_free(str(error))
    except Exception:
        text = ""
    if could_be_secret(text):
        text = WITHHELD
    return type(error).__name__, cut(text, 200)


_OTHER = object()


def _plain_single(value: Any) -> Any:
    """Return a text, number, path, enum member, dtype or None as JSON; `_OTHER` of others."""
    if value is None or issubclass(type(value), (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return str(value.name)
    if isinstance(value, (int, float)) and type(value).__module__ == "builtins":
        return number_to_json(printable_integer(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value) if isinstance(os.fspath(value), str) else str(value)
    if isinstance(value, np.longdouble):
        return number_to_json(float(value))
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    return str(value) if is_mindspore_dtype(value) else _OTHER


def _number_in_numpy(value: Any) -> Any:
    """Return what a numpy scalar, or an array of no dimension, holds; `_OTHER` of others."""
    if isinstance(value, np.generic):
        item = value.item()
        return _OTHER if isinstance(item, np.generic) else item
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biuf":
        return value[()]
    return _OTHER


def as_text(value: Any) -> str:
    """Return a value's text without memory addresses."""
    try:
        return address_free(repr(value))
    except Exception as error:
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


def _key_text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        return str(key.name)
    # A class of its own may not be able to be formatted; its characters stay.
    return str.__str__(key) if issubclass(type(key), str) else as_text(key)


def is_mindspore_dtype(value: Any) -> bool:
    """Return whether a value is one of MindSpore's dtypes."""
    return isinstance(value, getattr(sys.modules.get("mindspore"), "Type", ()))


@dataclass(frozen=True)
class _Unreadable:
    """Stands for an item of a container that raised when it was read."""

    error: Exception


def _items_of(value: Any) -> Mapping[Any, Any] | None:
    """Return what `fields_of` does, item by item where the whole cannot be read."""
    try:
        items = fields_of(value)
        return None if items is None else dict(items)
    except Exception:
        names = list(value) if isinstance(value, Mapping) else [f.name for f in fields(value)]
        read = value.__getitem__ if isinstance(value, Mapping) else partial(getattr, value)
        return {name: _read(read, name) for name in names}


def _read(read: Callable[[Any], Any], name: Any) -> Any:
    try:
        return read(name)
    except Exception as error:
        return _Unreadable(error)


def _contents(value: Any) -> Any:
    """Return what a container holds, as a mapping or a sequence; None if it is not one."""
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return vars(value)
    if isinstance(value, np.ndarray):
        return list(value) if value.size <= 1000 else None
    items = _items_of(value)
    if items is not None:
        return items
    if isinstance(value, (list, tuple)):
        try:
            return list(value)
        except Exception:
            return [_read(value.__getitem__, index) for index in range(len(value))]
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=as_text)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, type):
        content = to_dict()
        return content if isinstance(content, Mapping) else None
    return None
