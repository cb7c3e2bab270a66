"""Python modules made while a training runs: MindSpore compiles functions from their source.

The source lies where `inspect` and tracebacks look for it before any file, so that nothing is left
behind, however the process ends. All of them bear the name of one file that exists, as lines behind
one another: MindSpore logs an error for each line of a file that it cannot open.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
from pathlib import Path
from types import CodeType, ModuleType

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
