"""Networks of which all cells take too much room: a few layers first, then those between."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.verdict import next_step
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.manifest.notes import Networks
from mindrlhf_msprobe.storage.manifest.run_file import Settings

PHASE = "actor_compute_log_prob"
ONLY_KEYS = {
    **dict.fromkeys(("actor_infer_dump", "actor_train_dump", "reference_dump"), False),
    "critic_train_dump": False,
}


def record(path, layers, fault=None, *, networks=True, calls=1, **settings):
    """Record a step of a network with many layers; the output of `fault` is a little more."""
    recording = Recording(path, **settings)

    def touch(name, x):
        return x + 0.25 if name == fault else x

    def block(name, x):
        x = recording.call(
            f"{name}.attention", "Attention", lambda x: touch(f"{name}.attention", x * 2), x
        )
        return recording.call(f"{name}.mlp", "Mlp", lambda x: touch(f"{name}.mlp", x / 2), x)

    def root(x):
        x = recording.call("embed", "Embed", lambda x: touch("embed", x + 1), x)
        for n in range(layers):
            name = f"model.layers.{n}"
            x = recording.call(name, "Block", lambda x, name=name: block(name, x), x)
        return recording.call("head", "Dense", lambda x: touch("head", x * 3), x)

    x = np.arange(4.0)
    recording.data("prompts", x)
    for _ in range(calls):
        with recording.phase(PHASE):
            y = recording.call("root", "Net", root, x)
        recording.data("old_log_prob", y)
    if networks:
        inner = [f"model.layers.{n}{i}" for n in range(layers) for i in ("", ".attention", ".mlp")]
        groups = [{"class": "Any", "attributes": {}, "cells": ["root", "embed", *inner, "head"]}]
        network = {"role": "actor", "class": "Net", "phases": [PHASE], "cells": groups}
        recording.writer.note(
            Networks(Settings({"networks": [network], "modes": {}, "optimizers": {}}))
        )
    recording.end_step()
    return recording.close()


def search(root, layers, fault, **options):
    """Follow the answers from key data on; return the comparisons."""
    settings = {**ONLY_KEYS, "key_data_dump": True, "step_end": 0}
    rounds = []
    while len(rounds) < 9:
        place = root / str(len(rounds))
        a = record(place / "a", layers, **options, **settings)
        b = record(place / "b", layers, fault, **options, **settings)
        rounds.append(compare_runs(a, b))
        proposed = rounds[-1].verdict.first_divergence.next_step
        if proposed is None or proposed.get("task") == "tensor":
            return rounds
        wanted = ProbeConfig(**proposed).to_json()
        settings = {k: v for k, v in wanted.items() if k not in ("msprobe", "dump_path")}
        settings["key_data_dump"] = True
    raise AssertionError("no end")


@pytest.mark.parametrize("calls", [1, 2])
def test_a_search_over_layers_finds_the_cell_within_its_budget(tmp_path, monkeypatch, calls):
    """Whatever cell is at fault, every round keeps to the budget, and the last one names it."""
    draw = random.Random(15)
    for number in range(8):
        layers = draw.choice([9, 16, 24])
        monkeypatch.setattr(next_step, "BUDGET", draw.choice([40_000, 70_000]) * calls)
        inner = f"model.layers.{draw.randrange(layers)}.{draw.choice(['attention', 'mlp'])}"
        fault = draw.choice([inner, inner, inner, "embed", "head"])
        rounds = search(tmp_path / str(number), layers, fault, calls=calls)
        case = f"{fault} of {layers} layers"
        last = rounds[-1].verdict.first_divergence
        assert last.entry.startswith(f"Cell.{fault}."), case
        assert len(rounds) > 2, case
        for one in rounds[:-1]:
            found = one.verdict.first_divergence
            assert found.next_step_bytes <= next_step.BUDGET, case
            assert found.next_step_estimated, case
        first = rounds[0].verdict.first_divergence
        assert first.next_step["parts"] == ["output"]
        assert first.next_step_whole > next_step.BUDGET
        text = render(rounds[0])
        assert "this is one round of a bisection over the layers" in text
        assert "estimated from its cells" in text


def test_within_the_budget_all_cells_are_proposed(tmp_path):
    rounds = search(tmp_path, 12, "model.layers.7.mlp")
    first = rounds[0].verdict.first_divergence
    assert "include" not in first.next_step
    assert first.next_step_whole is None
    assert first.next_step_estimated
    recorded = sum(f.lstat().st_size for f in (tmp_path / "1" / "a" / PHASE).rglob("*.json*"))
    assert recorded < first.next_step_bytes < recorded * 5  # no call stacks are recorded here
    assert rounds[1].verdict.first_divergence.entry == "Cell.model.layers.7.mlp.Mlp.forward.0"


def test_without_the_networks_in_run_json_it_is_said_how_to_know(tmp_path):
    rounds = search(tmp_path, 4, "head", networks=False)
    assert rounds[0].verdict.first_divergence.next_step_bytes is None
    assert "after one step, mindrlhf-msprobe estimate says it" in render(rounds[0])
    assert rounds[-1].verdict.first_divergence.entry == "Cell.head.Dense.forward.0"
