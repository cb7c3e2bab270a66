"""Open two checkpoints, pair, compare, conclude; `mindrlhf_msprobe.api` writes the tables.

A parameter is read and compared in spans of a few MiB.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.patterns import pattern
from mindrlhf_msprobe.common.printable import few_numbers, shortened
from mindrlhf_msprobe.common.processes import available_cores
from mindrlhf_msprobe.comparison.judging.arrays import (
    MOST_THREADS,
    Lower,
    Progress,
    Threads,
    compare_tensors,
)
from mindrlhf_msprobe.comparison.judging.by_statistics import compare_statistics
from mindrlhf_msprobe.comparison.judging.moves import moved, said_of_change, swapped
from mindrlhf_msprobe.comparison.judging.noise import within_noise
from mindrlhf_msprobe.comparison.judging.status import side_of_leaf, status_of_elements
from mindrlhf_msprobe.comparison.judging.suspicion import suspicions
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, Tolerances, tolerances
from mindrlhf_msprobe.comparison.pairing.composed import Composed
from mindrlhf_msprobe.comparison.pairing.filters import Filters, check_paths, filters, unmatched
from mindrlhf_msprobe.comparison.pairing.frameworks.suggest import (
    Cell,
    Suggestion,
    cells_of_parameters,
    propose,
)
from mindrlhf_msprobe.comparison.pairing.mapping import NO_MAPPING, CellMapping, load_cells
from mindrlhf_msprobe.comparison.pairing.parameters import (
    Parameters,
    check_mapping,
    is_of_optimizer,
    pair_parameters,
    stored_names,
)
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Finding, Metrics, RuleUse, Side, Status
from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
from mindrlhf_msprobe.storage.arrays.expression import Expression
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, fingerprint_of_parts
from mindrlhf_msprobe.storage.foreign.checkpoints.opening import is_checkpoint, open_checkpoint
from mindrlhf_msprobe.storage.foreign.checkpoints.recorded import recorded_parameters
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import Checkpoint, CheckpointError
from mindrlhf_msprobe.storage.layout import RUN_FILE, has_dumps
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

_PathLike = str | Path
_SHOWN = 4
_TENSOR = "mindspore.Tensor"
_ALONE = {"A": Status.ONLY_IN_A, "B": Status.ONLY_IN_B}


def compare_sides(
    a: _PathLike,
    b: _PathLike,
    *,
    tolerance: Tolerance | Tolerances | _PathLike | None = None,
    noise: Iterable[_PathLike] = (),
    mapping: _PathLike | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    common: bool = False,
    step: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    ready: Callable[[], None] = lambda: None,
) -> CheckpointComparison:
    """Compare two checkpoints; the arguments are those of `mindrlhf_msprobe.compare_checkpoints`.

    Args:
        ready: called before the sides are opened: raises where what comes of it cannot be written.
    """
    repetitions = [noise] if isinstance(noise, (str, Path)) else [*noise]
    _check(a, b, repetitions, workers)
    allowed = tolerances(tolerance)
    rules = NO_MAPPING if mapping is None else load_cells(mapping)
    chosen = filters(include=include, exclude=exclude, common=common)
    ready()
    sides = _open(a, step, b), _open(b, step, a)
    if sides[0].kind == sides[1].kind == "run":
        raise UsageError.saying("checkpoint.two_runs", a=a, b=b)
    further = [_open(path, step) for path in repetitions]
    plan = _plan(sides, rules, chosen)
    searches = {rule.pattern: pattern(rule.pattern).search for rule in allowed.rules}
    for unused in unmatched(searches, [{*plan.names}]):
        raise UsageError.saying("error.rule_unused", pattern=unused)
    check_mapping(rules, plan.names)
    count = workers or min(available_cores(), MOST_THREADS)
    total = sum(_size(pair) for _, pair in plan.pairs)
    with Threads(count, total, progress) as threads:
        found = [_compare(rank, pair, allowed, further, threads) for rank, pair in plan.pairs]
        said = _say_swapped(plan.pairs, [one.finding for one in found], threads)
    found = [replace(one, finding=finding) for one, finding in zip(found, said)]
    return _conclude((str(a), str(b)), sides, plan, found, common=common)


def suggest_for_checkpoints(
    a: _PathLike, b: _PathLike, directory: _PathLike, step: int | None = None
) -> Suggestion:
    """Propose which cells of A are which of B, as `suggest_mapping` does of two runs.

    Each parameter is read once, for its statistics.

    Raises:
        RunError: a side cannot be read, or the file cannot be written.
        UsageError: the file is already there.
    """
    _check(a, b, (), None)

    def cells() -> tuple[list[Cell], list[Cell]]:
        sides = _open(a, step, b), _open(b, step, a)
        with Threads(min(available_cores(), MOST_THREADS)) as threads:
            mine, theirs = (_described(_of_rank(side, min(side.ranks)), threads) for side in sides)
        return cells_of_parameters(mine), cells_of_parameters(theirs)

    return propose(a, b, directory, cells)


def _described(parameters: Parameters, threads: Threads) -> dict[str, Record]:
    """Return the parameters of a network, without an optimizer's state, with their statistics."""
    network = {name: record for name, record in parameters.items() if not is_of_optimizer(name)}
    for name, record in network.items():
        if record.location is not None and record.leaf.why is None:
            network[name] = replace(record, leaf=_describe(record, threads))
    return network


def _check(
    a: _PathLike, b: _PathLike, repetitions: Sequence[_PathLike], workers: int | None
) -> None:
    paths = {"a": a, "b": b, **{f"noise[{i}]": path for i, path in enumerate(repetitions)}}
    check_paths(paths)
    if workers is not None and (type(workers) is not int or workers < 1):
        what = message("config.whole_number", least=1)
        raise UsageError.saying("error.expected", name="workers", value=workers, what=what)
    given: dict[tuple[int, int] | str, str] = {}
    for name, path in paths.items():
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            raise CheckpointError.saying("checkpoint.none", path=str(path)) from None
        same = given.setdefault((status.st_dev, status.st_ino), name)
        if same != name:
            raise RunError.saying("checkpoint.same", path=str(path), first=same, second=name)


def _open(path: _PathLike, step: int | None, other: _PathLike | None = None) -> Checkpoint:
    path = Path(path)
    if path.is_dir() and not is_checkpoint(path):
        # Of a run, or of one of its phases.
        run_file = any((at / RUN_FILE).exists() for at in (path, path.parent))
        if run_file or has_dumps(path):
            return recorded_parameters(path, step, None if other is None else Path(other))
    return open_checkpoint(path)


@dataclass(frozen=True)
class _Plan:
    """What is compared with what.

    Attributes:
        pairs: each with its rank.
        left_out: how many parameters were left out by their names.
        names: those of all parameters, of either side.
    """

    pairs: tuple[tuple[int, Pair], ...]
    remarks: Messages = ()
    left_out: int = 0
    names: frozenset[str] = field(default=frozenset(), repr=False)


def _plan(sides: tuple[Checkpoint, Checkpoint], mapping: CellMapping, chosen: Filters) -> _Plan:
    """Bring ranks and names together.

    Raises:
        CheckpointError: ranks of one side have no partner, or hold parts of parameters.
        UsageError: the names leave nothing.
    """
    a, b = sides
    if len(a.ranks) > 1 and len(b.ranks) > 1 and [*a.ranks] != [*b.ranks]:
        of = {name: few_numbers(list(side.ranks)) for name, side in (("a", a), ("b", b))}
        raise CheckpointError.saying("checkpoint.other_ranks", **of)
    pairs: list[tuple[int, Pair]] = []
    remarks: list[Message] = []
    for rank in a.ranks if len(a.ranks) >= len(b.ranks) else b.ranks:
        found, said = pair_parameters(_of_rank(a, rank), _of_rank(b, rank), mapping)
        pairs += ((rank, pair) for pair in found)
        remarks += said
    parts = b if a.whole else a
    for _, pair in pairs if a.whole != b.whole else ():  # nothing says how parts lie in wholes
        if len({record.leaf.shape for record in pair.records}) > 1 or len(pair.records) < 2:
            name, ranks = shortened(pair.record.name), len(parts.ranks)
            what = {"path": str(parts.path), "ranks": ranks, "name": name}
            raise CheckpointError.saying("checkpoint.parts", **what)
    names = frozenset(name for _, pair in pairs for name in stored_names(pair))
    taken = tuple((rank, pair) for rank, pair in pairs if not chosen.leaves_out(pair))
    if not taken and pairs:
        texts = {"list": [*chosen.include], "list2": [*chosen.exclude]}
        raise UsageError.saying("error.no_record_left", **texts)
    return _Plan(taken, tuple(dict.fromkeys(remarks)), len(pairs) - len(taken), names)


def _of_rank(side: Checkpoint, rank: int) -> dict[str, Record]:
    """Return the parameters of a rank; what has one alone is compared with each of the other.

    Those of a checkpoint are as what a run would have recorded of them.
    """
    held = side.ranks.get(rank) if len(side.ranks) > 1 else None
    found: dict[str, Record] = {}
    for name, of in (held or next(iter(side.ranks.values()))).items():
        if not isinstance(of, Record):
            leaf = Leaf(_TENSOR, of.dtype, of.shape, why=of.why)
            of = Composed(of.name, "parameters", name, leaf, str(side.path), expression=of)
        found[name] = of
    return found


def _size(pair: Pair) -> int:
    """Return how many elements will be compared, if all goes well."""
    shapes = {record.leaf.shape for record in pair.records}
    return math.prod(shapes.pop() or ()) if len(shapes) == 1 and len(pair.records) == 2 else 0


@dataclass(frozen=True)
class _Compared:
    """A finding, and what decided it.

    Attributes:
        passed: it agrees only because of a tolerance or the noise.
    """

    finding: Finding
    elements: int
    passed: bool = False


def _compare(
    rank: int, pair: Pair, allowed: Tolerances, further: Sequence[Checkpoint], threads: Threads
) -> _Compared:
    tolerance, said = allowed.matching(*(record.name for record in pair.records))
    found = _compare_parameter(pair, rank, tolerance, threads)
    elements = 0 if found.metrics is None else _size(pair)
    if not tolerance.bitwise:
        found = replace(found, compared_by=said)
    passed = not tolerance.bitwise and found.status is Status.WITHIN_TOLERANCE
    if further and pair.a is not None and pair.b is not None and not found.status.agrees:
        others = (_of_rank(side, rank).get(pair.a.name) for side in further)
        members = [pair.a, *(record for record in others if record is not None)]
        found, natural = _against_noise(found, members, pair.b, threads)
        passed = passed or natural
    return _Compared(found, elements, passed)


_IO = "parameters"
_EXPLAINABLE = (Status.NON_FINITE, Status.DIFFERENT)


def _compare_parameter(pair: Pair, rank: int, tolerance: Tolerance, threads: Threads) -> Finding:
    """Compare one parameter; its elements where both sides have them, else statistics."""
    status, metrics = Status.UNREADABLE, None
    notes: Messages = ()
    a, b = pair.a, pair.b
    sides = _side(a), _side(b)
    if a is None or b is None:
        status = Status.ONLY_IN_B if a is None else Status.ONLY_IN_A
    elif (unread := next(((s, r) for s, r in zip("AB", (a, b)) if r.leaf.why), None)) is not None:
        notes = (message("note.unreadable_side", side=unread[0], why=unread[1].leaf.why),)
    elif a.leaf.shape != b.leaf.shape:
        shapes = (str([*(record.leaf.shape or ())]) for record in (a, b))
        said = message("note.shapes", **dict(zip("ab", shapes)))
        status, notes = Status.SHAPE_MISMATCH, (said, *moved(a, b, threads))
    else:
        stored = a.location is not None and b.location is not None
        compare = _by_elements if stored else _by_statistics
        try:
            status, metrics, notes, sides = compare(a, b, tolerance, threads)
        except (CheckpointError, TypeError) as error:
            notes = (message("note.unreadable", why=error),)
    return _finding_of(pair.record.name, rank, status, sides, notes, metrics)


_Found = tuple[Status, "Metrics | None", Messages, tuple[Side, Side]]


def _by_elements(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> _Found:
    lower = Lower.of(a.leaf.dtype, b.leaf.dtype)
    lowers = [] if lower is None else [lower]
    compared = compare_tensors(_elements(a), _elements(b), tolerance, threads, lowers)
    status, metrics, notes = status_of_elements(a.leaf, b.leaf, compared, tolerance)
    if a.leaf.dtype != b.leaf.dtype and status is not Status.IDENTICAL:
        dtypes = {"a": a.leaf.dtype, "b": b.leaf.dtype}
        notes = (*notes, message("note.dtypes", **dtypes))
        if compared.rounded_to is not None and status is Status.DIFFERENT:
            status = Status.WITHIN_TOLERANCE
            notes = (message("checkpoint.rounded", **dtypes, to=compared.rounded_to),)
    if status in _EXPLAINABLE:
        norm_a, norm_b = compared.norms
        is_rounded = a.leaf.dtype != b.leaf.dtype  # then norms are not the same
        is_near = abs(norm_a - norm_b) <= _NEAR * norm_a
        if is_near or is_rounded or status is Status.NON_FINITE:
            notes = (*notes, *moved(a, b, threads))
    counts = ((m.nan_a, m.inf_a), (m.nan_b, m.inf_b)) if (m := metrics) else ((0, 0), (0, 0))
    of_a, of_b = (
        replace(_side(record), norm=norm, nan_count=nan, inf_count=inf)
        for record, norm, (nan, inf) in zip((a, b), compared.norms, counts)
    )
    return status, metrics, notes, (of_a, of_b)


def _by_statistics(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> _Found:
    """Compare with what a run recorded without elements."""
    x, y = (r.leaf if r.location is None else _describe(r, threads) for r in (a, b))
    sides = side_of_leaf(a.name, x), side_of_leaf(b.name, y)
    if x.dtype != y.dtype and tolerance.bitwise:
        notes = (message("note.dtypes", a=x.dtype, b=y.dtype),)
        return Status.DTYPE_MISMATCH, None, notes, sides
    return (*compare_statistics(x, y, tolerance), sides)


def _say_swapped(
    pairs: Sequence[tuple[int, Pair]], findings: Sequence[Finding], threads: Threads
) -> list[Finding]:
    """Return the findings; of a parameter that stands in the place of another one, they say which.

    Args:
        pairs: what each finding is of, with its rank.
    """
    by_kind: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, (one, (rank, _)) in enumerate(zip(findings, pairs)):
        if one.status is Status.DIFFERENT and one.a.norm and one.b.norm:
            by_kind[rank, one.a.dtype, one.b.dtype, one.a.shape].append(number)
    said = [*findings]
    for numbers in by_kind.values():
        records = [
            tuple(
                replace(record, leaf=replace(record.leaf, norm=side.norm))
                for record, side in zip(pairs[n][1].records, (findings[n].a, findings[n].b))
            )
            for n in numbers
        ]
        norms = np.array([[record.leaf.norm for record in both] for both in records])
        for at, number in enumerate(numbers):
            # What A holds here may be another one in B, and what B holds here in A.
            near = (abs(norms[:, ::-1] - norms[at]) <= _NEAR * norms[at]).any(axis=1)
            near[at] = False
            a, b = records[at]
            others = (records[other] for other in np.flatnonzero(near)[:_MOST_NEAR])
            change = swapped(a, b, ((x, y, x.name, y.name) for x, y in others), threads)
            if change is not None:
                said[number] = _with_note(said[number], said_of_change(change))
    return said


_NEAR = 1e-6  # relative, of the norms of the same elements that were added in any order
_MOST_NEAR = 8  # parameters of about one norm that are compared with one


def _side(record: Record | None) -> Side:
    return Side() if record is None else Side(record.name, record.leaf.dtype, record.leaf.shape)


def _finding_of(
    name: str,
    rank: int,
    status: Status,
    sides: tuple[Side, Side],
    notes: Messages = (),
    metrics: Metrics | None = None,
) -> Finding:
    """Return what is found of one entry of a checkpoint."""
    found = Finding(name, status, 0, rank, None, _IO, name, *sides, metrics=metrics, notes=notes)
    (why,) = suspicions([found])
    return replace(found, suspicions=why) if why else found


def _against_noise(
    finding: Finding, members: Sequence[Record], b: Record, threads: Threads
) -> tuple[Finding, bool]:
    """Return the finding with how it stands to the noise, and whether that explains it.

    Args:
        members: the parameter of A and of A's repetitions, as far as they have it.
    """
    if finding.status not in _EXPLAINABLE:
        return finding, False
    runs = len(members) - 1
    usable = [r.leaf for r in (*members, b) if r.location is not None and r.leaf.why is None]
    same = len({(leaf.dtype, leaf.shape) for leaf in usable}) == 1
    if not runs or len(usable) < runs + 2 or not same:
        return _with_note(finding, message("checkpoint.no_noise")), False
    try:
        noise = within_noise(members[0], b, members[1:], threads)
    except (RunError, ArrayFileError, OSError, ValueError) as error:
        return _with_note(finding, message("note.noise_unknown", error=error)), False
    assert noise is not None
    status = Status.WITHIN_TOLERANCE if noise.natural else finding.status
    return _with_note(replace(finding, status=status), noise.note), noise.natural


def _with_note(finding: Finding, note: Message) -> Finding:
    return replace(finding, notes=(*finding.notes, note))


def _elements(record: Record) -> Expression:
    """Return the elements of a parameter, to be read by spans.

    Raises:
        CheckpointError: a file that a run recorded cannot be read.
    """
    try:
        return record.opened()
    except (ArrayFileError, OSError, ValueError) as error:
        path = str(record.file)
        raise CheckpointError.saying("unread.at", path=path, why=error) from None


def _describe(record: Record, threads: Threads) -> Leaf:
    """Return the statistics and the fingerprint of a parameter, as a run records them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    leaf, elements = record.leaf, _elements(record)
    size = math.prod(leaf.shape or ())
    extremes: list[np.generic] = []
    sums, counts = np.zeros(2), np.zeros(2, np.int64)  # by IEEE rules; of NaN and infinities

    def parts() -> Iterator[np.ndarray]:
        for part in threads.in_order(elements.read, size):
            extremes.extend((part.max(), part.min()))
            wide = part.astype(np.float64)
            with np.errstate(all="ignore"):
                sums[:] += wide.sum(), wide @ wide
            if part.dtype.kind == "f":
                counts[:] += np.isnan(part).sum(), np.isinf(part).sum()
            yield part

    leaf = replace(
        leaf, fingerprint=fingerprint_of_parts(leaf.dtype or "", leaf.shape or (), parts())
    )
    if not size:
        return leaf
    both = np.array(extremes)
    leaf = replace(leaf, max=both.max().item(), min=both.min().item())
    if leaf.dtype == "Bool":
        return leaf
    mean, norm = float(sums[0]) / size, math.sqrt(sums[1])
    return replace(leaf, mean=mean, norm=norm, nan_count=int(counts[0]), inf_count=int(counts[1]))


def _conclude(
    paths: tuple[str, str],
    sides: tuple[Checkpoint, Checkpoint],
    plan: _Plan,
    compared: Sequence[_Compared],
    *,
    common: bool,
) -> CheckpointComparison:
    weights: list[Finding] = []
    optimizer: list[Finding] = []
    for one in compared:
        of = optimizer if is_of_optimizer(one.finding.record) else weights
        of.append(one.finding)
    coverage: list[Message] = []
    if plan.left_out:
        coverage.append(message("checkpoint.left_out", count=plan.left_out))
    optimizer = _without_alone(optimizer, coverage, always=common)
    if common:
        weights = _without_alone(weights, coverage, always=True, code="checkpoint.only_in")
    texts, alone = _texts(sides)
    coverage += alone
    remarks = [
        message("checkpoint.of_side", side=side, what=note)
        for side, checkpoint in zip("AB", sides)
        for note in checkpoint.notes
    ]
    remarks += _perhaps_cut(sides, compared)
    return CheckpointComparison(
        *paths,
        (sides[0].kind, sides[1].kind),
        tuple(weights),
        tuple(optimizer),
        texts,
        tuple(coverage),
        (*remarks, *plan.remarks),
        _rules(compared),
        sum(one.elements for one in compared),
    )


def _without_alone(
    findings: list[Finding],
    coverage: list[Message],
    *,
    always: bool,
    code: str = "checkpoint.optimizer_only_in",
) -> list[Finding]:
    """Take out what one side alone has, and add it to what was not compared.

    Args:
        always: also where the other side has others of this kind.
    """
    for side, status in _ALONE.items():
        alone = [finding for finding in findings if finding.status is status]
        others = (finding.b if side == "A" else finding.a for finding in findings)
        if alone and (always or all(other.name is None for other in others)):
            names = [shortened(finding.record) for finding in alone[:_SHOWN]]
            coverage.append(message(code, side=side, count=len(alone), names=names))
            findings = [finding for finding in findings if finding.status is not status]
    return findings


def _perhaps_cut(
    sides: tuple[Checkpoint, Checkpoint], compared: Sequence[_Compared]
) -> list[Message]:
    """Return which side lacks what a cut between two entries would have taken, without a trace.

    Such a side has nothing that the other one has not, and lacks some of its parameters: the last
    ones, where both were saved in one order.
    """
    found = []
    for side, own, other in (("A", sides[0], sides[1]), ("B", sides[1], sides[0])):
        alone = _ALONE["B" if side == "A" else "A"]
        lacking = [one.finding.record for one in compared if one.finding.status is alone]
        more = any(one.finding.status is _ALONE[side] for one in compared)
        if not own.open_end or more or all(map(is_of_optimizer, lacking)):
            continue
        if other.kind != "ckpt" or [*other.ranks[0]][-len(lacking) :] == lacking:
            found.append(message("checkpoint.perhaps_cut", side=side, count=len(lacking)))
    return found


def _texts(sides: tuple[Checkpoint, Checkpoint]) -> tuple[tuple[Finding, ...], list[Message]]:
    """Compare entries that are no tensors; those of one side alone are not compared."""
    a, b = sides[0].texts, sides[1].texts
    found = []
    for name in (name for name in a if name in b):
        values = Side(name, "str", value=a[name]), Side(name, "str", value=b[name])
        status = Status.IDENTICAL
        notes: Messages = ()
        if a[name] != b[name]:
            status = Status.DIFFERENT
            notes = (message("note.values", a=repr(a[name]), b=repr(b[name])),)
        found.append(_finding_of(name, 0, status, values, notes))
    alone = []
    for side, own, others in (("A", a, b), ("B", b, a)):
        names = [name for name in own if name not in others]
        if names:
            what = {"count": len(names), "names": [shortened(name) for name in names[:_SHOWN]]}
            alone.append(message("checkpoint.texts_only_in", side=side, **what))
    return tuple(found), alone


def _rules(compared: Sequence[_Compared]) -> tuple[RuleUse, ...]:
    used: Counter[Messages] = Counter()
    passed: Counter[Messages] = Counter()
    for one in compared:
        by = one.finding.compared_by
        if by:
            used[by] += 1
            passed[by] += one.passed
    return tuple(RuleUse(by, n, passed[by]) for by, n in used.items())
