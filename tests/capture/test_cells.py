"""Cells have the same names wherever their network runs."""

import pytest
from helpers.small_networks import MODES, Assembled, Scale, tensor
from mindspore import nn, ops

from mindrlhf_msprobe.capture.cells import name_as_seen_from, named_cells
from mindrlhf_msprobe.capture.settings.environment import initial_weights


class Policy(Assembled, first=lambda: Scale(2.0), outer=lambda: Scale(3.0)):
    def construct(self, x):
        return self.outer(self.first(x))


class Loss(nn.Cell):
    """Holds a cell of the policy before the policy itself, and one of its own."""

    def __init__(self, policy):
        super().__init__(auto_prefix=False)
        self.shortcut = policy.first
        self.policy = policy
        self.weigh = Scale(0.5)

    def construct(self, x):
        return ops.sum(self.weigh(self.policy(x)))


def test_a_policy_keeps_its_names_inside_the_cells_that_train_it():
    policy = Policy()
    alone = dict(named_cells(policy))
    loss = Loss(policy)
    assert "shortcut" in named_cells(loss)
    name_as_seen_from(policy, loss)
    names = named_cells(loss)
    assert {name: names[name] for name in alone} == alone
    assert set(names) - set(alone) == {"outer~", "outer.weigh"}
    assert names["outer~"] is loss
    assert named_cells(policy) == alone
    assert set(initial_weights(loss, pytest.fail)) == {
        "first.factor",
        "outer.factor",
        "outer.weigh.factor",
    }


def test_an_inner_cell_lies_inside():
    with pytest.raises(ValueError, match="Scale is not a cell of Policy"):
        name_as_seen_from(Scale(), Policy())
    policy = Policy()
    name_as_seen_from(policy, policy)
    assert set(named_cells(policy)) == {"root", "first", "outer"}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_entries_have_these_names(run_phase, mode):
    policy = Policy()
    loss = Loss(policy)
    name_as_seen_from(policy, loss)
    run = run_phase(loss, lambda: loss(tensor(2, 3)), mode=mode)
    assert {entry.name for entry in run.entries()} == {
        "Cell.outer~.Loss.forward.0",
        "Cell.root.Policy.forward.0",
        "Cell.first.Scale.forward.0",
        "Cell.outer.Scale.forward.0",
        "Cell.outer.weigh.Scale.forward.0",
    }
