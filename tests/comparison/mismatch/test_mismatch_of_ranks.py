"""Each rank gets an answer of its own; ranks that have one phase only are said."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.rollouts import recorded

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return a run of two ranks with batches of their own; that of rank 1 has a fault."""
    path = tmp_path_factory.mktemp("ranks") / "run"
    kept = {"response_length": 2, "batch_size": 4}
    with pytest.MonkeyPatch.context() as patch:
        for rank, plant in enumerate((None, wrong_rollouts.norm_epsilon(0))):
            patch.setenv("RANK_SIZE", "2")
            patch.setenv("RANK_ID", str(rank))
            recorded(path, 3 + rank, plant, **kept)
    return path


def test_every_rank_has_its_own_answer(ranks, capsys):
    """The first that parts is shown whole, and all others in one line each."""
    found = {one.rank: one for one in find_mismatch(ranks).found}
    assert found[0].status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert found[1].first.name == "model.layers.0.ffn_norm output.0"
    assert found[0].rows == found[0].tokens > 0
    assert main(["mismatch", str(ranks), "--lang", "en"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PARTED at step 0, rank 1")
    lines = [line.strip() for line in out.splitlines()]
    assert {"rank 0 agrees within rounding", "rank 0 agrees bit for bit"} & {*lines}
    assert "rank 1 parted: model.layers.0.ffn_norm output.0, computation" in lines
    assert "1 agree, 1 parted" in lines
    main(["mismatch", str(ranks), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert [step["rank"] for step in content["steps"]] == [0, 1]


def test_phases_of_unlike_ranks_cannot_be_held_against_each_other(ranks, tmp_path, capsys):
    """Engines on ranks of their own: which ranks have what is said, and not that steps differ."""
    run = tmp_path / "run"
    shutil.copytree(ranks, run)
    for rank, phase in ((0, "actor_compute_log_prob"), (1, "actor_generate_sequences")):
        for directory in run.glob(f"{phase}/**/rank{rank}"):
            shutil.rmtree(directory)
    assert main(["mismatch", str(run), "--lang", "en"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "actor_generate_sequences was recorded on ranks 0" in said
    assert "actor_compute_log_prob on ranks 1" in said
