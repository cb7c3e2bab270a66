"""What a run holds, as text for the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindrlhf_msprobe.report.listing import render_left_out


@pytest.mark.parametrize("count", [0, 1, 20, 21, 1234])
def test_how_many_directories_are_left_out_is_always_known(count):
    lines = render_left_out([Path(f"run/actor_update/step{i}/rank0") for i in range(count)])
    shown = [line for line in lines if "step" in line]
    assert len(shown) == min(count, 20)
    rest = ["Left out: and " + str(count - 20) + " more that stood there before this run"]
    assert lines[len(shown) :] == (rest if count > 20 else [])
