"""Which parameter of A is which of B, which of them are an optimizer's, and what differs in one.

A weight of one checkpoint may be several of the other one, as a mapping says. Elements are read and
compared in spans of a few MiB.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.comparison.judging.by_statistics import compare_statistics
from mindrlhf_msprobe.comparison.judging.metrics.arrays import (
    SMALL,
    ArrayComparison,
    compare_arrays,
    sum_part,
    summed,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import BLOCK, Sums, Tolerance
from mindrlhf_msprobe.comparison.judging.noise import Distance, by_distances
from mindrlhf_msprobe.comparison.judging.status import side_of_leaf, status_of_elements
from mindrlhf_msprobe.comparison.judging.suspicion import suspicions
from mindrlhf_msprobe.comparison.pairing.mapping import FusedRule, interleaved
from mindrlhf_msprobe.comparison.pairing.names import NameRule, Names, match_names, renamed
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings import Finding, Metrics, Side, Status
from mindrlhf_msprobe.storage.arrays.expression import InMemory, Permuted, Reshaped, concatenated
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_parts
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, rounded
from mindrlhf_msprobe.storage.foreign.checkpoints.recorded import RecordedTensor
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import (
    CheckpointError,
    ComposedTensor,
    StoredTensor,
)
from mindrlhf_msprobe.storage.leaves import Leaf

#: What optimizers of MindSpore put in front of a parameter's name; `linear.`, which FTRL does, may
#: be a cell as well, and what is no optimizer's is never left out.
_STATE = re.compile(
    r"(?:optimizer|adam_[mv]|moments?[12]?|accum|accumulation|exp_avg|exp_avg_sq|max_exp_avg_sq"
    r"|mean_squares?|mean_gradients?)\.(?=.)"
)
#: What a checkpoint holds of training beside parameters.
_OF_TRAINING = re.compile(
    r"(?:learning_rate|lr|global_step|beta[12]|beta[12]_power|epoch_num|step_num|loss_scale|scale_sense"
    r"|current_iterator_step|last_overflow_iterator_step|momentum|weight_decay|state_step)(?:_\d+)?"
)
_Tensors = Mapping[str, StoredTensor]


def split_state(name: str) -> tuple[str, str]:
    """Return what an optimizer put in front of a parameter's name ("" for none), and the rest."""
    match = _STATE.match(name)
    return (match.group(), name[match.end() :]) if match else ("", name)


def is_of_optimizer(name: str) -> bool:
    """Return whether a tensor belongs to the training and not to the network."""
    return bool(_STATE.match(name) or _OF_TRAINING.fullmatch(name))


@dataclass(frozen=True)
class Pairs:
    """The names of both sides, brought together.

    Attributes:
        names: of A and of B, None where a side has none; in the order of A, then of B.
        remarks: what was done for it.
    """

    names: tuple[tuple[str | None, str | None], ...]
    remarks: Messages = ()


def pair_names(a: Sequence[str], b: Sequence[str], rules: tuple[NameRule, ...]) -> Pairs:
    """Bring the names of two checkpoints together.

    Equal names belong together, after `rules`; where most have no partner as they are, a prefix is
    taken off that all of the network has, of an optimizer's state as well.

    Raises:
        UsageError: two parameters of one side come to one name.
    """
    names = match_names(_networks(a), _networks(b), rules)
    common_b: dict[str, str] = {}
    for name in b:
        _put(common_b, _common_b(names, name), name, "B")
    pairs: list[tuple[str | None, str | None]] = []
    seen: dict[str, str] = {}
    for name in a:
        key = _common_a(names, name)
        _put(seen, key, name, "A")
        pairs.append((name, common_b.get(key)))
    pairs += [(None, name) for key, name in common_b.items() if key not in seen]
    remarks: Messages = ()
    if names.prefix_a or names.prefix_b:
        remarks = (message("checkpoint.below", a=names.prefix_a, b=names.prefix_b),)
    elif names.unlike:
        remarks = (message("checkpoint.unlike_names"),)
    return Pairs(tuple(pairs), remarks)


def unused_rule(rules: Iterable[NameRule], names: Iterable[str]) -> NameRule | None:
    """Return the first rule that none of the names matches; None if all are used."""
    bare = {split_state(name)[1] for name in names}
    return next((r for r in rules if not any(r.rename(name) is not None for name in bare)), None)


def _networks(names: Iterable[str]) -> list[str]:
    """Return the names of parameters, without what optimizers put in front of them."""
    own = [name for name in names if not is_of_optimizer(name)]
    return own or [split_state(name)[1] for name in names]


def _common_a(names: Names, name: str) -> str:
    state, bare = split_state(name)
    found = names.common_a(bare)
    # What lies outside of the network that both have meets only its like.
    return state + (renamed(names.rules, bare) if found is None else found)


def _common_b(names: Names, name: str) -> str:
    state, bare = split_state(name)
    found = names.common_b(bare)
    return state + (bare if found is None else found)


def _put(found: dict[str, str], key: str, name: str, side: str) -> None:
    if key in found:
        two = {"first": shortened(found[key]), "second": shortened(name)}
        raise UsageError.saying("checkpoint.two_to_one", side=side, **two, name=shortened(key))
    found[key] = name


def fuse(
    a: _Tensors, b: _Tensors, rules: Sequence[FusedRule]
) -> list[tuple[StoredTensor, StoredTensor]]:
    """Return the parameters of either side that are several of the other one.

    Raises:
        UsageError: a part is missing, or the shapes do not sum up.
    """
    found = []
    for own, others, turned in ((a, b, False), (b, a, True)):
        for name, tensor in own.items():
            parts = _parts_of(name, others, rules)
            if parts is None:
                continue
            whole = _whole(tensor, *parts)
            found.append((whole, tensor) if turned else (tensor, whole))
    return found


def _parts_of(
    name: str, others: _Tensors, rules: Sequence[FusedRule]
) -> tuple[list[StoredTensor], FusedRule] | None:
    state, bare = split_state(name)
    cell, _, own = bare.rpartition(".")
    for rule in rules:
        names = rule.parts_of(cell)
        if names is not None:
            parts = [others.get(f"{state}{part}.{own}") for part in names]
            known = [part for part in parts if part is not None]
            if not known:
                return None  # of a state, or a bias, that only one side has
            if len(known) < len(parts):
                lacking = next(n for n, part in zip(names, parts) if part is None)
                lost = {"name": shortened(name), "part": shortened(f"{state}{lacking}.{own}")}
                raise UsageError.saying("checkpoint.no_part", **lost)
            return known, rule
    return None


def _whole(tensor: StoredTensor, parts: Sequence[StoredTensor], rule: FusedRule) -> StoredTensor:
    """Return the parts as one parameter."""
    shapes = [part.shape for part in parts]
    rows = [shape[0] if shape else 0 for shape in shapes]
    whole = (sum(rows), *shapes[0][1:])
    alike = len({shape[1:] for shape in shapes}) == 1 and len({part.dtype for part in parts}) == 1
    if (
        not (all(rows) and alike and whole == tensor.shape)
        or interleaved(rows, rule.groups) is None
    ):
        raise UsageError.saying(
            "checkpoint.parts_unlike",
            name=shortened(tensor.name),
            shape=str(list(tensor.shape)),
            parts=", ".join(f"{shortened(part.name)} {list(part.shape)}" for part in parts),
            groups=rule.groups,
        )
    by_group = [Reshaped(part, (rule.groups, part.size // rule.groups)) for part in parts]
    whole_of = Reshaped(concatenated(by_group, axis=1), whole)
    why = next((part.why for part in parts if part.why is not None), None)
    return ComposedTensor(tensor.name, parts[0].dtype, whole_of, why)


def fused_names(tensors: Iterable[StoredTensor]) -> set[str]:
    """Return the names of parameters; of one that is several, those of its parts."""
    stored = (part for tensor in tensors for part in tensor.stored())
    return {part.name for part in stored if isinstance(part, StoredTensor)}


def check_used(rules: Sequence[FusedRule], names: Iterable[str]) -> None:
    """Refuse a rule that matches no parameter's cell.

    Raises:
        UsageError: there is one.
    """
    cells = {split_state(name)[1].rpartition(".")[0] for name in names}
    for rule in rules:
        if not any(rule.parts_of(cell) is not None for cell in cells):
            raise UsageError.saying("checkpoint.no_fused", pattern=rule.parts[0].source)


_IO = "parameters"
_TENSOR = "mindspore.Tensor"
_EXPLAINABLE = (Status.NON_FINITE, Status.DIFFERENT)


def compare_parameter(
    name: str,
    rank: int,
    sides: tuple[StoredTensor | None, StoredTensor | None],
    tolerance: Tolerance,
    reading: Reading,
) -> Finding:
    """Compare one parameter; its elements where both sides have them, else statistics.

    Args:
        name: what the finding calls it.
        sides: that of A and that of B, one of which may be missing.
    """
    a, b = sides
    if a is None or b is None:
        status = Status.ONLY_IN_B if a is None else Status.ONLY_IN_A
        return _finding(name, rank, status, _side(a), _side(b))
    reasons = [(side, t.why) for side, t in zip("AB", (a, b)) if t.why is not None]
    if reasons:
        side, why = reasons[0]
        notes: Messages = (message("note.unreadable_side", side=side, why=why),)
        return _finding(name, rank, Status.UNREADABLE, _side(a), _side(b), notes)
    if a.shape != b.shape:
        shapes = message("note.shapes", a=str(list(a.shape)), b=str(list(b.shape)))
        notes = (shapes, *_transposed(a, b, reading))
        return _finding(name, rank, Status.SHAPE_MISMATCH, _side(a), _side(b), notes)
    try:
        if _has_elements(a) and _has_elements(b):
            return _by_elements(name, rank, a, b, tolerance, reading)
        return _by_statistics(name, rank, a, b, tolerance, reading)
    except (CheckpointError, TypeError) as error:
        notes = (message("note.unreadable", why=error),)
        return _finding(name, rank, Status.UNREADABLE, _side(a), _side(b), notes)


def _transposed(a: StoredTensor, b: StoredTensor, reading: Reading) -> Messages:
    """Say of two matrices that do not agree if the one is the other one transposed."""
    matrices = len(a.shape) == 2 and a.shape == b.shape[::-1] and a.size > 0
    if not matrices or not (_has_elements(a) and _has_elements(b)):
        return ()
    try:
        found = reading.transposed(a, b)
    except (CheckpointError, TypeError) as error:
        return (message("note.unreadable", why=error),)
    return () if found is None else (message("checkpoint.transposed", to=found),)


def _has_elements(tensor: StoredTensor) -> bool:
    return not isinstance(tensor, RecordedTensor) or tensor.has_elements


def _by_elements(
    name: str, rank: int, a: StoredTensor, b: StoredTensor, tolerance: Tolerance, reading: Reading
) -> Finding:
    compared = reading.compare(a, b, tolerance)
    leaves = tuple(Leaf(_TENSOR, t.dtype, t.shape) for t in (a, b))
    status, metrics, notes = status_of_elements(leaves[0], leaves[1], compared.elements, tolerance)
    if a.dtype != b.dtype and status is not Status.IDENTICAL:
        notes = (*notes, message("note.dtypes", a=a.dtype, b=b.dtype))
        if compared.rounded_to is not None and status is Status.DIFFERENT:
            status = Status.WITHIN_TOLERANCE
            notes = (message("checkpoint.rounded", a=a.dtype, b=b.dtype, to=compared.rounded_to),)
    if status in _EXPLAINABLE:
        notes = (*notes, *_transposed(a, b, reading))
    norms = compared.elements.norms
    counts = ((m.nan_a, m.inf_a), (m.nan_b, m.inf_b)) if (m := metrics) else ((0, 0), (0, 0))
    sides = [
        replace(_side(t), norm=norm, nan_count=nan, inf_count=inf)
        for t, norm, (nan, inf) in zip((a, b), norms, counts)
    ]
    return _finding(name, rank, status, sides[0], sides[1], notes, metrics)


def _by_statistics(
    name: str, rank: int, a: StoredTensor, b: StoredTensor, tolerance: Tolerance, reading: Reading
) -> Finding:
    """Compare with what a run recorded without elements."""
    leaves = [
        t.leaf if isinstance(t, RecordedTensor) and not t.has_elements else reading.describe(t)
        for t in (a, b)
    ]
    if a.dtype != b.dtype and tolerance.bitwise:
        status, metrics = Status.DTYPE_MISMATCH, None
        notes: Messages = (message("note.dtypes", a=a.dtype, b=b.dtype),)
    else:
        status, metrics, notes = compare_statistics(leaves[0], leaves[1], tolerance)
    sides = [side_of_leaf(t.name, leaf) for t, leaf in zip((a, b), leaves)]
    return _finding(name, rank, status, sides[0], sides[1], notes, metrics)


def _side(tensor: StoredTensor | None) -> Side:
    return Side() if tensor is None else Side(tensor.name, tensor.dtype, tensor.shape)


def _finding(
    name: str,
    rank: int,
    status: Status,
    a: Side,
    b: Side,
    notes: Messages = (),
    metrics: Metrics | None = None,
) -> Finding:
    found = Finding(name, status, 0, rank, None, _IO, name, a, b, metrics=metrics, notes=notes)
    (why,) = suspicions([found])
    return replace(found, suspicions=why) if why else found


def text_finding(name: str, a: str, b: str) -> Finding:
    """Return the finding of an entry that is no tensor."""
    sides = Side(name, "str", value=a), Side(name, "str", value=b)
    status = Status.IDENTICAL if a == b else Status.DIFFERENT
    notes = () if a == b else (message("note.values", a=repr(a), b=repr(b)),)
    return _finding(name, 0, status, sides[0], sides[1], notes)


def against_noise(
    finding: Finding, members: Sequence[StoredTensor], b: StoredTensor, reading: Reading
) -> tuple[Finding, bool]:
    """Return the finding with how it stands to the noise, and whether that explains it.

    Args:
        members: the parameter of A and of A's repetitions, as far as they have it.
    """
    if finding.status not in _EXPLAINABLE:
        return finding, False
    runs = len(members) - 1
    usable = [t for t in (*members, b) if _has_elements(t) and t.why is None]
    if not runs or len(usable) < runs + 2 or len({(t.dtype, t.shape) for t in usable}) > 1:
        return _with_note(finding, message("checkpoint.no_noise")), False
    discrete = Leaf(_TENSOR, b.dtype, b.shape).is_discrete

    def distance(x: StoredTensor, y: StoredTensor) -> Distance:
        compared = reading.compare(x, y, Tolerance()).elements
        found = compared.metrics
        if discrete:
            return Distance((1.0 - found.equal_percent / 100,))
        unlike = compared.one_sided or compared.unlike
        return Distance((found.max_abs_err or 0.0, found.euclidean or 0.0), unlike)

    try:
        spreads = [distance(x, y) for x, y in itertools.combinations(members, 2)]
        apart = [distance(x, b) for x in members]
    except CheckpointError as error:
        return _with_note(finding, message("note.noise_unknown", error=error)), False
    values = (b.size,) if discrete else (b.size, b.size)
    noise = by_distances(spreads, apart, values, runs)
    status = Status.WITHIN_TOLERANCE if noise.natural else finding.status
    return _with_note(replace(finding, status=status), noise.note), noise.natural


def _with_note(finding: Finding, note: Message) -> Finding:
    return replace(finding, notes=(*finding.notes, note))


#: Elements that are read and compared at once; a multiple of BLOCK.
SPAN = 4 * BLOCK
_AHEAD = 2  # spans that each thread may be ahead of the one whose turn it is
_FLOATS = {BFLOAT16: 16, "Float16": 16, "Float32": 32, "Float64": 64}  # and their bits

_Found = TypeVar("_Found")
#: Told how many elements more are done.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Compared:
    """How far two parameters are apart.

    Attributes:
        rounded_to: the dtype to which the one was rounded, if that makes it the other one.
    """

    elements: ArrayComparison
    rounded_to: str | None = None


class Reading:
    """Compares parameters with several threads.

    Args:
        workers: how many; each holds a few spans of both sides.
        progress: told how much is done.
    """

    def __init__(self, workers: int, progress: Progress | None = None) -> None:
        self._workers = workers
        self._progress = progress
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def compare(self, a: StoredTensor, b: StoredTensor, tolerance: Tolerance) -> Compared:
        """Compare the elements of two parameters of one shape.

        Raises:
            CheckpointError: a file cannot be read.
            TypeError: the elements are no numbers.
        """
        lower = _lower(a.dtype, b.dtype)
        if a.size <= SMALL:
            x, y = (t.read(0, t.size) if t.size else np.empty(0, np.float32) for t in (a, b))
            self._told(a.size)
            rounded = _is_rounded(a, x, y, lower)
            return Compared(compare_arrays(x, y, tolerance), lower if rounded else None)
        spans = [(at, min(at + SPAN, a.size)) for at in range(0, a.size, SPAN)]
        each = partial(_compare_span, a, b, tolerance, lower)
        rounded = lower is not None
        sums: list[Sums] = []
        for of_span, is_rounded in self._in_order(each, spans):
            sums.append(of_span)
            rounded = rounded and is_rounded
        return Compared(summed(sums, a.size, tolerance), lower if rounded else None)

    def transposed(self, a: StoredTensor, b: StoredTensor) -> str | None:
        """Return to which dtype B is A transposed and rounded, "" if not rounded; None if neither.

        Read in blocks of rows of A, up to the first one that is another.

        Args:
            a: a matrix.
            b: of as many rows as A has columns, and as many columns as A has rows.

        Raises:
            CheckpointError: a file cannot be read.
        """
        rows, columns = a.shape
        lower = _lower(a.dtype, b.dtype)
        small = b.size <= SPAN
        turned = Permuted(InMemory(b.read(0, b.size).reshape(b.shape)) if small else b, (1, 0))
        equal, rounded, at = True, lower is not None, 0
        while at < rows and (equal or rounded):
            # The first row alone: most matrices are no transpose, and few of its elements say so.
            end = min(rows, at + max(1, SPAN // columns)) if at else 1
            x, y = (matrix.read(at * columns, end * columns) for matrix in (a, turned))
            equal = equal and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
            rounded = rounded and _is_rounded(a, x, y, lower)
            at = end
        if equal:
            return ""
        return lower if rounded else None

    def describe(self, tensor: StoredTensor) -> Leaf:
        """Return the statistics and the fingerprint of a parameter, as a run records them.

        Raises:
            CheckpointError: a file cannot be read.
        """
        found = _Statistics()
        spans = [(at, min(at + SPAN, tensor.size)) for at in range(0, tensor.size, SPAN)]

        def parts() -> Iterator[np.ndarray]:
            for part in self._in_order(lambda start, stop: tensor.read(start, stop), spans):
                found.add(part)
                yield part

        fingerprint = fingerprint_of_parts(tensor.dtype, tensor.shape, parts())
        return found.leaf(tensor, fingerprint)

    def _in_order(
        self, work: Callable[[int, int], _Found], spans: list[tuple[int, int]]
    ) -> Iterator[_Found]:
        """Yield what is found of each span, in their order; few are held at once."""
        if self._pool is None or len(spans) == 1:
            for start, stop in spans:
                yield work(start, stop)
                self._told(stop - start)
            return
        left = iter(spans)
        running: deque[tuple[int, Future[_Found]]] = deque()
        for start, stop in itertools.islice(left, _AHEAD * self._workers):
            running.append((stop - start, self._pool.submit(work, start, stop)))
        while running:
            size, first = running.popleft()
            yield first.result()
            self._told(size)
            for start, stop in itertools.islice(left, 1):
                running.append((stop - start, self._pool.submit(work, start, stop)))

    def _told(self, elements: int) -> None:
        if self._progress is not None:
            self._progress(elements)


def _compare_span(
    a: StoredTensor, b: StoredTensor, tolerance: Tolerance, lower: str | None, start: int, stop: int
) -> tuple[Sums, bool]:
    x, y = a.read(start, stop), b.read(start, stop)
    return sum_part(x, y, start, tolerance), _is_rounded(a, x, y, lower)


def _lower(a: str, b: str) -> str | None:
    """Return the dtype of 16 bits that one side has where the other one has more; else None."""
    bits = {name: _FLOATS.get(name, 0) for name in (a, b)}
    low, high = min(bits, key=lambda n: bits[n]), max(bits, key=lambda n: bits[n])
    return low if bits[low] == 16 < bits[high] else None


def _is_rounded(a: StoredTensor, x: np.ndarray, y: np.ndarray, lower: str | None) -> bool:
    """Return whether elements of A and of B are equal once they are rounded to a lower dtype."""
    if lower is None:
        return False
    high, low = (y, x) if a.dtype == lower else (x, y)
    for at in range(0, high.size, BLOCK):
        u, v = high[at : at + BLOCK], low[at : at + BLOCK]
        if u.dtype == v.dtype == np.float32 and lower == BFLOAT16 and _same_bfloat16(u, v):
            continue
        if not np.array_equal(rounded(u, lower), rounded(v, lower), equal_nan=True):
            return False
    return True


def _same_bfloat16(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether float32 values are surely equal once rounded; of NaN it is not sure."""
    x, y = a.view(np.uint32), b.view(np.uint32)
    apart = x - y  # of bits: how far the one lies above the other, of one sign
    near = (apart + np.uint32(0x7FFF)) < np.uint32(0xFFFF)  # less than half of a step
    if not near.all():
        return False
    return not ((y & np.uint32(0xFFFF)).any() or np.isnan(b).any() or np.isnan(a).any())


class _Statistics:
    """What is accumulated over the parts of a parameter; IEEE rules: one NaN makes them NaN."""

    def __init__(self) -> None:
        self._extremes: list[np.generic] = []
        self._sum = self._squares = 0.0
        self._nan = self._inf = 0
        self._size = 0

    def add(self, part: np.ndarray) -> None:
        """Add a part."""
        self._extremes += [part.max(), part.min()]
        self._size += part.size
        wide = part.astype(np.float64)
        with np.errstate(all="ignore"):
            self._sum += float(wide.sum())
            self._squares += float(wide @ wide)
        if part.dtype.kind == "f":
            self._nan += int(np.isnan(part).sum())
            self._inf += int(np.isinf(part).sum())

    def leaf(self, tensor: StoredTensor, fingerprint: str) -> Leaf:
        """Return the description of the parameter whose parts were added."""
        kind = "mindspore.Tensor"
        if not self._size:
            return Leaf(kind, tensor.dtype, tensor.shape, fingerprint=fingerprint)
        extremes = np.array(self._extremes)
        described = Leaf(
            kind,
            tensor.dtype,
            tensor.shape,
            extremes.max().item(),
            extremes.min().item(),
            fingerprint=fingerprint,
        )
        if tensor.dtype == "Bool":
            return described
        return replace(
            described,
            mean=self._sum / self._size,
            norm=float(np.sqrt(self._squares)),
            nan_count=self._nan,
            inf_count=self._inf,
        )
