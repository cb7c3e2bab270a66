"""What is to be said to a reader, as a code and parameters; the words are made at the end.

Capture, storage and comparison say what they found by messages and decide by their codes; which
words stand for a code, in which language, report/messages knows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

import mindrlhf_msprobe  # which knows where words are made: nothing in here does
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.printable import shortened

if TYPE_CHECKING:
    from typing_extensions import Self

#: The code of a text that is known as a text alone: what a trainer says itself.
TEXT = "text"


@dataclass(frozen=True)
class Message:
    """One thing that is to be said.

    Attributes:
        code: which text it is: an area and a name, e.g. `coverage.no_gradients_recurrent`.
        params: what stands in the text, by name: JSON values, and messages inside messages.
    """

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash it by its code and the parameters that can be."""
        plain = ((k, v) for k, v in self.params.items() if isinstance(v, _HASHED))
        return hash((self.code, frozenset(plain)))

    def __str__(self) -> str:
        """Return its words, in the language that was chosen, else the locale's."""
        return in_words(self)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON: {"code": …, "params": {…}}, without params where there are none."""
        params = {name: _plain(value) for name, value in self.params.items()}
        return {"code": self.code, "params": params} if params else {"code": self.code}


#: Parameters by which a message is hashed; others may be of any kind.
_HASHED = (str, int, float, Message)
#: What JSON has no number for, as it is written.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: Messages that stand together, one behind the other.
Messages = tuple[Message, ...]


def message(code: str, /, **params: Any) -> Message:
    """Return a message; of an error among its parameters, what that says."""
    for name, value in params.items():
        if isinstance(value, SpokenError):
            params[name] = value.said
        elif isinstance(value, BaseException):
            # An error of Python's kinds may be made of a message, too.
            # It may be long: MindSpore lists every dtype that an operator takes.
            alone = value.args[0] if len(value.args) == 1 else None
            said = alone if isinstance(alone, Message) else shortened(value, 1000)
            params[name] = said
    return Message(code, params)


def in_words(said: Message, lang: str | None = None) -> str:
    """Return what a message says, in a language; None: in the one that is spoken."""
    words: str = mindrlhf_msprobe.text_of(said, lang)
    return words


def all_in_words(said: Iterable[Message]) -> str:
    """Return what several messages say, one behind the other, in the language that is spoken."""
    words: str = mindrlhf_msprobe.texts_of(said)
    return words


class SpokenError(Exception):
    """An error that says what is wrong by a message.

    Its text is in the language that was spoken when it was made: an error of `compare_runs(…,
    lang="zh")` stays Chinese where it is caught.

    Attributes:
        said: the message.
    """

    def __init__(self, said: Message | str = "") -> None:
        super().__init__(said)
        self.said = as_message(said)
        self._lang = language()

    @classmethod
    def saying(cls, code: str, /, **params: Any) -> Self:
        """Return the error that says the message of a code."""
        return cls(message(code, **params))

    def __str__(self) -> str:
        return in_words(self.said, self._lang)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def as_message(said: Message | str) -> Message:
    """Return a message; of a text the message that holds it."""
    return Message(TEXT, {"text": said}) if isinstance(said, str) else said


def text(en: str, zh: str) -> Message:
    """Return the message that holds a sentence in both languages: of a rule of another package."""
    return Message(TEXT, {"text": en, "zh": zh})


def as_json_or_text(said: Message) -> Any:
    """Return a message as JSON, one that is known as a text alone as that text."""
    return str(said.params.get("text", "")) if said.code == TEXT else said.as_json()


def as_messages(said: str | Message | Iterable[str | Message]) -> tuple[Message, ...]:
    """Return what is said as messages, each once: a text of somebody else's is one of its own."""
    several = [said] if isinstance(said, (str, Message)) else said
    return tuple(dict.fromkeys(map(as_message, several)))


def read_message(found: Any) -> Message | None:
    """Return the message that JSON holds, None if it holds none.

    Args:
        found: what `as_json` made, or a text, which is somebody else's.
    """
    if isinstance(found, str):
        return as_message(found)
    return _read_message(found, 0)


def read_messages(found: Any) -> tuple[Message, ...]:
    """Return the messages that JSON holds: one, or a list of them; what is none is left out."""
    several: Iterable[Any] = found if isinstance(found, list) else [found]
    return tuple(read for one in several if (read := read_message(one)) is not None)


_MOST_ITEMS = 500  # of a list, or of parameters, that a sentence quotes


def quoted(said: Message) -> Message:
    """Return a message of a file with its texts as a sentence quotes them: not at any length."""
    params = islice(said.params.items(), _MOST_ITEMS)
    return Message(said.code, {name: _quoted(value) for name, value in params})


def _quoted(value: Any) -> Any:
    if isinstance(value, Message):
        return quoted(value)
    if isinstance(value, list):
        return [_quoted(item) for item in value[:_MOST_ITEMS]]
    return shortened(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.as_json()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return finite_or_name(value) if isinstance(value, float) else value


def finite_or_name(value: float) -> float | str:
    """Return a number as JSON takes it; of NaN and infinities the name in `NON_FINITE`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_message(found: Any, depth: int) -> Message | None:
    if isinstance(found, Mapping) and isinstance(found.get("code"), str):
        params = found.get("params", {})
        if isinstance(params, Mapping):
            return Message(found["code"], {str(k): _read(v, depth + 1) for k, v in params.items()})
    return None


def _read(value: Any, depth: int) -> Any:
    if isinstance(value, (Mapping, list)) and depth > 20:  # levels of what a file says
        return None
    if isinstance(value, Mapping):
        inner = _read_message(value, depth) if set(value) <= {"code", "params"} else None
        return inner or {str(name): _read(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_read(item, depth + 1) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value
