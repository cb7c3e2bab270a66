"""Workers of a Ray cluster, for runs on storage that all its machines share."""

from __future__ import annotations

import logging
import os
import re
import socket
from typing import Any

from mindrlhf_msprobe.comparison.executor import (
    ChunkTask,
    Failure,
    Result,
    Task,
    available_cores,
    perform,
)
from mindrlhf_msprobe.comparison.place import Job
from mindrlhf_msprobe.errors import UsageError

_REACH_SECONDS = 10.0


class RayWorkers:
    """Does tasks on Ray; a cluster that this process is connected to already is used as it is.

    Args:
        address: of a running cluster; None: RAY_ADDRESS, or one on this machine.
        count: how many tasks at once; None: as many as the cluster has cores.

    Raises:
        UsageError: ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, job: Job, address: str | None, count: int | None) -> None:
        self._ray = _ray()
        self._owned = not self._ray.is_initialized()
        if self._owned:
            self._connect(address, count)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.capacity = max(1, count or cores)
        self._job = self._ray.put(job)
        self._perform = self._ray.remote(num_cpus=1, max_retries=0)(perform)
        self._check()
        self._running: dict[Any, Task] = {}

    @property
    def ready(self) -> bool:
        """A cluster that could be reached is ready."""
        return True

    def submit(self, task: Task) -> None:
        """Begin a task."""
        self._running[self._perform.remote(self._job, task)] = task

    def next_result(self) -> tuple[Task, Result | Failure]:
        """Wait for any task that was begun and return what became of it."""
        (done, *_), _ = self._ray.wait(list(self._running), num_returns=1)
        task = self._running.pop(done)
        try:
            return task, self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            kind = type(error).__name__
            return task, Failure(f"the Ray worker that compared it was lost ({kind})")

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._owned:
            self._ray.shutdown()

    def _check(self) -> None:
        """Try the cluster with nothing to do."""
        try:
            self._ray.get(self._perform.remote(self._job, ChunkTask(())))
        except self._ray.exceptions.RayError as error:
            self.close()
            raise UsageError(
                f"the Ray cluster cannot compare: {str(error).strip().splitlines()[-1]}. Install "
                f"mindrlhf_msprobe, in this version, on each of its machines."
            ) from None

    def _connect(self, address: str | None, count: int | None) -> None:
        address = address or os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {"address": address}
        if not address:  # ray takes a number of cores only for a cluster of its own
            here = {"address": "local", "num_cpus": count or available_cores()}
        try:
            _reach(address)
            self._ray.init(
                **here,
                include_dashboard=None if address else False,
                configure_logging=True,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception as error:
            where = f"the Ray cluster {address}" if address else "Ray on this machine"
            raise UsageError(f"{where} cannot be reached: {error}") from None


def _reach(address: str | None) -> None:
    """Refuse an address where nothing listens, for which ray itself waits for minutes."""
    match = re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address or "")
    if match is not None:
        socket.create_connection((match[1], int(match[2])), timeout=_REACH_SECONDS).close()


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError(
            f"the engine ray needs the package ray ({error}). Install it with: "
            f"pip install 'mindrlhf_msprobe[ray]'"
        ) from None
    return ray
