"""A local worker: `python -m mindrlhf_msprobe.comparison.engine.worker_process IN OUT DIRECTORY`.

Reads a job and then tasks from the pipe IN and writes their results to the pipe OUT, each as its
length and its pickled bytes. It ends when IN does, so it never outlives the comparison.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


def send(pipe: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def receive(pipe: BinaryIO) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side has ended.
    """
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    return pickle.loads(_read(pipe, length))


def _read(pipe: BinaryIO, length: int) -> bytes:
    parts = []
    while length:
        part = pipe.read(length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def work(job: Any, tasks: BinaryIO, results: BinaryIO) -> None:
    """Do tasks until there are no more, and end the process."""
    from mindrlhf_msprobe.comparison.engine.executor import perform

    try:
        send(results, "ready")
        while True:
            send(results, perform(job, receive(tasks)))
    except (EOFError, BrokenPipeError):
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve the comparison that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the comparison itself ends its workers
    os.chdir(arguments[2])
    with os.fdopen(int(arguments[0]), "rb") as tasks, os.fdopen(int(arguments[1]), "wb") as results:
        try:
            job = receive(tasks)
        except EOFError:
            return
        work(job, tasks, results)


if __name__ == "__main__":
    main(sys.argv[1:])
