"""The layout of a run, as far as it recorded it."""

from __future__ import annotations

from mindrlhf_msprobe.comparison.layouts.layout import Layout
from mindrlhf_msprobe.storage.reading.reader import Run


def layout_of(run: Run) -> Layout | None:
    """Return the layout that a run recorded; None where it did not, or has one rank."""
    del run
    return None
