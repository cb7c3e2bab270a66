"""A trainer's command run once more: with some settings of the probe, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.processes import run_to_end
from mindrlhf_msprobe.config import OVERRIDES
from mindrlhf_msprobe.errors import MsprobeError, RunError
from mindrlhf_msprobe.findings.words import TOOL
from mindrlhf_msprobe.preflight.collect import check_command, without_secrets_of
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, loads, write_json
from mindrlhf_msprobe.storage.outputs import refuse_inside
from mindrlhf_msprobe.storage.reading.reader import open_run

RUN = "run"
_TRIAL, _SETTINGS, _PRINTED = "trial.json", "msprobe_config.json", "output.txt"
_PROCESS = "process"  # holds the number of the process that runs the command
_MOST_LINES = 5  # of what a command printed last, in an error
_TAIL = 1 << 16


class TrialError(MsprobeError):
    """A command did not make the run that it was to make, or what it made cannot be trusted."""


@dataclass(frozen=True)
class MadeRun:
    """A run that a command has made.

    Attributes:
        directory: of the trial; the run is in it.
        seconds: how long the command ran.
        reused: whether it was made by an earlier call.
        exit_code: of the command; other than 0 where it failed behind a whole run, negative: the
            signal that ended it.
    """

    directory: Path
    seconds: float
    reused: bool
    exit_code: int = 0

    @property
    def run(self) -> Path:
        """The recorded run."""
        return self.directory / RUN

    @property
    def failed_behind_run(self) -> Message | None:
        """What is said of a command that failed when its run was whole."""
        if not self.exit_code:
            return None
        return message("proof.failed_behind", path=self.directory.name, code=self.exit_code)


class Trials:
    """The runs that one experiment makes, in one directory; those that ended are not made again.

    Args:
        output: the directory; a new one, or that of the same experiment.
        what: what the experiment is made of: another one in the same directory is refused.
        command: the program and its arguments.
        seconds: after how many a command is stopped; None: it runs to its end.
        uses_failed: whether a run is used that was whole before its command failed.

    Raises:
        UsageError: the command cannot be started.
        RunError: the directory lies in a run, or holds something else.
    """

    def __init__(
        self,
        output: Path,
        what: Mapping[str, Any],
        command: Sequence[str],
        seconds: float | None = None,
        *,
        uses_failed: bool = False,
    ) -> None:
        self._uses_failed = uses_failed
        if "{" not in "".join(command[:1]):  # else it is known for each trial alone
            check_command(command)
        refuse_inside(output)
        self.output = output.absolute()
        self._command, self._seconds = tuple(command), seconds
        kept = {"tool": TOOL, **what, "command": without_secrets_of(command)}
        known = loads(dump_json(kept))
        file = self.output / "experiment.json"
        try:
            if file.is_file():
                if loads(file.read_bytes()) != known:
                    raise RunError.saying("error.other_experiment", path=output)
                return
            if self.output.is_dir() and any(self.output.iterdir()):
                raise RunError.saying("error.no_experiment", path=output)
            self.output.mkdir(parents=True, exist_ok=True)
            write_json(file, known)
        except (OSError, ValueError) as error:
            raise RunError.saying("error.unread", path=output, why=error) from None

    def make(
        self,
        name: str,
        settings: Mapping[str, Any],
        arguments: Mapping[str, str] | None = None,
        environment: Mapping[str, str | None] | None = None,
        directory: Path | None = None,
    ) -> MadeRun:
        """Have the command make one run.

        Args:
            name: of the trial's directory.
            settings: keys of the section msprobe_config, in the place of the trainer's own.
            arguments: what stands in the command for each `{name}`.
            environment: variables that are set, or None: not set.
            directory: in which it runs; None: this process's.

        Raises:
            TrialError: it failed, was stopped, or made no run there; see `uses_failed`.
        """
        own = self.output / name
        given = dict(arguments or {})
        settings = {"dump_path": str(own / RUN), "existing": "refuse", **settings}
        made_of = {"settings": settings, "arguments": given, "environment": environment or {}}
        made_of = loads(dump_json(made_of))
        ended = _read(own / _TRIAL)
        if ended.get("made_of") == made_of and _is_run(own / RUN):
            seconds, code = (ended.get(name) or 0 for name in ("seconds", "exit_code"))
            return MadeRun(own, float(seconds), True, int(code))
        if (own / _SETTINGS).is_file():  # of an earlier call that was interrupted
            _refuse_running(own)
            shutil.rmtree(own)
        own.mkdir(parents=True)
        write_json(own / _SETTINGS, settings)
        command = [*self._command]
        for key, text in given.items():
            command = [part.replace(f"{{{key}}}", text) for part in command]
        began = time.monotonic()
        code = self._run(command, own, environment or {}, directory)
        seconds = round(time.monotonic() - began, 1)
        if code is None or (code != 0 and not (self._uses_failed and _is_whole(own / RUN))):
            known = "proof.stopped" if code is None else "proof.failed"
            if code is not None and code < 0:
                known, code = "proof.killed", -code
            where = {"path": str(own / _PRINTED), "lines": _last_lines(own / _PRINTED)}
            raise TrialError.saying(known, code=code, seconds=self._seconds, **where)
        if not _is_run(own / RUN):
            raise TrialError.saying(
                "proof.recorded_nothing", path=str(own / RUN), variable=OVERRIDES
            )
        write_json(own / _TRIAL, {"made_of": made_of, "exit_code": code, "seconds": seconds})
        return MadeRun(own, seconds, False, code)

    def _run(
        self,
        command: Sequence[str],
        own: Path,
        environment: Mapping[str, str | None],
        directory: Path | None,
    ) -> int | None:
        """Run a command; return its exit code, None where it was stopped."""
        variables = {**os.environ, OVERRIDES: str(own / _SETTINGS)}
        for name, value in environment.items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        with (own / _PRINTED).open("wb") as printed:
            return run_to_end(
                command,
                self._seconds,
                lambda number: (own / _PROCESS).write_text(str(number)),
                env=variables,
                cwd=directory,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )


def _refuse_running(own: Path) -> None:
    """Refuse a trial whose command still runs, though what started it was killed.

    Raises:
        RunError: it does.
    """
    try:
        number = int((own / _PROCESS).read_text())
        started_here = os.fsencode(own / _SETTINGS) in Path(f"/proc/{number}/environ").read_bytes()
    except (OSError, ValueError):
        return
    if started_here:
        raise RunError.saying("error.trial_runs", number=number, path=own)


def takes(command: Sequence[str], name: str) -> bool:
    """Return whether a command has a place for something, such as `{config}`."""
    return any(f"{{{name}}}" in part for part in command)


def _is_run(path: Path) -> bool:
    try:
        return bool(open_run(path).steps)
    except (MsprobeError, OSError):
        return False


def _is_whole(path: Path) -> bool:
    """Return whether all ranks have closed a run.

    What fails behind that is no concern of the run: MindSpore's processes crash at exit at times.
    """
    try:
        run = open_run(path)
        return bool(run.run_files) and run.finished and not run.missing_ranks
    except (MsprobeError, OSError):
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        content = loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.strip()[:200] for line in lines if line.strip()][-_MOST_LINES:]
