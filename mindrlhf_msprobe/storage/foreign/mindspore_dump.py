"""MindSpore's own Dump (`MINDSPORE_DUMP_CONFIG`), as the documents of MindSpore 2.3 to 2.7 have it.

`rank_<R>/<net_name>/<graph>/<iteration>/` holds a tensor a file,
`<op_type>.<op_name>.<task>.<stream>.<timestamp>.<input|output>.<slot>.<format>.<dtype>.npy`, or a
row of `statistic.csv`, or both. A graph is a phase, an iteration a step, and each run of an
operator an entry.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, dtype_name, open_npy
from mindrlhf_msprobe.storage.foreign.dialect import MINDSPORE, Dump, Format, OnProblem
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.operators import operator_entry
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.problems import Problem

STATISTICS_FILE = "statistic.csv"
#: File name → the name that was too long for it.
MAPPING_FILE = "mapping.csv"
_RANK = re.compile(r"rank_([0-9]{1,18})")
_NUMBER = re.compile(r"[0-9]{1,18}")
_TENSOR = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+)\.[0-9]{1,18}\.[0-9]{1,18}\.(?P<time>[0-9]{1,18})\."
    r"(?P<io>input|output)\.(?P<slot>[0-9]{1,6})\.[^.]+(?:\.(?P<dtype>[^.]+))?\.npy"
)
_NO_NAME = re.compile(r"[\s./]+")

#: The columns that every statistic.csv has, as far as they are read.
_COLUMNS = ("Op Type", "Op Name", "Timestamp", "IO", "Slot", "Data Type", "Shape")
#: Statistics of ours, and what the columns are called that `statistic_category` chooses.
_STATISTICS = {
    "Max": ("Max Value",),
    "Min": ("Min Value",),
    "Mean": ("Avg Value",),
    "Norm": ("L2Norm Value", "L2 Value"),
}
_INFINITE = ("Negative Inf Count", "Positive Inf Count")
#: MindSpore's names of dtypes, by the ones that files and tables have.
_DTYPES = {
    name.lower(): name
    for name in (
        *("Bool", "Int4", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
        *("Float16", "Float32", "Float64", "BFloat16", "Complex64", "Complex128"),
    )
}

#: Type and name of an operator, input or output, and which of them.
_Slot = tuple[str, str, str, int]


@dataclass(frozen=True)
class _Value:
    """One dump of one tensor: when it was made, and its description as JSON."""

    time: int
    leaf: dict[str, Any]


def _attempt(
    read: Any, root: Path, path: Path, lost: list[tuple[Path, Message]]
) -> Any:  # of what `read` returns
    try:
        return read(root, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error) as error:
        why = message("unread.no_csv", why=str(error)) if isinstance(error, csv.Error) else None
        lost.append((path, why or layout.why_unread(error)))
        return None


def _plain(name: str) -> str:
    """Return a name with what separates scopes in it as file names have it."""
    return _NO_NAME.sub("_", name)


def _table(root: Path, path: Path) -> list[list[str]]:
    content = layout.read_inside(root, path, bounds.DATA)
    return [*csv.reader(io.StringIO(content.decode("utf-8", errors="replace"), newline=""))]


def _leaf_of_file(root: Path, path: Path, dtype: str | None) -> dict[str, Any]:
    leaf: dict[str, Any] = {"type": "mindspore.Tensor"}
    if path.is_symlink() and not layout.inside(root, path):
        return {**leaf, "error": _of_file(path, message("unread.link_leaves"))}
    try:
        array = open_npy(path)
    except ArrayFileError as error:
        return {**leaf, "error": _of_file(path, error.said)}
    leaf |= {"dtype": _dtype(dtype) or dtype_name(array.dtype), "shape": [*array.shape]}
    return {**leaf, "data_name": path.name}


def _of_file(path: Path, why: Message) -> Any:
    return message("unread.of_file", file=path.name, why=why).as_json()


def _dtype(name: str | None) -> str | None:
    return None if name is None else _DTYPES.get(name.strip().lower(), name)


def _rows(root: Path, path: Path) -> tuple[dict[_Slot, list[_Value]], int]:
    """Return the rows of a statistic.csv, and how many of them are none.

    Raises:
        ValueError: it has not the columns of one.
    """
    table = iter(_table(root, path))
    columns = {name.strip(): at for at, name in enumerate(next(table, []))}
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise layout.UnreadError.saying("unread.no_columns", columns=missing)
    found: dict[_Slot, list[_Value]] = defaultdict(list)
    damaged = 0
    for row in table:
        if not row:
            continue
        try:
            if len(row) != len(columns):
                raise ValueError(row)
            cells = {name: row[at].strip() for name, at in columns.items()}
            kind, name = _plain(cells["Op Type"]), _plain(cells["Op Name"])
            slot = kind, name, cells["IO"], _whole(cells["Slot"])
            if not (kind and name) or cells["IO"] not in ("input", "output"):
                raise ValueError(slot)
            value = _Value(_whole(cells["Timestamp"]), _leaf_of_row(cells))
            found[slot].append(value)
        except ValueError:
            damaged += 1
    return dict(found), damaged


def _leaf_of_row(cells: Mapping[str, str]) -> dict[str, Any]:
    sizes = [size for size in cells["Shape"].strip("()[] ").split(",") if size.strip()]
    leaf: dict[str, Any] = {
        "type": "mindspore.Tensor",
        "dtype": _dtype(cells["Data Type"]),
        "shape": [_whole(size) for size in sizes],
    }
    for name, columns in _STATISTICS.items():
        text = next((cells[column] for column in columns if column in cells), "")
        if text.lower() == "null":  # as MindSpore writes where no element is finite
            leaf[name] = None
        elif text:
            whole = re.fullmatch(r"-?[0-9]{1,18}", text)
            leaf[name] = number_to_json(int(text) if whole else float(text))
    if "NaN Count" in cells:
        leaf["nan_count"] = _whole(cells["NaN Count"])
    if all(column in cells for column in _INFINITE):
        leaf["inf_count"] = sum(_whole(cells[column]) for column in _INFINITE)
    if cells.get("MD5"):
        leaf["fingerprint"] = f"md5:{cells['MD5'][:64].lower()}"
    return leaf


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


def _joined(
    files: Mapping[_Slot, Sequence[_Value]], rows: Mapping[_Slot, Sequence[_Value]]
) -> dict[_Slot, list[_Value]]:
    """Return each tensor's dumps in the order of time: of a row and a file together, one."""
    found = {}
    for slot in dict.fromkeys([*files, *rows]):
        of_files, of_rows = (sorted(s.get(slot, ()), key=lambda v: v.time) for s in (files, rows))
        if len(of_files) == len(of_rows):
            found[slot] = [
                _Value(file.time, {**row.leaf, **file.leaf}) for file, row in zip(of_files, of_rows)
            ]
            continue
        by_time = {value.time: value.leaf for value in of_rows}
        for value in of_files:
            by_time[value.time] = {**by_time.get(value.time, {}), **value.leaf}
        found[slot] = [_Value(time, leaf) for time, leaf in sorted(by_time.items())]
    return found


def _lines(values: Mapping[_Slot, Sequence[_Value]]) -> list[JournalLine]:
    """Return an entry for each time that an operator ran.

    Its place in time is that of its first tensor; its end that of its last one, in half
    microseconds, so that one of a single tensor ends after it began.
    """
    runs: dict[tuple[str, str, int], dict[tuple[str, int], _Value]] = defaultdict(dict)
    for (kind, name, io_, slot), dumped in values.items():
        for call, value in enumerate(dumped):
            runs[kind, name, call][io_, slot] = value
    lines = []
    for (kind, name, call), tensors in runs.items():
        parts: dict[str, Any] = {"input_args": {}, "output": {}}
        for (io_, slot), value in sorted(tensors.items()):
            parts["input_args" if io_ == "input" else "output"][str(slot)] = value.leaf
        times = [value.time for value in tensors.values()]
        entry = operator_entry("Primitive", f"{name}.{kind}", call)
        line = JournalLine(entry, 2 * min(times), 2 * max(times) + 1)
        line.values = {part: held for part, held in parts.items() if held}
        lines.append(line)
    return sorted(lines, key=lambda line: line.seq)


class MindSporeDump(Format):
    """`show`, `trend` and `compare` take a directory of this form."""

    dialect = MINDSPORE

    def places(self, root: Path, problem: OnProblem) -> Iterator[tuple[LayerPlace, Path]]:
        """Yield (graph<G>, iteration, rank) of a dump's directory, or of one rank's."""

        def below(path: Path, step: int | None = None, rank: int | None = None) -> list[Path]:
            def unlisted(path: Path, error: OSError) -> None:
                why = message("unread.unlisted", why=error.strerror or str(error))
                problem(Problem(path, why, "graph", step, rank))

            return layout.subdirectories(path, links=True, unlisted=unlisted)

        def numbered(path: Path, rank: int) -> list[tuple[int, Path]]:
            found = (p for p in below(path, rank=rank) if _NUMBER.fullmatch(p.name))
            return sorted((int(path.name), path) for path in found)

        own = _RANK.fullmatch(root.absolute().name)
        for rank_dir in [root] if own else below(root):
            found = _RANK.fullmatch(rank_dir.absolute().name)
            if found is None:
                continue
            rank = int(found[1])
            for net in below(rank_dir, rank=rank):
                for graph, of_graph in numbered(net, rank):
                    for step, iteration in numbered(of_graph, rank):
                        yield LayerPlace(f"graph{graph}", step, rank), iteration

    def dump(self, root: Path, directory: Path, at: LayerPlace) -> Dump:
        """Read one iteration of one graph.

        Args:
            root: the run's directory, which no file may leave.
            at: what the directory is of.

        Raises:
            ValueError, OSError: it cannot be listed, or holds nothing of a dump.
        """
        names = sorted(os.listdir(directory))
        lost: list[tuple[Path, Message]] = []
        mapping = _attempt(_table, root, directory / MAPPING_FILE, lost) or ()
        mapped = {row[0]: row[1] for row in mapping if len(row) > 1}
        files: dict[_Slot, list[_Value]] = defaultdict(list)
        strange = []
        for name in names:
            match = _TENSOR.fullmatch(mapped.get(name, name))
            if match:
                kind, operator = _plain(match["type"]), _plain(match["name"])
                slot = kind, operator, match["io"], int(match["slot"])
                leaf = _leaf_of_file(root, directory / name, match["dtype"])
                files[slot].append(_Value(int(match["time"]), leaf))
            elif name not in (STATISTICS_FILE, MAPPING_FILE) and not name.endswith(".json"):
                strange.append(name)
        rows: dict[_Slot, list[_Value]] = {}
        if STATISTICS_FILE in names:
            path = directory / STATISTICS_FILE
            rows, damaged = _attempt(_rows, root, path, lost) or ({}, 0)
            if damaged:
                lost.append((path, message("unread.damaged_rows", count=damaged)))
        if strange:
            shown = [name[:200] for name in strange[:5]]
            why = message("unread.no_dump_files", count=len(strange), files=shown)
            lost.append((directory, why))
        if not files and not rows and not lost:
            raise layout.UnreadError.saying("unread.no_dump")
        return Dump(_lines(_joined(files, rows)), [], MINDSPORE.name, tuple(lost))
