"""Distributed jobs on CPU: real processes, started as MindSpore's users start them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("parallel_training.py")
MSRUN = Path(sys.executable).with_name("msrun")
_TIMEOUT = 300  # seconds


@dataclass(frozen=True)
class Job:
    """A job that has ended: its exit code and what each rank said."""

    code: int
    said: dict[int, str]


def run_job(directory: Path, *, nodes: int = 1, **options: Any) -> Job:
    """Train with two ranks; `options` are those of parallel_training.py.

    Args:
        nodes: 1: msrun starts both; 2: msrun starts one, the other joins as on a second node.
    """
    directory.mkdir()
    port = _free_port()
    command = [str(SCRIPT), json.dumps(options)]
    launcher = [
        *(sys.executable, str(MSRUN), "--worker_num=2", f"--local_worker_num={3 - nodes}"),
        *("--master_addr=127.0.0.1", f"--master_port={port}"),
        *("--log_dir=log", "--join=True", *(["--node_rank=0"] if nodes == 2 else [])),
    ]
    second = None
    if nodes == 2:
        with open(directory / "second.log", "w") as log:
            second = subprocess.Popen(
                [sys.executable, *command],
                cwd=directory,
                env=_environment(
                    MS_ROLE="MS_WORKER",
                    MS_WORKER_NUM="2",
                    MS_NODE_ID="1",
                    RANK_ID="1",
                    RANK_SIZE="2",
                    DEVICE_ID="1",
                    MS_SCHED_HOST="127.0.0.1",
                    MS_SCHED_PORT=str(port),
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
    try:
        first = subprocess.run(
            [*launcher, *command],
            cwd=directory,
            env=_environment(),
            capture_output=True,
            timeout=_TIMEOUT,
        )
        code = first.returncode or (second.wait(_TIMEOUT) if second else 0)
    finally:
        if second is not None:
            second.kill()
    said = {
        int(path.stem.rpartition("_")[2]): path.read_text(errors="replace")
        for path in (directory / "log").glob("worker_*.log")
    }
    if second is not None:
        said[1] = (directory / "second.log").read_text(errors="replace")
    return Job(code, said)


def weights(job: Job) -> set[str]:
    """Return what the ranks of a job say of the actor's weights at the end."""
    lines = [line for said in job.said.values() for line in said.splitlines()]
    return {line.partition(": ")[2] for line in lines if line.startswith("WEIGHTS")}


def _environment(**more: str) -> dict[str, str]:
    launched = ("RANK", "MS_", "DEVICE_ID")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(launched)}
    path = os.pathsep.join(p for p in sys.path if p)
    return {**inherited, "PYTHONPATH": path, "GLOG_v": "3", **more}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
