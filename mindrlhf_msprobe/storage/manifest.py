"""run.json: what a run is, and who may write into its directory."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.atomic import write_json

SCHEMA = 1
TOOL = "mindrlhf_msprobe"

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"


def read_manifest(path: Path) -> dict[str, Any]:
    """Read one manifest.

    Raises:
        RunError: it is not valid JSON or not a manifest.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a manifest: expected a JSON object.")
    return content


def world_of(environment: dict[str, str] | os._Environ[str] = os.environ) -> dict[str, Any]:
    """Return what tells one distributed job from another: its size and its scheduler."""
    size = environment.get("RANK_SIZE") or environment.get("MS_WORKER_NUM") or "1"
    host, port = environment.get("MS_SCHED_HOST"), environment.get("MS_SCHED_PORT")
    scheduler = f"{host}:{port}" if host and port else None
    return {"size": int(size) if size.isdigit() else 1, "scheduler": scheduler}


class Manifest:
    """The manifest of one rank: claimed when the probe starts, rewritten when a step ends."""

    def __init__(self, root: Path, rank: int, content: dict[str, Any]) -> None:
        self._path = root / layout.manifest_name(rank)
        self.content = content

    @property
    def attempt(self) -> dict[str, Any]:
        """The attempt that is running now."""
        return self.content["attempts"][-1]

    def save(self) -> None:
        """Write the manifest, whole or not at all."""
        write_json(self._path, self.content)

    @classmethod
    def claim(cls, root: Path, rank: int, config: dict[str, Any], existing: str) -> Manifest:
        """Claim `root` for this rank of this job and return its manifest.

        Args:
            existing: what to do about an earlier run: `refuse`, `resume` or `overwrite`.

        Raises:
            RunError: the directory holds another run and `existing` refuses it, or it cannot be
                written.
        """
        world = world_of()
        earlier = None
        try:
            root.mkdir(parents=True, exist_ok=True)
            if existing == "overwrite":
                _remove_rank(root, rank, world["size"])
            elif existing == "resume":
                earlier = _own_manifest(root, rank)
            else:
                _refuse_other_run(root, rank, world)
            manifest = cls(root, rank, _new_content(rank, world, config, earlier))
            manifest.save()
        except OSError as error:
            raise RunError(
                f"dump_path {root} cannot be written: {error.strerror or error}. Give a directory "
                f"in which this process may create files."
            ) from None
        return manifest


def _own_manifest(root: Path, rank: int) -> dict[str, Any] | None:
    path = root / layout.manifest_name(rank)
    return read_manifest(path) if path.is_file() else None


def _refuse_other_run(root: Path, rank: int, world: dict[str, Any]) -> None:
    advice = (
        "Give another dump_path, or set existing: resume to continue that run, or existing: "
        "overwrite to replace it."
    )
    own = root / layout.manifest_name(rank)
    if own.is_file():
        try:
            started = read_manifest(own)["attempts"][-1]["started"]
        except (RunError, KeyError, IndexError, TypeError):
            started = "at an unknown time"
        raise RunError(f"dump_path {root} already holds a run, started {started}. {advice}")
    for path in layout.manifests(root):
        theirs = read_manifest(path).get("world")
        if not isinstance(theirs, dict) or any(theirs.get(k) != v for k, v in world.items()):
            raise RunError(
                f"dump_path {root} already holds the run of another job ({path.name} says "
                f"{theirs}; this job is {world}). {advice}"
            )
        return
    if layout.has_dumps(root):
        raise RunError(
            f"dump_path {root} already holds dumps of another tool or of a run without its "
            f"{layout.RUN_FILE}. Give another dump_path, or set existing: overwrite to replace "
            f"them."
        )


def _remove_rank(root: Path, rank: int, world_size: int) -> None:
    """Remove what this rank recorded here before; rank 0 also removes ranks beyond the world."""
    for step_dir in layout.step_directories(root):
        for number, path in layout.rank_directories(step_dir).items():
            if number == rank or (rank == 0 and number >= world_size):
                shutil.rmtree(path)
        for parent in (step_dir, step_dir.parent, step_dir.parent.parent):
            if parent != root and parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
    names = [layout.manifest_name(rank)]
    if rank == 0:
        names.append(layout.CONFIGURATIONS_FILE)
        names += [
            path.name
            for path in layout.manifests(root)
            if path.name != layout.RUN_FILE and int(path.name[8:-5]) >= world_size
        ]
    for name in names:
        (root / name).unlink(missing_ok=True)


def _new_content(
    rank: int, world: dict[str, Any], config: dict[str, Any], earlier: dict[str, Any] | None
) -> dict[str, Any]:
    attempt = {
        "started": _now(),
        "pid": os.getpid(),
        "first_step": None,
        "last_completed_step": None,
        "state": RUNNING,
    }
    attempts = earlier.get("attempts") if earlier else None
    return {
        "schema": SCHEMA,
        "tool": TOOL,
        "tool_version": _version(TOOL) or "unknown",
        "run_id": (earlier or {}).get("run_id") or uuid.uuid4().hex,
        "state": RUNNING,
        "attempts": [*(attempts if isinstance(attempts, list) else []), attempt],
        "world": {**world, "rank": rank},
        "versions": _versions(),
        "config": config,
        "coverage": {
            "backward": "not recorded by this version",
            "graph_mode": "not recorded by this version",
        },
        "lost": {},
    }


def _versions() -> dict[str, Any]:
    names = ("mindspore", "mindformers", "numpy")
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version(), "platform": sys.platform, **found}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
