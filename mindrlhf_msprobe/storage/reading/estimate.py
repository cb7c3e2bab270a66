"""How much room full tensors would take, from a run that recorded their statistics."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, as_messages, message
from mindrlhf_msprobe.config import NO_END, ProbeConfig, Selection
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, npy_size
from mindrlhf_msprobe.storage.arrays.sketches import (
    HEAD,
    MASK,
    SKETCH,
    WHOLE,
    block_for,
    kept_of,
    size_of,
)
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest import coverage as kinds
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.gradients import parameter_of
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

KEY_DATA = "key data"
_UNKNOWN_DTYPE = "estimate.unknown_dtype"
_NAMED = len('"data_name": "", ')  # what a line gains by the name of a file, beside the name
_PLACED = 80  # what it gains by the place of a sketch
_SHARE = 20  # bytes of a share as text
_LISTED = 12  # bytes of a file in its directory, beside its name


@dataclass(frozen=True)
class PhaseEstimate:
    """What one phase of one rank would take in one step, the largest of those recorded.

    Attributes:
        phase: its name, or "key data" for all keys together, which are stored in full already.
        tensors: how many records have elements; distinct: how many of them are unlike all others.
            Equal ones share a file.
        size: bytes on disk, in whole blocks.
    """

    phase: str
    rank: int
    step: int
    tensors: int
    distinct: int
    size: int


@dataclass(frozen=True)
class Estimate:
    """How much room a recording with full tensors would take.

    Attributes:
        steps, ranks: for how many the total is.
        keep: bytes that one rank keeps at most (`keep_mb`); 0: all.
        free: bytes that the file system of the run has left.
        remarks: what makes the figures uncertain.
    """

    path: Path
    phases: tuple[PhaseEstimate, ...]
    steps: int
    ranks: int
    free: int
    keep: int = 0
    remarks: tuple[Message, ...] = field(default=())

    @property
    def step_size(self) -> int:
        """Bytes that one step of one rank takes, of the rank that needs most."""
        by_rank: dict[int, int] = {}
        for phase in self.phases:
            by_rank[phase.rank] = by_rank.get(phase.rank, 0) + phase.size
        return max(by_rank.values(), default=0)

    @property
    def total(self) -> int:
        """Bytes that all steps of all ranks take, as far as they are kept."""
        of_rank = self.step_size * self.steps
        return (min(of_rank, self.keep) if self.keep else of_rank) * self.ranks

    @property
    def fits(self) -> bool:
        """Whether the file system of the run has room for the total."""
        return self.total <= self.free

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain JSON values."""
        return {
            "phases": [dict(vars(phase)) for phase in self.phases],
            "bytes_per_step_and_rank": self.step_size,
            "steps": self.steps,
            "ranks": self.ranks,
            "keep_bytes_per_rank": self.keep,
            "total_bytes": self.total,
            "free_bytes": self.free,
            "fits": self.fits,
            "remarks": [remark.as_json() for remark in self.remarks],
        }


def estimate(
    run: Run,
    wanted: ProbeConfig,
    *,
    phases: Collection[str] | None = None,
    steps: int = 1,
    ranks: int | None = None,
) -> Estimate:
    """Estimate the room for a recording of the same training.

    Args:
        run: recorded with either task; what it did not record cannot be estimated.
        wanted: what it says of the task, tokens, cells, entries and their parts counts.
        phases: those to be recorded, KEY_DATA among them; None for all that the run holds.
        ranks: None for as many as recorded.

    Raises:
        RunError: the run holds nothing of `phases`, or no cell that is wanted.
    """
    recording = _Recording(run, wanted)
    largest: dict[tuple[str, int], PhaseEstimate] = {}
    for place in sorted(recording.places(), key=lambda e: (e.size, e.distinct), reverse=True):
        if phases is None or place.phase in phases:
            largest.setdefault((place.phase, place.rank), place)
    _refuse_no_cell(run, wanted, phases)
    if not largest:
        what = message("error.no_data")
        if phases is not None:
            what = message("error.none_of", names=", ".join(phases))
        raise RunError.saying("error.estimate_nothing", path=run.path, what=what)
    order = [*run.phases, KEY_DATA]
    found = sorted(largest.values(), key=lambda e: (e.rank, order.index(e.phase)))
    missing = set(phases or ()) - {place.phase for place in found}
    estimated = Estimate(
        run.path,
        tuple(found),
        steps,
        ranks or len({place.rank for place in found}),
        free_bytes(run.path),
        wanted.keep_mb << 20,
        tuple(_remarks(run, wanted, missing, recording.doubts, found if phases else [])),
    )
    if 0 < estimated.keep < estimated.step_size * steps:
        fit = estimated.keep // max(1, estimated.step_size)
        kept = message("estimate.thinned", keep=wanted.keep_mb, steps=fit)
        estimated = replace(estimated, remarks=(kept, *estimated.remarks))
    return estimated


def _refuse_no_cell(run: Run, wanted: ProbeConfig, phases: Collection[str] | None) -> None:
    """Refuse a choice of cells that leaves none of those that the run recorded.

    Raises:
        RunError: it does.
    """
    given = [name for name in ("include", "exclude") if getattr(wanted, name)]
    chosen = [phase for phase in run.phases if phases is None or phase in phases]
    entries = (entry for phase in chosen for entry in run.each_entry(phase)) if given else ()
    cells = {e.around or "" if is_operator(e.name) else e.cell for e in entries}
    if cells and not any(map(wanted.records_cell, cells)):
        raise RunError.saying(
            "error.estimate_no_cell",
            path=run.path,
            given=given,
            of=len(cells),
            cell=min(cells, key=len),
            phase=chosen[0],
        )


def size_at(
    run: Run, wanted: ProbeConfig, step: int, rank: int, phases: Collection[str]
) -> int | None:
    """Return the bytes that layer data of one step and rank would take.

    Only that place is read. None where the run recorded nothing of one of `phases` there, or holds
    no value of a kind whose size is known.
    """
    recording = _Recording(run, wanted)
    places = (LayerPlace(phase, step, rank) for phase in phases)
    found = [recording.phase(at, some_record=True) for at in places]
    sizes = [place.size for place in found if place is not None]
    sized = all(doubt.code != _UNKNOWN_DTYPE for doubt in recording.doubts)
    return sum(sizes) if sizes and sized else None


def free_bytes(path: Path) -> int:
    """Return the bytes that the file system of `path` has left for this user."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class _Recording:
    """What a recording as `wanted` of the training that a run recorded would take.

    Attributes:
        doubts: what makes the sizes uncertain.
    """

    def __init__(self, run: Run, wanted: ProbeConfig) -> None:
        self._run, self._wanted = run, wanted
        self._block = os.statvfs(run.path).f_frsize or 4096
        self.doubts: set[Message] = set()

    def places(self) -> Iterator[PhaseEstimate]:
        """Yield the estimate of each phase and of key data, in each step and rank."""
        for step, rank in sorted(self._run.places):
            of_phases = (self.phase(LayerPlace(p, step, rank)) for p in self._run.phases)
            yield from (place for place in of_phases if place is not None)
            data = self._run.key_data(step=step, rank=rank)
            if data:
                files = {r.file for datum in data for r in datum.records if r.file is not None}
                folders = {file.parent for file in files}
                ranks = {folder.parent for folder in folders}
                size = _directories(*folders, *ranks, *(folder.parent for folder in ranks))
                for folder in folders:
                    size += sum(self._blocks(f.lstat().st_size) for f in folder.iterdir())
                yield PhaseEstimate(KEY_DATA, rank, step, len(files), len(files), size)

    def phase(self, at: LayerPlace, *, some_record: bool = False) -> PhaseEstimate | None:
        """Return what one phase would take; None without an entry, or `some_record` of one."""
        entries = self._run.entries(*at)
        chosen = [*_chosen(entries, self._wanted)]
        taken = [record for entry in chosen for record in entry.records]
        if not (taken if some_record else chosen):
            return None
        kept = len(taken) / max(1, sum(len(entry.records) for entry in entries))
        records = [record for record in taken if record.leaf.is_tensor]
        (directory,) = self._run.directories(at.step, at.rank, phase=at.phase)
        whole, sketched = (self._kept(what, records) for what in (WHOLE, SKETCH))
        signed = [r for entry in chosen for r in entry.records if self._takes_signs(entry, r)]
        # What lines gain, or lose, by the names of files and the places of sketches.
        gain = self._signs_listed(signed) + _NAMED * len(whole) + _file_names(whole)
        for record in records:
            if record.leaf.data_name is not None:
                gain -= _NAMED + _file_names([record])
        gain += _PLACED * (len(sketched) - sum(r.leaf.sketch is not None for r in records))
        sizes = [*self._stored_sizes(_distinct(whole))]
        for record in signed:
            sizes.append(npy_size("uint8", (-(-math.prod(record.leaf.shape or ()) // 8),)))
        size = _directories(directory, directory.parent)
        size += self._listing_files(directory, kept, gain)
        if stored := [*whole, *signed]:  # with the folder in which their files lie
            folder = _directories(directory)
            listed = self._blocks(_LISTED * len(stored) + _file_names(stored)) if folder else 0
            size += max(folder, listed) + sum(map(self._blocks, sizes))
        if sketched:  # which share a file
            sketches = (size_of(r.shape or (), block_for(r.dtype)) for r in _distinct(sketched))
            size += self._blocks(len(HEAD) + sum(sketches))
        return PhaseEstimate(
            at.phase, at.rank, at.step, len(records), len(_distinct(records)), size
        )

    def _kept(self, what: str, records: Sequence[Record]) -> list[Record]:
        """Return the tensors that would be stored whole, masks among them, or as sketches."""
        if self._wanted.task == "sketch":
            kept = (WHOLE, MASK) if what == WHOLE else (what,)
            return [r for r in records if kept_of(r.leaf.dtype, r.leaf.shape) in kept]
        return [*records] if self._wanted.task == "tensor" and what == WHOLE else []

    def _takes_signs(self, entry: Entry, record: Record) -> bool:
        """Return whether the signs of a record would be stored."""
        wanted = self._wanted
        if wanted.task != "grad_probe" or wanted.grad_level == "L0":
            return False
        of_gradient = record.io == PARAMETERS_GRAD and record.leaf.is_tensor
        listed = not wanted.param_list or parameter_of(entry, record) in wanted.param_list
        return of_gradient and listed

    def _signs_listed(self, signed: Iterable[Record]) -> int:
        """Return the bytes that lines gain by signs and shares which the run does not have."""
        new = [r for r in signed if r.leaf.signs is None]
        shares = (len(self._wanted.bounds) + 3) * _SHARE if self._wanted.grad_level == "L2" else 0
        return (_NAMED + shares) * len(new) + _file_names(new)

    def _listing_files(self, directory: Path, kept: float, names: int) -> int:
        """Return what the journal and the files beside it take.

        Args:
            kept: the share of them that is chosen.
            names: the bytes of the files' names that they gain, below 0 if they lose them.
        """
        dump, stack, construct = (
            path.stat().st_size if (path := directory / name).is_file() else 0
            for name in (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE)
        )
        journal = directory / layout.JOURNAL_FILE
        # Another tool's dump has no journal: ours would hold what these two do.
        lines = journal.stat().st_size if journal.is_file() else dump + stack
        sizes = (kept * lines + names, kept * dump + names, kept * stack, kept * construct)
        return sum(map(self._blocks, sizes))

    def _stored_sizes(self, leaves: Iterable[Leaf]) -> Iterator[int]:
        """Yield the file size of each leaf's elements in bytes; short floats are float32."""
        for leaf in leaves:
            if leaf.fingerprint is None:
                self.doubts.add(message("estimate.no_fingerprints"))
            is_wider = leaf.dtype == BFLOAT16 or leaf.dtype in FLOAT8
            name = "float32" if is_wider else str(leaf.dtype)
            try:
                yield npy_size(name, leaf.shape or ())
            except TypeError:
                self.doubts.add(message(_UNKNOWN_DTYPE, dtype=str(leaf.dtype)))

    def _blocks(self, size: float) -> int:
        return -(-int(size) // self._block) * self._block


def _chosen(entries: Sequence[Entry], wanted: ProbeConfig) -> Iterator[Entry]:
    """Yield the entries, with the records, that a recording as `wanted` would hold.

    Args:
        entries: of one phase, step and rank, in the order in which they began.
    """
    selection = Selection(wanted)
    open_entries: list[Entry] = []
    parameters: dict[str, dict[str, Record]] = {}  # those of calls that are left out
    for entry in entries:
        for ended in [e for e in open_entries if e.end is not None and e.end <= entry.seq]:
            open_entries.remove(ended)
            selection.end(ended.name)
        open_entries.append(entry)
        # A parameter stands in the first recorded call, and again only where it has changed.
        own = parameters.setdefault(entry.call_name, {})
        own |= {record.path: record for record in entry.records if record.io == "parameters"}
        if entry.direction == PARAMETERS_GRAD:
            head = entry.name.rpartition(f".{PARAMETERS_GRAD}.")[0]
            begun = selection.takes_parameter_gradient(head, entry.name)
        else:
            begun = selection.begin(entry.name)
        if not (begun and _is_chosen(entry, wanted)):
            continue
        records = [
            record
            for record in entry.records
            if record.io == PARAMETERS_GRAD
            or (record.io != "parameters" and selection.takes_part(record.io))
        ]
        recorded = parameters.pop(entry.call_name)
        if wanted.parameters and selection.outputs:
            records += recorded.values()
        yield replace(entry, records=tuple(records))


def _is_chosen(entry: Entry, wanted: ProbeConfig) -> bool:
    operator = is_operator(entry.name)
    cell = entry.around if operator else entry.cell
    return (
        (wanted.records_operators if operator else wanted.records_cells)
        and (cell is None or wanted.records_cell(cell))
        and ("forward" if entry.direction == "forward" else "backward") in wanted.directions
        and (entry.token is None or wanted.records_token(entry.token))
    )


def _file_names(records: Iterable[Record]) -> int:
    return sum(len(layout.record_file_name(record.name)) for record in records)


def _distinct(records: Iterable[Record]) -> list[Leaf]:
    """Return the leaves that are unlike those before them, and those without a fingerprint."""
    seen: set[str] = set()
    found = []
    for leaf in (record.leaf for record in records):
        if leaf.fingerprint is None or leaf.fingerprint not in seen:
            found.append(leaf)
            seen.add(leaf.fingerprint or "")
    return found


def _directories(*paths: Path) -> int:
    """Return the bytes that directories themselves take; some file systems need none."""
    return sum(path.stat().st_blocks * 512 for path in paths)


def _on_narrower(config: ProbeConfig, wanted: ProbeConfig) -> Iterator[Message]:
    """Say what of `wanted` a run does not hold because of its own configuration."""
    for key in ("directions", "parts"):
        absent = sorted(set(getattr(wanted, key)) - set(getattr(config, key)))
        if absent:
            yield message("estimate.not_recorded", what=absent)
    limits = [k for k in ("include", "exclude", "entries", "scope") if getattr(config, k)]
    if limits:
        yield message("estimate.filtered", keys=limits)
    if wanted.token_range_end != NO_END and (
        wanted.token_range_start < config.token_range_start
        or wanted.token_range_end > config.token_range_end
    ):
        first, last = config.token_range_start, config.token_range_end
        yield message("estimate.tokens", first=first, last=last)
    if wanted.parameters and not config.parameters:
        yield message("estimate.no_parameters")


def _remarks(
    run: Run,
    wanted: ProbeConfig,
    missing: Iterable[str],
    doubts: Iterable[Message],
    in_a_window: Iterable[PhaseEstimate],
) -> Iterator[Message]:
    """Say what makes the figures uncertain.

    Args:
        in_a_window: the estimates, where some phases alone are recorded in some steps; key data
            are recorded in all of them.
    """
    for phase in sorted(missing, key=phase_order):
        yield message("estimate.not_recorded", what=[phase])
    config = run.config()
    if config is not None:
        yield from _on_narrower(config, wanted)
    coverage = run.coverage()  # what it says it could not record: by phase, key, role and cell
    for kind in (kinds.PHASES, kinds.KEY_DATA):
        for name in coverage.get(kind, ()):
            why = kinds.reasons_of(coverage, kind, name)
            yield message("estimate.left_out", what=name, why=why)
    for role, cells in coverage.get(kinds.GRAPH_MODE, {}).items():
        for cell in cells:
            why = kinds.reasons_of(cells, cell)
            yield message("estimate.left_out", what=f"{role} {cell}", why=why)
    yield from sorted(doubts, key=lambda doubt: (doubt.code, doubt.params.get("dtype", "")))
    for problem in run.problems:
        yield from as_messages(str(problem))
    sizes = [place.size for place in in_a_window if place.phase == KEY_DATA]
    if sizes:
        yield message("estimate.key_data_in_every_step", bytes=max(sizes))
