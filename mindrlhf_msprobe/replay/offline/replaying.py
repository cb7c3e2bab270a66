"""`replay`: writes the folder of an entry, runs its script, and says what came out.

Also of what a comparison found: the entry at which two runs first diverge (`request_of`); without
an entry, all recorded operators computed again (`replay_operators`).
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import MsprobeError, RunError, UsageError
from mindrlhf_msprobe.findings.accuracy import VERDICTS, ReplayedOperator, ReplayedOperators
from mindrlhf_msprobe.replay.kinds import draws
from mindrlhf_msprobe.replay.offline import folder
from mindrlhf_msprobe.replay.offline.called_operator import (
    attributes_of,
    check_mindspore,
    is_recorded,
    operator_of,
)
from mindrlhf_msprobe.replay.offline.folder import ENTRY, ScriptError, drawn, staged, write_side
from mindrlhf_msprobe.replay.offline.recorded_call import (
    RecordedCall,
    ReplayRequest,
    find_call,
    has_elements,
    operator_calls,
)
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.outputs import refuse, refuse_directory, refuse_inside, write_all
from mindrlhf_msprobe.storage.reading.reader import open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.replay.offline.judging import Judged

_JUDGING = "mindrlhf_msprobe.replay.offline.judging"


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


def replay_entry(request: ReplayRequest, *, run: bool = True) -> Replayed:
    """Write the folder of an entry and run its script, in a process of its own.

    Args:
        run: whether the script is run; if not, no network is needed, and what it computes
            is not judged.

    Raises:
        RunError: an entry or its elements are not there, the folder cannot be written, MindSpore
            is missing, or the script failed.
        UsageError: the request does not fit what was recorded.
    """
    assert request.entry is not None
    refuse_inside(refuse_directory(request.output), request.runs)
    place, calls = request.place, []
    for path in request.runs:
        calls.append(find_call(open_run(path), request.entry, place))
        place = calls[0].place  # the same in the second run
    subject, calls = _subject(calls, request)
    output = Path(request.output)
    script, words = str(output / folder.SCRIPT), folder.words_of(language())
    dtype = floating_dtype(request.compute_dtype)
    network = subject.called is None
    if network and run and find_spec("mindspore") is None:
        check_mindspore()  # says why it cannot be imported
    with staged(output) as made:
        folder.write_folder(
            made, calls, subject.python, words, network=network, compute_dtype=dtype
        )
        if subject.yaml is not None:
            shutil.copyfile(subject.yaml, made / folder.NETWORK)
        found = _judged(made, subject, request, script, run=run)
    device = ["--device", request.device] if request.device else []
    shown = shlex.join(["python", script, *device])
    written = say("replay.written", folder=str(output), command=shown)
    if found is None:
        return Replayed(output, written)
    text = "\n".join([found["text"], written])
    return Replayed(output, text, found["sides"], tuple(found["answer"]))


def _judged(
    made: Path, subject: _Subject, request: ReplayRequest, script: str, *, run: bool
) -> dict[str, Any] | None:
    """Judge what was written, and return what the script says, if it is run.

    Args:
        script: what an error calls it.
    """
    if subject.called is not None:
        from mindrlhf_msprobe.replay.offline.computing import prepare
        from mindrlhf_msprobe.replay.offline.judging import conclude

        prepare(request.device)
        conclude(made, subject.called)
    elif run:  # a network is judged in a process of its own
        _in_a_process([sys.executable, "-m", _JUDGING, str(made), request.device or ""], script)
    if not run:
        return None
    device = ["--device", request.device] if request.device else []
    found = _in_a_process([sys.executable, str(made / folder.SCRIPT), *device, "--json"], script)
    if "sides" not in found:
        raise ScriptError.saying("replay.failed", script=script, why="")
    return found


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


def _subject(
    calls: list[RecordedCall], request: ReplayRequest
) -> tuple[_Subject, list[RecordedCall]]:
    """Return what is called, and the calls with the attributes that a primitive is made with."""
    call = calls[0]
    operator = None if call.operator is None else operator_of(call.operator)
    if operator is not None and operator.kind != "Primitive":
        # The module or class that Python finds it in, e.g. `mindspore.mint`.
        home = "mindspore.Tensor" if operator.kind == "Tensor" else str(operator.owner.__name__)
        python = folder.subject_of_operator(home, operator.attribute)
        return _Subject(python, called=operator.original), calls
    if request.network is not None:
        return _Subject(*folder.subject_of_network(request.network)), calls
    if operator is None:
        raise UsageError.saying("replay.needs_network", entry=shortened(call.entry.name))
    from mindrlhf_msprobe.replay.offline.computing import prepare

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
        why = shortened(lines[-1], 600)
        raise ScriptError.saying("replay.failed", script=script, why=why)
    return dict(found)


def replay_operators(
    request: ReplayRequest,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReplayedOperators:
    """Compute every recorded operator of a run again, in this process, and write the table.

    Args:
        seed: of inputs that are drawn, where statistics alone were recorded.
        progress: called with (done, total).

    Raises:
        RunError: the run has no operators, MindSpore is missing, or the table cannot be written.
    """
    from mindrlhf_msprobe.report.accuracy import replayed_at

    refuse(replayed_at(Path(request.output)), runs=request.runs)
    run = open_run(request.runs[0])
    calls = [*operator_calls(run, request.place)]
    if not calls:
        raise RunError.saying("replay.no_operators", path=run.path)
    check_mindspore()
    from mindrlhf_msprobe.replay.offline.computing import prepare

    prepare(request.device)
    dtype = floating_dtype(request.compute_dtype)
    found = []
    for number, call in enumerate(calls):
        found.append(_unjudged(_replayed(call, seed + number, dtype), call))
        progress(number + 1, len(calls))
    found.sort(key=lambda one: (VERDICTS.index(one.verdict), -(one.share or 0.0)))
    (file,) = write_all(replayed_at(Path(request.output), found), runs=[run.path])
    return ReplayedOperators(str(run.path), tuple(found), file)


def _unjudged(row: ReplayedOperator, call: RecordedCall) -> ReplayedOperator:
    """Return a row without a verdict as one that is not judged, where none is to be had.

    That is where no floating-point tensor goes in, and none comes out, or the very same here; and
    of what draws random numbers.
    """
    from mindrlhf_msprobe.replay.offline.judging import worded

    assert call.operator is not None
    if row.verdict == "undecided" and draws(call.operator.name.rpartition(".")[2]):
        said = worded("random", value=row.value or "output.0")
        notes = tuple(dict.fromkeys([said, *row.notes]))
        return replace(row, verdict="unjudged", notes=notes)
    records = [record for record in call.entry.records if record.io in ("input", "output")]
    floating = {
        record.io for record in records if record.leaf.is_tensor and not record.leaf.is_discrete
    }
    nothing = not floating or (floating == {"output"} and row.max_abs == 0)
    return replace(row, verdict="unjudged") if row.verdict == "undecided" and nothing else row


def _replayed(call: RecordedCall, seed: int, compute_dtype: str | None) -> ReplayedOperator:
    """Compute one call again."""
    from mindrlhf_msprobe.replay.offline.computing import Recomputed
    from mindrlhf_msprobe.replay.offline.judging import judge

    entry = call.entry
    unknown = ReplayedOperator(entry.name, entry.phase, entry.step, entry.rank, "undecided")
    named = call.operator
    assert named is not None
    drawn_here = not has_elements(call.forward)
    try:
        operator = operator_of(named)
        called = operator.original
        if operator.kind == "Primitive":
            called = operator.owner
            if not is_recorded(call, operator):
                draw = drawn(seed) if drawn_here else None
                called = called(**attributes_of(call, operator, draw))
                call = replace(call, attributes=None)
        with tempfile.TemporaryDirectory() as folder:
            draw = drawn(seed) if drawn_here else None
            write_side(Path(folder), call, draw=draw, compute_dtype=compute_dtype)
            if drawn_here:
                _compute_what_is_judged(Path(folder), called)
            found = judge(Recomputed(Path(folder), called), named, kernels=False)
    except MsprobeError as error:
        return replace(unknown, notes=(str(error),))
    except Exception as error:  # of MindSpore: what was recorded does not fit the operator here
        said = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return replace(unknown, drawn=drawn_here, notes=(said[:300],))
    return _row(unknown, found, drawn_here)


def _compute_what_is_judged(folder: Path, operator: Any) -> None:
    """Put what the operator computes here in the place of what was not recorded."""
    from mindrlhf_msprobe.replay.offline.computing import Recomputed, array_of

    side = Recomputed(folder, operator)
    computed = side.compute()
    for name, node in side.recorded.items():
        if name in computed:
            array = array_of(computed[name])
            node |= {"dtype": str(computed[name].dtype), "shape": list(array.shape)}
            np.save(folder / node["file"], array)
    (folder / ENTRY).write_text(json.dumps(side.entry), encoding="utf-8")


def _row(row: ReplayedOperator, found: Judged, drawn_here: bool) -> ReplayedOperator:
    """Return what was found of a call, by the value that is furthest off."""
    from mindrlhf_msprobe.replay.offline.judging import worded

    notes = tuple(dict.fromkeys(worded(code, **params) for code, params in found.notes))
    row = replace(row, verdict=found.verdict, drawn=drawn_here, notes=notes)
    of_it = {n: v for n, v in found.values.items() if v["verdict"] == found.verdict}
    if not of_it:
        return row
    worst = max(of_it, key=lambda name: of_it[name].get("share", 0.0))
    value = of_it[worst]
    apart = value.get(value.get("by", "again")) or value.get("again")
    if apart is None:  # it could not be computed here
        return replace(row, value=worst, dtype=value["dtype"])
    share = value.get("share")
    return replace(
        row,
        value=worst,
        share=None if share is None or math.isnan(share) else share,
        dtype=value["dtype"],
        **{name: apart[name] for name in ("ulp", "max_abs", "relative")},
    )
