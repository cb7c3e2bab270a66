"""What networks generate with: the arguments of `generate`, and the configuration that it makes.

Phases in which each pass through the network is a token are looked at. Where the class of a watched
cell has a method `generate`, its calls run through this module, which takes numbers, switches and
short texts; tokens and tensors are not taken. Where the method makes a `GenerationConfig` of its
arguments, as MindFormers' does, what that holds counts.

A trainer may hold a method from before the first phase (`self.generate = model.generate`), so that
another one in the class would never be called. The function itself stays in its class: it gets
other code, which calls a copy of the function with the code that it had.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FunctionType, NoneType
from typing import Any

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.settings.attributes import is_setting, plain_value
from mindrlhf_msprobe.capture.words import FaultSink, counted
from mindrlhf_msprobe.storage.manifest.run_file import Change, Generation

#: Takes what generation ran with: name → JSON value.
Note = Callable[[dict[str, Any]], None]

MAX_CHANGES = 4000
_MAX_SETTINGS = 200
_CONFIG = "GenerationConfig"
_LOST = "lost.generation_settings"
_PLAIN = (bool, int, float, str)
#: Of lists, those that name tokens by their number; others may be the prompts.
_LISTS = ("token_id", "token_ids", "stop", "bad_words")


class GenerationSettings:
    """What each phase generated with, and when that changed, for the manifest."""

    def __init__(self) -> None:
        self._phases: dict[str, Generation] = {}
        self._last: dict[str, dict[str, Any]] = {}

    def note(
        self, phase: str, step: int, settings: Mapping[str, Any]
    ) -> dict[str, Generation] | None:
        """Note what a phase generates with; what is as it was before is noted once.

        Returns:
            phase → the step and settings of the first call, and the changes after it; None where
            that is no news.
        """
        known = self._last.setdefault(phase, {})
        content = self._phases.get(phase)
        if content is None:
            content = Generation.make(step=step, settings=dict(settings))
        else:
            changes = content.changes
            room = MAX_CHANGES - len(changes)
            new = [
                Change.make(step=step, name=name, value=value)
                for name, value in settings.items()
                if name not in known or (type(known[name]), known[name]) != (type(value), value)
            ]
            if not new or room <= 0:
                return None
            content = Generation({**content.json})
            content.changes = [*changes, *new[:room]]
        known.update(settings)
        self._phases = {**self._phases, phase: content}
        return self._phases


class GenerateCalls:
    """Listens to the calls of `generate`.

    Args:
        note: called with what each call is given, when it ends.
        wanted: says whether a phase is open that generates.
        fault: called with every fault while looking; may raise only in strict mode.
    """

    def __init__(self, note: Note, wanted: Callable[[], bool], fault: FaultSink) -> None:
        self._note = note
        self._wanted = wanted
        self._fault = fault
        self._replaced: list[tuple[FunctionType, FunctionType, CodeType]] = []
        self._seen: set[type] = set()
        self._calls = threading.local()

    def listen(self, network: Any) -> None:
        """Look at the classes of a network's cells."""
        for cell in named_cells(network).values():
            kind = type(cell)
            if kind in self._seen:
                continue
            self._seen.add(kind)
            methods = [vars(k)["generate"] for k in kind.__mro__ if "generate" in vars(k)]
            for method in filter(inspect.isfunction, methods):
                self._replace(method, self._generate)
            if methods:
                # Of the modules that define the class: the method itself may be a trainer's.
                for module in {k.__module__ for k in kind.__mro__}:
                    config = getattr(sys.modules.get(module), _CONFIG, None)
                    if isinstance(config, type) and inspect.isfunction(vars(config).get("update")):
                        self._replace(vars(config)["update"], self._update)

    def close(self) -> None:
        """Give the methods their own code back."""
        for function, own, ours in reversed(self._replaced):
            if function.__code__ is ours:
                function.__code__ = own.__code__
                vars(function).clear()
                vars(function).update(vars(own))
        self._replaced.clear()
        self._seen.clear()

    def _replace(self, function: FunctionType, instead: Callable[..., Any]) -> None:
        """Have `instead` called with a copy of a function before its arguments, whoever calls it.

        The copy alone uses the function's defaults and the variables around it.
        """
        if any(function.__code__ is ours for *_, ours in self._replaced):
            return  # done for another class
        own = FunctionType(
            *(function.__code__, function.__globals__, function.__name__),
            *(function.__defaults__, function.__closure__),
        )
        own.__kwdefaults__ = function.__kwdefaults__
        own.__qualname__ = function.__qualname__
        vars(own).update(vars(function))
        template = _through.__code__
        ours = template.replace(
            co_name=function.__name__,
            co_freevars=function.__code__.co_freevars,
            co_consts=tuple(
                partial(instead, own) if isinstance(constant, str) else constant
                for constant in template.co_consts
            ),
        )
        function.__code__ = ours
        vars(function)["__wrapped__"] = own  # whose signature and source are the function's
        self._replaced.append((function, own, ours))

    def _generate(
        self, function: Callable[..., Any], cell: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._wanted():
            return function(cell, *args, **kwargs)
        outer = getattr(self._calls, "settings", None)
        settings: dict[str, Any] = {}
        self._calls.settings = settings
        try:
            with counted(self._fault, _LOST):
                settings.update(arguments(function, cell, args, kwargs))
            return function(cell, *args, **kwargs)
        finally:
            self._calls.settings = outer
            if outer is not None:  # what is called inside knows better
                outer.update(settings)
            else:
                with counted(self._fault, _LOST):
                    self._note(settings)

    def _update(
        self, function: Callable[..., Any], config: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        unused = function(config, *args, **kwargs)
        settings = getattr(self._calls, "settings", None)
        if settings is not None:
            with counted(self._fault, _LOST):
                settings.update(plain_settings(vars(config)))
        return unused


def _through(*args: Any, **kwargs: Any) -> Any:
    instead: Any = "a constant, in whose place `GenerateCalls` puts what is called"
    return instead(*args, **kwargs)


def arguments(
    function: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plain arguments of a call of `generate`, defaults too, without the prompts.

    A parameter that is None follows the network's own configuration, where that has the name.
    """
    try:
        bound = inspect.signature(function).bind(cell, *args, **kwargs)
    except TypeError:  # the call itself will say so
        return {}
    bound.apply_defaults()
    kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
    values: dict[str, Any] = {}
    for place, (name, value) in enumerate(bound.arguments.items()):
        if place < 2 and not (place and isinstance(value, (bool, int, float))):
            continue  # the cell, and the prompts
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
        elif kinds[name] is not inspect.Parameter.VAR_POSITIONAL:
            values[name] = value
    own = getattr(getattr(cell, "config", None), "__dict__", {})
    given = {name: own.get(name) if value is None else value for name, value in values.items()}
    return plain_settings({name: value for name, value in given.items() if value is not None})


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are settings as JSON: numbers, switches, short texts, token ids."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if len(found) == _MAX_SETTINGS:
            break
        if not isinstance(name, str) or name.startswith("_") or not is_setting(name):
            continue
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)
        several = isinstance(value, (list, tuple))
        if several and not name.endswith(_LISTS):
            continue
        items = [plain_value(name, v) for v in (value[:_MAX_SETTINGS] if several else [value])]
        plain = _PLAIN if several else (*_PLAIN, NoneType)
        if all(isinstance(item, plain) for item in items):
            found[name] = items if several else items[0]
    return found
