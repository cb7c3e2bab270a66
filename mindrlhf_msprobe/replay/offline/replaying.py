"""`replay`: writes the folder of an entry, runs its script, and says what came out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.common.text.language import language
from mindrlhf_msprobe.common.text.printable import shortened
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.replay.offline.script import folder
from mindrlhf_msprobe.replay.offline.script.operators import (
    check_installed,
    home_of,
    operator_of,
    prepare,
)
from mindrlhf_msprobe.replay.offline.script.primitives import attributes_of, is_recorded
from mindrlhf_msprobe.replay.offline.script.recorded import Call, Place, find_call
from mindrlhf_msprobe.replay.offline.script.staging import ScriptError, staged
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.reading.reader import open_run

_JUDGING = "mindrlhf_msprobe.replay.offline.concluding"
_MOST_SAID = 600  # characters of why a script failed


@dataclass(frozen=True)
class Asked:
    """What is to be computed again.

    Attributes:
        runs: the dump_path of one run or of two.
        entry: the name of an entry, forward or backward; None: all operators.
        output: the folder.
        phase, step, rank: where the entry is; None: the first place that has its elements.
        network: `module:factory` or a YAML of MindFormers, for a cell.
        device: where it is computed; None: as MindSpore chooses.
        compute_dtype: the lowest dtype that it computes in; None: of inputs, parameters, outputs.
    """

    runs: tuple[str, ...]
    entry: str | None
    output: str
    phase: str | None = None
    step: int | None = None
    rank: int | None = None
    network: str | None = None
    device: str | None = None
    compute_dtype: str | None = None

    @property
    def place(self) -> Place:
        """Where it is looked for."""
        return Place(self.phase, self.step, self.rank)


@dataclass(frozen=True)
class Replayed:
    """What a script said.

    Attributes:
        text: all that it printed, and where it lies.
        sides: letter → what was found of that run: `verdict`, `values`, `notes`.
        answer: what is concluded, a line for each side and more.
    """

    folder: Path
    text: str
    sides: dict[str, Any] = field(default_factory=dict)
    answer: tuple[str, ...] = ()

    @property
    def verdicts(self) -> list[str]:
        """ordinary, wrong or undecided, of each side."""
        return [side["verdict"] or "undecided" for side in self.sides.values()]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        sides = json.loads(json.dumps(self.sides), parse_constant=str)  # JSON has no infinity
        return {"folder": str(self.folder), "sides": sides, "answer": list(self.answer)}


def replay_entry(asked: Asked, *, run: bool = True) -> Replayed:
    """Write the folder of an entry and run its script, in a process of its own.

    Args:
        run: whether the script is run; if not, a network is not asked for, and what it computes
            is not judged.

    Raises:
        RunError: an entry or its elements are not there, the folder cannot be written, MindSpore
            is missing, or the script failed.
        UsageError: what is asked for does not fit what was recorded.
    """
    assert asked.entry is not None
    place, calls = asked.place, []
    for path in asked.runs:
        calls.append(find_call(open_run(path), asked.entry, place))
        place = calls[0].place  # the same in the second run
    subject, calls = _subject(calls, asked)
    output = Path(asked.output)
    words = folder.words_of(language())
    dtype = floating_dtype(asked.compute_dtype)
    network = subject.called is None
    if network and run:
        check_installed()
    found: dict[str, Any] | None = None
    with staged(output) as made:
        folder.write_folder(
            made, calls, subject.python, words, network=network, compute_dtype=dtype
        )
        if subject.yaml is not None:
            shutil.copyfile(subject.yaml, made / folder.NETWORK)
        if not network:
            _judge_operator(made, subject, asked.device)
        if run:
            found = _run(made, asked, str(output / folder.SCRIPT), network=network)
    shown = shlex.join(["python", str(output / folder.SCRIPT), *_on(asked.device)])
    written = say("replay.written", folder=str(output), command=shown)
    if found is None:
        return Replayed(output, written)
    text = "\n".join([found["text"], written])
    return Replayed(output, text, found["sides"], tuple(found["answer"]))


def _run(made: Path, asked: Asked, script: str, *, network: bool) -> dict[str, Any]:
    """Judge what a network computes, and return what the script says.

    Args:
        script: what an error calls it.
    """
    if network:
        _in_a_process([sys.executable, "-m", _JUDGING, str(made), asked.device or ""], script)
    command = [sys.executable, str(made / folder.SCRIPT), *_on(asked.device), "--json"]
    found = _in_a_process(command, script)
    if "sides" not in found:
        raise ScriptError.saying("replay.failed", script=script, why="")
    return found


def _on(device: str | None) -> list[str]:
    return ["--device", device] if device else []


def _judge_operator(output: Path, subject: _Subject, device: str | None) -> None:
    """Judge the folder of an operator, in this process."""
    import mindspore

    from mindrlhf_msprobe.replay.offline.concluding import conclude

    if device:
        mindspore.set_device(device)
    prepare()
    conclude(output, subject.called)


@dataclass(frozen=True)
class _Subject:
    """What is called, as the script has it.

    Attributes:
        yaml: of a network, the file that goes with it.
        called: an operator, or the class of a primitive; None for what a network holds.
    """

    python: str
    yaml: Path | None = None
    called: Any = None


def _subject(calls: list[Call], asked: Asked) -> tuple[_Subject, list[Call]]:
    """Return what is called, and the calls with the attributes that a primitive is made with."""
    call = calls[0]
    operator = None if call.operator is None else operator_of(call.operator)
    if operator is not None and operator.kind != "Primitive":
        python = folder.subject_of_operator(home_of(operator), operator.attribute)
        return _Subject(python, called=operator.original), calls
    if asked.network is not None:
        return _Subject(*folder.subject_of_network(asked.network)), calls
    if operator is None:
        raise UsageError.saying("replay.needs_network", entry=shortened(call.entry.name))
    prepare()
    recorded = [is_recorded(one, operator) for one in calls]
    if not any(recorded):
        attributes = attributes_of(call, operator)
        python = folder.subject_of_primitive(operator.owner, attributes)
        calls = [replace(one, attributes=None) for one in calls]
        return _Subject(python, called=operator.owner(**attributes)), calls
    calls = [
        one if known else replace(one, attributes=attributes_of(one, operator))
        for one, known in zip(calls, recorded)
    ]
    python = folder.subject_of_primitive(operator.owner, None)
    return _Subject(python, called=operator.owner), calls


def floating_dtype(name: str | None) -> str | None:
    """Return a floating dtype as records call it.

    Raises:
        UsageError: it is none.
    """
    known = {dtype.lower(): dtype for dtype in folder.FLOATING}
    if name is not None and name.lower() not in known:
        expected = ", ".join(known)
        raise UsageError.saying("replay.dtype", dtype=repr(name), expected=expected)
    return None if name is None else known[name.lower()]


def _in_a_process(command: Sequence[str], script: str) -> dict[str, Any]:
    """Run a command, and return the JSON that it wrote into the file that is named last to it.

    Raises:
        RunError: it failed, or refused the network.
    """
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [*command, str(result)],
            capture_output=True,
            text=True,
            errors="backslashreplace",
            encoding="utf-8",
            env=environment,
            check=False,
        )
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    if "refused" in found:
        raise RunError(Message("replay.refused", {"why": found["refused"]}))
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [""]
        why = shortened(lines[-1], _MOST_SAID)
        raise ScriptError.saying("replay.failed", script=script, why=why)
    return dict(found)
