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
from mindrlhf_msprobe.replay.offline.formula import values_by_formula
from mindrlhf_msprobe.replay.offline.script import folder
from mindrlhf_msprobe.replay.offline.script.operators import home_of, operator_of, prepare
from mindrlhf_msprobe.replay.offline.script.primitives import attributes_of, is_recorded
from mindrlhf_msprobe.replay.offline.script.recorded import Call, Place, find_call
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.reading.reader import open_run

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
        return [side.get("formula", side)["verdict"] for side in self.sides.values()]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        from mindrlhf_msprobe.replay.offline.script.template import plain

        sides = plain(self.sides) if self.sides else {}
        return {"folder": str(self.folder), "sides": sides, "answer": list(self.answer)}


def replay_entry(asked: Asked, *, run: bool = True) -> Replayed:
    """Write the folder of an entry and run its script, in a process of its own.

    Args:
        run: whether the script is run.

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
    folder.write_folder(output, calls, subject.python, words, network=network, compute_dtype=dtype)
    if subject.yaml is not None:
        shutil.copyfile(subject.yaml, output / folder.NETWORK)
    command = [sys.executable, str(output / folder.SCRIPT)]
    command += ["--device", asked.device] if asked.device else []
    shown = shlex.join(["python", *command[1:]])
    written = say("replay.written", folder=str(output), command=shown)
    if not run:
        return Replayed(output, written)
    found = _run(command)
    _add_formulas(found["sides"], calls, subject, output)
    answer = [*found["answer"], *_said_of_formulas(found["sides"])]
    text = "\n".join([found["text"], *answer[len(found["answer"]) :], written])
    return Replayed(output, text, found["sides"], tuple(answer))


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


def _add_formulas(
    sides: dict[str, Any], calls: Sequence[Call], subject: _Subject, output: Path
) -> None:
    """Add what the formula of an operator says of each side; its verdict counts if it has one."""
    for call, (letter, found) in zip(calls, sides.items()):
        if subject.called is None or call.operator is None:
            continue
        from mindrlhf_msprobe.replay.offline.script.template import Side

        side = Side(output / letter.lower(), subject.called, None)
        of_primitive = call.operator.kind == "Primitive"
        primitive = side.called if of_primitive else None
        values = values_by_formula(side, call.operator, primitive)
        verdicts = {value["verdict"] for value in values.values()} - {"undecided"}
        if verdicts:
            found["formula"] = {"values": values, "verdict": max(verdicts, key="wrong".__eq__)}


def _said_of_formulas(sides: dict[str, Any]) -> list[str]:
    """Return a line for each side that has a formula."""
    lines = []
    for letter, found in sides.items():
        if formula := found.get("formula"):
            values = formula["values"]
            worst = max(values, key=lambda name: values[name]["share"])
            share = values[worst]["share"]
            code = f"replay.formula_{formula['verdict']}"
            lines.append(say(code, side=letter, value=worst, share=share))
    return lines


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


def _run(command: Sequence[str]) -> dict[str, Any]:
    """Run a script and return what it found."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [*command, "--json", str(result)],
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
    if done.returncode or "sides" not in found:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [""]
        why = shortened(lines[-1], _MOST_SAID)
        raise RunError.saying("replay.failed", script=command[1], why=why)
    return dict(found)
