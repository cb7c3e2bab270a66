"""An answer: what a command found, as one document. Who shows it knows nothing of the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.terminal import padded, width_of

if TYPE_CHECKING:
    from pathlib import Path

    from mindrlhf_msprobe.report.sheets import Sheet
    from mindrlhf_msprobe.storage.outputs import Output

_T = TypeVar("_T")


class Code(str):
    """A line to copy, as it is: settings, a command; or one of a picture or of a program.

    Attributes:
        words: what a console says before it, on the same line.
    """

    words: str
    __slots__ = ("words",)

    def __new__(cls, text: str, words: str = "") -> Code:
        """Return a line that says `words` before it on a console."""
        code = super().__new__(cls, text)
        code.words = words
        return code


@dataclass(frozen=True)
class Rows:
    """A table: what its columns are called, and the texts of each row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Fact:
    """One thing that was found, as each renderer shows it.

    Attributes:
        about: its subject, e.g. `ranks`.
        line: what is said of it; "" where a table alone shows it.
        row: what a table of facts shows: the section, what it is called there (a keyword such as a
            status has its colour), and its value; None where that is said in lines alone.
        link: where a page shows it.
    """

    about: str
    line: str = ""
    row: tuple[str, Any, Any] | None = None
    link: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Head:
    """What an answer says first, whatever was concluded: a page has it on top.

    Attributes:
        tone: good, warn, bad or unknown.
        headline, sentence, cause: whether all is well, what happened, and a keyword of why.
        place: where a page shows that.
        facts: what else is said.
        next_step, next_step_note: settings to record next, in one line, and what these take.
        counts: keyword, number and tone of what was counted.
    """

    tone: str
    headline: str
    sentence: str | None = None
    cause: str | None = None
    place: Mapping[str, Any] | None = None
    facts: Sequence[Fact] = ()
    next_step: str | None = None
    next_step_note: str | None = None
    counts: Sequence[tuple[str, int, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as the page's script reads it."""
        facts = [{"text": fact.line, "link": fact.link} for fact in self.facts if fact.line]
        shown = {of.name: getattr(self, of.name) for of in fields(self)}
        return {("lines" if k == "facts" else k): v for k, v in (shown | {"facts": facts}).items()}


#: Lines of an answer; a list stands under the line before it.
Lines: TypeAlias = "Sequence[str | Rows | Lines]"


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        code: the exit code: the outcome.
        lines: makes what people read: where it is, of which kind it is and what to do come first.
        content: makes what programs read, plain JSON values.
        tables: makes the sheets of its workbook.
        page: makes what its page shows, by the names of a page's parts.
        beside: makes further files beside its workbook, given their directory: a folder in it, by
            which they are named, and what is in there.
    """

    code: int
    lines: Callable[[], Lines]
    content: Callable[[], Any]
    tables: Callable[[], Sequence[Sheet]] = tuple
    page: Callable[[], Mapping[str, Any]] = dict
    beside: Callable[[Path], tuple[Path, Sequence[Output]]] = lambda directory: (directory, ())


def as_text(lines: Lines) -> str:
    """Return lines as plain text; names cannot move the cursor or hide lines."""
    return "\n".join(map(printable, texts(lines)))


def texts(lines: Lines, indent: str = "") -> Iterator[str]:
    """Yield the texts of lines, those under another one indented."""
    for line in lines:
        if isinstance(line, Code):
            yield indent + line.words + line
        elif isinstance(line, str):
            yield indent + line
        elif isinstance(line, Rows):
            rows = [[*map(printable, row)] for row in (line.header, *line.rows)]
            widths = [max(map(width_of, column)) for column in zip(*rows)]
            for row in rows:
                yield indent + "  ".join(map(padded, row, widths)).rstrip()
        else:
            yield from texts(line, indent + "  ")


def capped(
    items: Iterable[_T],
    most: int,
    more: str = "console.more",
    *,
    where: str = "",
    show: Callable[[_T], str] = str,
) -> list[str]:
    """Return a line of each item, at most so many; of further ones how many there are.

    Args:
        more: the code that says how many, of `count`.
        where: behind it, where they stand.
    """
    whole = [*items]
    left = len(whole) - most
    rest = [f"{say(more, count=left)}{where}"] if left > 0 else []
    return [*map(show, whole[:most]), *rest]


def listed(head: str, items: Sequence[str]) -> Lines:
    """Return a line and what stands under it; nothing where that is nothing."""
    return [head, items] if items else []
