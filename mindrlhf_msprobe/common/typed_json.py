"""Frozen dataclasses as JSON, and back: what is read is checked against their annotations.

A file from another machine is data: no name in it is looked up, and nothing but fields of the
expected types is made of it. What an annotation leaves open (`Any`) keeps its Python type: a tuple
comes back as a tuple, a message as a message.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Union

from mindrlhf_msprobe.common.message import NON_FINITE, Message, SpokenError, finite_or_name
from mindrlhf_msprobe.common.printable import shortened


class FormError(SpokenError, ValueError):
    """JSON is not of the type that it is read as: the rest of a sentence that names the file."""

    @classmethod
    def of(cls, expected: str, found: Any) -> FormError:
        """Return the error that says both."""
        return cls.saying("unread.form", expected=expected, found=shortened(repr(found), 80))


class Codec(NamedTuple):
    """How values of one type are written as JSON and read again.

    Attributes:
        write: returns what `json.dumps` takes.
        read: undoes it; raises FormError where the JSON is not of such a value.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@cache
def codec(kind: Any) -> Codec:
    """Return the codec of a type: a dataclass, an enum, a container, a scalar, None or Any.

    Raises:
        TypeError: there is none for such a type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return Codec(_write_any, _read_any)
    if kind is float:
        return Codec(finite_or_name, _read_float)
    if kind in (bool, int, str, type(None)):
        return Codec(lambda value: value, lambda found: _exactly(found, kind))
    if origin in (Union, UnionType):
        return _optional(arguments)
    if origin is tuple and arguments[-1:] != (...,):
        return _fixed(arguments)
    if origin in (tuple, list, Sequence):
        return _repeated(codec(arguments[0]), list if origin is list else tuple)
    if origin is Mapping:
        return _mapping(codec(arguments[0]), codec(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Codec(lambda value: value.value, lambda found: _of_enum(kind, found))
    if is_dataclass(kind):
        return _fields(kind)
    raise TypeError(kind)


def _exactly(found: Any, kind: type) -> Any:
    if type(found) is not kind:
        raise FormError.of(kind.__name__, found)
    return found


def _of_enum(kind: Any, found: Any) -> Any:
    try:
        return kind(found)
    except ValueError:
        raise FormError.of(kind.__name__, found) from None


def _read_float(found: Any) -> float:
    if isinstance(found, str) and found in NON_FINITE:
        return NON_FINITE[found]
    if type(found) not in (int, float):
        raise FormError.of("float", found)
    return found


def _optional(kinds: Sequence[Any]) -> Codec:
    (kind,) = (one for one in kinds if one is not type(None))
    inner = codec(kind)
    return Codec(
        lambda value: None if value is None else inner.write(value),
        lambda found: None if found is None else inner.read(found),
    )


def _fixed(kinds: Sequence[Any]) -> Codec:
    inner = [*map(codec, kinds)]

    def read(found: Any) -> tuple[Any, ...]:
        if len(_exactly(found, list)) != len(inner):
            raise FormError.of(f"list[{len(inner)}]", found)
        return tuple(one.read(value) for one, value in zip(inner, found))

    return Codec(lambda value: [one.write(v) for one, v in zip(inner, value)], read)


def _repeated(inner: Codec, container: Callable[[Any], Any]) -> Codec:
    return Codec(
        lambda value: [*map(inner.write, value)],
        lambda found: container(map(inner.read, _exactly(found, list))),
    )


def _mapping(key: Codec, value: Codec) -> Codec:
    pairs = _repeated(
        Codec(
            lambda pair: [key.write(pair[0]), value.write(pair[1])],
            lambda found: (key.read(found[0]), value.read(found[1])),
        ),
        tuple,
    )

    def read(found: Any) -> dict[Any, Any]:
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in _exactly(found, list)):
            raise FormError.of("list[2]", found)
        try:
            return dict(pairs.read(found))
        except TypeError:  # a key that cannot be one
            raise FormError.of("dict", found) from None

    return Codec(lambda mapping: pairs.write(mapping.items()), read)


def _fields(kind: Any) -> Codec:
    """Return the codec of a dataclass: an object of the fields that are not as by default."""
    hints = typing.get_type_hints(kind)
    inner = {each.name: codec(hints[each.name]) for each in fields(kind)}
    defaults = {each.name: each.default for each in fields(kind) if each.default is not MISSING}

    def write(value: Any) -> dict[str, Any]:
        held = ((name, getattr(value, name)) for name in inner)
        return {
            name: inner[name].write(one)
            for name, one in held
            if name not in defaults or one is not defaults[name]
        }

    def read(found: Any) -> Any:
        unknown = _exactly(found, dict).keys() - inner.keys()
        if unknown:
            raise FormError.of(kind.__name__, found)
        try:
            return kind(**{name: inner[name].read(one) for name, one in found.items()})
        except TypeError:  # a field is missing
            raise FormError.of(kind.__name__, found) from None

    return Codec(write, read)


def _write_any(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": finite_or_name(value)}
    if isinstance(value, Message):
        return {"message": codec(Message).write(value)}
    if isinstance(value, (list, tuple)):
        items = [*map(_write_any, value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return {"map": [[_write_any(key), _write_any(item)] for key, item in value.items()]}
    if isinstance(value, Fraction):
        return {"fraction": [value.numerator, value.denominator]}
    if hasattr(value, "item"):  # a scalar of numpy
        return _write_any(value.item())
    return str(value)


def _read_any(found: Any, depth: int = 0) -> Any:
    if depth > 50:
        raise FormError.saying("unread.nested")
    if isinstance(found, list):
        return [_read_any(item, depth + 1) for item in found]
    if not isinstance(found, dict):
        return found
    if len(found) != 1:
        raise FormError.of("value", found)
    ((kind, inner),) = found.items()
    if kind == "float":
        return _read_float(inner)
    if kind == "message":
        return codec(Message).read(inner)
    if kind == "tuple":
        return tuple(_read_any(item, depth + 1) for item in _exactly(inner, list))
    if kind == "map":
        read = Codec(_write_any, lambda item: _read_any(item, depth + 1))
        return _mapping(read, read).read(inner)
    if kind == "fraction":
        above, below = codec(tuple[int, int]).read(inner)
        if not below:
            raise FormError.of("fraction", inner)
        return Fraction(above, below)
    raise FormError.of("value", found)
