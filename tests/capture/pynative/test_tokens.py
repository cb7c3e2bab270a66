"""Counting tokens in the generate phase."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Policy, Raises, Scale, tensor
from mindspore import nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.framework.callstack import CallStacks
from mindrlhf_msprobe.capture.opening.opening import HostEntries

GENERATE = "actor_generate_sequences"


def tokens_of(run: Any, cell: str) -> list[tuple[int, int, int | None]]:
    """Return (opening, call, token) of each entry of one cell."""
    return [(e.opening, e.call, e.token) for e in run.entries() if e.cell == cell]


def test_a_token_range_records_only_those_tokens(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """token_range 1..2 records the second and third pass, under their true call numbers."""
    probe = layer_probe(token_range_start=1, token_range_end=2)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(5):
            network(tensor(2))
    run = recorded(probe)
    assert tokens_of(run, "root") == [(0, 1, 1), (0, 2, 2)]
    assert tokens_of(run, "backbone.first") == [(0, 2, 1), (0, 3, 1), (0, 4, 2), (0, 5, 2)]
    assert len(run.entries()) == 12


def test_the_default_range_is_the_prompt_pass(
    make_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """By default token 0, the prompt pass, is recorded and nothing else."""
    probe = make_probe(actor_infer_dump=True)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(3):
            network(tensor(2))
    assert tokens_of(recorded(probe), "root") == [(0, 0, 0)]


def test_a_backbone_and_a_head_make_one_token(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Outermost cells that run in turn share a token; the first one's next call begins another."""
    probe = layer_probe(token_range_start=1, token_range_end=2)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(4):
            network.head(network.backbone(tensor(2)))
    run = recorded(probe)
    assert tokens_of(run, "backbone") == [(0, 1, 1), (0, 2, 2)]
    assert tokens_of(run, "head") == [(0, 1, 1), (0, 2, 2)]


def test_a_second_opening_counts_tokens_anew(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """A second generation in the same step starts at token 0 while its calls go on."""
    probe = layer_probe(token_range_start=1, token_range_end=1)
    network = Policy()
    probe.watch(actor=network)
    for passes in (3, 2):
        with probe.phase(GENERATE):
            for _ in range(passes):
                network(tensor(2))
    assert tokens_of(recorded(probe), "root") == [(0, 1, 1), (1, 4, 1)]


def test_a_new_step_counts_tokens_anew(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Tokens and calls start at 0 in every step."""
    probe = layer_probe(token_range_start=1, token_range_end=1)
    network = Policy()
    probe.watch(actor=network)
    for _ in range(2):
        with probe.phase(GENERATE):
            for _ in range(2):
                network(tensor(2))
        probe.step()
    assert tokens_of(recorded(probe), "root") == [(0, 1, 1), (0, 1, 1)]


def test_token_ranges_leave_other_phases_alone(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Outside the generate phase no token is counted and no pass left out."""
    probe = layer_probe(token_range_start=5, token_range_end=5)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase("actor_compute_log_prob"):
        for _ in range(3):
            network(tensor(2))
    run = recorded(probe)
    assert tokens_of(run, "root") == [(0, 0, None), (0, 1, None), (0, 2, None)]


def test_cells_that_are_not_recorded_still_count_tokens(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """With include on an inner cell, tokens are still counted by the outermost one."""
    probe = layer_probe(include=["first"], token_range_start=1, token_range_end=1)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(3):
            network(tensor(2))
    run = recorded(probe)
    assert tokens_of(run, "backbone.first") == [(0, 2, 1), (0, 3, 1)]
    assert len(run.entries()) == 2


def test_a_pass_that_raised_is_a_token(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """A pass that raised and was caught counts, and the tokens after it are counted on."""
    probe = layer_probe()
    network = nn.SequentialCell(Scale(), Raises())
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for armed in (True, False, False):
            network[1].armed = armed
            try:
                network(tensor(2))
            except ArithmeticError:
                assert armed
    assert tokens_of(recorded(probe), "root") == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]


def test_which_cell_begins_tokens_is_known_outside_the_range_too(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """A backbone that runs inside another outermost cell begins no token, recorded or not."""
    probe = layer_probe(token_range_start=2, token_range_end=2)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(4):
            network.backbone(tensor(2))  # begins a token
            network(tensor(2))  # runs the backbone, and belongs to the same token
    run = recorded(probe)
    assert tokens_of(run, "root") == [(0, 2, 2)]
    assert tokens_of(run, "backbone") == [(0, 4, 2), (0, 5, 2)]


def test_a_pass_outside_the_range_that_raised_is_a_token(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """What raised and was caught outside the range leaves the later numbers true."""
    probe = layer_probe(token_range_start=2, token_range_end=2)
    network = nn.SequentialCell(Scale(), Raises(), Scale())
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for armed in (True, False, False):
            network[1].armed = armed
            try:
                network(tensor(2))
            except ArithmeticError:
                assert armed
    run = recorded(probe)
    assert tokens_of(run, "root") == [(0, 2, 2)]
    assert tokens_of(run, "0") == [(0, 2, 2)]
    assert tokens_of(run, "2") == [(0, 1, 2)]


def test_tokens_outside_the_range_are_only_counted(
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside a token that is not recorded no call stack is read and no frame is kept."""
    looked = []
    here = CallStacks.here
    monkeypatch.setattr(CallStacks, "here", lambda self: looked.append(1) or here(self))
    probe = layer_probe(token_range_start=1, token_range_end=2)
    network = Policy()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(40):
            network(tensor(2))
    inside = len(recorded(probe).entries())
    outermost = 40  # the cell that may begin a token is looked at whenever it runs
    first = inside // 2  # token 0: it is not known yet which cell begins tokens
    assert len(looked) <= inside + outermost + first


class Wide(nn.Cell):
    """Holds a parameter that is too large to be looked at as a whole at every token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(np.arange(10_000, dtype=np.float32), name="weight")

    def construct(self, x: Any) -> Any:
        return x * self.weight[:2]


def weights_of(run: Any) -> list[int]:
    """Return the calls at which the parameter was recorded."""
    return [e.call for e in run.entries() if any(r.io == "parameters" for r in e.records)]


def test_a_weight_is_read_as_a_whole_once_an_opening_not_once_a_token(
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fingerprint of a large weight is computed when a phase opens and when it closes."""
    whole = []
    state_of = HostEntries.state_of
    monkeypatch.setattr(
        HostEntries, "state_of", lambda self, p: whole.append(1) or state_of(self, p)
    )
    probe = layer_probe(token_range_end=100)
    network = Wide()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for _ in range(20):
            network(tensor(2))
    assert len(whole) == 2
    assert weights_of(recorded(probe)) == [0]


def test_a_weight_that_changes_between_tokens_is_recorded_again(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any]
) -> None:
    """Where another policy is loaded in the middle of a generation, the next call shows it."""
    probe = layer_probe(token_range_end=100)
    network = Wide()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for token in range(6):
            if token == 3:
                network.weight.set_data(network.weight + 1)
            network(tensor(2))
        network.weight.set_data(network.weight + 1)  # nothing runs with this one
    run = recorded(probe)
    assert weights_of(run) == [0, 3]
    assert not run.lost


@pytest.mark.parametrize("element", [1, 5_001, 9_998])
def test_a_single_element_that_changes_between_tokens_is_recorded_or_counted(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Any], element: int
) -> None:
    """What a glance at a large weight does not show is never passed over in silence."""
    probe = layer_probe(token_range_end=100)
    network = Wide()
    probe.watch(actor=network)
    with probe.phase(GENERATE):
        for token in range(4):
            if token == 2:
                values = network.weight.asnumpy().copy()
                values[element] = -7
                network.weight.set_data(ms.Tensor(values))
            network(tensor(2))
    run = recorded(probe)
    assert weights_of(run) == [0, 2] or "a parameter that changed" in str(run.lost)
