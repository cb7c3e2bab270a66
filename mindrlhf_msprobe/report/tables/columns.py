"""What the tables show of a finding: the columns msprobe's users know, then our own.

msprobe's NPU is the run under test, B; its Bench, or golden, is the baseline, A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.findings import Finding, Side, Status
from mindrlhf_msprobe.report.formats.sheets import Percent
from mindrlhf_msprobe.report.messages import texts_of

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
BITWISE = "bitwise"

#: A column: its header and what it shows of a finding.
Column = tuple[str, Callable[[Finding], Any]]


def _metric(name: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        if finding.metrics is not None:
            return getattr(finding.metrics, name)
        return _IDENTICAL.get(name) if finding.status is Status.IDENTICAL else None

    return show


#: What identical records show without being read element by element.
_IDENTICAL = {
    "equal_percent": 100.0,
    "max_abs_err": 0.0,
    "max_rel_err": 0.0,
    "within_1e3_percent": 100.0,
    "within_5e3_percent": 100.0,
    "within_1e2_percent": 100.0,
    "cosine": 1.0,
    "euclidean": 0.0,
}


def _share(name: str) -> Callable[[Finding], Any]:
    show = _metric(name)

    def share(finding: Finding) -> Any:
        percent = show(finding)
        return None if percent is None else percent / 100

    return share


def _side(side: str, name: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        value = getattr(getattr(finding, side), name)
        return str(list(value)) if isinstance(value, tuple) else value

    return show


def _statistic(side: str, name: str) -> Callable[[Finding], Any]:
    """Show a statistic; max of a scalar argument is its value."""

    def show(finding: Finding) -> Any:
        record: Side = getattr(finding, side)
        return getattr(record, name) if record.shape is not None else record.value

    return show


def _difference(name: str) -> Callable[[Finding], Any]:
    """Return b−a, which is NPU less Bench."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        return b - a if _is_number(a) and _is_number(b) else None

    return show


def _relative_difference(name: str) -> Callable[[Finding], Any]:
    """Return |b−a| / |a|, relative to Bench and shown in percent, as msprobe does: 50.0%."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        if not (_is_number(a) and _is_number(b) and math.isfinite(a) and math.isfinite(b)):
            return None
        if a == b:
            return Percent(0.0)
        return Percent(abs((b - a) / a)) if a else None

    return show


def _is_number(value: Any) -> bool:
    """Return whether `value` is a number that can be computed with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 64
    return isinstance(value, float)


def _id(finding: Finding) -> Any:
    return int(finding.path) if _INDEX.fullmatch(finding.path) else finding.path or 0


def _text_of(side: str) -> Callable[[Finding], Any]:
    def show(finding: Finding) -> Any:
        value = getattr(finding, side).value
        return value if isinstance(value, str) else None

    return show


def _both(name: str, show: Callable[[str, str], Callable[[Finding], Any]]) -> tuple[Column, ...]:
    """Return a column for each side: of A with a 1 behind its name, of B with a 2."""
    return (f"{name}1", show("a", name)), (f"{name}2", show("b", name))


#: Texts that were saved, e.g. prompts and responses.
TEXT_COLUMNS: tuple[Column, ...] = (("text1", _text_of("a")), ("text2", _text_of("b")))


def _note(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.notes, lang)


def _tolerance(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.compared_by, lang) or BITWISE


def _suspicion(finding: Finding, lang: str = "en") -> str:
    return texts_of(finding.suspicions, lang)


def _message(finding: Finding, lang: str = "en") -> str:
    if finding.status is Status.IDENTICAL:
        return ""
    note = texts_of(finding.notes, lang)
    return f"{finding.status}: {note}" if note else str(finding.status)


#: What has words in it: these are made when a row is written.
_IN_WORDS = (_note, _tolerance, _suspicion, _message)


def in_language(columns: Sequence[Column], lang: str) -> list[Callable[[Finding], Any]]:
    """Return what the columns show of a finding, words in `lang`."""
    return [partial(show, lang=lang) if show in _IN_WORDS else show for _, show in columns]


#: How a record compares: beside what it is called, where it stays in sight.
_OUTCOME: tuple[Column, ...] = (
    ("status", lambda f: f.status.value),
    ("suspicion", _suspicion),
)
#: By what it was compared; last in every table.
_COMPARED_BY: tuple[Column, ...] = (("tolerance", _tolerance),)

_SAVE: tuple[Column, ...] = (
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("micro_step", lambda f: f.micro_step),
    ("id", _id),
)
_COMPARED_KEYS: tuple[Column, ...] = (
    *_both("shape", _side),
    ("相同元素百分比(%)", _metric("equal_percent")),
    ("首个不匹配元素索引", _metric("first_mismatch")),
    ("最大绝对误差", _metric("max_abs_err")),
    ("最大相对误差", _metric("max_rel_err")),
    ("误差在千分之一内元素占比(%)", _metric("within_1e3_percent")),
    ("误差在百分之一内元素占比(%)", _metric("within_1e2_percent")),
)
_OF_KEYS: tuple[Column, ...] = (
    ("note", _note),
    *_both("dtype", _side),
    *_both("max", _statistic),
    *_both("min", _side),
    *_both("mean", _side),
    *_both("norm", _side),
    *_COMPARED_BY,
)
KEY_DATA_COLUMNS = _SAVE + _OUTCOME + _COMPARED_KEYS + _OF_KEYS
#: The same with the twelve of msprobe's SingleComparator first: its scripts may count columns.
SINGLE_COMPARATOR_COLUMNS = _SAVE + _COMPARED_KEYS + _OUTCOME + _OF_KEYS

_PLACE: tuple[Column, ...] = (
    ("NPU Name", _side("b", "name")),
    *_OUTCOME,
    ("Bench Name", _side("a", "name")),
    ("NPU Dtype", _side("b", "dtype")),
    ("Bench Dtype", _side("a", "dtype")),
    ("NPU Tensor Shape", _side("b", "shape")),
    ("Bench Tensor Shape", _side("a", "shape")),
)
_ELEMENTS: tuple[Column, ...] = (
    ("Cosine", _metric("cosine")),
    ("EucDist", _metric("euclidean")),
    ("MaxAbsErr", _metric("max_abs_err")),
    ("MaxRelativeErr", _metric("max_rel_err")),
    ("One Thousandth Err Ratio", _share("within_1e3_percent")),
    ("Five Thousandths Err Ratio", _share("within_5e3_percent")),
)
_DIFFERENCES: tuple[Column, ...] = (
    ("Max diff", _difference("max")),
    ("Min diff", _difference("min")),
    ("Mean diff", _difference("mean")),
    ("L2norm diff", _difference("norm")),
    ("MaxRelativeErr", _relative_difference("max")),
    ("MinRelativeErr", _relative_difference("min")),
    ("MeanRelativeErr", _relative_difference("mean")),
    ("NormRelativeErr", _relative_difference("norm")),
)
_STATISTICS: tuple[Column, ...] = (
    ("NPU max", _statistic("b", "max")),
    ("NPU min", _side("b", "min")),
    ("NPU mean", _side("b", "mean")),
    ("NPU l2norm", _side("b", "norm")),
    ("Bench max", _statistic("a", "max")),
    ("Bench min", _side("a", "min")),
    ("Bench mean", _side("a", "mean")),
    ("Bench l2norm", _side("a", "norm")),
)
_RESULT: tuple[Column, ...] = (
    ("Result", lambda f: "pass" if f.status.agrees else "error"),
    ("Err_message", _message),
    ("NPU_Stack_Info", lambda f: "\n".join(_stack(f))),
    ("step", lambda f: f.step),
    ("rank", lambda f: f.rank),
    ("NPU fingerprint", _side("b", "fingerprint")),
    ("Bench fingerprint", _side("a", "fingerprint")),
    ("argument", lambda f: f.argument),
    *_COMPARED_BY,
)


def _stack(finding: Finding) -> tuple[str, ...]:
    """Return where the cell was called: in whole beside what went into it, as msprobe, and red.

    Beside an output that agrees stands the line alone; where B has no record, nothing of A's.
    """
    if finding.b.name is None:
        return ()
    goes_in = finding.io in ("input", "parameters")
    return finding.stack if goes_in or not finding.status.agrees else finding.stack[:1]


def cell_columns(by_elements: bool) -> tuple[Column, ...]:
    """Return msprobe's columns for tensor dumps if any record was compared by its elements."""
    return _PLACE + (_ELEMENTS if by_elements else _DIFFERENCES) + _STATISTICS + _RESULT
