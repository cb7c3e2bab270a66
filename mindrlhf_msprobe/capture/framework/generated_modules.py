"""Python modules made while a training runs: MindSpore compiles functions from their source.

The source lies where `inspect` and tracebacks look for it before any file, so that nothing is left
behind, however the process ends. All of them bear the name of one file that exists, as lines behind
one another: MindSpore logs an error for each line of a file that it cannot open.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: The file that lends them its name; it says so to who opens it.
GENERATED = str(Path(__file__).with_name("generated.py"))
_numbers = itertools.count()
_lines: list[str] = []
_appending = threading.Lock()


def compile_source(source: str) -> CodeType:
    """Compile the source of a module, which ends with a newline, and keep it."""
    with _appending:
        before = len(_lines)
        _lines.extend(source.splitlines(keepends=True))
    # Without a time: it is not looked for on the disk.
    linecache.cache[GENERATED] = (len(_lines), None, _lines, GENERATED)
    return compile("\n" * before + source, GENERATED, "exec")


def load(source: str) -> ModuleType:
    """Make a module of its own of a source and return it."""
    name = f"mindrlhf_msprobe_generated_{next(_numbers)}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = GENERATED
    exec(compile_source(source), module.__dict__)
    return module


def function_of(source: str, *, like: Callable[..., Any] | None) -> FunctionType:
    """Return the function `construct` of a source; each source is written once.

    Args:
        like: the bound method whose signature it shows, so that who looks at a cell's
            arguments finds them; None shows `(*args, **kwargs)`, which makes MindSpore
            compile a call as it was made, without the arguments that were left out.
    """
    made = _construct_of(source)
    if like is None:
        return made
    copy = FunctionType(made.__code__, made.__globals__, made.__name__)
    copy.__qualname__, copy.__module__ = made.__qualname__, made.__module__
    signature = inspect.signature(like)
    arguments = list(signature.parameters.values())
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    vars(copy)["__signature__"] = signature.replace(parameters=[itself, *arguments])
    return copy


@functools.cache
def _construct_of(source: str) -> FunctionType:
    construct: FunctionType = load(source).construct
    return construct
