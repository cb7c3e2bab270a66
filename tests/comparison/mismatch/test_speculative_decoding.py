"""A rollout that is given several tokens of a sequence a call: drafts, and chunks of a prompt."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

PROMPTS = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
RESPONSES = np.array([[13, 14, 15, 16, 17], [18, 19, 20, 21, 22]])
WHOLE = np.concatenate([PROMPTS, RESPONSES], 1)


class Network(nn.Cell):
    """Tokens and positions, without attention: a row is the same in any call."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 32, embedding_table="normal")
        self.places = nn.Embedding(40, 32, embedding_table="normal")
        self.head = nn.Dense(32, 40)

    def construct(self, input_ids, position_ids):
        return self.head(self.tokens(input_ids) + self.places(position_ids))


def recorded(path, calls):
    """Record calls (first position, tokens, what is added to their positions) and the training."""
    network = Network()
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}

    def run(ids, positions):
        network(*(Tensor(np.array(value, np.int32)) for value in (ids, positions)))

    section |= {"key_data_dump": True, "configurations_dump": True}
    with Probe.from_config(section) as probe:
        probe.watch(actor=network)
        probe.save_configs({"generate": {"pad_token_id": 0}})
        with probe.phase(PHASES[0], model=network):
            for at, tokens, wrong in calls:
                run(tokens, np.arange(at, at + tokens.shape[1])[None].repeat(2, 0) + wrong)
        with probe.phase(PHASES[1]):
            run(WHOLE, np.arange(WHOLE.shape[1])[None].repeat(2, 0))
        probe.save_data(prompts=[*PROMPTS], responses=[*RESPONSES])
        probe.step()
    return path


def drafted(wrong):
    """Return calls that have a token and two drafts, of which one is rejected in each."""
    rejected = np.full((2, 1), 39)
    given = [np.concatenate([WHOLE[:, at : at + 2], rejected], 1) for at in (6, 8)]
    return [(0, PROMPTS, 0), *((at, ids, wrong) for at, ids in zip((6, 8), given))]


def chunked(wrong):
    """Return calls that have the prompts in three chunks, and then a token each."""
    chunks = [(at, PROMPTS[:, at : at + 2], wrong if at else 0) for at in (0, 2, 4)]
    return [*chunks, *((at, WHOLE[:, at : at + 1], 0) for at in (6, 7, 8, 9))]


@pytest.mark.parametrize(("calls", "rows"), [(drafted, 20), (chunked, 20)])
def test_all_tokens_are_aligned(tmp_path, capsys, calls, rows):
    """Rows of rejected drafts are no tokens; how many there are is said."""
    run = recorded(tmp_path / "run", calls(0))
    assert main(["mismatch", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{rows} of {rows} rows of the rollout aligned" in out
    assert ("4 rows of rejected drafts" in out) == (calls is drafted)
    assert "continue differently" not in out


@pytest.mark.parametrize("calls", [drafted, chunked])
@pytest.mark.parametrize("wrong", [1, -1])
def test_positions_are_named_that_do_not_follow(tmp_path, calls, wrong):
    """As in ordinary decode: which was given, and which would follow."""
    one = find_mismatch(recorded(tmp_path / "run", calls(wrong))).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.INPUT)
    assert one.first.name == "places output.0"
    (said,) = one.said
    assert said.code == "mismatch.positions"
    assert said.params["given"] == said.params["right"] + wrong
    assert said.params["right"] == said.params["position"] == (6 if calls is drafted else 2)
