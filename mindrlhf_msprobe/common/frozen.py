"""`dataclass` as the standard one, made in a sixth of the time.

The standard decorator compiles six methods for each frozen class; of some two hundred classes that
was a quarter of what a command needs before it begins. Here only `__init__` is compiled, when it is
first needed: of most classes a command makes no instance. The other methods are the same
functions for all classes. What a class can do is the same. A class with a field that is no plain
argument of `__init__`, of its own or inherited, the standard decorator makes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        **others: bool,
    ) -> Any:
        """Make a class of fields; see `dataclasses.dataclass`.

        Args:
            frozen: whether the fields of an instance stay as they were made.
            slots: whether an instance has room for its fields alone.
            eq: whether instances with equal fields are equal.
            others: what the standard decorator takes; with any of them, it makes the class.
        """
        if others:
            return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, **others)
        if cls is None:
            return lambda cls: _made(cls, frozen, slots, eq)
        return _made(cls, frozen, slots, eq)


#: How the standard decorator marks what is an argument of `__init__` alone, and in a signature a
#: default that each instance has of its own.
_INIT_ONLY, _MADE_ANEW = (
    vars(dataclasses)[name] for name in ("_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY")
)
#: How it pickles what is frozen and has slots.
_PICKLED = {
    f"__{name}__": getattr(dataclasses, f"_dataclass_{name}") for name in ("getstate", "setstate")
}


def _made(cls: Any, frozen: bool, slots: bool, eq: bool) -> Any:
    given = dict(cls.__dict__)
    has_doc = bool(cls.__doc__)
    # Python sets __hash__ to None where a class has an __eq__ of its own.
    has_hash = "__hash__" in given and not (given["__hash__"] is None and "__eq__" in given)
    known: list[Any] = [one for one in given.values() if isinstance(one, dataclasses.Field)]
    bases = [base for base in cls.__mro__[1:] if "__dataclass_fields__" in base.__dict__]
    known += [one for base in bases for one in base.__dataclass_fields__.values()]
    if (
        any(one.kw_only is True or not one.init or one._field_type is _INIT_ONLY for one in known)
        or re.search("InitVar|KW_ONLY", str(given.get("__annotations__")))
        or (frozen and given.keys() & {"__setattr__", "__delattr__"})  # which it refuses
    ):
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq)(cls)
    # Of classes that inherit from others, the standard one knows which may not, and why.
    cls = dataclasses.dataclass(
        init=not frozen, repr=False, eq=False, frozen=frozen and bool(bases), slots=slots
    )(cls)
    fields = dataclasses.fields(cls)
    own: dict[str, Any] = {"__repr__": _repr, **({"__eq__": _equal(fields)} if eq else {})}
    if frozen:
        own |= _refusing(cls, frozenset(field.name for field in fields))
        own |= {"__init__": _LaterInit(cls, fields), **(_PICKLED if slots else {})}
    for name, method in own.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    if eq and not has_hash:
        cls.__hash__ = _hash(fields) if frozen else None
    parameters = cls.__dataclass_params__
    parameters.init = parameters.repr = True
    parameters.eq, parameters.frozen = eq, frozen
    if not has_doc:
        cls.__doc__ = cls.__name__ + str(inspect.signature(cls)).replace(" -> None", "")
    return cls


class _LaterInit:
    """Stands for `__init__` until it is needed, and then compiles it."""

    def __init__(self, cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> None:
        self._cls, self._fields = cls, fields

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        init = self._cls.__init__ = _init(self._cls, self._fields)
        return init.__get__(instance, owner)


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


def _refusing(cls: Any, names: frozenset[str]) -> dict[str, Callable[..., None]]:
    """Return the methods that keep an instance as it was made; a subclass may add its own."""

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}
