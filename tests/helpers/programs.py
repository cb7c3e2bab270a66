"""Programs in processes of their own, and what they leave on disk."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: For a program that imports `helpers`: what it puts on `sys.path`.
TESTS = Path(__file__).parents[1]

#: What importing the package must not load.
HEAVY = ["mindspore", "mindformers", "numpy", "rich", "openpyxl", "yaml", "xxhash"]

ALL_LAYERS = {
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "reference_dump": True,
    "critic_train_dump": True,
}


def read_json(path: Path) -> Any:
    """Read a JSON file, refusing the bare NaN that Python's reader would take."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}, which is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def tree(root: Path, depth: int = 3) -> set[str]:
    """Return the directories `depth` levels below `root`, as relative names."""
    return {str(p.relative_to(root)) for p in root.glob("/".join(["*"] * depth)) if p.is_dir()}


def run_python(program: str, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter and return its result; it must end well."""
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return result


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until something that other processes or threads do is true; return what it was last."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return found
