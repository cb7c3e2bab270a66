"""Why something was not recorded, or is not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import few_ranges
from mindrlhf_msprobe.report.messages.en.words import reasons, some, spans
from mindrlhf_msprobe.report.messages.templates import Joined


def _graph_mode(why: object) -> str:
    return f"not recorded in graph mode: {reasons(why)}"


def _left_out(what: object, why: object) -> str:
    return f"{what} not recorded: {reasons(why)}"


_REMOVED = {"tensors": "elements of layer data", "layers": "layer data", "key_data": "key data"}


def _thinned_steps(what: str, ranks: Sequence[int], steps: Sequence[Sequence[int]]) -> str:
    one = steps[0][0] == steps[-1][1]
    on = f" of rank {spans(ranks)}" if [*ranks] != [0] else ""
    return f"{_REMOVED[what]} of step{'s' * (not one)} {few_ranges(steps)}{on}, removed (keep_mb)"


TEXTS: Mapping[str, Any] = {
    # What a graph does not hand over, of a cell or of a value.
    "graph_mode": _graph_mode,
    # Phases and key data that a trainer cannot give.
    "left_out": _left_out,
    "thinned_steps": _thinned_steps,
}


def _damaged_lines(count: int, lines: Sequence[tuple[int, str]] = ()) -> str:
    """Say which lines of records.jsonl are damaged: each is one entry, which it may still name."""
    if not lines:
        return f"{count} damaged line(s), which are left out"
    said = f"{count} damaged line(s) in the journal"
    named = [f"line {number} ({entry or 'its name is lost, too'})" for number, entry in lines]
    return f"{said}, each of one entry that is lost: {some(named, count - len(named))}"


def _no_dump_files(count: int, files: Sequence[str]) -> str:
    """Name files that are of no known form."""
    return f"holds {count} file(s) that MindSpore's Dump does not write: " + some(
        files, count - len(files)
    )


#: What of a run cannot be read, as the rest of a sentence on a file.
UNREAD: Mapping[str, Any] = {
    "no_dump_files": _no_dump_files,
    "no_columns": Joined(
        "is not a statistic.csv of MindSpore's Dump: it has no column {columns}", ", "
    ),
    "damaged_lines": _damaged_lines,
}
