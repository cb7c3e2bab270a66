"""One pair of records → its status.

The order of the statuses is the design's: where several would fit, the first one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.comparison.judging.arrays import (
    ALONE,
    ArrayComparison,
    Threads,
    blocks,
    compare_tensors,
    same_elements,
)
from mindrlhf_msprobe.comparison.judging.by_statistics import (
    PairFound,
    compare_statistics,
    note,
    rounded,
    rounding,
    same_fingerprint,
)
from mindrlhf_msprobe.comparison.judging.suspicion import one_sided
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, is_finite, is_nan, is_number
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings import Side, Status
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.foreign.dialect import DIALECTS
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record

_CHARACTERS = 20  # of a text shown before and after the first difference
_TOKENS = 5  # of a sequence, likewise
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = rf"[{_CJK}]|(?:(?![{_CJK}])\w)+|[^\w\s]"

#: Token ids → the text they stand for.
Decode = Callable[[Sequence[int]], str]


def text_difference(a: str, b: str) -> Message:
    """Say where two texts first differ, with both sides around that place.

    Tokens of a text are its words, its signs, and each character of Chinese, Japanese and Korean.
    """
    pairs = enumerate(zip(a, b))
    first = next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
    pattern = re.compile(_TOKEN)  # here: most comparisons meet no text
    tokens = [pattern.finditer(text, 0, first + _CHARACTERS) for text in (a, b)]
    number = 0
    for x, y in zip(*tokens):
        if x.group() != y.group() or x.end() > first:
            break
        number += 1
    start = max(0, first - _CHARACTERS)

    def around(text: str) -> str:
        shown = text[start : first + _CHARACTERS]
        return ("…" if start else "") + shown + ("…" if first + _CHARACTERS < len(text) else "")

    return message("note.texts", token=number, character=first, a=around(a), b=around(b))


def token_difference(
    a: np.ndarray, b: np.ndarray, decode: Decode | None = None, first: int | None = None
) -> Message | None:
    """Say where two integer arrays, one sequence a row, first differ; None if they do not say.

    Args:
        a, b: of shape (…, length); the lengths may differ, but the rest of the shapes may not.
        decode: shows the ids as text as well.
        first: of arrays of one shape, the flat index of the first different element, if known.
    """
    if not (a.ndim and b.ndim) or a.shape[:-1] != b.shape[:-1]:
        return None
    common = min(a.shape[-1], b.shape[-1])
    rows: Iterable[tuple[int, ...]] = np.ndindex(a.shape[:-1])
    if first is not None and a.shape == b.shape:
        rows = [tuple(map(int, np.unravel_index(first // common, a.shape[:-1])))]
    for row in rows:
        x, y = np.asarray(a[row]), np.asarray(b[row])
        found = ((at, p != q) for at, p, q in blocks(x[:common], y[:common]))
        unlike = next((at + int(u.argmax()) for at, u in found if u.any()), None)
        if unlike is not None or x.size != y.size:
            at = common if unlike is None else unlike
            shown = {name: _around(side, at, decode) for name, side in (("a", x), ("b", y))}
            if not row:
                return message("note.tokens", token=at, **shown)
            where = ", ".join(map(str, row))
            return message("note.tokens_of_row", token=at, row=where, **shown)
    return None


def _around(row: np.ndarray, first: int, decode: Decode | None) -> str:
    start, end = max(0, first - _TOKENS), first + _TOKENS
    ids = [int(token) for token in row[start:end]]
    shown = [f"[{token}]" if start + i == first else str(token) for i, token in enumerate(ids)]
    if first >= row.size:
        shown.append("[end]")
    text = " ".join(shown)
    if start:
        text = "… " + text
    if end < row.size:
        text += " …"
    return f"{text} ({decode(ids)!r})" if decode is not None else text


@lru_cache(maxsize=1)
def load_decoder(path: str | Path) -> Decode:
    """Return the decoder of a tokenizer.json, or of the directory that holds one.

    Raises:
        UsageError: the package tokenizers is not installed, or the file is not a tokenizer's.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        needs = {"package": "tokenizers", "extra": "tokenizer"}
        raise UsageError.saying("error.no_package", error=error, **needs) from None
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        raw = layout.read_inside(file.parent, file, bounds.TOKENIZER)
        tokenizer: Any = Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # its parser raises bare exceptions
        raise UsageError.saying("error.no_tokenizer", file=file, error=error) from None

    def decode(ids: Sequence[int]) -> str:
        known = [token for token in ids if 0 <= token < 1 << 32]
        return str(tokenizer.decode(known, skip_special_tokens=False))

    return decode


#: Of a note: the fingerprints that were recorded agree, the elements in the files do not.
FILE_CHANGED = "note.file_changed"
_FLOAT32 = 2.0**-23  # what a number of float32 may be off, relative to it
_LONG = 300  # characters of two texts that are not shown whole
_GRADIENTS = (".backward.", f".{PARAMETERS_GRAD}.")  # in the names of their records
_SHOWN_OF_LEAF = attrgetter(*(field.name for field in fields(Side)[2:]))  # name and dtype apart
_MOST_SIZES = 32  # of a shape that are shown; a hostile one may have millions


def side_of(record: Record | None) -> Side:
    """Return what a table shows of a record."""
    if record is None:
        return Side()
    return side_of_leaf(record.name, record.leaf)


def side_of_leaf(name: str, leaf: Leaf) -> Side:
    """Return what a table shows of a described value."""
    dtype = leaf.dtype if leaf.is_tensor else leaf.type
    return Side(name, dtype, *_SHOWN_OF_LEAF(leaf))


def compare_records(
    a: Record,
    b: Record,
    tolerance: Tolerance,
    decode: Decode | None = None,
    threads: Threads = ALONE,
) -> PairFound:
    """Compare two records and return status, metrics (with the tensors at hand) and notes.

    Args:
        decode: shows token ids as text.
        threads: share what is large.
    """
    found = _compare_unreadable(a, b) or _compare_no_gradient(a, b)
    x, y = a.leaf, b.leaf
    if found is None and not (x.is_tensor and y.is_tensor):
        found = _compare_printed(x, y, tolerance) or _compare_types(x, y, tolerance)
        found = found or _compare_values(x.value, y.value, tolerance)
    found = found or _compare_texts(a, b, threads) or _compare_dtypes(x, y, tolerance)
    if found is not None:
        return found
    if a.leaf.shape != b.leaf.shape:
        notes: Messages = (message("note.shapes", a=_shape(a), b=_shape(b)),)
        return Status.SHAPE_MISMATCH, None, _with_tokens(notes, a, b, decode)
    if a.location is None or b.location is None:
        return compare_statistics(a.leaf, b.leaf, tolerance)
    status, metrics, notes = _compare_arrays(a, b, tolerance, threads)
    if status is Status.DIFFERENT and metrics is not None:
        notes = _with_tokens(notes, a, b, decode, metrics.first_mismatch)
    return status, metrics, notes


def _compare_unreadable(a: Record, b: Record) -> PairFound | None:
    """Return the status of two records one of which cannot be read, else None."""
    both = a.location is not None and b.location is not None
    kinds = {(leaf.type == "str", leaf.dtype, leaf.shape) for leaf in (a.leaf, b.leaf)}
    opened_later = both and len(kinds) == 1
    for record, side in ((a, "A"), (b, "B")):
        reason = record.leaf.why if opened_later else why_unreadable(record)
        if reason is not None:
            return Status.UNREADABLE, None, _unreadable(side, reason)
    return None


def why_unreadable(record: Record) -> Message | None:
    """Return why a record's elements cannot be had, or None; of its file, header and size tell."""
    if record.leaf.why is not None or record.location is None:
        return record.leaf.why
    try:
        record.opened()
    except ArrayFileError as error:
        return _of_file(record, error)
    return None


def _of_file(record: Record, error: ArrayFileError) -> Message:
    file = shortened(record.file.name if record.file else record.name)
    return message("unread.of_file", file=file, why=error.said)


def _compare_texts(a: Record, b: Record, threads: Threads) -> PairFound | None:
    """Compare key data that were saved as text; texts of unlike length are simply different.

    None where not both are texts.
    """
    if not (a.leaf.type == b.leaf.type == "str"):
        return None
    texts = isinstance(a.leaf.value, str) and isinstance(b.leaf.value, str)
    if a.leaf.shape == b.leaf.shape and a.location is not None and b.location is not None:
        status, metrics, notes = _compare_arrays(a, b, Tolerance(), threads)
    elif texts:
        same = a.leaf.value == b.leaf.value and a.leaf.shape == b.leaf.shape
        status, metrics, notes = Status.IDENTICAL if same else Status.DIFFERENT, None, ()
    elif a.leaf.shape != b.leaf.shape:
        return Status.DIFFERENT, None, (message("note.lengths", a=_shape(a), b=_shape(b)),)
    else:
        return compare_statistics(a.leaf, b.leaf, Tolerance())
    if status is Status.DIFFERENT and texts:
        notes = (text_difference(str(a.leaf.value), str(b.leaf.value)),)
    return status, metrics, notes


def _compare_dtypes(a: Leaf, b: Leaf, tolerance: Tolerance) -> PairFound | None:
    """Compare a text with a tensor, and unlike dtypes: with a tolerance their values count."""
    text = "str" in (a.type, b.type)  # two texts have a status by now
    if not text and (a.dtype == b.dtype or not tolerance.bitwise):
        return None
    kinds = ("text" if leaf.type == "str" else leaf.dtype for leaf in (a, b))
    return Status.DTYPE_MISMATCH, None, _dtypes(*kinds)


def _with_tokens(
    notes: Messages, a: Record, b: Record, decode: Decode | None, first: int | None = None
) -> Messages:
    """Add where two sequences of token ids first differ; of other numbers that says nothing.

    Args:
        first: the flat index of the first different element, where that is known.
    """
    if not all(r.leaf.is_integer and r.location for r in (a, b)):
        return notes
    try:
        where = token_difference(a.array(), b.array(), decode, first)
    except (ArrayFileError, OSError, ValueError):
        return notes
    return notes if where is None else (*notes, where)


def _unreadable(side: str, reason: Message) -> Messages:
    return (message("note.unreadable_side", side=side, why=reason),)


def _dtypes(a: str | None, b: str | None) -> Messages:
    return (message("note.dtypes", a=shortened(a), b=shortened(b)),)


def _shape(record: Record) -> str:
    sizes = list(record.leaf.shape or ())
    more = len(sizes) - _MOST_SIZES
    return str(sizes) if more <= 0 else f"{str(sizes[:_MOST_SIZES])[:-1]}, … {more} more]"


def _compare_no_gradient(a: Record, b: Record) -> PairFound | None:
    """Compare a gradient with none: one of zeros says the same, as a graph may have to make some.

    None where both runs, or neither, have a gradient.
    """
    if a.leaf.is_tensor == b.leaf.is_tensor or not any(what in a.name for what in _GRADIENTS):
        return None
    none_a, none_b = (r.leaf.type == "NoneType" and not r.leaf.opaque for r in (a, b))
    if none_a == none_b:
        return None
    gradient = b.leaf if none_a else a.leaf
    # Extremes may pass over NaN; mean and norm do not.
    if gradient.max == gradient.min == 0 and {gradient.mean, gradient.norm} <= {0, None}:
        return Status.WITHIN_TOLERANCE, None, note("note.zero_gradient")
    status, side = (Status.ONLY_IN_B, "A") if none_a else (Status.ONLY_IN_A, "B")
    return status, None, (message("note.no_gradient", side=side),)


def _compare_printed(a: Leaf, b: Leaf, tolerance: Tolerance) -> PairFound | None:
    """Compare a number that a trainer printed with a recorded one, as far as it was printed."""
    printed = [DIALECTS[leaf.dialect].printed for leaf in (a, b)]
    if printed.count(True) != 1:
        return None
    values: list[Any] = [  # of a tensor that of its one element
        (leaf.max if math.prod(leaf.shape or ()) == 1 else None) if leaf.is_tensor else leaf.value
        for leaf in (a, b)
    ]
    if not all(type(value) in (int, float) and is_finite(value) for value in values):
        return None
    shown = values[printed.index(True)]
    half = 10.0 ** int(Decimal(repr(shown)).as_tuple().exponent) / 2
    near = abs(values[0] - values[1]) <= half + _FLOAT32 * abs(shown)
    if near or (not tolerance.bitwise and tolerance.allows(*values)):
        note = message("note.as_printed", a=repr(values[0]), b=repr(values[1]))
        return Status.WITHIN_TOLERANCE, None, (note,)
    return Status.DIFFERENT, None, _compare_values(values[0], values[1], tolerance)[2]


def _compare_types(a: Leaf, b: Leaf, tolerance: Tolerance) -> PairFound | None:
    """Compare values of unlike types, and those of which nothing but the type is known."""
    if a.opaque and b.opaque and a.type == b.type:
        return Status.UNREADABLE, None, (message("note.not_saved", type=a.type),)
    opaque, unlike = a.opaque or b.opaque, a.type != b.type and tolerance.bitwise
    if not (opaque or unlike or a.is_tensor != b.is_tensor):
        return None
    kinds = (leaf.dtype if leaf.is_tensor else leaf.type for leaf in (a, b))
    return Status.DTYPE_MISMATCH, None, _dtypes(*kinds)


def _compare_values(a: Any, b: Any, tolerance: Tolerance) -> PairFound:
    if a == b or (is_nan(a) and is_nan(b)):
        return Status.IDENTICAL, None, ()
    if isinstance(a, str) and isinstance(b, str) and len(a + b) > _LONG:
        return Status.DIFFERENT, None, (text_difference(a, b),)
    shown = {"a": shortened(repr(a)), "b": shortened(repr(b))}
    notes = (message("note.values", **shown),)
    numbers = is_number(a) and is_number(b)
    if numbers and is_finite(a) != is_finite(b):
        side = "B" if is_finite(a) else "A"
        return Status.NON_FINITE, None, (message("note.value_in_one", side=side, **shown),)
    close = numbers and not tolerance.bitwise and tolerance.allows(a, b)
    return Status.WITHIN_TOLERANCE if close else Status.DIFFERENT, None, notes


def _compare_arrays(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> PairFound:
    sides = []
    for record, side in ((a, "A"), (b, "B")):
        try:
            sides.append(record.opened())
        except ArrayFileError as error:
            return Status.UNREADABLE, None, _unreadable(side, _of_file(record, error))
    same_prints = same_fingerprint(a.leaf, b.leaf)
    try:
        if same_prints and same_elements(sides[0].array(), sides[1].array(), threads):
            return Status.IDENTICAL, None, ()
        compared = compare_tensors(sides[0], sides[1], tolerance, threads)
    except (OSError, TypeError, ValueError) as error:
        return Status.UNREADABLE, None, (message("note.unreadable", why=error),)
    status, metrics, notes = status_of_elements(a.leaf, b.leaf, compared, tolerance)
    return status, metrics, (*notes, *note(FILE_CHANGED)) if same_prints else notes


def status_of_elements(
    a: Leaf, b: Leaf, compared: ArrayComparison, tolerance: Tolerance
) -> PairFound:
    """Return the status of two tensors of one shape whose elements were compared."""
    if compared.equal:
        values = () if a.dtype == b.dtype else (message("note.same_values", a=a.dtype, b=b.dtype),)
        return Status.IDENTICAL, compared.metrics, values
    metrics = compared.metrics
    if compared.one_sided:
        sides = (metrics.nan_a, metrics.inf_a), (metrics.nan_b, metrics.inf_b)
        return Status.NON_FINITE, metrics, (one_sided(*sides),)
    if compared.unlike:
        if not metrics.max_abs_err:  # all that is finite on both sides agrees
            metrics = replace(metrics, max_abs_err=math.inf, max_rel_err=None)
        return Status.DIFFERENT, metrics, note("note.unlike_infinities")
    if compared.within and not tolerance.bitwise:
        return Status.WITHIN_TOLERANCE, metrics, ()
    allowed = rounding(a, b)
    if allowed is not None and metrics.max_abs_err is not None and metrics.max_abs_err <= allowed:
        return Status.WITHIN_TOLERANCE, metrics, (rounded(a, b),)
    return Status.DIFFERENT, metrics, ()
