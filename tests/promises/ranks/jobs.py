"""Distributed jobs on CPU: real processes, started as MindSpore's users start them.

Now and then a process of MindSpore ends with SIGSEGV after its script: at exit it closes its
connections (`ClusterContext::Finalize`) while a thread of one of them still runs. It is no fault of
what the script did, so a rank's own report decides: a job all of whose ranks said that they are
done has succeeded. Its crashes are counted, and said at the end of the tests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("parallel_training.py")
MSRUN = Path(sys.executable).with_name("msrun")
_TIMEOUT = 300  # seconds


#: The names of the jobs whose ranks were all done and one of which crashed behind that.
CRASHED_AT_EXIT: list[str] = []

_RANKS = (0, 1)
_WORKER_CODE = re.compile(r"Worker process \d+ exit with exception\. Error code: (-?\d+)\.")


@dataclass(frozen=True)
class Job:
    """A job that has ended.

    Attributes:
        code: its exit code; 0 where all ranks were done and all that failed is how one ended.
        said: what each rank said.
    """

    code: int
    said: dict[int, str]

    def training(self, name: str) -> Job:
        """Return one of its trainings: with what each rank said of it alone."""

        def of(said: str) -> str:
            own = said.partition(f"TRAINING {name}\n")[2]
            return own.partition("TRAINING ")[0]

        return Job(self.code, {rank: of(said) for rank, said in self.said.items()})


def run_job(directory: Path, trainings: Mapping[str, Mapping[str, Any]], *, nodes: int = 1) -> Job:
    """Train with two ranks, which start once for all trainings.

    Args:
        trainings: name → what parallel_training.py takes.
        nodes: 1: msrun starts both; 2: msrun starts one, the other joins as on a second node.
    """
    directory.mkdir()
    port = _free_port()
    command = _script(trainings)
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
            launched(trainings, port, nodes),
            cwd=directory,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
        codes = [int(code) for code in _WORKER_CODE.findall(f"{first.stdout}{first.stderr}")]
        codes = codes or [first.returncode]
        if second is not None:
            codes.append(second.wait(_TIMEOUT))
    finally:
        if second is not None:
            second.kill()
    said = {
        int(path.stem.rpartition("_")[2]): path.read_text(errors="replace")
        for path in (directory / "log").glob("worker_*.log")
    }
    if second is not None:
        said[1] = (directory / "second.log").read_text(errors="replace")
    return Job(_code(directory.name, codes, said), said)


def launched(
    trainings: Mapping[str, Mapping[str, Any]], port: int | None = None, nodes: int = 1
) -> list[str]:
    """Return the command that trains with both ranks, or with the first of two nodes."""
    return [
        *(sys.executable, str(MSRUN), "--worker_num=2", f"--local_worker_num={3 - nodes}"),
        *("--master_addr=127.0.0.1", f"--master_port={port or _free_port()}"),
        *("--log_dir=log", "--join=True", *(["--node_rank=0"] if nodes == 2 else [])),
        *_script(trainings),
    ]


def _script(trainings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [str(SCRIPT), json.dumps([{"name": name, **of} for name, of in trainings.items()])]


def _code(name: str, codes: list[int], said: Mapping[int, str]) -> int:
    """Return a job's exit code, from those of its parts."""
    code = next((code for code in codes if code), 0)
    done = all(f"DONE {rank}\n" in said.get(rank, "") for rank in _RANKS)
    if code and done and {*codes} <= {0, -signal.SIGSEGV}:
        CRASHED_AT_EXIT.append(name)
        return 0
    return code


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
