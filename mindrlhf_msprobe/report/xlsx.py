"""Excel files, written without a library.

Of 3.3 million cells openpyxl takes 15 µs each, XlsxWriter 7, this 1.5 (benchmarks/table_rows.py);
and to load them takes 0.07 and 0.03 s of a command of 0.2 s. The files are as ECMA-376 (Office Open
XML, part 1: SpreadsheetML; part 2: packages) describes them.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.printable import printable_json
from mindrlhf_msprobe.errors import UNDECIDED
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import FILLS, PLAIN, Cell, Column, Percent, Sheet, clean, plain
from mindrlhf_msprobe.storage.outputs import Output, json_of, refuse, refuse_directory, write_all

_MANY_ROWS = 100_000  # may need more than a zip file holds without its extension
_MOST_WAITING = 4  # chunks that wait to be compressed
_WIDE = 60  # characters, from which on the texts of a column are wrapped
_LEVEL = 3  # of compression: half the time of the usual 6, a tenth larger
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
#: How a cell's value is shown; of a number that is not whole about six digits, the cell holds all.
SHOWN = AS_IT_IS, WRAPPED, PERCENT, LINK, FIXED, SCIENTIFIC = (
    *("", "wrapped", "percent"),
    *("link", "fixed", "scientific"),
)
_FORMATS = {164: "0.0###%", 165: "0.0#####", 166: "0.00###E+00"}
#: Number format and font of a style, and what is inside its element.
_LOOKS = {
    AS_IT_IS: (0, 0, ""),
    WRAPPED: (0, 0, '<alignment vertical="top" wrapText="1"/>'),
    PERCENT: (164, 0, ""),
    LINK: (0, 1, ""),
    FIXED: (165, 0, ""),
    SCIENTIFIC: (166, 0, ""),
}
_FIXED_FROM, _FIXED_BELOW = 0.01, 1e6
_FONT = '<sz val="11"/><color rgb="FF{}"/><name val="Calibri"/><family val="2"/>'
#: The number of each style in a workbook, by (colour, how a value is shown).
STYLES = {
    (c, s): i * len(SHOWN) + j for i, c in enumerate(("", *FILLS)) for j, s in enumerate(SHOWN)
}
HEADER_STYLE = len(STYLES)
CHUNK = 256  # rows that are yielded at a time
_MAX_TEXT = 32_767  # characters in a cell
_MAX_EXACT = 2**53  # Excel rounds larger numbers
_LONG_TEXT = 2_048  # is not kept for the next cell
_LONGEST_LINK = 200  # characters; a formula cannot hold longer texts


def write_xlsx(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write the sheets as one workbook.

    Raises:
        OSError: it cannot be written.
    """
    large = any(sheet.count > _MANY_ROWS for sheet in sheets)
    try:
        _write(path, sheets, large=large)
    except RuntimeError:  # larger than it looked
        if large:
            raise
        _write(path, sheets, large=True)


def workbook_of(columns: Sequence[Column]) -> Callable[[Path], bool]:
    """Return what tells a workbook that was written here, and its first sheet by its columns.

    One that Excel or another program has saved since has its own styles.
    """
    head, _ = around_rows(Sheet("", columns))
    expected = {sheet_file(1): head, "xl/styles.xml": _DECLARATION + _styles()}

    def is_ours(path: Path) -> bool:
        with ZipFile(path) as book:
            for name, text in expected.items():
                with book.open(name) as file:
                    if file.read(len(text.encode())) != text.encode():
                        return False
        return True

    return is_ours


def workbook(
    path: Path, columns: Sequence[Column], sheets: Callable[[], Sequence[Sheet]] = list
) -> Output:
    """Return a workbook as a file to write; the columns are those of its first sheet."""
    return Output(path, workbook_of(columns), lambda part: write_xlsx(part, sheets()))


def workbook_path(output: str | Path, name: str) -> Path:
    """Return the file where it ends in .xlsx, else one of this name in the directory.

    Raises:
        OutputError: it is no directory.
    """
    path = refuse_directory(output, ".xlsx")
    return path if path.suffix.lower() == ".xlsx" and not path.is_dir() else path / name


#: Where nothing was found yet.
_NOTHING = Answer(UNDECIDED, tuple, dict)


@dataclass(frozen=True)
class AnswerFiles:
    """The files of an answer in a directory: a workbook, and JSON for programs.

    Attributes:
        table, result: what they are called.
        columns: of the workbook's first sheet.
        keys: that the JSON has, by which an earlier answer is known.
    """

    table: str
    columns: Sequence[Column]
    result: str
    keys: tuple[str, ...]

    def outputs(self, directory: str | Path, found: Answer = _NOTHING) -> list[Output]:
        """Return both files of an answer in a directory.

        Raises:
            OutputError: it is no directory.
        """
        path = refuse_directory(directory)
        table = workbook(path / self.table, self.columns, found.tables)

        def write(part: Path) -> None:
            text = json.dumps(found.content(), ensure_ascii=False, indent=1)
            part.write_bytes(printable_json(text).encode())  # with escapes for the rest

        return [table, Output(path / self.result, json_of(*self.keys), write)]

    def answer(
        self, directory: str | None, runs: Sequence[str], find: Callable[[], Answer]
    ) -> Answer:
        """Return an answer, whose files lie in a directory; None: it has none.

        Args:
            runs: which the files must not lie in.
            find: finds it; before that, what cannot be written is refused.

        Raises:
            RunError: they cannot be written there.
        """
        if directory is None:
            return find()
        refuse(*self.outputs(directory), runs=runs)
        found = find()
        folder, beside = found.beside(Path(directory))
        table, result, *others = write_all(*self.outputs(directory, found), *beside, runs=runs)
        files = [table, result, *[folder] * bool(others)]
        said = say("console.written", files=", ".join(map(str, files)))
        return replace(found, lines=lambda: [*found.lines(), said])


def _write(path: Path, sheets: Sequence[Sheet], *, large: bool) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as target:
        for name, content in files_around(sheets).items():
            target.writestr(_member(name), content)
        for number, sheet in enumerate(sheets, start=1):
            member = _member(sheet_file(number))
            head, tail = (text.encode() for text in around_rows(sheet))
            if sheet.count < CHUNK:  # not worth a thread
                target.writestr(member, b"".join((head, *rows_of(sheet), tail)))
                continue
            with target.open(member, "w", force_zip64=large) as file, _beside(file) as write:
                write(head)
                for chunk in rows_of(sheet):
                    write(chunk)
                write(tail)


def _member(name: str) -> ZipInfo:
    """Return a file of the workbook, of no time: the same rows are the same bytes."""
    member = ZipInfo(name)
    member.compress_type = ZIP_DEFLATED
    member.external_attr = 0o600 << 16
    level = "compress_level" if hasattr(member, "compress_level") else "_compresslevel"
    setattr(member, level, _LEVEL)
    return member


@contextlib.contextmanager
def _beside(file: IO[bytes]) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes into a file in a thread: compressing leaves Python to the next rows.

    Raises:
        OSError, RuntimeError: what writing raised.
    """
    chunks: SimpleQueue[bytes | None] = SimpleQueue()
    room = threading.Semaphore(_MOST_WAITING)
    raised: list[BaseException] = []

    def work() -> None:
        while (chunk := chunks.get()) is not None:
            try:
                if not raised:
                    file.write(chunk)
            except BaseException as error:
                raised.append(error)
            finally:
                room.release()

    def write(chunk: bytes) -> None:
        room.acquire()
        if raised:
            raise raised[0]
        chunks.put(chunk)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield write
    finally:
        chunks.put(None)
        thread.join()
    if raised:
        raise raised[0]


def sheet_file(number: int) -> str:
    """Return what the file of a sheet is called; the first is number 1."""
    return f"xl/worksheets/sheet{number}.xml"


def files_around(sheets: Sequence[Sheet]) -> dict[str, str]:
    """Return the files of a workbook, by name, but for those of its sheets."""
    numbers = range(1, len(sheets) + 1)
    types = {"xl/workbook.xml": "sheet.main", "xl/styles.xml": "styles"}
    types |= {sheet_file(number): "worksheet" for number in numbers}
    related = [("worksheet", f"/{sheet_file(number)}") for number in numbers]
    titles = [escaped(sheet.title).replace('"', "&quot;") for sheet in sheets]
    names = [
        f'<sheet name="{title}" sheetId="{number}" r:id="rId{number}"/>'
        for number, title in zip(numbers, titles)
    ]
    filters = []  # names of all cells of each sheet
    for index, sheet in enumerate(sheets):
        title = sheet.title.replace("'", "''")
        cells = f"'{title}'!$A$1:${letters(len(sheet.columns))}${sheet.count + 1}"
        filters.append(
            f'<definedName name="_xlnm._FilterDatabase" localSheetId="{index}" hidden="1">'
            f"{escaped(cells)}</definedName>"
        )
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        + "".join(
            f'<Override PartName="/{name}" ContentType="{_TYPE}.{kind}+xml"/>'
            for name, kind in types.items()
        )
        + "</Types>",
        "_rels/.rels": _relationships([("officeDocument", "/xl/workbook.xml")]),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><bookViews>'
        f"<workbookView/></bookViews><sheets>{''.join(names)}</sheets>"
        f"<definedNames>{''.join(filters)}</definedNames>"
        '<calcPr calcId="124519" fullCalcOnLoad="1"/></workbook>',
        "xl/_rels/workbook.xml.rels": _relationships([*related, ("styles", "/xl/styles.xml")]),
        "xl/styles.xml": _styles(),
    }
    return {name: _DECLARATION + content for name, content in files.items()}


def around_rows(sheet: Sheet) -> tuple[str, str]:
    """Return what stands in a sheet's file before and after its rows."""
    corner = letters(sheet.frozen + 1)
    across = f'xSplit="{sheet.frozen}" ' if sheet.frozen else ""
    pane = "bottomRight" if sheet.frozen else "bottomLeft"
    columns = [
        f'<col min="{number}" max="{number}" width="{width}" customWidth="1"/>'
        for number, width in enumerate(sheet.widths, start=1)
    ]
    last = f"{letters(len(sheet.columns))}{sheet.count + 1}"
    return (
        f'{_DECLARATION}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        f'<pane {across}ySplit="1" topLeftCell="{corner}2" activePane="{pane}" state="frozen"/>'
        f'<selection pane="{pane}" activeCell="{corner}2" sqref="{corner}2"/></sheetView>'
        f'</sheetViews><sheetFormatPr defaultRowHeight="15"/><cols>{"".join(columns)}</cols>'
        "<sheetData>",
        f'</sheetData><autoFilter ref="A1:{last}"/></worksheet>',
    )


def _relationships(related: Sequence[tuple[str, str]]) -> str:
    items = [
        f'<Relationship Id="rId{number}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(related, start=1)
    ]
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(items)}</Relationships>'


def _styles() -> str:
    """Return the styles: those of cells as `STYLES` numbers them, then that of headers."""
    fills = ['<patternFill patternType="none"/>', '<patternFill patternType="gray125"/>']
    fills += [
        f'<patternFill patternType="solid"><fgColor rgb="FF{fill}"/></patternFill>'
        for fill in FILLS.values()
    ]
    colours = (0, *range(2, len(fills)))  # the first two fills are fixed by the format
    formats = [_format(fill, *_LOOKS[shown]) for fill in colours for shown in SHOWN]
    plain = _FONT.format("000000")
    fonts = (plain, f'<u val="single"/>{_FONT.format("0563C1")}', f"<b/>{plain}")
    return (
        f'<styleSheet xmlns="{_MAIN}">'
        + _list(
            "numFmts", [f'<numFmt numFmtId="{n}" formatCode="{f}"/>' for n, f in _FORMATS.items()]
        )
        + _list("fonts", [f"<font>{font}</font>" for font in fonts])
        + _list("fills", [f"<fill>{fill}</fill>" for fill in fills])
        + _list("borders", ["<border><left/><right/><top/><bottom/><diagonal/></border>"])
        + _list("cellStyleXfs", ['<xf numFmtId="0" fontId="0" fillId="0" borderId="0"/>'])
        + _list("cellXfs", [*formats, _format(0, 0, 2, "")])
        + _list("cellStyles", ['<cellStyle name="Normal" xfId="0" builtinId="0"/>'])
        + "</styleSheet>"
    )


def _format(fill: int, number: int, font: int, inside: str) -> str:
    applied = " ".join(f'apply{what}="1"' for what in ("NumberFormat", "Font", "Fill", "Alignment"))
    return (
        f'<xf numFmtId="{number}" fontId="{font}" fillId="{fill}" borderId="0" xfId="0" {applied}>'
        f"{inside}</xf>"
    )


def _list(name: str, items: Iterable[str]) -> str:
    items = list(items)
    return f'<{name} count="{len(items)}">{"".join(items)}</{name}>'


def rows_of(sheet: Sheet) -> Iterator[bytes]:
    """Yield the header and the rows as XML, some at a time."""
    header = _starts([HEADER_STYLE] * len(sheet.columns))
    cells = "".join(f"{start}1{style}{_text(t)}" for (start, style), t in zip(header, sheet.header))
    parts = [f'<row r="1">{cells}</row>']
    wide = (sheet.wraps and width >= _WIDE for width in sheet.widths)
    shown = [WRAPPED if one else AS_IT_IS for one in wide]
    starts = {c: _starts([STYLES[c, how] for how in shown]) for c in (PLAIN, *FILLS)}
    for number, (colour, values) in enumerate(sheet.rows(), start=2):
        parts.append(_row(number, colour, starts[colour], values))
        if number % CHUNK == 0:
            yield "".join(parts).encode()
            parts.clear()
    yield "".join(parts).encode()


def _row(number: int, colour: str, starts: Sequence[tuple[str, str]], values: Sequence[Any]) -> str:
    cells = [f'<row r="{number}">']
    for (start, style), value in zip(starts, values):
        kind = type(value)
        if kind is float and math.isfinite(value):
            if not value.is_integer():
                fixed = _FIXED_FROM <= abs(value) < _FIXED_BELOW
                style = f'" s="{STYLES[colour, FIXED if fixed else SCIENTIFIC]}"'
            cells.append(f"{start}{number}{style}><v>{value!r}</v></c>")
        elif value is None or value == "":
            if colour:
                cells.append(f"{start}{number}{style}/>")
        elif kind is str:
            text = _known_text if len(value) <= _LONG_TEXT else _text
            cells.append(f"{start}{number}{style}{text(value)}")
        elif kind is Cell or kind is Percent:
            cells.append(f"{start}{number}{_special(value, colour)}")
        else:
            cells.append(f"{start}{number}{style}{_other(value)}")
    cells.append("</row>")
    return "".join(cells)


def _starts(styles: Sequence[int]) -> list[tuple[str, str]]:
    """Return, for each column, what stands in a cell's tag before and after the row's number."""
    return [
        (f'<c r="{letters(index)}', f'" s="{style}"' if style else '"')
        for index, style in enumerate(styles, start=1)
    ]


def letters(number: int) -> str:
    """Return what a column is called: A, …, Z, AA, …; the first is number 1."""
    name = ""
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _special(value: Cell | Percent, colour: str) -> str:
    """Return the rest of a cell that has a style of its own."""
    if isinstance(value, Percent):
        if not math.isfinite(value.share):
            return f'" s="{STYLES[colour, AS_IT_IS]}"{_text(str(value))}'
        return f'" s="{STYLES[colour, PERCENT]}"><v>{value.share!r}</v></c>'
    colour = value.colour or colour
    if not value.link or len(value.link) > _LONGEST_LINK:
        return f'" s="{STYLES[colour, AS_IT_IS]}"{_other(value.value)}'
    number = isinstance(value.value, int)
    shown = value.value if number else _quoted(str(value.value))
    formula = escaped(f"HYPERLINK({_quoted(value.link)},{shown})")
    kind = "" if number else ' t="str"'  # of the result, for readers that compute nothing
    result = escaped(str(value.value))
    return f'" s="{STYLES[colour, LINK]}"{kind}><f>{formula}</f><v>{result}</v></c>'


def _quoted(text: str) -> str:
    """Return a text as formulas hold it."""
    quoted = text[:_LONGEST_LINK].replace('"', '""')
    return f'"{quoted}"'


def _other(value: Any) -> str:
    """Return the rest of a cell of any value: what Excel cannot hold as a number is text."""
    value = plain(value)
    if isinstance(value, bool):
        return f' t="b"><v>{int(value)}</v></c>'
    exact = (isinstance(value, float) and math.isfinite(value)) or (
        isinstance(value, int) and abs(value) <= _MAX_EXACT
    )
    return f"><v>{value!r}</v></c>" if exact else _text(str(value))


def escaped(text: str) -> str:
    """Return a text as XML holds it, as much as a cell can hold."""
    text = clean(text[:_MAX_TEXT])
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        text = text.replace("\r", "&#13;")
    return text


def _text(text: str) -> str:
    """Return the rest of a cell that holds text; never a formula, whatever it begins with."""
    space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
    return f' t="inlineStr"><is><t{space}>{escaped(text)}</t></is></c>'


#: The same for texts that may well come again.
_known_text = lru_cache(maxsize=4_096)(_text)
