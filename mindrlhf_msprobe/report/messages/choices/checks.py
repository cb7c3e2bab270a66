"""Which pieces checks say whatever the rule."""

from __future__ import annotations

from collections.abc import Mapping

from mindrlhf_msprobe.report.messages.chosen import Choice, when

CHOICES: Mapping[str, Choice] = {
    "notes": when("note", "n_notes"),
    "on_ranks": when("ranks", "on_these_ranks"),
    "of_line": when("line", "line_of_file"),
}
