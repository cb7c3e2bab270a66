"""msprobe's dumps of MSAdapter are read as those of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.msadapter import DUMPS, of_msadapter

from mindrlhf_msprobe import check_run, compare_runs, open_run

CHANGED = "Module.model.layers.1.mlp.LlamaMLP.forward.0"


@pytest.mark.parametrize("framework", ["mindtorch", "msadapter", "MSAdapter"])
@pytest.mark.parametrize("dump", ["mix_8x", "L1", "perceptron"])
def test_it_has_the_entries_of_the_same_dump_of_pytorch(tmp_path, framework, dump) -> None:
    run, pytorch = open_run(of_msadapter(dump, tmp_path, framework)), open_run(DUMPS / dump)
    names = [[e.name for phase in r.phases for e in r.entries(phase, 0, 0)] for r in (run, pytorch)]
    assert names[0] == names[1] != []
    assert not run.problems
    assert check_run(tmp_path).findings == check_run(DUMPS / dump).findings


def test_it_is_compared_with_pytorch_and_with_its_like(tmp_path: Path) -> None:
    mine = of_msadapter("mix_8x", tmp_path / "a", "mindtorch")
    other = of_msadapter("mix_8x", tmp_path / "b", "mindtorch", CHANGED)
    assert compare_runs(mine, DUMPS / "mix_8x", workers=1)
    for first in (mine, DUMPS / "mix_8x"):
        found = compare_runs(first, other, workers=1).verdict.first_divergence
        assert found is not None
        assert found.entry == CHANGED
