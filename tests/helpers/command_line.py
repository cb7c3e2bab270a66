"""The command line in one process for many commands, which pay once for importing MindSpore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.programs import TESTS

SERVER = """
import gc, json, os, sys
from mindrlhf_msprobe.cli import main

answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    gc.collect()
    gc.freeze()  # the frameworks, which are a fifth of a training's time to look through
    command = json.loads(line)
    os.chdir(command["cwd"])
    for stream, path in ((1, command["stdout"]), (2, command["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    try:
        code = main(command["arguments"])
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    print(json.dumps(code), file=answers, flush=True)
"""


class CommandLine:
    """Runs `mindrlhf-msprobe` with one list of arguments after the other, as a shell would."""

    def __init__(self, directory: Path, log_level: str | None = "1") -> None:
        paths = [str(TESTS), *(path for path in sys.path if path)]
        self._files = [directory / "stdout", directory / "stderr"]
        level = {} if log_level is None else {"MSPROBE_LOG_LEVEL": log_level}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **level},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def run(
        self, cwd: Path, *arguments: str, together: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one command in `cwd`; return its exit code and what it said.

        Args:
            together: what it said on stderr stands in stdout, as after `2>&1`.
        """
        for path in self._files:
            path.write_bytes(b"")
        out, err = self._files[:1] * 2 if together else self._files
        command = {"arguments": arguments, "cwd": str(cwd), "stdout": str(out), "stderr": str(err)}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended: {err.read_text()}"
        said = [path.read_text(encoding="utf-8") for path in self._files]
        return subprocess.CompletedProcess(list(arguments), json.loads(answer), *said)
