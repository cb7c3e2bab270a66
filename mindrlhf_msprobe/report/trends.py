"""Series and similarities: on a terminal, as rows and files, and as key data of a run.

Event files are written through tensorboardX, which MindFormers depends on.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
import string
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from math import isfinite, isinf, isnan
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.phases import ROLLOUT_CORR
from mindrlhf_msprobe.report.answer import Code, Lines, capped, listed
from mindrlhf_msprobe.report.messages import say, texts_of
from mindrlhf_msprobe.report.sheets import clean, harmless
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json, write_atomic, write_json
from mindrlhf_msprobe.storage.arrays.npy import fingerprint, open_npy, save_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.outputs import (
    Output,
    csv_of,
    refuse,
    refuse_directory,
    refuse_inside,
    replaced,
    write_all,
)
from mindrlhf_msprobe.storage.reading.series import Missing, Series
from mindrlhf_msprobe.trends.similarity import GradientTrend, OfUpdate, Similarity

HEIGHT = 9  # rows
#: What several runs are called, in their order.
SIDES = string.ascii_uppercase
#: What stands for a point of the first line, of the second and so on, and of several in one place.
MARKS, SEVERAL = "*o+x#%&=$~" + SIDES[10:], "@"
_BETWEEN, _NOT_FINITE = ".", "!"
_LEAST = 30  # columns


def plot(lines: Sequence[tuple[np.ndarray, np.ndarray]], width: int) -> list[str]:
    """Return the rows of a plot of one or more lines, each at most `width` columns.

    Points of a line are joined by dots; where a value is not finite stands `!` below.

    Args:
        lines: x and y of each, float64 [n], x ascending; at least one point in all.
    """
    x = np.concatenate([line[0] for line in lines])
    finite = np.concatenate([line[1][np.isfinite(line[1])] for line in lines])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    # As many digits as tell both apart, four at least.
    numbers = ((f"{high:.{digits}g}", f"{low:.{digits}g}") for digits in range(4, 17))
    equal = ((f"{high!r}", f"{low!r}"),)
    labels = next(n for n in (*numbers, *equal) if n[0] != n[1] or high == low)
    margin = max(map(len, labels))
    columns = max(_LEAST, width) - margin - 2
    grid = [[" "] * columns for _ in range(HEIGHT)]
    below = [" "] * columns
    start, end = float(x.min()), float(x.max())
    across, down = partial(_place, start, end, columns), partial(_place, high, low, HEIGHT)
    for xs, ys in lines:
        points = zip(xs.tolist(), ys.tolist())
        _join(grid, [(across(x), down(y)) if isfinite(y) else None for x, y in points])
    for (xs, ys), mark in zip(lines, MARKS):
        for at, value in zip(xs.tolist(), ys.tolist()):
            column = across(at)
            if not isfinite(value):
                below[column] = _NOT_FINITE
                continue
            row = grid[down(value)]
            row[column] = mark if row[column] in (" ", _BETWEEN, mark) else SEVERAL
    shown = {0: labels[0], HEIGHT - 1: labels[1]} if high > low else {HEIGHT // 2: labels[0]}
    shown = shown if finite.size else {}
    rows = [f"{shown.get(n, ''):>{margin}} |{''.join(r).rstrip()}" for n, r in enumerate(grid)]
    rows.append(f"{'':>{margin}} +{'-' * columns}")
    if _NOT_FINITE in below:
        rows.append(f"{'':>{margin}}  {''.join(below).rstrip()}")
    first, last = f"{int(start)}", f"{int(end)}"
    axis = first + last.rjust(columns - len(first))
    if start == end:
        axis = f"{first:>{columns // 2 + 1}}"
    return [*rows, f"{'':>{margin}}  {axis}".rstrip()]


def _place(first: float, last: float, count: int, value: float) -> int:
    """Return the place of a number between two ends, 0 to n − 1; in the middle, if all are one."""
    if first == last:
        return count // 2
    # Halves first: the distance of two floats may be larger than any float.
    share = (value / 2 - first / 2) / (last / 2 - first / 2)
    return min(count - 1, max(0, round(share * (count - 1))))


def _join(grid: list[list[str]], points: Sequence[tuple[int, int] | None]) -> None:
    """Draw dots from each point to the next, unless one of them is not finite."""
    for point, other in itertools.pairwise(points):
        if point is None or other is None:
            continue
        (start, top), (end, bottom) = point, other
        for column in range(start + 1, end):
            share = (column - start) / (end - start)
            grid[round(top + (bottom - top) * share)][column] = _BETWEEN


_WIDEST = 160
_MOST_STEPS = 8  # that a line names
_MOST_SUSPICIOUS = 12


def width() -> int:
    """Return how many columns a plot may take."""
    return min(_WIDEST, shutil.get_terminal_size().columns) - 1


def series_lines(
    sides: Sequence[Sequence[Series | None]],
    runs: Sequence[str],
    missing: Iterable[Missing],
    most: int,
) -> Lines:
    """Return plots of series, each with all runs, and what is missing.

    Args:
        runs: what the legend of several ones calls each.
        most: plots; of the further ones it is said how many there are.
    """
    blocks: list[Lines] = [[*_block(of_runs, runs)] for of_runs in sides[:most]]
    if len(sides) > most:
        blocks.append([say("trend.more_series", count=len(sides) - most)])
    lines = [say("unread.at", path=one.name, why=one.why) for one in missing]
    return _apart([*blocks, listed(say("trend.not_available"), lines)])


def _apart(blocks: Sequence[Lines]) -> Lines:
    """Return the lines of blocks with an empty one between two."""
    return [line for block in blocks if block for line in ("", *block)][1:]


def _block(of_runs: Sequence[Series | None], runs: Sequence[str]) -> Iterator[Any]:
    some = next(series for series in of_runs if series is not None)
    parts = [some.name, some.statistic, some.phase, say("console.of_rank", rank=some.rank)]
    yield "  ".join(filter(None, parts))
    yield from map(Code, plot([_line(series) for series in of_runs], width()))
    under = []
    for side, mark, run, series in zip(SIDES, MARKS, runs, of_runs):
        legend = f"{mark} {side} ({run}): " if len(runs) > 1 else ""
        under.append(f"{legend}{_summary(series)}")
    notes = dict.fromkeys(n for s in of_runs if s is not None for n in s.notes)
    yield [*under, texts_of(notes)] if notes else under


def _line(series: Series | None) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y: the points of one step stand side by side before the next step."""
    if series is None:
        return np.empty(0), np.empty(0)
    among = series.micro_steps.max(initial=0) + 1
    return series.steps + series.micro_steps / among, series.values


def _summary(series: Series | None) -> str:
    if series is None:
        return say("trend.no_series")
    finite = np.isfinite(series.values)
    bad = list(dict.fromkeys(series.steps[~finite].tolist()))
    said = say("trend.not_finite", **_listed(bad)) if bad else ""
    if not finite.any():
        return say("trend.none_finite", count=len(series)) + said
    values = series.values[finite]
    numbers = {"first": values[0], "last": values[-1], "low": values.min(), "high": values.max()}
    shown = {name: f"{value:.6g}" for name, value in numbers.items()}
    steps = len(np.unique(series.steps))
    return say("trend.summary", count=len(series), steps=steps, **shown) + said


def _listed(steps: Sequence[int]) -> dict[str, Any]:
    return {"steps": ", ".join(map(str, steps[:_MOST_STEPS])), "more": len(steps) - _MOST_STEPS}


def similarity_lines(found: GradientTrend) -> Lines:
    """Return how similar gradients are: a plot for each rank and phase, then what is suspicious."""
    groups: dict[tuple[int, str], list[OfUpdate]] = {}
    for update in found.updates:
        groups.setdefault((update.rank, update.phase), []).append(update)
    blocks: list[Lines] = []
    for (rank, phase), updates in groups.items():
        head = "  ".join((say("trend.similarity"), phase, say("console.of_rank", rank=rank)))
        among = max(update.update for update in updates) + 1
        x = np.array([update.step + update.update / among for update in updates])
        y = np.array([update.value for update in updates])
        last = updates[-1]
        values = {"first": f"{updates[0].value:.6f}", "last": f"{last.value:.6f}"}
        summary = say("trend.similarity_summary", last, count=len(updates), **values)
        blocks.append([head, *map(Code, plot([(x, y)], width())), [summary]])
    return _apart([*blocks, [*_suspicious(found)]])


def _suspicious(found: GradientTrend) -> Iterator[Any]:
    suspicious = found.suspicious
    if not found.compared:
        yield say("trend.no_gradients_compared")
    elif not suspicious:
        count = len({(s.phase, s.parameter) for s in found.compared})
        yield say("trend.gradients_agree", updates=len(found.updates), parameters=count)
    else:
        yield say("trend.gradients_fall", place=location(suspicious[0]), count=len(suspicious))
        shown = [f"{location(one)}: {_why(one)}" for one in suspicious]
        yield capped(shown, _MOST_SUSPICIOUS, "trend.more_suspicious")
    for side in "AB":
        steps = sorted({step for of, step, _ in found.alone if of == side})
        if steps:
            yield say("trend.steps_alone", side=side, **_listed(steps))


def _why(found: Similarity) -> str:
    value = "NaN" if isnan(found.value) else f"{found.value:.4f}"
    before = "" if found.before is None else f"{found.before:.4f}"
    code = None if found.suspicion is None else found.suspicion.value
    return say("trend.why", found, suspicion=code, value=value, before=before)


def location(found: Similarity) -> str:
    """Return where a similarity is, in words."""
    return say("trend.place", found)


HEADER = ("series", "statistic", "phase", "rank", "step", "micro_step")


def sides_of(runs: Sequence[Sequence[Series]]) -> list[list[Series | None]]:
    """Return each quantity with its series in every run, None where a run has none."""
    found: dict[Any, list[Series | None]] = {}
    for number, of_run in enumerate(runs):
        for series in of_run:
            found.setdefault(series.identity, [None] * len(runs))[number] = series
    return list(found.values())


def header(runs: int) -> list[str]:
    """Return the header of a table of one run or of several."""
    several = [f"value_{side.lower()}" for side in SIDES[:runs]]
    return [*HEADER, *(["value"] if runs == 1 else several)]


def rows(sides: Iterable[Sequence[Series | None]]) -> Iterator[list[Any]]:
    """Yield a row for each value, those of all runs at one step in one row."""
    for of_runs in sides:
        at: dict[tuple[int, int], list[float | None]] = {}
        some = next(series for series in of_runs if series is not None)
        for number, series in enumerate(of_runs):
            if series is not None:
                steps, micro_steps = series.steps.tolist(), series.micro_steps.tolist()
                for step, micro_step, value in zip(steps, micro_steps, series.values.tolist()):
                    at.setdefault((step, micro_step), [None] * len(of_runs))[number] = value
        head = [some.name, some.statistic, some.phase, some.rank]
        for place in sorted(at):
            yield [*head, *place, *at[place]]


def write_csv(path: Path, names: Sequence[str], table: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, whole or not at all.

    UTF-8 without a mark, for scripts; NaN and infinities by these names; texts that a spreadsheet
    would compute have an apostrophe before them.

    Raises:
        OSError: it cannot be written.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(names)
    for row in table:
        cells: list[Any] = [harmless(clean(v)) if isinstance(v, str) else v for v in row]
        writer.writerow(map(number_to_json, cells))
    write_atomic(path, [stream.getvalue().encode("utf-8")])


_SECTIONS = {"key": "key_data", "derived": "derived"}  # of what belongs to no phase
_OF_SIMILARITY = (
    *("step", "rank", "phase", "update", "parameter", "size", "measure", "similarity", "before"),
    "suspicion",
)


def refuse_files(
    csv: str | None, events: str | None, runs: Iterable[str | Path], *, gradients: bool = False
) -> None:
    """Refuse, before the runs are read, what could not be written at the end.

    Args:
        gradients: whether similarities are to be written.

    Raises:
        RunError: a file lies inside a run, or would take the place of one that is none of ours.
    """
    read = [*runs]
    headers = [_OF_SIMILARITY] if gradients else [*map(header, range(1, len(SIDES) + 1))]
    if csv is not None:
        refuse(Output(Path(csv), csv_of(*headers)), runs=read)
    if events is not None:
        refuse_inside(refuse_directory(events), read)


def write_series(
    sides: Sequence[Sequence[Series | None]], runs: int, csv: str | None, events: str | None
) -> None:
    """Write the files that are wanted.

    Args:
        runs: how many there are; of several, each has a folder of event files: A, B, ….
        csv, events: the file, the directory; None: not wanted.

    Raises:
        UsageError: tensorboardX is not installed.
        RunError: something cannot be written there.
    """
    scalars = (
        (f"{side}/{folder}" if runs > 1 else folder, *value)
        for of_runs in sides
        for side, series in zip(SIDES, of_runs)
        if series is not None
        for folder, *value in scalars_of(series)
    )
    _write(csv, header(runs), rows(sides), events, scalars)


def write_similarity(found: GradientTrend, csv: str | None, events: str | None) -> None:
    """Write the files that are wanted; see `write_series`."""
    rows = []
    for one in found.similarities:
        at = [one.step, one.rank, one.phase, one.update, one.parameter, one.size]
        measured = [None, None] if one.measure is None else [one.measure.value, one.value]
        why = None if one.suspicion is None else one.suspicion.value
        rows.append([*at, *measured, one.before, why])
    scalars: list[_Scalar] = [
        (f"rank{of.rank}", f"similarity/{of.phase}/{of.update}", of.value, of.step)
        for of in found.updates
    ]
    for one in found.compared:
        tag = f"similarity_{one.phase}/{one.parameter}/{one.update}"
        scalars.append((f"rank{one.rank}", tag, one.value, one.step))
    _write(csv, _OF_SIMILARITY, rows, events, scalars)


#: Folder, tag, value and step, as `EventFiles.scalar` takes them.
_Scalar = tuple[str, str, float, int]


def _write(
    csv: str | None,
    names: Sequence[str],
    table: Iterable[Sequence[Any]],
    events: str | None,
    scalars: Iterable[Sequence[Any]],
) -> None:
    if csv is not None:
        write_all(Output(Path(csv), csv_of(names), lambda part: write_csv(part, names, table)))
    if events is not None:
        with _event_files(Path(events)) as files:
            for scalar in scalars:
                files.scalar(*scalar)


@contextmanager
def _event_files(directory: Path) -> Iterator[EventFiles]:
    """Yield event files that appear below a directory together, beside those of earlier ones."""
    with tempfile.TemporaryDirectory(prefix="mindrlhf_msprobe_events_") as folder:
        with closing(EventFiles(Path(folder))) as files:
            yield files
        made = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        if made:
            # Their names have the second in which they were made: another one may be there.
            targets = [directory / path.relative_to(folder) for path in made]
            for index, path in enumerate(targets):
                more = (path.with_name(f"{path.name}.{n}") for n in itertools.count(1))
                names = itertools.chain((path,), more)
                targets[index] = next(one for one in names if not os.path.lexists(one))
            with replaced(*targets) as parts:
                for path, part in zip(made, parts):
                    shutil.copyfile(path, part)


def scalars_of(series: Series) -> Iterator[_Scalar]:
    """Yield the values of a series; where a step has several, the n-th of each are a curve."""
    name = series.name.replace("[", "/").removesuffix("]") if series.kind == "derived" else ""
    section = series.phase or _SECTIONS.get(series.kind, series.kind)
    tag = "/".join(filter(None, (section, name or series.name, series.statistic)))
    several = bool(series.micro_steps.any())
    columns = (column.tolist() for column in (series.steps, series.micro_steps, series.values))
    for step, micro_step, value in zip(*columns):
        yield f"rank{series.rank}", f"{tag}/{micro_step}" if several else tag, value, step


_MOST_PENDING = 10_000  # values


class EventFiles:
    """Event files below a directory: one folder a run and rank, so that TensorBoard lays them over
    each other.

    Args:
        directory: what `tensorboard --logdir` is given.

    Raises:
        UsageError: tensorboardX is not installed.
        OSError: a directory cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
        except ImportError as error:
            raise UsageError.saying("trend.no_tensorboardx", why=str(error)) from None
        self._writer, self._event, self._summary = EventsWriter, Event, Summary
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._pending: dict[tuple[str, int], dict[str, float]] = {}
        self._count = 0

    def scalar(self, folder: str, tag: str, value: float, step: int) -> None:
        """Write one value.

        Args:
            folder: below the directory, e.g. `rank0`.
            tag: what TensorBoard calls the curve; what stands before the first `/` is its section.
        """
        values = self._pending.setdefault((folder, step), {})
        tag = printable(tag)
        if tag in values or self._count >= _MOST_PENDING:
            self._write()
            values = self._pending.setdefault((folder, step), {})
        values[tag] = value
        self._count += 1

    def _write(self) -> None:
        """Write what is pending: one event holds all values of a step.

        Without tensorboardX's queue, through which an event goes as a pickle to a thread: what was
        flushed is there.
        """
        for (folder, step), values in self._pending.items():
            if folder not in self._open:
                (self._directory / folder).mkdir(parents=True, exist_ok=True)
                self._open[folder] = self._writer(str(self._directory / folder / "events"))
            of_step = [self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
            summary = self._summary(value=of_step)
            event = self._event(wall_time=time.time(), step=step, summary=summary)
            self._open[folder].write_event(event)
        self._pending.clear()
        self._count = 0

    def flush(self) -> None:
        """Write what is pending."""
        self._write()
        for writer in self._open.values():
            writer.flush()

    def close(self) -> None:
        """Write what is pending and close the files."""
        self._write()
        for writer in self._open.values():
            writer.close()
        self._open.clear()


_DTYPE = "Float64"


def metric_files(
    output: Path, at: tuple[int, int, int], metrics: Mapping[str, float]
) -> list[Output]:
    """Return the files of one save of the metrics of rollout against training, as a run holds them.

    All are one key, which names a directory, as a key does: `rollout_corr/kl` is `kl` in it,
    `training/rollout_probs_diff_mean` is `training.rollout_probs_diff_mean`. The last file
    describes the others.

    Args:
        at: step, rank, micro-step.
    """
    directory = layout.key_data_dir(output, ROLLOUT_CORR, *at)
    data: dict[str, Any] = {}
    files = []
    for name, value in metrics.items():
        array, parts = np.array(value), name.removeprefix(f"{ROLLOUT_CORR}/").split("/")
        file = directory / layout.file_name(".".join([ROLLOUT_CORR, *parts]))
        files.append(Output(file, _is_metric, partial(save_npy, array=array)))
        leaf = Leaf(
            *("numpy.ndarray", _DTYPE, ()),
            *(value, value, value, abs(value)),
            nan_count=int(isnan(value)),
            inf_count=int(isinf(value)),
            fingerprint=fingerprint(_DTYPE, array),
            data_name=file.name,
        )
        inside, (*path, last) = data, parts
        for part in path:
            inside = inside.setdefault(part, {})
        inside[last] = leaf.to_key_data_json()
    described = directory / layout.file_name(ROLLOUT_CORR, ".json")
    write = partial(write_json, content={"data": data})
    return [
        *files,
        Output(described, lambda path: [*json.loads(path.read_bytes())] == ["data"], write),
    ]


def _is_metric(path: Path) -> bool:
    array = open_npy(str(path))
    return array.dtype == np.float64 and array.ndim == 0
