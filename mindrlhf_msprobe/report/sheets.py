"""What is written: tables of sheets of rows, what a cell can hold, and CSV files.

Names and texts of a dump are data, never formulas. Rows of records have the colours of what was
found of them. CSV files are for scripts and for those who have no Excel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.printable import visible
from mindrlhf_msprobe.findings import Finding, Keyword, Outcome, Status
from mindrlhf_msprobe.report.answer import Fact
from mindrlhf_msprobe.report.messages import texts_in
from mindrlhf_msprobe.storage.layout import file_name

#: What makes a spreadsheet take the text of a CSV cell for a formula; the wide forms as well.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


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


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: what it is called; in a sheet of ours, where `tables` has a text that is the same,
            as that in the language spoken.
        width: in characters; 0: as wide as its header.
        cell: what it shows of an item: one of its attributes, or what a function returns; "": the
            attribute that is called like the header.
        words: whether it holds words of ours, said as headers are: no names, texts or numbers.
    """

    header: str
    width: int = 0
    cell: str | Callable[[Any], Any] = ""
    words: bool = False

    @property
    def show(self) -> Callable[[Any], Any]:
        """What returns the cell of an item."""
        return self.cell if callable(self.cell) else attrgetter(self.cell or self.header)


class Row(NamedTuple):
    """A row at hand: the values of its first columns, and the name of its colour."""

    values: Sequence[Any]
    colour: str = ""


@dataclass(frozen=True)
class Sheet:
    """One sheet.

    Attributes:
        items: what it has rows of, each a row at hand or something that the columns show; or what
            returns them, each time from the first.
        colour: returns the name of the colour of an item that is no row.
        length: how many items there are, where they are returned.
        frozen: how many columns stay in sight when the others are moved.
        ours: whether its name, headers and words are ours, in the language spoken.
        wraps: whether the texts of wide columns are wrapped.
    """

    name: str
    columns: Sequence[Column]
    items: Sequence[Any] | Callable[[], Iterable[Any]] = ()
    colour: Callable[[Any], str] = lambda item: PLAIN
    length: int = 0
    frozen: int = 0
    ours: bool = True
    wraps: bool = True

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.length if callable(self.items) else len(self.items)

    @property
    def title(self) -> str:
        """What it is called in a workbook."""
        return self._words.get(self.name, self.name)

    @property
    def header(self) -> list[str]:
        """What the columns are called."""
        words = self._words
        return [words.get(column.header, column.header) for column in self.columns]

    @property
    def widths(self) -> list[int]:
        """How wide the columns are, in characters."""
        return [column.width or _width_of_header(column.header) for column in self.columns]

    @property
    def _words(self) -> Mapping[object, str]:
        return _labels(language())[0] if self.ours else {}

    def rows(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the name of each row's colour, and its values, one for each column."""
        shown, words = [column.show for column in self.columns], self._words
        said = [number for number, column in enumerate(self.columns) if column.words]
        for item in self.items() if callable(self.items) else self.items:
            if isinstance(item, Row):
                colour = item.colour
                values = [*item.values, *[None] * (len(shown) - len(item.values))]
            else:
                colour, values = self.colour(item), [show(item) for show in shown]
            for number in said:
                values[number] = words.get(values[number], values[number])
            yield colour, values

    def part(self, start: int, stop: int) -> Sheet:
        """Return the sheet with the rows from `start` to before `stop` only."""
        if not callable(self.items):
            return replace(self, items=self.items[start:stop])
        whole = self.items
        length = min(stop, self.count) - start
        return replace(self, items=lambda: islice(whole(), start, stop), length=length)


def _width_of_header(header: str) -> int:
    return min(60, max(10, sum(1 if char.isascii() else 2 for char in header) + 2))


def rows_of_facts(facts: Iterable[Fact]) -> list[Row]:
    """Return the rows of facts that have one: section, item, value; those of keywords in colour."""
    words, counts = _labels(language())
    rows = []
    for section, item, value in (fact.row for fact in facts if fact.row is not None):
        of = value if isinstance(value, Outcome) else item
        colour = colour_of(of) if isinstance(of, (Outcome, Status)) else PLAIN
        item, value = (one.value if isinstance(one, Keyword) else one for one in (item, value))
        if section in _LABELLED and item not in _KEYWORDS:
            # A number of ranks is not called as what is said of ranks.
            item = counts.get(item, words.get(item, item))
        rows.append(Row((section, item, value), colour))
    return rows


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


def take_name(taken: set[str], stem: str, suffix: str) -> str:
    """Return `stem` and `suffix` as a file name, marked if it is one of `taken`; add it to them."""
    stem = visible(stem)
    while (name := file_name(stem, suffix)) in taken:  # a key that is called like a phase's table
        suffix = "~" + suffix
    taken.add(name)
    return name


def plain(value: Any) -> bool | int | float | str | None:
    """Return `value` as a cell of a sheet can hold it: other kinds become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    return clean(str(value))


def clean(text: str) -> str:
    """Return `text` as a file can hold it, over several lines if it has them."""
    return visible(text, keep="\n\t\u200c\u200d")  # joiners of letters and of emoji steer nothing


def harmless(text: str) -> str:
    """Return `text` so that a spreadsheet which opens a CSV file does not compute it."""
    return "'" + text if text[:1] in _FORMULA else text


_LABELLED = ("verdict", "counts")  # sections whose items are labels, not names of the user's
_COUNT = "_count"  # ends the names of labels that stand beside a number alone
_KEYWORDS = frozenset(status.value for status in Status)  # no labels; `different` is a header, too


@cache
def _labels(lang: str) -> tuple[dict[object, str], dict[object, str]]:
    """Return what each label is called, and each number; others stand as they are."""
    texts = texts_in(lang, "tables")
    words: dict[object, str] = {}
    counts: dict[object, str] = {}
    for name, label in texts_in("en", "tables").items():
        if name.endswith(_COUNT):
            counts[label] = texts[name]
        elif "{" not in label:
            words[label] = texts[name]
    return words, counts


PLAIN = ""
DIFFERS = "differs"
MISSING = "missing"
SUSPICIOUS = "suspicious"
CLOSE = "close"

#: Each colour's name and its fill, as RRGGBB: two reds, orange and yellow.
FILLS = {DIFFERS: "FFC7CE", MISSING: "FF9999", SUSPICIOUS: "FFCC99", CLOSE: "FFEB9C"}

#: The colour of what a record, or a whole comparison, ended in; of all others they differ.
_COLOURS = {
    **{"identical": PLAIN, "within_tolerance": CLOSE, "incomparable": MISSING},
    **{"unreadable": MISSING, "only_in_a": MISSING, "only_in_b": MISSING},
}


def colour_of(ended: Status | Outcome, suspicious: bool = False) -> str:
    """Return the name of the colour of a record, or a comparison, that ended so."""
    colour = _COLOURS.get(ended.value, DIFFERS)
    return SUSPICIOUS if suspicious and colour in (PLAIN, CLOSE) else colour


def colour_of_finding(finding: Finding) -> str:
    """Return the name of the colour of a finding's row."""
    return colour_of(finding.status, bool(finding.suspicions))


# Excel takes a file without the byte order mark for one in the machine's own encoding.
_ENCODING = "utf-8-sig"


def write_csv_files(tables: Sequence[Table], output: Path) -> list[str]:
    """Write one file a sheet, whole however long; return their names in the tables' order.

    Raises:
        OSError: one cannot be written.
    """
    names: set[str] = set()
    written: dict[int, list[str]] = {}
    for index, table in sorted(enumerate(tables), key=lambda item: item[1].precedence):
        # Also where each sheet has a file of its own, so that no key takes it.
        own = take_name(names, table.stem, ".csv")
        stems = [f"{table.stem}_{sheet.name}" for sheet in table.sheets]
        several = len(stems) > 1
        written[index] = [take_name(names, stem, ".csv") if several else own for stem in stems]
        for name, sheet in zip(written[index], table.sheets):
            write_csv(output / name, sheet)
    return [name for index in range(len(tables)) for name in written[index]]


def write_csv(path: Path, sheet: Sheet) -> None:
    """Write a sheet as a CSV file.

    Raises:
        OSError: it cannot be written.
    """
    import csv  # slow to import

    with open(path, "w", encoding=_ENCODING, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(sheet.header)
        writer.writerows([_cell(value) for value in values] for _, values in sheet.rows())


def _cell(value: Any) -> Any:
    """Return what the csv module writes as it should stand: numbers by their repr."""
    if isinstance(value, Cell):
        value = value.value
    elif isinstance(value, Percent):
        return str(value)
    kind = type(value)
    if kind is str:
        return harmless(clean(value))
    if value is None or (kind is float and math.isfinite(value)):
        return value
    value = plain(value)
    return harmless(value) if isinstance(value, str) else value
