"""Python modules that are written as files, because MindSpore compiles functions from their source.

They lie in a directory of this process, which is removed at exit.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from mindrlhf_msprobe.capture.framework.callstack import GENERATED


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


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves it to the process that made it
        shutil.rmtree(directory, ignore_errors=True)
