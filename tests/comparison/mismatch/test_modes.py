"""In which mode both networks ran is part of the answer, with the dropout that was active."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause


class Network(nn.Cell):
    """An embedding, a projection with dropout behind it, and a head."""

    def __init__(self, p):
        super().__init__()
        self.emb, self.up = nn.Embedding(40, 64), nn.Dense(64, 64)
        self.drop, self.head = nn.Dropout(p=p), nn.Dense(64, 40)

    def construct(self, ids):
        return self.head(self.drop(self.up(self.emb(ids))))


def recorded(path, p, modes, drop=None):
    """Record both phases of one network in the modes that are given.

    Args:
        drop: the mode of the dropout alone, in the training.
    """
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}
    ids = Tensor(np.random.default_rng(0).integers(1, 40, (2, 9)).astype(np.int32))
    network = Network(p)
    with Probe.from_config(section) as probe:
        probe.watch(actor=network)
        for phase, mode in zip(PHASES, modes):
            network.set_train(mode)
            if drop is not None and phase == PHASES[1]:
                network.drop.set_train(drop)
            with probe.phase(phase):
                network(ids)
        probe.step()
    return path


@pytest.mark.parametrize("modes", [(False, True), (True, False), (True, True)])
def test_active_dropout_is_said_where_both_part_by_it(tmp_path, capsys, modes):
    """The cell, and the mode of either network."""
    run = recorded(tmp_path / "run", 0.3, modes)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, "drop output.0")
    said = {said.code: said.params for said in one.said}["mismatch.modes"]
    words = ["training" if mode else "evaluation" for mode in modes]
    assert [said["rollout"], said["training"]] == words
    assert {*said["dropping"]} == {"drop"}
    assert "mismatch.modes" not in {note.code for note in one.notes}
    main(["mismatch", str(run)])
    assert "set_train(False)" in capsys.readouterr().out


def test_dropout_that_alone_is_in_training_is_said(tmp_path):
    """The network around it is in evaluation in both."""
    one = find_mismatch(recorded(tmp_path / "run", 0.3, (False, False), drop=True)).found[0]
    said = {said.code: said.params for said in one.said}["mismatch.modes"]
    assert (said["cells"], said["dropping"]) == (["drop"], ["drop"])


def test_modes_that_change_nothing_are_a_note(tmp_path):
    """Dropout of nothing: both agree, and that the modes differ is a note."""
    one = find_mismatch(recorded(tmp_path / "run", 0.0, (False, True))).found[0]
    assert one.status is Agreement.IDENTICAL
    (note,) = [note for note in one.notes if note.code == "mismatch.modes"]
    assert note.params["dropping"] == []


@pytest.mark.parametrize(("p", "mode"), [(0.3, False), (0.0, True)])
def test_one_mode_without_active_dropout_is_not_mentioned(tmp_path, p, mode):
    """Nothing to say."""
    one = find_mismatch(recorded(tmp_path / "run", p, (mode, mode))).found[0]
    assert one.status is Agreement.IDENTICAL
    assert "mismatch.modes" not in {note.code for note in one.notes}
