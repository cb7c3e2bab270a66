"""Wrappers of `construct` as source files, for MindSpore compiles functions from their source.

One function serves all cells that have the same parameters of their own and are asked for the
same.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from mindrlhf_msprobe.capture.callstack import GENERATED

#: The cell's attributes that a wrapper uses.
CONSTRUCT = "msprobe_construct"
NUMBER = "msprobe_cell"


@dataclass(frozen=True)
class Asked:
    """What a wrapper hands over.

    Attributes:
        tensors: the call's inputs and outputs, not only that it happened.
        parameters: the attributes that hold the cell's own parameters.
        gradients: the gradients of inputs and outputs.
        elements: tensors as they are, where the graph would hand over their statistics alone.
    """

    tensors: bool = True
    parameters: tuple[str, ...] = ()
    gradients: bool = False
    elements: bool = False

    def covers(self, other: Asked) -> bool:
        """Tell whether nothing that `other` asks for is missing."""
        return (
            self.tensors >= other.tensors
            and set(self.parameters) >= set(other.parameters)
            and self.gradients >= other.gradients
            and self.elements >= other.elements
        )

    def __or__(self, other: Asked) -> Asked:
        return Asked(
            self.tensors or other.tensors,
            tuple(dict.fromkeys((*self.parameters, *other.parameters))),
            self.gradients or other.gradients,
            self.elements or other.elements,
        )


_HEAD = """\
\"\"\"Probes of {what}.\"\"\"

from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph_compiled import (
    closed,
    opened,
    own_parameters,
    shown,
    visited,
)
from mindrlhf_msprobe.capture.graph_probes import COMPILING, HOLDS_PARAMETER, ROOT


def construct(self, *args, **kwargs):
    if not COMPILING(self.{NUMBER}):
        return self.{CONSTRUCT}(*args, **kwargs)
"""


def cell_source(asked: Asked) -> str:
    """Return the source of a module whose `construct` wraps a cell's."""
    lines = [f"call = opened(self.{NUMBER}, args, kwargs)"]
    seen = "args", "kwargs"
    if asked.tensors:
        seen = "seen_args", "seen_kwargs"
        lines += [
            f"{name} = visited(self.{NUMBER}, 'input_{part}', (), {part}, call, {asked.gradients})"
            for name, part in zip(seen, ("args", "kwargs"))
        ]
    if asked.parameters:
        parameters = "".join(f"self.{name}, " for name in asked.parameters)
        lines.append(
            f"call = own_parameters(self.{NUMBER}, {asked.parameters}, ({parameters}), call)"
        )
    # Parameters are never passed on by a function of ours: see HOLDS_PARAMETER.
    lines += [
        f"if HOLDS_PARAMETER(self.{NUMBER}, (args, kwargs)):",
        f"    call = F.depend(call, ({seen[0]}, {seen[1]}))",
        f"    returned = self.{CONSTRUCT}(*args, **kwargs)",
        "else:",
        f"    returned = self.{CONSTRUCT}(*{seen[0]}, **{seen[1]})",
    ]
    if asked.tensors:
        place = f"self.{NUMBER}, 'output', ROOT(returned)"
        lines.append(f"output = visited({place}, returned, call, {asked.gradients})")
        lines += [
            f"if HOLDS_PARAMETER(self.{NUMBER}, returned):",
            "    call = F.depend(call, output)",
            "    output = returned",
        ]
    lines += [f"closed(self.{NUMBER}, call, returned)"]
    lines += ["return output" if asked.tensors else "return returned"]
    return _source(f"a cell with the parameters {list(asked.parameters)}", lines)


def optimizer_source() -> str:
    """Return the source of a module whose `construct` wraps an optimizer's."""
    return _source(
        "an optimizer",
        [
            f"call = opened(self.{NUMBER}, (), {{}})",
            f"call = shown(self.{NUMBER}, 'gradients', (), args, call)",
            f"closed(self.{NUMBER}, call, ())",
            f"return self.{CONSTRUCT}(*args, **kwargs)",
        ],
    )


def _source(what: str, lines: list[str]) -> str:
    head = _HEAD.format(what=what, CONSTRUCT=CONSTRUCT, NUMBER=NUMBER)
    return head + "".join(f"    {x}\n" for x in lines)


class GeneratedModules:
    """Modules that are written, in a directory of this process that is removed at exit."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._written = 0

    def write(self, source: str) -> Path:
        """Write a module of its own and return its path; its name is that of no other module."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=GENERATED))
            atexit.register(_remove, self._directory, os.getpid())
        path = self._directory / f"{GENERATED}{self._written}.py"
        self._written += 1
        path.write_text(source, encoding="utf-8")
        return path


MODULES = GeneratedModules()


class WrapperSources:
    """Writes each source once."""

    def __init__(self) -> None:
        self._functions: dict[str, FunctionType] = {}

    def function(self, source: str, like: Callable[..., Any] | None) -> FunctionType:
        """Return a function of `source`.

        Args:
            like: the bound method whose signature it shows, so that who looks at a cell's
                arguments finds them; None shows `(*args, **kwargs)`, which makes MindSpore
                compile a call as it was made, without the arguments that were left out.
        """
        if source not in self._functions:
            self._functions[source] = self._load(source)
        made = self._functions[source]
        if like is None:
            return made
        copy = FunctionType(made.__code__, made.__globals__, made.__name__)
        copy.__qualname__, copy.__module__ = made.__qualname__, made.__module__
        signature = inspect.signature(like)
        arguments = list(signature.parameters.values())
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        vars(copy)["__signature__"] = signature.replace(parameters=[itself, *arguments])
        return copy

    @staticmethod
    def _load(source: str) -> FunctionType:
        path = MODULES.write(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function: FunctionType = module.construct
        return function


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves it to the process that made it
        shutil.rmtree(directory, ignore_errors=True)
