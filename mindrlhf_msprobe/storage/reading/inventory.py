"""What a run holds: its phases, steps, ranks, keys and sizes, and single records by name.

And what it does not hold by choice: what its configuration left out, and what was thinned.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, npy_size
from mindrlhf_msprobe.storage.arrays.sketches import HEAD, size_of
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import statistic_of
from mindrlhf_msprobe.storage.records import Entry, Record

_STATISTICS = ("max", "min", "mean", "norm")


@dataclass(frozen=True)
class Holding:
    """What a run holds of one phase or one key.

    Attributes:
        kind: phase or key.
        count: entries of a phase, saves of a key.
        size: bytes on disk; a file that is linked under several names counts once.
        unreadable: what of it cannot be read, beside what `Run.problems` says.
    """

    kind: str
    name: str
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    count: int
    records: int
    size: int
    unreadable: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the holding as plain JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("steps", "ranks", "unreadable")}
        return {**vars(self), **lists}


@dataclass(frozen=True)
class FoundRecord:
    """One record of a run, with its place and its first values.

    Attributes:
        values: the first elements in row-major order; None where only statistics were recorded.
        why: the elements could not be read, or None.
    """

    step: int
    rank: int
    phase: str | None
    micro_step: int | None
    record: Record
    values: list[Any] | None
    why: Message | None

    @property
    def unreadable(self) -> str | None:
        """What `why` says, in the language that was chosen, else the locale's."""
        return None if self.why is None else str(self.why)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values; an extended float is rounded to float64."""
        values = (float(v) if isinstance(v, np.floating) else v for v in self.values or ())
        return {
            "step": self.step,
            "rank": self.rank,
            "phase": self.phase,
            "micro_step": self.micro_step,
            "record": self.record.name,
            **({"argument": self.record.argument} if self.record.argument else {}),
            **self.record.leaf.to_json(),
            "first_values": None if self.values is None else [*map(number_to_json, values)],
            "unreadable": self.unreadable,
        }


def inventory(run: Run, step: int | None = None, rank: int | None = None) -> list[Holding]:
    """Return what a run holds, phases first, in the order in which a step runs them.

    Args:
        step, rank: of this one only; None: of all.
    """
    at = step, rank
    held = [
        _holding("phase", p, run.each_entry(p, *at), run.directories(*at, phase=p))
        for p in run.phases
    ]
    held += [
        _holding("key", k, run.key_data(k, *at), run.directories(*at, key=k)) for k in run.keys
    ]
    return [one for one in held if one.count] if (step, rank) != (None, None) else held


def _holding(
    kind: str, name: str, held: Iterable[Entry] | Iterable[KeyDatum], directories: Sequence[Path]
) -> Holding:
    sizes, total = file_sizes(directories)
    steps: set[int] = set()
    ranks: set[int] = set()
    count = records = 0

    def each_record() -> Iterator[Record]:
        nonlocal count, records
        for item in held:
            steps.add(item.step)
            ranks.add(item.rank)
            count += 1
            records += len(item.records)
            yield from item.records

    unreadable = _unreadable(each_record(), sizes)
    named = [*itertools.islice(unreadable, 20)]  # records of one phase or key that cannot be read
    if more := sum(1 for _ in unreadable):
        named.append(str(message("unread.more", count=more, what="records")))
    every = tuple(sorted(steps)), tuple(sorted(ranks))
    return Holding(kind, name, *every, count, records, total, tuple(named))


def find_records(
    run: Run, name: str, step: int | None = None, rank: int | None = None
) -> list[FoundRecord]:
    """Return every record called `name`, or belonging to the entry or key `name`.

    Args:
        step, rank: of this one only; None: of all.

    Raises:
        RunError: there is none; the message names the nearest.
    """
    found = []
    names: dict[str, None] = {}
    entries = ((e, e.name, e.phase, None) for e in run.each_entry(None, step, rank))
    saves = ((d, d.key, None, d.micro_step) for d in run.key_data(step=step, rank=rank))
    held: Iterator[tuple[Entry | KeyDatum, str, str | None, int | None]]
    held = itertools.chain(entries, saves)
    every = ((*of, record) for of in held for record in of[0].records)
    for holder, owner, phase, micro_step, record in every:
        if len(names) < 10_000:  # names among which the nearest are looked for
            names[record.name] = names[owner] = None
        if name in (record.name, owner):
            values, leaf = _first_values(record), record.leaf
            if leaf.is_tensor and not any(getattr(leaf, of) is not None for of in _STATISTICS):
                own: dict[str, Any] = {of: statistic_of(record, of) for of in _STATISTICS}
                record = replace(record, leaf=replace(leaf, **own))  # a tool recorded none
            place = holder.step, holder.rank, phase, micro_step
            found.append(FoundRecord(*place, record, *values))
    if not found:
        import difflib  # slow to import, and only a mistake needs it

        known = dict.fromkeys((*run.phases, *run.keys, *names))
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
        hint = message("error.nearest_records", names=", ".join(close)) if close else ""
        places = {what: n for what, n in (("step", step), ("rank", rank)) if n is not None}
        of = [message("error.in_place", what=what, number=n) for what, n in places.items()]
        where = message("error.together", of=of)
        raise RunError.saying("error.no_record", path=run.path, name=name, where=where, hint=hint)
    return found


def _first_values(record: Record) -> tuple[list[Any] | None, Message | None]:
    if record.leaf.why is not None:
        return None, record.leaf.why
    if record.location is None:
        return None, None
    try:
        return record.array().reshape(-1)[:8].tolist(), None
    except ArrayFileError as error:
        file = shortened(os.path.basename(record.location))
        return None, message("unread.of_file", file=file, why=error.said)


def file_sizes(directories: Iterable[Path]) -> tuple[dict[str, int], int]:
    """Return path → bytes of the files below directories, and the bytes of all.

    A file that is linked under several names counts once in the sum.
    """
    found: dict[str, int] = {}
    inodes: dict[tuple[int, int], int] = {}
    for directory in directories:
        for folder, _, files in os.walk(directory):
            for file in files:
                path = os.path.join(folder, file)
                status = os.lstat(path)
                found[path] = inodes[status.st_dev, status.st_ino] = status.st_size
    return found, sum(inodes.values())


def _unreadable(records: Iterable[Record], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield which records cannot be read, by their files' sizes; only odd ones are opened."""
    usual: dict[tuple[str | None, tuple[int, ...] | None], int | None] = {}
    for record in records:
        leaf, why = record.leaf, record.leaf.why
        if why is None and record.location is not None:
            kind = leaf.dtype, leaf.shape
            if kind not in usual:
                usual[kind] = None
                with suppress(TypeError):  # stored as another dtype
                    usual[kind] = npy_size(leaf.dtype or "", leaf.shape or ())
            if sizes.get(record.location, -1) != usual[kind]:
                why = _first_values(record)[1]
        place = leaf.sketch
        if why is None and record.sketches is not None and place is not None:
            # Only one that does not lie in its file is looked for.
            end = place.offset + size_of(leaf.shape or (), place.block)
            beyond = end > sizes.get(record.sketches, -1)
            if place.why is not None or place.offset < len(HEAD) or beyond:
                try:
                    record.sketch()
                except ArrayFileError as error:
                    why = message("unread.of_file", file=layout.SKETCH_FILE, why=error.said)
        if why is not None:
            yield str(message("unread.of_file_colon", file=record.name, why=why))


def limits_of(run: Run) -> Iterator[Message]:
    """Yield what a run was configured not to record of its layers, and what `keep_mb` removed.

    Phases that are switched off are not among it: what was configured is what is looked at.
    """
    config = run.config(min(run.ranks, default=0))
    if config is not None and run.phases:
        yield from _left_out(config, run.steps)
    yield from thinned_of(run)


def _left_out(config: ProbeConfig, steps: Sequence[int]) -> Iterator[Message]:
    """Yield what a configuration leaves out of the layers of a run with these steps."""
    first, last = config.step_start, config.step_end
    if any(not first <= step <= last for step in steps):
        yield message("coverage.steps_outside", first=first, last=last)
    if config.steps:
        yield message("coverage.steps_not_chosen", steps=list(config.steps))
    if config.step_interval > 1:
        yield message("coverage.step_interval", interval=config.step_interval, first=first)
    if config.include or config.exclude:
        yield message("coverage.cells_left_out")
    if config.entries:
        yield message("coverage.entries_left_out", entries=list(config.entries))
    if config.scope:
        yield message("coverage.outside_scope", first=config.scope[0], last=config.scope[1])
    directions, parts = list(config.directions), list(config.parts)
    for name in sorted({"forward", "backward"}.difference(directions)):
        yield message("coverage.direction_off", direction=name, directions=directions)
    for name in sorted({"input", "output"}.difference(parts)):
        yield message("coverage.part_off", part=name, parts=parts)
    if not config.parameters:
        yield message("coverage.parameters_off")


def thinned_of(run: Run) -> Iterator[Message]:
    """Yield of which steps what was removed, and on which ranks."""
    for kind in step_spans.THINNED_KINDS:
        spans = {
            rank: removed
            for file in run.run_files
            if (rank := file.rank) is not None and (removed := file.thinned[kind])
        }
        if spans:
            shown = max(spans.values(), key=len)
            yield message("coverage.thinned_steps", what=kind, ranks=sorted(spans), steps=shown)
