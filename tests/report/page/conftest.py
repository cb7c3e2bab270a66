"""Pages of runs, each written once, and one Chromium for a module to open them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.browser import Browser, browser
from helpers.odd_runs import Make

from mindrlhf_msprobe.cli import main


class Page(NamedTuple):
    """A page, and the runs it shows."""

    file: Path
    runs: tuple[Path, ...]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Return a Chromium."""
    with browser() as started:
        yield started


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Make], Page]:
    """Return a function that makes runs and writes their page, once for each maker."""
    made: dict[Make, Page] = {}

    def write(make: Make) -> Page:
        if make not in made:
            root = tmp_path_factory.mktemp(make.__name__)
            runs, file = make(root / "runs"), root / "report.html"
            main(["report", *map(str, runs), "-o", str(file), "--lang", "en"])
            assert file.exists()
            made[make] = Page(file, runs)
        return made[make]

    return write
