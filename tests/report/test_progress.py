"""The progress bar: nice to have, never in the way."""

from __future__ import annotations

import re
import sys

import pytest

from mindrlhf_msprobe.report.terminal import progress_bar


def make_terminal(monkeypatch):
    """Make stderr, as it is captured now, a terminal to whoever looks."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def test_on_a_terminal_a_bar_is_shown(capsys, monkeypatch):
    """It says what is done, and of how much."""
    make_terminal(monkeypatch)
    with progress_bar("Comparing", "records") as advance:
        advance(7, 7)
    assert "7/7" in capsys.readouterr().err


def test_the_bar_is_drawn_ten_times_a_second_and_at_the_end(capsys, monkeypatch):
    """Whatever number of records goes by in between."""
    make_terminal(monkeypatch)
    now, drawn = [100.0], []
    with progress_bar("Comparing", clock=lambda: now[0]) as advance:
        capsys.readouterr()
        for done in range(1, 1001):
            now[0] += 0.001
            advance(done, 1000)
            shown = re.findall(r"(\d+)/1000", capsys.readouterr().err)
            drawn += [int(shown[-1])] if shown else []
    assert drawn == [*range(1, 1000, 100), 1000]


@pytest.mark.parametrize("missing", ["rich.console", "rich.progress"])
def test_without_rich_there_is_no_bar(capsys, monkeypatch, missing):
    """rich that is missing or damaged costs the bar, not the answer."""
    make_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)
    with progress_bar("Comparing", "records") as advance:
        advance(1, 2)
    assert capsys.readouterr().err == ""
