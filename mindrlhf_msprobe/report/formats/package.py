"""What a workbook holds around its rows: styles, names, frozen panes, widths, filters.

As ECMA-376 (Office Open XML, part 1: SpreadsheetML; part 2: packages) describes the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mindrlhf_msprobe.report.formats.colours import FILLS
from mindrlhf_msprobe.report.formats.rows import (
    AS_IT_IS,
    LINK,
    PERCENT,
    SHOWN,
    WRAPPED,
    escaped,
    letters,
)
from mindrlhf_msprobe.report.formats.sheets import Sheet

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'

#: Number format and font of a style, and what is inside its element.
_LOOKS = {
    AS_IT_IS: (0, 0, ""),
    WRAPPED: (0, 0, '<alignment vertical="top" wrapText="1"/>'),
    PERCENT: (164, 0, ""),
    LINK: (0, 1, ""),
}
_FONT = '<sz val="11"/><color rgb="FF{}"/><name val="Calibri"/><family val="2"/>'


def sheet_file(number: int) -> str:
    """Return what the file of a sheet is called; the first is number 1."""
    return f"xl/worksheets/sheet{number}.xml"


def files_around(sheets: Sequence[Sheet]) -> dict[str, str]:
    """Return the files of a workbook, by name, but for those of its sheets."""
    numbers = range(1, len(sheets) + 1)
    types = {"xl/workbook.xml": "sheet.main", "xl/styles.xml": "styles"}
    types |= {sheet_file(number): "worksheet" for number in numbers}
    related = [("worksheet", f"/{sheet_file(number)}") for number in numbers]
    names = [
        f'<sheet name="{_attribute(sheet.name)}" sheetId="{number}" r:id="rId{number}"/>'
        for number, sheet in zip(numbers, sheets)
    ]
    filters = [
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{index}" hidden="1">'
        f"{_filtered_cells(sheet)}</definedName>"
        for index, sheet in enumerate(sheets)
        if sheet.filtered
    ]
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
        + (f"<definedNames>{''.join(filters)}</definedNames>" if filters else "")
        + '<calcPr calcId="124519" fullCalcOnLoad="1"/></workbook>',
        "xl/_rels/workbook.xml.rels": _relationships([*related, ("styles", "/xl/styles.xml")]),
        "xl/styles.xml": _styles(),
    }
    return {name: _DECLARATION + content for name, content in files.items()}


def around_rows(sheet: Sheet) -> tuple[str, str]:
    """Return what stands in a sheet's file before and after its rows."""
    column = letters(sheet.frozen + 1)
    across = f'xSplit="{sheet.frozen}" ' if sheet.frozen else ""
    pane = "bottomRight" if sheet.frozen else "bottomLeft"
    columns = [
        f'<col min="{number}" max="{number}" width="{width}" customWidth="1"/>'
        for number, width in enumerate(sheet.widths, start=1)
    ]
    last = f"{letters(len(sheet.header))}{sheet.count + 1}"
    filtered = f'<autoFilter ref="A1:{last}"/>' if sheet.filtered else ""
    return (
        f'{_DECLARATION}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        f'<pane {across}ySplit="1" topLeftCell="{column}2" activePane="{pane}" state="frozen"/>'
        f'<selection pane="{pane}" activeCell="{column}2" sqref="{column}2"/></sheetView>'
        f'</sheetViews><sheetFormatPr defaultRowHeight="15"/><cols>{"".join(columns)}</cols>'
        "<sheetData>",
        f"</sheetData>{filtered}</worksheet>",
    )


def _attribute(text: str) -> str:
    return escaped(text).replace('"', "&quot;")


def _filtered_cells(sheet: Sheet) -> str:
    """Return all cells of a sheet as the name of its filter says it."""
    name = sheet.name.replace("'", "''")
    return escaped(f"'{name}'!$A$1:${letters(len(sheet.header))}${sheet.count + 1}")


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
        + _list("numFmts", ['<numFmt numFmtId="164" formatCode="0.0###%"/>'])
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
