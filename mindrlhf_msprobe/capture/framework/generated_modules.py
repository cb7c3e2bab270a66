"""Python modules that are written as files, because MindSpore compiles functions from their source.

They lie in a directory of this process, which is removed at exit.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from mindrlhf_msprobe.capture.framework.callstack import GENERATED

_numbers = itertools.count()


def write(source: str) -> Path:
    """Write a module of its own and return its path; its name is that of no other module."""
    path = _directory() / f"{GENERATED}{next(_numbers)}.py"
    path.write_text(source, encoding="utf-8")
    return path


def load(source: str) -> ModuleType:
    """Write a module of its own, import it and return it."""
    path = write(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix=GENERATED))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves it to the process that made it
        shutil.rmtree(directory, ignore_errors=True)
