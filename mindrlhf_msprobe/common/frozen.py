"""`dataclass` as the standard one; of frozen classes made in a sixth of the time.

The standard decorator compiles six methods for each frozen class; of some two hundred classes that
was a quarter of what a command needs before it begins. Here only `__init__` is compiled, when it is
first asked for: of most classes a command makes no instance. The other methods are the same
functions for all classes. What a class can do is the same, except that one with a field that is
keyword-only, no argument of `__init__` or an `InitVar` is refused. Classes that inherit from
others, or are asked for with any other option, the standard decorator makes.
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

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a class of fields; see `dataclasses.dataclass`.

        Raises:
            TypeError: a field of a frozen class is keyword-only, no argument of `__init__` or an
                `InitVar`, which the standard decorator can do; or what that one refuses, too.
        """

        def made(cls: type) -> type:
            inherits = any("__dataclass_fields__" in vars(base) for base in cls.__mro__[1:])
            changes = {"__setattr__", "__delattr__"} & vars(cls).keys()
            if inherits or changes or options != {"frozen": True}:
                return dataclasses.dataclass(**options)(cls)
            return _frozen(cls)

        return made if cls is None else made(cls)


#: How the standard decorator marks fields, what is an argument of `__init__` alone, and in a
#: signature a default that each instance has of its own.
_FIELD, _INIT_ONLY, _MADE_ANEW = (
    getattr(dataclasses, name) for name in ("_FIELD", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY")
)


def _frozen(cls: Any) -> Any:
    given = dict(vars(cls))
    if given.get("__hash__") is None and "__eq__" in given:
        given.pop("__hash__", None)  # Python put it there
    cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    for field in cls.__dataclass_fields__.values():
        kind = field._field_type
        if kind is _INIT_ONLY or (kind is _FIELD and (field.kw_only or not field.init)):
            raise TypeError(
                f"{cls.__qualname__}.{field.name} is keyword-only, no argument of __init__ or an "
                f"InitVar; expected a field that is none of them. Use dataclasses.dataclass."
            )
    fields = dataclasses.fields(cls)
    compared = _values([field for field in fields if field.compare])
    hashed = _values([f for f in fields if (f.compare if f.hash is None else f.hash)])

    def __eq__(self: Any, other: Any) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    own = {"__init__": _LaterInit(cls, fields), "__repr__": _repr}
    own |= {"__eq__": __eq__, "__hash__": __hash__, **_refusing(cls)}
    for name, method in own.items():
        if name not in given:
            setattr(cls, name, method)
    cls.__dataclass_params__.frozen = True
    cls.__doc__ = given.get("__doc__")
    return cls


class _LaterInit:
    """Stands for `__init__` until it is asked for, and then compiles it."""

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


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refusing(cls: Any) -> dict[str, Callable[..., None]]:
    """Return the methods that keep an instance as it was made; a subclass may add its own."""
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}
