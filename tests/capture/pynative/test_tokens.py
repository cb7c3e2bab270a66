"""Counting tokens in the generate phase."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Policy, Raises, Scale, tensor
from mindspore import nn

from mindrlhf_msprobe.capture.framework.hooks import CallStacks
from mindrlhf_msprobe.capture.opening.opening import HostEntries
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.reading.reader import Run

GENERATE = "actor_generate_sequences"


def tokens_of(run: Any, cell: str) -> list[tuple[int, int, int | None]]:
    """Return (opening, call, token) of each entry of one cell."""
    return [(e.opening, e.call, e.token) for e in run.entries() if e.cell == cell]


def passes(count: int) -> Callable[[nn.Cell], None]:
    """Return what runs a network so often."""
    return lambda network: [network(tensor(2)) for _ in range(count)] and None


def in_parts(network: nn.Cell) -> None:
    for _ in range(4):
        network.head(network.backbone(tensor(2)))


def backbone_alone_too(network: nn.Cell) -> None:
    for _ in range(4):
        network.backbone(tensor(2))  # begins a token
        network(tensor(2))  # runs the backbone, and belongs to the same token


#: What is run and with which settings, and of cells: (opening, call, token) of each entry.
CASES: dict[str, tuple[Callable[[nn.Cell], None], dict[str, Any], dict[str, Any]]] = {
    "a range records only those tokens, under their true call numbers": (
        passes(5),
        {"token_range_start": 1, "token_range_end": 2},
        {
            "root": [(0, 1, 1), (0, 2, 2)],
            "backbone.first": [(0, 2, 1), (0, 3, 1), (0, 4, 2), (0, 5, 2)],
        },
    ),
    "by default token 0, the prompt pass": (
        passes(3),
        {"token_range_start": 0, "token_range_end": 0},
        {"root": [(0, 0, 0)]},
    ),
    "outermost cells that run in turn share a token": (
        in_parts,
        {"token_range_start": 1, "token_range_end": 2},
        {"backbone": [(0, 1, 1), (0, 2, 2)], "head": [(0, 1, 1), (0, 2, 2)], "root": []},
    ),
    "a second opening counts tokens anew, while its calls go on": (
        passes(3),
        {"token_range_start": 1, "token_range_end": 1, "openings": 2},
        {"root": [(0, 1, 1), (1, 4, 1)]},
    ),
    "a new step counts tokens and calls anew": (
        passes(2),
        {"token_range_start": 1, "token_range_end": 1, "steps": 2},
        {"root": [(0, 1, 1), (0, 1, 1)]},
    ),
    "other phases are left alone": (
        passes(3),
        {"token_range_start": 5, "token_range_end": 5, "phase": "actor_compute_log_prob"},
        {"root": [(0, 0, None), (0, 1, None), (0, 2, None)]},
    ),
    "cells that are not recorded still count tokens": (
        passes(3),
        {"token_range_start": 1, "token_range_end": 1, "include": ["first"]},
        {"root": [], "backbone.first": [(0, 2, 1), (0, 3, 1)], "backbone": [], "head": []},
    ),
    "a backbone inside another outermost cell begins no token, recorded or not": (
        backbone_alone_too,
        {"token_range_start": 2, "token_range_end": 2},
        {"root": [(0, 2, 2)], "backbone": [(0, 4, 2), (0, 5, 2)]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_counted_by_the_outermost_cells(run_phase, case):
    """Each pass that the first of them begins is one; a range chooses among them."""
    body, settings, expected = CASES[case]
    network = Policy()
    run = run_phase(network, lambda: body(network), **{"phase": GENERATE, **settings})
    assert {cell: tokens_of(run, cell) for cell in expected} == expected


def test_the_default_range_is_that_of_the_prompt() -> None:
    assert (ProbeConfig().token_range_start, ProbeConfig().token_range_end) == (0, 0)


@pytest.mark.parametrize("first", [0, 2])
def test_a_pass_that_raised_is_a_token(run_phase, first):
    """Raised and caught, inside the range or outside, it leaves the later numbers true."""
    network = nn.SequentialCell(Scale(), Raises(), Scale())

    def body() -> None:
        with pytest.raises(ArithmeticError):
            network(tensor(2))
        network[1].armed = False
        passes(2)(network)

    run = run_phase(network, body, phase=GENERATE, token_range_start=first, token_range_end=2)
    numbers = [(0, n, n) for n in range(first, 3)]
    assert tokens_of(run, "root") == tokens_of(run, "0") == numbers
    assert tokens_of(run, "2") == [(0, n - 1, n) for n in range(max(first, 1), 3)]


def test_tokens_outside_the_range_are_only_counted(run_phase, monkeypatch):
    """Inside a token that is not recorded no call stack is read and no frame is kept."""
    looked = []
    here = CallStacks.here
    monkeypatch.setattr(CallStacks, "here", lambda self: looked.append(1) or here(self))
    window = {"token_range_start": 1, "token_range_end": 2}
    network = Policy()
    run = run_phase(network, lambda: passes(40)(network), phase=GENERATE, **window)
    inside = len(run.entries())
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


def with_changes(run_phase: Callable[..., Run], tokens: int, changes: dict[int, Any]) -> Run:
    """Generate tokens with a network whose weight is given other values before some of them."""
    network = Wide()

    def body() -> None:
        for token in range(tokens + 1):
            if token in changes:
                values = network.weight.asnumpy().copy()
                values[changes[token]] += 1
                network.weight.set_data(ms.Tensor(values))
            if token < tokens:
                network(tensor(2))

    return run_phase(network, body, phase=GENERATE, token_range_end=100)


def test_a_weight_is_read_as_a_whole_once_an_opening_not_once_a_token(run_phase, monkeypatch):
    """The fingerprint of a large weight is computed when a phase opens and when it closes."""
    whole = []
    state_of = HostEntries.state_of
    monkeypatch.setattr(
        HostEntries, "state_of", lambda self, p: whole.append(1) or state_of(self, p)
    )
    run = with_changes(run_phase, 20, {})
    assert len(whole) == 2
    assert weights_of(run) == [0]


def test_a_weight_that_changes_between_tokens_is_recorded_again(run_phase):
    """Where another policy is loaded in the middle of a generation, the next call shows it."""
    everything = slice(None)
    run = with_changes(run_phase, 6, {3: everything, 6: everything})  # nothing runs with the last
    assert weights_of(run) == [0, 3]
    assert not run.lost


@pytest.mark.parametrize("element", [1, 5_001, 9_998])
def test_a_single_element_that_changes_between_tokens_is_recorded_or_counted(run_phase, element):
    """What a glance at a large weight does not show is never passed over in silence."""
    run = with_changes(run_phase, 4, {2: element})
    assert weights_of(run) == [0, 2] or "a parameter that changed" in str(run.lost)
