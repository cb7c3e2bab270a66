"""Workers of a Ray cluster, for runs on storage that all its machines share."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.processes import available_cores
from mindrlhf_msprobe.comparison.engine.executor import Engine, Failure, Result, Task, perform
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.errors import UsageError

_REACH_SECONDS = 10.0
_TRIES = 3  # of a machine to run the check; workers die for reasons of their own


class RayWorkers(Engine):
    """Does tasks on Ray; a cluster that this process is connected to already is used as it is.

    Args:
        address: of a running cluster; None: RAY_ADDRESS, or one on this machine.
        count: how many tasks at once, at most as many as the cluster has cores; None: so many.

    Raises:
        UsageError: ray is not installed, the cluster cannot be reached, or its machines do not
            have this copy of this package.
    """

    def __init__(self, job: Job, address: str | None, count: int | None) -> None:
        self._ray = _ray()
        self._owned = not self._ray.is_initialized()
        try:
            if self._owned:
                _print_of_ray(self._ray, False)
                self._connect(address, count)
            self._check()
            cores = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self.capacity = min(count or cores, cores)
            self._job = self._ray.put(job)
            self._perform = self._ray.remote(num_cpus=1, max_retries=0)(perform)
        except BaseException:
            self.close()
            raise
        self._running: dict[Any, Task] = {}

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
            return task, Failure(message("note.ray_worker_lost", kind=kind))

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        if self._owned:
            self._ray.shutdown()
            _print_of_ray(self._ray, True)

    def _check(self) -> None:
        """Refuse a cluster with a machine that does not have what this process runs."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        copy = _copy_of_package()
        # It takes no core, so that it need not wait for what else the cluster does.
        remote = self._ray.remote(num_cpus=0, max_retries=0)(copy)
        left = [
            {"scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)}
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        ]
        why = ""
        for _ in range(_TRIES):
            begun = [(settings, remote.options(**settings).remote()) for settings in left]
            left = []
            for settings, answer in begun:
                try:
                    _refuse_unlike(self._ray.get(answer), copy())
                except self._ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)  # of a RayTaskError
                    if isinstance(cause, (ImportError, AttributeError)):  # it lacks this package
                        failed = f"{type(cause).__name__}: {cause}"
                        what = {"why": failed, "install": _INSTALL}
                        raise UsageError.saying("error.ray_fails", **what) from None
                    why = str(error).strip().splitlines()[-1]
                    left.append(settings)
        if left:
            raise UsageError.saying("error.ray_begins", why=why)

    def _connect(self, address: str | None, count: int | None) -> None:
        address = address or os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {"address": address}
        if not address:  # ray takes a number of cores only for a cluster of its own
            cores = available_cores()
            here = {
                "address": "local",
                "num_cpus": min(count or cores, cores),
                "runtime_env": {"worker_process_setup_hook": _import_as_here()},
            }
        try:
            # Where nothing listens, ray itself waits for minutes.
            match = re.fullmatch(r"(?:ray://)?([^:/]+):([0-9]+)", address or "")
            if match is not None:
                at = match[1], int(match[2])
                socket.create_connection(at, timeout=_REACH_SECONDS).close()
            self._ray.init(
                **here,
                include_dashboard=None if address else False,
                configure_logging=True,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception as error:
            cluster = message("error.ray_cluster", address=address)
            where = cluster if address else message("error.ray_here")
            raise UsageError.saying("error.ray_unreached", where=where, error=error) from None


def _import_as_here() -> Callable[[], None]:
    """Return a function that imports this package from where this process has found it.

    Left to itself a Ray worker searches the working directory first, which may hold another copy
    of it, or modules of the same names as those it needs.
    """
    search = [path or os.getcwd() for path in sys.path]

    def import_package() -> None:  # handed over by value, as it is not known by its name
        import contextlib
        import sys

        before = list(sys.path)
        sys.path[:] = search
        with contextlib.suppress(Exception):  # the check will say so
            import mindrlhf_msprobe.comparison.engine.executor  # noqa: F401
        sys.path[:] = before

    return import_package


def _copy_of_package() -> Callable[[], dict[str, str]]:
    """Return a function that tells which copy of this package runs."""

    def copy_of_package() -> dict[str, str]:  # handed over by value: this module may be missing
        import hashlib
        import socket
        from pathlib import Path

        machine = socket.gethostname()
        try:
            import mindrlhf_msprobe
            import mindrlhf_msprobe.comparison.engine.executor
        except Exception as error:
            return {"machine": machine, "error": f"{type(error).__name__}: {error}"}
        root = Path(str(mindrlhf_msprobe.__file__)).resolve().parent
        digest = hashlib.sha1(usedforsecurity=False)
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".c")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)} ".encode())
            digest.update(content)
        return {
            "machine": machine,
            "path": str(root),
            "version": str(getattr(mindrlhf_msprobe, "__version__", "unknown")),
            "fingerprint": digest.hexdigest(),
        }

    return copy_of_package


_INSTALL = message("error.install")


def _refuse_unlike(theirs: dict[str, str], own: dict[str, str]) -> None:
    """Refuse a cluster whose workers would compare with another copy of this package."""
    if "error" in theirs:
        why = message("error.on_machine", what=theirs["error"], machine=theirs["machine"])
        raise UsageError.saying("error.ray_fails", why=why, install=_INSTALL)
    if any(theirs[key] != own.get(key) for key in ("version", "fingerprint")):
        parent = Path(own["path"]).parent
        what = f"{theirs['version']}, {theirs['path']}"
        where = message("error.on_machine", what=what, machine=theirs["machine"])
        raise UsageError.saying(
            "error.ray_other_copy",
            where=where,
            value=own["version"],
            value2=own["path"],
            install=_INSTALL,
            str=str(parent),
        )


def _print_of_ray(ray: Any, wanted: bool) -> None:
    """Say whether Ray shall print what it has to say of workers, which it does on stdout.

    Whoever reads there what this program prints, as JSON, must not find that in between; a lost
    worker is reported in the comparison. Ray has no setting for it.
    """
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    if worker is not None and hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = wanted


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError.saying(
            "error.no_package", package="ray", error=error, extra="ray"
        ) from None
    return ray
