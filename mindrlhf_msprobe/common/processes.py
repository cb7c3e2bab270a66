"""Other processes: copies of this one (fork), fresh interpreters, and what goes through pipes.

multiprocessing is not used: its spawn would run a caller's script again if that has no `__main__`
guard.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import mindrlhf_msprobe
from mindrlhf_msprobe.errors import UsageError

if TYPE_CHECKING:
    import subprocess

_PACKAGE_PARENT = Path(str(mindrlhf_msprobe.__file__)).resolve().parents[1]
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LENGTH = struct.Struct("<Q")


def available_cores() -> int:
    """Return how many cores this process may use; all of the machine where none can be named."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this platform, or refused in a sandbox
        return os.cpu_count() or 1


#: What a command is ended by, and how long it is waited for, in seconds: as Ctrl-C does it,
#: then more firmly.
_ENDING = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))


def run_to_end(
    command: Sequence[str],
    seconds: float | None,
    began: Callable[[int], object] = lambda number: None,
    **how: Any,
) -> int | None:
    """Run a command that reads from no terminal; return its exit code, None where it was stopped.

    Args:
        seconds: after how many it is stopped, with all that it started; None: never.
        began: called with the process's number.
        how: as `subprocess.Popen` takes it.

    Raises:
        UsageError: it cannot be started.
    """
    import subprocess

    try:
        process = subprocess.Popen(
            [*command], stdin=subprocess.DEVNULL, start_new_session=True, **how
        )
    except OSError as error:
        why = error.strerror or error
        raise UsageError.saying("collect.not_started", program=command[0], why=why) from None
    began(process.pid)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            for signal_sent, patience in _ENDING:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal_sent)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
                    break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def may_fork() -> bool:
    """Return whether this process has no threads but those that numpy looks after itself."""
    return (
        hasattr(os, "fork")
        and threading.active_count() == 1
        # These have some that Python does not count.
        and not {"mindspore", "ray", "torch", "tensorflow"} & sys.modules.keys()
    )


def forked(work: Callable[[], object], others: Iterable[int]) -> int:
    """Do `work` in a copy of this process, and return its number.

    The copy ends with the work. It has a session and no terminal of its own, and Ctrl-C does not
    reach it: this process ends it.

    Args:
        others: files that are open here and are closed in the copy.

    Raises:
        OSError: there can be no more processes.
    """
    # A Ctrl-C that reached the copy before it ignores that would end this program twice.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():  # Python 3.12 counts numpy's threads
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve(work, others)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _serve(work: Callable[[], object], others: Iterable[int]) -> NoReturn:
    """Be the copy; never returns into the code that was forked."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        for end in others:
            os.close(end)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        work()
        code = 0
    finally:
        os._exit(code)


def start_fresh(module: str, pipes: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start `python -m module PIPE… DIRECTORY`, an interpreter of its own with this package.

    It has no terminal, one thread for numpy, and Ctrl-C does not reach it.

    Args:
        pipes: its ends of pipes.

    Raises:
        OSError: there can be no more processes.
    """
    import subprocess  # slow to import, and a fork does without

    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, pipes), os.getcwd()],
        cwd=_PACKAGE_PARENT,  # so that it is this package that is imported
        env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        pass_fds=pipes,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def framed(message: Any) -> bytes:
    """Return what one message is in a pipe: its length and its pickled bytes."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def send(pipe: BinaryIO, message: Any) -> None:
    """Write one message."""
    pipe.write(framed(message))
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


def take_messages(buffer: bytearray) -> list[Any]:
    """Return the messages that a buffer holds whole, and remove them from it."""
    found = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        end = _LENGTH.size + length
        if len(buffer) < end:
            break
        found.append(pickle.loads(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return found
