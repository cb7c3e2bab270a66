"""A local worker: `python -m mindrlhf_msprobe.comparison.engine.worker_process IN OUT DIRECTORY`.

Reads a job and then tasks from the pipe IN and writes their results to the pipe OUT, each as its
length and its pickled bytes. It ends when IN does, so it never outlives the comparison.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from mindrlhf_msprobe.common.processes import receive, send


def serve(job_from: Callable[[BinaryIO], Any], tasks_end: int, results_end: int) -> None:
    """Do tasks until there are no more, and end the process.

    Args:
        job_from: returns the job, given the pipe of the tasks.
        tasks_end, results_end: this process's ends of the pipes.
    """
    with os.fdopen(tasks_end, "rb") as tasks, os.fdopen(results_end, "wb") as results:
        try:
            job = job_from(tasks)
            from mindrlhf_msprobe.comparison.engine.executor import perform

            send(results, "ready")
            while True:
                send(results, perform(job, receive(tasks)))
        except (EOFError, BrokenPipeError):
            os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the comparison itself ends its workers
    os.chdir(sys.argv[3])
    serve(receive, int(sys.argv[1]), int(sys.argv[2]))
