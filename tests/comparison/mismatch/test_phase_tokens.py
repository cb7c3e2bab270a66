"""`phase.tokens` names the rows of a network that is given no token ids."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe import Probe, UsageError
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement

CONFIG = {
    "msprobe": True,
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "token_range_end": 9,
    "task": "tensor",
}
IDS = np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.int32)


@pytest.fixture(scope="module")
def network():
    """Sums the embeddings that it is given over the sequence, and projects the sums."""
    from mindspore import nn, ops

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(4, 6)

        def construct(self, embeddings):
            return self.dense(ops.cumsum(embeddings, 1))

    return Network()


def embedded(ids):
    """Return embeddings of token ids; those of padding, 0, are zeros."""
    from mindspore import Tensor

    return Tensor(np.sin(ids[..., None] * np.arange(1, 5)).astype(np.float32))


def record(path, network, tokens):
    """Record a rollout of padded rows and a training of plain ones; return what is concluded."""
    padding = np.zeros((2, 2), np.int32)
    positions = np.concatenate([padding, np.tile(np.arange(4, dtype=np.int32), (2, 1))], 1)
    with Probe.from_config({**CONFIG, "dump_path": str(path)}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_generate_sequences") as phase:
            padded = np.concatenate([padding, IDS], 1)
            if tokens:
                phase.tokens(padded, lengths=np.array([4, 4], np.int32), positions=positions)
            network(embedded(padded))
        with probe.phase("actor_compute_log_prob") as phase:
            if tokens:
                phase.tokens(IDS)
            network(embedded(IDS))
        probe.step()
    (found,) = find_mismatch(path).found
    return found


def test_rows_are_named_by_the_tokens_that_the_trainer_gives(tmp_path, network):
    """All eight rows are aligned, though the network never saw an id."""
    found = record(tmp_path / "run", network, tokens=True)
    assert found.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert (found.rows, found.tokens) == (8, 8)
    assert {"dense", "root"} <= {stage.cell for stage in found.stages}


def test_without_them_it_is_said_that_nothing_names_the_rows(tmp_path, network):
    """Undecided, with what to do."""
    found = record(tmp_path / "run", network, tokens=False)
    assert found.status is Agreement.UNDECIDED
    assert "batch, sequence" in str(found.said[0])


def test_a_phase_that_is_not_recorded_takes_tokens_and_saves_none(tmp_path, network):
    """Off means off; and layers are recorded in chosen phases only."""
    for config in ({"msprobe": False}, {**CONFIG, "actor_infer_dump": False}):
        path = tmp_path / str(len(config))
        with Probe.from_config({**config, "dump_path": str(path)}) as probe:
            probe.watch(actor=network)
            with probe.phase("actor_generate_sequences") as phase:
                phase.tokens(IDS)
        assert not (path / "data").exists()


@pytest.mark.parametrize("ids", [np.zeros((2, 3, 4), np.int32), np.int32(1), None])
def test_shapes_that_are_no_tokens_are_refused_at_once(tmp_path, network, ids):
    """The message shows what was given and what is expected."""
    with Probe.from_config({**CONFIG, "dump_path": str(tmp_path / "run")}) as probe:
        probe.watch(actor=network)
        phase = probe.phase("actor_generate_sequences")
        with phase, pytest.raises(UsageError, match=r"expected ids \[batch, length\]"):
            phase.tokens(ids)
