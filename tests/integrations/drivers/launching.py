"""Scripts, started as their users start them: in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What `mindrlhf-msprobe run` is, for an interpreter.
RUN = ("-m", "mindrlhf_msprobe", "run")


def python(
    *arguments: object, cwd: Path, timeout: float = 300, **settings: str
) -> subprocess.CompletedProcess[Any]:
    """Run this interpreter with arguments; `settings` are environment variables."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**environment, **settings},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
