"""Pages of runs, each written once, and one Chromium for a module to open them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.browser import Browser, Opened, browser
from helpers.odd_runs import Make
from helpers.real_pairs import record_pair

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.findings import Comparison


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


def real(root: Path) -> tuple[Path, Path]:
    """A tiny decoder, with full tensors."""
    return record_pair(root, "tensor")


@pytest.fixture(scope="session")
def decoder(page_of: Callable[[Make], Page]) -> tuple[Page, Comparison]:
    """Return the page of a real network, its runs, and what comparing them says."""
    pytest.importorskip("mindspore")
    page = page_of(real)
    return page, compare_runs(*page.runs)


@pytest.fixture(scope="module")
def window(chromium: Browser, decoder: tuple[Page, Comparison]) -> Iterator[Opened]:
    """Return a window that stays open: opening one takes longer than most tests."""
    with chromium.open(decoder[0].file) as page:
        yield page


@pytest.fixture
def opened(window: Opened) -> Iterator[Opened]:
    """Return the page of a real network, open as a double click opens it."""
    yield window.go("")
    window.nothing_forbidden()
