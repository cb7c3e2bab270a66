"""What is written: tables of sheets of rows, whatever the file's format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass

_WIDE = 60  # characters, from which on the texts of a column are wrapped


@dataclass(frozen=True)
class Cell:
    """A value that does not look like the rest of its row.

    Attributes:
        colour: its own; "" for the row's.
        link: a file beside the workbook that it leads to; "" for none.
    """

    value: Any
    colour: str = ""
    link: str = ""


@dataclass(frozen=True)
class Percent:
    """A share, shown in percent: 0.5 as 50.0%; in CSV a text, as in msprobe's own tables."""

    share: float

    def __str__(self) -> str:
        return f"{self.share * 100}%"


#: The name of a row's colour and its values, one for each column.
Row = tuple[str, Sequence[Any]]


@dataclass(frozen=True)
class Sheet:
    """One sheet.

    Attributes:
        rows: returns all rows, each time from the first.
        count: how many there are.
        widths: of the columns, in characters.
        wrapped: the columns whose texts are wrapped.
        filtered: whether readers can filter the rows.
        frozen: how many columns stay in sight when the others are moved.
        stem: what a CSV file of it is called, in any language; "": as the sheet.
    """

    name: str
    header: tuple[str, ...]
    rows: Callable[[], Iterable[Row]]
    count: int
    widths: tuple[int, ...]
    wrapped: frozenset[int] = frozenset()
    filtered: bool = True
    frozen: int = 0
    stem: str = ""

    @classmethod
    def from_rows(cls, name: str, columns: Sequence[tuple[str, int]], rows: Sequence[Row]) -> Sheet:
        """Return a sheet of rows at hand, filled up to the columns; wide columns are wrapped."""
        width = len(columns)
        full = [(colour, (*values, *[None] * (width - len(values)))) for colour, values in rows]
        return cls(
            name=name,
            header=tuple(header for header, _ in columns),
            rows=lambda: full,
            count=len(rows),
            widths=tuple(width for _, width in columns),
            wrapped=frozenset(i for i, (_, width) in enumerate(columns) if width >= _WIDE),
        )

    def part(self, start: int, stop: int) -> Sheet:
        """Return the sheet with the rows from `start` to before `stop` only."""
        whole = self.rows
        count = min(stop, self.count) - start
        return replace(self, rows=lambda: islice(whole(), start, stop), count=count)


@dataclass(frozen=True)
class Table:
    """What becomes one workbook, or one CSV file a sheet.

    Attributes:
        stem: the file's name without its suffix, as far as it is free.
        sheets: more than one only where none of them can be too long for a sheet.
        precedence: of two tables with one stem, the lower keeps it.
        of: ("key", name) or ("phase", name); ("", "") of the summary.
    """

    stem: str
    sheets: tuple[Sheet, ...]
    precedence: int = 0
    of: tuple[str, str] = ("", "")
