"""The plot: plain ASCII, within the width, whatever the numbers are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.report.trends import HEIGHT, MARKS, SEVERAL, plot

#: Without subnormal numbers: MindSpore may have switched them off in the process.
NUMBERS = st.floats(width=64, allow_subnormal=False)
LINES = st.lists(st.lists(NUMBERS, min_size=1, max_size=12), min_size=1, max_size=9)


def line(values):
    return np.arange(len(values), dtype=float), np.array(values, float)


@given(values=LINES, width=st.integers(20, 120))
def test_any_numbers_fit(values, width):
    """Huge, tiny, equal, NaN, infinite: lines of ASCII no longer than the width."""
    rows = plot([line(of) for of in values], width)
    assert all(row.isascii() and len(row) <= max(width, 60) for row in rows)
    finite = {v for of in values for v in of if np.isfinite(v)}
    assert any(mark in "".join(rows[:HEIGHT]) for mark in MARKS + SEVERAL) == bool(finite)


def test_extremes_stand_at_the_edges():
    """The largest in the first row, the smallest in the last, the first step at the left."""
    rows = plot([line([1, 3, 2])], 60)
    assert rows[0].startswith("3 |") and "*" in rows[0]  # noqa: PT018
    assert rows[HEIGHT - 1] == "1 |*" + rows[HEIGHT - 1][4:]
    assert rows[-1].split() == ["0", "2"]


def test_labels_tell_the_ends_apart():
    """However close they are; equal values have one label."""
    rows = plot([line([1 - 2**-30, 1])], 60)
    high, low = (float(rows[n].partition("|")[0]) for n in (0, HEIGHT - 1))
    assert high > low
    assert sum(not row.lstrip().startswith("|") for row in plot([line([7, 7])], 60)[:HEIGHT]) == 1


def test_two_lines_and_what_is_not_finite():
    """Where both are the same stands @; NaN and infinities are marked below, and not joined."""
    rows = plot([line([0, 1, np.nan, 1]), line([0, 0, np.inf, 1])], 60)
    text = "\n".join(rows)
    assert text.count("@") == 2
    assert (text.count("*"), text.count("o")) == (1, 1)
    assert rows[-2].strip() == "!"


def test_each_of_many_lines_has_a_mark_of_its_own():
    """As many as there are names of runs; none is what joins points or marks what is not finite."""
    assert len({*MARKS}) == len(MARKS)
    assert not {*MARKS} & {*f"{SEVERAL}.!|- "}
    rows = plot([line([n]) for n in range(HEIGHT)], 60)
    assert [row.partition("|")[2].strip() for row in rows[:HEIGHT]] == [*MARKS[:HEIGHT]][::-1]
