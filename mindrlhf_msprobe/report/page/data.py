"""What a page holds: texts in both languages, which it switches between, and blocks of data.

Blocks are compressed; each is decoded by the page's script when a view needs it.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.language import LANGUAGES, speaking
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.report.messages import text_of

#: A text, or where the languages differ [English, Chinese].
Words = str | list[str]


def in_both(make: Callable[[], Any]) -> Any:
    """Return what a function makes of texts, plain JSON values, with each text in both languages.

    It makes the same in each but for the texts.
    """
    made = []
    for lang in LANGUAGES:
        with speaking(lang):
            made.append(make())
    return _joined(*made)


def _joined(a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {name: _joined(value, b[name]) for name, value in a.items()}
    if isinstance(a, (list, tuple)):
        return [*map(_joined, a, b)]
    return a if a == b else [a, b]


def said(message: Message) -> Words:
    """Return what a message says in each language."""
    words: Words = in_both(lambda: text_of(message))
    return words


def spoken(code: str, **params: Any) -> Words:
    """Return what a code says in each language."""
    return said(Message(code, params))


def known(**values: Any) -> dict[str, Any]:
    """Return what is known: without None."""
    return {name: value for name, value in values.items() if value is not None}


_LEVEL = 6  # of compression: 9 takes three times as long for 1 % less
#: Codes of a logarithmic value: 0 where there is none, 1 for zero, 2 for NaN and infinity, 3 where
#: it is not zero, and no more is known.
NO_VALUE, ZERO, NOT_FINITE, UNMEASURED = 0, 1, 2, 3
_OF_ONE, _STEPS = 16384, 256  # the code of 1.0, and how many codes there are between it and 2.0
_LEAST, _MOST = 4, 32767


class Blocks:
    """The blocks of one page, by name.

    Attributes:
        size: characters they take in the page.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, str] = {}
        self.size = 0

    def __iter__(self) -> Any:
        return iter(self._blocks.items())

    def names(self) -> list[str]:
        """Return the names, in the order in which they were added."""
        return [*self._blocks]

    def text(self, name: str, content: str) -> None:
        """Add a text."""
        self.binary(name, content.encode("utf-8", "replace"))

    def json(self, name: str, content: Any) -> None:
        """Add plain JSON values; a float that is not finite has to be a text already."""
        self.binary(name, dumped(content))

    def binary(self, name: str, content: bytes) -> None:
        """Add bytes."""
        block = base64.b64encode(zlib.compress(content, _LEVEL)).decode("ascii")
        self._blocks[name] = block
        self.size += len(block)


def dumped(content: Any) -> bytes:
    """Return plain values as JSON that a browser reads: a float that is not finite is null."""
    try:
        import orjson

        return orjson.dumps(content)
    except (ImportError, TypeError):  # no wheel; half a surrogate pair, a number beyond 64 bits
        return json.dumps(_finite(content), separators=(",", ":"), allow_nan=False).encode()


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [*map(_finite, content)]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def logarithmic(value: float | None) -> int:
    """Return the code of a value that is not negative, to 0.14 %.

    A value v is stored as 16384 + 256 log2(v), from 2^-64 to 2^63.
    """
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return NOT_FINITE
    if value == 0:
        return ZERO
    code = round(_OF_ONE + _STEPS * math.log2(abs(value)))
    return min(max(code, _LEAST), _MOST)


def as_little_endian(codes: np.ndarray) -> bytes:
    """Return int16 codes as the page reads them."""
    return np.ascontiguousarray(codes, "<i2").tobytes()
