"""The parts of an Excel file beside its rows: styles, the list of sheets, how a sheet looks.

They are short and nearly always the same, so they are written out here: loading openpyxl for them
took longer than comparing a small run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindrlhf_msprobe.report.cells import clean
from mindrlhf_msprobe.report.colours import FILLS, PLAIN
from mindrlhf_msprobe.report.sheets import Sheet

_DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_WRAPPED = '<alignment vertical="top" wrapText="1"/>'

#: The number of a cell's style in the file, by (colour, whether its text is wrapped).
STYLES: Mapping[tuple[str, bool], int] = {
    (colour, wrapped): 2 * index + wrapped
    for index, colour in enumerate((PLAIN, *FILLS))
    for wrapped in (False, True)
}
_HEADER_STYLE = len(STYLES)


def sheet_part(number: int) -> str:
    """Return the name of the part that holds the n-th sheet, from 1."""
    return f"xl/worksheets/sheet{number}.xml"


def common_parts(sheets: Sequence[Sheet]) -> dict[str, bytes]:
    """Return all parts of a workbook but its sheets, by name, in the order of the file."""
    parts = {
        "[Content_Types].xml": _content_types(len(sheets)),
        "_rels/.rels": _relationships(("officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": _workbook(sheets),
        "xl/_rels/workbook.xml.rels": _relationships(
            *(("worksheet", f"/{sheet_part(i)}") for i in range(1, len(sheets) + 1)),
            ("styles", "styles.xml"),
        ),
        "xl/styles.xml": _styles(),
    }
    return {name: (_DECLARATION + text).encode() for name, text in parts.items()}


def sheet_head(sheet: Sheet) -> bytes:
    """Return what stands in a sheet's part before its rows, the header's row included."""
    widths = "".join(
        f'<col min="{i}" max="{i}" width="{width}" customWidth="1"/>'
        for i, width in enumerate(sheet.widths, start=1)
    )
    header = "".join(
        f'<c r="{column_letters(i)}1" s="{_HEADER_STYLE}" t="inlineStr"><is><t>{_escaped(text)}'
        f"</t></is></c>"
        for i, text in enumerate(sheet.header)
    )
    return (
        f'{_DECLARATION}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        f'<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        f'<selection pane="bottomLeft" activeCell="A1" sqref="A1"/></sheetView></sheetViews>'
        f'<sheetFormatPr defaultRowHeight="15"/><cols>{widths}</cols>'
        f'<sheetData><row r="1">{header}</row>'
    ).encode()


def sheet_tail(sheet: Sheet) -> bytes:
    """Return what stands in a sheet's part after its rows."""
    filtered = f'<autoFilter ref="A1:{_last_cell(sheet)}"/>' if sheet.filtered else ""
    return f"</sheetData>{filtered}</worksheet>".encode()


def column_letters(index: int) -> str:
    """Return what Excel calls a column: A for 0, AA for 26."""
    letters = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        letters = chr(ord("A") + place) + letters
    return letters


def _last_cell(sheet: Sheet, sign: str = "") -> str:
    return f"{sign}{column_letters(len(sheet.header) - 1)}{sign}{sheet.count + 1}"


def _escaped(text: str) -> str:
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;")


def _content_types(sheets: int) -> str:
    types = {"xl/workbook.xml": "sheet.main", "xl/styles.xml": "styles"}
    types |= {sheet_part(i): "worksheet" for i in range(1, sheets + 1)}
    return (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        + "".join(
            f'<Override PartName="/{name}" ContentType="{_TYPE}.{kind}+xml"/>'
            for name, kind in types.items()
        )
        + "</Types>"
    )


def _relationships(*targets: tuple[str, str]) -> str:
    """Return relationships, each given as (kind, target); the n-th has the id rId<n>."""
    items = "".join(
        f'<Relationship Id="rId{i}" Type="{_RELATIONSHIPS}/{kind}" Target="{target}"/>'
        for i, (kind, target) in enumerate(targets, start=1)
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{items}</Relationships>'


def _workbook(sheets: Sequence[Sheet]) -> str:
    names = "".join(
        f'<sheet name="{_escaped(sheet.name)}" sheetId="{i}" r:id="rId{i}"/>'
        for i, sheet in enumerate(sheets, start=1)
    )
    filters = "".join(  # without these names, some readers do not offer the filters
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{i}" hidden="1">'
        f"'{_escaped(sheet.name)}'!$A$1:{_last_cell(sheet, '$')}</definedName>"
        for i, sheet in enumerate(sheets)
        if sheet.filtered
    )
    defined = f"<definedNames>{filters}</definedNames>" if filters else ""
    return (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONSHIPS}"><bookViews><workbookView/>'
        f"</bookViews><sheets>{names}</sheets>{defined}</workbook>"
    )


def _styles() -> str:
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    fills = ['<patternFill patternType="none"/>', '<patternFill patternType="gray125"/>']
    fills += [
        f'<patternFill patternType="solid"><fgColor rgb="00{rgb}"/></patternFill>'
        for rgb in FILLS.values()
    ]
    # The first two fills are Excel's own; a colour's is the second after its place in FILLS.
    numbers = {PLAIN: 0, **{colour: i for i, colour in enumerate(FILLS, start=2)}}
    formats = [_format(numbers[colour], wrapped=wrapped) for colour, wrapped in STYLES]
    formats.append(_format(0, font=1))
    return (
        f'<styleSheet xmlns="{_MAIN}">'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        f'<fills count="{len(fills)}">{"".join(f"<fill>{fill}</fill>" for fill in fills)}</fills>'
        f'<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        f'<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/>'
        f"</cellStyleXfs>"
        f'<cellXfs count="{len(formats)}">{"".join(formats)}</cellXfs>'
        f'<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
        f"</styleSheet>"
    )


def _format(fill: int, *, font: int = 0, wrapped: bool = False) -> str:
    """Return one style of cells; the attributes say which parts of it are to be shown."""
    shown = ' applyFill="1"' if fill else ""
    shown += ' applyFont="1"' if font else ""
    tag = f'<xf numFmtId="0" fontId="{font}" fillId="{fill}" borderId="0" xfId="0"{shown}'
    return f'{tag} applyAlignment="1">{_WRAPPED}</xf>' if wrapped else f"{tag}/>"
