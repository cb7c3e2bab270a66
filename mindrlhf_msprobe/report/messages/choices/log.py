"""Which pieces the log says while a training is recorded."""

from __future__ import annotations

from collections.abc import Mapping

from mindrlhf_msprobe.report.messages.chosen import Choice, when

CHOICES: Mapping[str, Choice] = {
    "and_left": when("left", "n_left"),
    "and_texts_left": when("left", "n_texts_left"),
    "which_steps": when("first", "steps_after", "all_steps"),
    "where_noted": when("noted", "see_run_file"),
    "trainer_of": when("where", "trainer_there", "trainer_of_mindrlhf"),
}
