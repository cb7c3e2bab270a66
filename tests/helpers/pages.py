"""What a report page holds, read back."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.report.page.page import Shown, write_page


class Page:
    """The blocks of a page."""

    def __init__(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        self._blocks = dict(re.findall(r'id="data-([^"]+)">([^<]*)<', text))
        self.head = self.json("head")

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def bytes(self, name: str) -> bytes:
        return zlib.decompress(base64.b64decode(self._blocks[name]))

    def json(self, name: str) -> Any:
        return json.loads(self.bytes(name))

    def heat(self, measure: str) -> dict[tuple[str, str, int, int], int]:
        """Return the codes of a measure by (phase, entry, step, rank)."""
        places, cells, found = self.head["places"], self.json("cells"), {}
        columns = [(places["steps"][s], places["ranks"][r]) for s, r, *_ in places["cells"]]
        for one in self.head["heat"]:
            name = f"{one['phase']}-{one['direction']}"
            codes = np.frombuffer(self.bytes(f"heat-{name}-{measure}"), "<i2")
            for entry, row in zip(cells[name]["entries"], codes.reshape(one["rows"], -1)):
                for (step, rank), code in zip(columns, row.tolist()):
                    found[self.head["phases"][one["phase"]], entry, step, rank] = code
        return found

    def records(self, step: int, rank: int) -> dict[tuple[str, str], dict]:
        """Return the records of a place by (phase, name)."""
        place = self.json(f"place-{step}-{rank}")
        return {
            (phase["phase"], record["n"]): record
            for phase in place["phases"]
            for entry in phase["entries"]
            for record in entry["r"]
        }


def page_of(directory: Path, *runs: Path, comparison: Any = None, checks: Any = ()) -> Page:
    """Write the page of runs into a directory, and read it back."""
    shown = Shown(tuple(map(open_run, runs)), comparison, tuple(checks))
    write_page(shown, directory / "page.html")
    return Page(directory / "page.html")
