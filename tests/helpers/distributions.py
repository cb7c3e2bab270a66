"""Another package with entry points, as pip would have installed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def install(site: Path, source: str, **points: str) -> None:
    """Write a distribution whose one module is called `mine`.

    Args:
        points: group, without `mindrlhf_msprobe.` → lines of entry points.
    """
    info = site / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    groups = (f"[mindrlhf_msprobe.{group}]\n{lines}\n" for group, lines in points.items())
    (info / "entry_points.txt").write_text("".join(groups))
    (site / "mine.py").write_text(source, encoding="utf-8")


def run_beside(site: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of ours where the distribution is installed."""
    places = [str(site), os.environ.get("PYTHONPATH", ""), os.getcwd()]
    environment = {"PYTHONPATH": os.pathsep.join(places), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-m", "mindrlhf_msprobe", *map(str, command)],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
    )
