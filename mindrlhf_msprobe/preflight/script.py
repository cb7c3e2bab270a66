"""A script is run as it would be without us; what is noted inside its processes is put together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.secret import could_be_secret, is_secret_key
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.preflight.child.sitecustomize import DIRECTORY
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.snapshot import BY_SCRIPT

#: What a script is ended by, and how long it is waited for, in seconds: as Ctrl-C does it,
#: then more firmly.
_ENDING = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_MOST_PROCESSES = 10_000
_STDERR = 2  # the descriptor; stdout is for our answer
_CHILD = Path(__file__).parent / "child"


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started.

    Raises:
        UsageError: there is no such program, or none is named.
    """
    if not command[0]:
        raise UsageError.saying("collect.no_command")
    if shutil.which(command[0]) is None:
        code = "collect.no_program_python" if command[0].endswith(".py") else "collect.no_program"
        raise UsageError.saying(code, program=command[0])


def run_command(command: Sequence[str], seconds: float | None) -> tuple[str | None, dict[str, Any]]:
    """Run a command, and return how it ended, what it drew and what it ran with.

    What it prints goes to stderr; it reads from no terminal.

    Args:
        seconds: after how many it is stopped; None: it runs to its end.

    Returns:
        Its version of Python, None if no process said any; and the sections of a collection:
        `script`, with the exit code, negative of a signal, None where it was stopped; the random
        calls, if a Python process said something; the settings of the process of the lowest rank.

    Raises:
        UsageError: it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="msprobe_preflight_") as notes:
        began = time.monotonic()
        exit_code = _run(command, seconds, notes)
        took = time.monotonic() - began
        processes = _read(Path(notes))
    processes.sort(key=lambda found: (found["rank"] is None, found["rank"] or 0))
    settings = [found for found in processes if isinstance(found.get("settings"), dict)]
    sections: dict[str, Any] = {}
    if settings:
        sections = {**settings[0]["settings"], "taken": BY_SCRIPT}
    sections["script"] = {
        "command": without_secrets(command),
        "exit_code": exit_code,
        "stopped": exit_code is None,
        "seconds": round(took, 1),
        "processes": len(processes),
    }
    if processes:
        sections["random_calls"] = _together(processes)
    first = (settings or processes or [{}])[0]
    return first.get("python"), sections


def _run(command: Sequence[str], seconds: float | None, notes: str) -> int | None:
    paths = [str(_CHILD), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        process = subprocess.Popen(
            [*command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), DIRECTORY: notes},
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            start_new_session=True,  # so that all that it starts can be ended with it
        )
    except OSError as error:
        why = error.strerror or error
        raise UsageError.saying("collect.not_started", program=command[0], why=why) from None
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for how, patience in _ENDING:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(notes: Path) -> list[dict[str, Any]]:
    """Return what the processes noted; half a file is that of one that was killed."""
    found = []
    for path in sorted(notes.glob("*.json"))[:_MOST_PROCESSES]:
        with suppress(OSError, ValueError):
            content = json.loads(path.read_text(encoding="utf-8"))
            rank = str(content.get("rank") or "")
            found.append({**content, "rank": int(rank) if rank.isdecimal() else None})
    return found


def _together(processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of all processes, those of one rank and place as one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, process in enumerate(processes):
        for call in process["calls"]:
            file = os.path.relpath(call["file"])  # where it lies below the working directory
            file = call["file"] if file.startswith(os.pardir) else file
            own = {**call, "file": file, "seeds": [*call["seeds"]]}
            own = {"rank": process["rank"], **own, "complete": bool(process["ended"])}
            own["process"] = number
            key = tuple(own[name] for name in ("rank", "function", "file", "line", "in"))
            one = found.setdefault(key, {**own, "count": 0})
            one["count"] += own["count"]
            one["seeds"] += [seed for seed in own["seeds"] if seed not in one["seeds"]]
            one["complete"] = one["complete"] and own["complete"]
            one["process"] = number if one["process"] == number else None
    return list(found.values())


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return a command as it may be written down: what could be a secret is withheld."""
    shown, before = [], ""
    for argument in command:
        option, is_joined, value = argument.partition("=")
        if is_secret_key(before.lstrip("-")) and before.startswith("-"):
            shown.append(WITHHELD)
        elif is_joined and value and is_secret_key(option.lstrip("-")):
            shown.append(f"{option}={WITHHELD}")
        else:
            shown.append(WITHHELD if could_be_secret(argument[:1000]) else argument)
        before = argument
    return shown
