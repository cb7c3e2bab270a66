"""All recorded operators computed again: `replay RUN` without an entry."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.errors import MsprobeError, RunError
from mindrlhf_msprobe.findings.replayed import VERDICTS, ReplayedOperator, ReplayedOperators
from mindrlhf_msprobe.replay.kinds import draws
from mindrlhf_msprobe.replay.offline.replaying import Asked, floating_dtype
from mindrlhf_msprobe.replay.offline.script.folder import ENTRY, drawn, write_side
from mindrlhf_msprobe.replay.offline.script.operators import check_mindspore, operator_of, prepare
from mindrlhf_msprobe.replay.offline.script.primitives import attributes_of, is_recorded
from mindrlhf_msprobe.replay.offline.script.recorded import Call, has_elements, operator_calls
from mindrlhf_msprobe.storage.reading.reader import open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.replay.offline.judging import Judged

_LONGEST_NOTE = 300


def replay_operators(
    asked: Asked, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> ReplayedOperators:
    """Compute every recorded operator of a run again, in this process, and write the table.

    Args:
        seed: of inputs that are drawn, where statistics alone were recorded.
        progress: called with (done, total).

    Raises:
        RunError: the run has no operators, MindSpore is missing, or the table cannot be written.
    """
    from mindrlhf_msprobe.report.tables.replay import write_replayed

    run = open_run(asked.runs[0])
    calls = [*operator_calls(run, asked.place)]
    if not calls:
        raise RunError.saying("replay.no_operators", path=run.path)
    check_mindspore()
    import mindspore

    if asked.device:
        mindspore.set_device(asked.device)
    prepare()
    dtype = floating_dtype(asked.compute_dtype)
    found = []
    for number, call in enumerate(calls):
        found.append(_unjudged(_replayed(call, seed + number, dtype), call))
        progress(number + 1, len(calls))
    found.sort(key=lambda one: (VERDICTS.index(one.verdict), -(one.share or 0.0)))
    table = ReplayedOperators(str(run.path), tuple(found), Path(asked.output))
    return replace(table, file=write_replayed(table, Path(asked.output)))


def _unjudged(row: ReplayedOperator, call: Call) -> ReplayedOperator:
    """Return a row without a verdict as one that is not judged, where none is to be had.

    That is where no floating-point tensor goes in, and none comes out, or the very same here; and
    of what draws random numbers.
    """
    from mindrlhf_msprobe.replay.offline.concluding import worded

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


def _replayed(call: Call, seed: int, compute_dtype: str | None) -> ReplayedOperator:
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
        return replace(unknown, drawn=drawn_here, notes=(said[:_LONGEST_NOTE],))
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
    from mindrlhf_msprobe.replay.offline.concluding import worded

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
