"""Where two texts, or two sequences of token ids, first differ, with both sides around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.metrics.blocks import blocks
from mindrlhf_msprobe.errors import UsageError

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
        raise UsageError.saying("error.no_tokenizers", error=error) from None
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # its parser raises bare exceptions
        raise UsageError.saying("error.no_tokenizer", file=file, error=error) from None

    def decode(ids: Sequence[int]) -> str:
        known = [token for token in ids if 0 <= token < 1 << 32]
        return str(tokenizer.decode(known, skip_special_tokens=False))

    return decode
