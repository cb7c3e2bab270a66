"""A comparison of what was collected before training → preflight.xlsx and preflight.json."""

from __future__ import annotations

import json
from pathlib import Path

from mindrlhf_msprobe.common.text.language import language, speaking
from mindrlhf_msprobe.common.text.printable import printable_json
from mindrlhf_msprobe.findings import Preflight
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.staging import beside
from mindrlhf_msprobe.report.tables.language import in_language
from mindrlhf_msprobe.report.tables.summary import preflight_sheet

TABLE, RESULT = "preflight.xlsx", "preflight.json"


def write_preflight(
    found: Preflight, sides: tuple[str, str], output: str | Path, lang: str | None = None
) -> list[Path]:
    """Write the workbook and the JSON into a directory and return their paths.

    Args:
        sides: what A and B are called.
        lang: `en` or `zh`, of the workbook; None: the locale's.

    Raises:
        OutputError: they cannot be written.
    """
    lang, directory = lang or language(), Path(output)
    with speaking(lang):
        sheet = in_language(preflight_sheet(found), lang)
        text = json.dumps(found.as_result(*sides), ensure_ascii=False, indent=1)
    table, result = directory / TABLE, directory / RESULT
    with beside(table, result) as (table_part, result_part):
        write_xlsx(table_part, [sheet])
        result_part.write_text(printable_json(text), encoding="utf-8")
    return [table, result]
