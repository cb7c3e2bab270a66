"""`dataclass` as the standard one, made in a third of the time.

The standard decorator compiles six methods for each frozen class; of some ninety classes that
was a quarter of what a command needs before it begins. Here only `__init__` is compiled; the others
are the same functions for all classes. What a class can do is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **others: bool) -> Any:
        """Make a class of fields; see `dataclasses.dataclass`.

        Args:
            frozen: whether the fields of an instance stay as they were made.
            others: what the standard decorator takes; with any of them, it makes the class.

        Raises:
            TypeError: a field of a frozen class is keyword-only or no argument of `__init__`: the
                standard decorator can do that.
        """
        if others:
            return dataclasses.dataclass(cls, frozen=frozen, **others)
        if cls is None:
            return lambda cls: _made(cls, frozen)
        return _made(cls, frozen)


def _made(cls: Any, frozen: bool) -> Any:
    cls = dataclasses.dataclass(init=not frozen, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cls)
    own: dict[str, Any] = {"__repr__": _repr, "__eq__": _equal(fields)}
    if frozen:
        other = [field.name for field in fields if field.kw_only or not field.init]
        if other:
            raise TypeError(
                f"{cls.__qualname__}.{other[0]} is keyword-only or no argument of __init__; "
                f"expected a field without either. Use dataclasses.dataclass."
            )
        own |= {"__init__": _init(cls, fields), "__setattr__": _set, "__delattr__": _delete}
    for name, method in own.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    if cls.__dict__.get("__hash__") is None:
        cls.__hash__ = _hash(fields) if frozen else None
    return cls


def _init(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Compile what sets all fields, past the `__setattr__` that refuses it."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_made_anew": _MADE_ANEW}
    parameters, lines = ["self"], []
    for field in fields:
        name, parameter, value = field.name, field.name, field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameter += f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter += "=_made_anew"
            value = f"_make_{name}() if {name} is _made_anew else {name}"
        parameters.append(parameter)
        lines.append(f"  _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n" + ("\n".join(lines) or "  pass")
    exec(text, names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


class _MadeAnew:
    """Stands in a signature for a default that each instance has of its own."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE_ANEW = _MadeAnew()


def _values(fields: list[dataclasses.Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what returns the values of these fields of an instance."""
    names = [field.name for field in fields]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _equal(fields: tuple[dataclasses.Field[Any], ...]) -> Callable[[Any, Any], bool]:
    values = _values([field for field in fields if field.compare])

    def __eq__(self: Any, other: Any) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(fields: tuple[dataclasses.Field[Any], ...]) -> Callable[[Any], int]:
    values = _values([f for f in fields if (f.compare if f.hash is None else f.hash)])

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
