"""One parameter of two checkpoints → its finding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.checkpoints.elements import Reading
from mindrlhf_msprobe.comparison.judging.by_statistics import compare_statistics
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance
from mindrlhf_msprobe.comparison.judging.noise import Distance, by_distances
from mindrlhf_msprobe.comparison.judging.status import side_of_leaf, status_of_elements
from mindrlhf_msprobe.comparison.judging.suspicion import suspicions
from mindrlhf_msprobe.findings import Finding, Metrics, Side, Status
from mindrlhf_msprobe.storage.foreign.checkpoints.recorded import RecordedTensor
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError, StoredTensor
from mindrlhf_msprobe.storage.leaves import Leaf

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
    return () if found is None else (message("checkpoint.transposed", to=found.rounded_to or ""),)


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
