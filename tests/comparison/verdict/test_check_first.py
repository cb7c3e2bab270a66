"""What the answer tells to check first: what differs before any tensor and can have the effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import Fault, record_training
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Cause, Comparison
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.report.summary import summary_of

KEY_DATA = dict.fromkeys(
    ("actor_infer_dump", "actor_train_dump", "reference_dump", "critic_train_dump"), False
)
PHASES = {
    "actor": ["actor_generate_sequences", "actor_compute_log_prob", "actor_update"],
    "reference": ["reference_compute_log_prob"],
    "critic": ["critic_compute_values", "critic_update"],
}
Sections = dict[str, Any]


def sections(**other: Any) -> Sections:
    """Return what a run.json says of three networks, some of it changed: `actor_eps=1e-3`."""
    networks = [
        {
            "role": role,
            "phases": phases,
            "class": "Network",
            "training": False,
            "cells": [
                {
                    "class": "Dense",
                    "attributes": {"eps": other.get(f"{role}_eps", 1e-5)},
                    "cells": ["layers.0.mlp"],
                },
                {
                    "class": "Network",
                    "attributes": {"beta": other.get(f"{role}_beta", 0.1)},
                    "cells": ["root"],
                },
            ],
        }
        for role, phases in PHASES.items()
    ]
    modes = {
        phase: [{"step": 0, "training": other.get(f"{phase}_mode", False)}]
        for phases in PHASES.values()
        for phase in phases
    }
    optimizers = {
        role: {"class": "AdamW", "settings": {"learning_rate": other.get(f"{role}_lr", 1e-3)}}
        for role in ("actor", "critic")
    }
    weights = {role: {"w": f"xxh3_128:{other.get(f'{role}_weights', 0)}"} for role in PHASES}
    return {
        "networks": networks,
        "modes": modes,
        "optimizers": optimizers,
        "initial_weights": weights,
        "seeds": {"mindspore": other.get("seed", 1), "random_state": other.get("random", "x")},
    }


Compare = Callable[..., Comparison]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Return a function that compares a run with one that has a fault and other settings."""

    def compared(
        fault: Fault, configurations: dict[str, Any] | None = None, layers: bool = False, **b: Any
    ) -> Comparison:
        settings: dict[str, Any] = {} if layers else KEY_DATA
        runs = []
        for name, faults, other in (("a", (), {}), ("b", (fault,), b)):
            root = record_training(tmp_path / name, faults=faults, **settings)
            rewrite(root / "run.json", sections(**other))
            given = (
                (configurations or {}) if name == "b" else dict.fromkeys(configurations or (), 0)
            )
            (root / "configurations.json").write_text(json.dumps(given))
            runs.append(root)
        return compare_runs(*runs, output_path=tmp_path / "out")

    return compared


def checked(comparison: Comparison) -> list[tuple[str, str, str]]:
    first = comparison.verdict.first_divergence
    assert first is not None
    content = first.to_json()["check_first"]
    return [(check["near"], check["section"], check["name"]) for check in content]


LOSS = Fault("advantages", step=0)
LOG_PROB = "actor_compute_log_prob"


@pytest.mark.parametrize(
    ("fault", "other", "expected"),
    [
        # A loss of the second step: after an update, everything of the role can have this effect.
        (
            Fault("responses", step=1),
            {"actor_lr": 1},
            [("role", "optimizers", "actor.learning_rate")],
        ),
        (Fault("responses", step=1), {"actor_beta": 1}, [("role", "cells", "actor.beta")]),
        (
            Fault("responses", step=1),
            {"actor_update_mode": True},
            [("role", "modes", "actor_update")],
        ),
        # Before the first update its learning rate and its mode cannot have had one.
        (Fault("responses", step=0), {"actor_lr": 1, "actor_update_mode": True}, []),
        (
            Fault("responses", step=0),
            {"actor_generate_sequences_mode": True, "seed": 2, "random": "y"},
            [("phase", "modes", "actor_generate_sequences"), ("run", "seeds", "mindspore")],
        ),
        # Another role's settings cannot.
        (
            Fault("responses", step=1),
            {"critic_lr": 1, "reference_beta": 1, "critic_weights": 1},
            [],
        ),
        (Fault("responses", step=0), {"actor_weights": 1}, [("role", "initial_weights", "w")]),
        # Nothing of a network has run before the prompts are there.
        (Fault("prompts", step=1), {"actor_lr": 1, "actor_weights": 1}, []),
        # Rewards and advantages come of what agrees already, not of a network.
        (Fault("rewards", step=1), {"actor_lr": 1, "critic_beta": 1}, []),
    ],
)
def test_key_data_name_what_can_have_had_the_effect(
    compare: Compare, fault: Fault, other: dict[str, Any], expected: list[Any]
) -> None:
    """In a first round of key data: the nearest first, and nothing that cannot."""
    comparison = compare(fault, **other)
    assert checked(comparison) == expected
    text = render(comparison)
    assert ("Check this first" in text) is bool(expected)
    first = comparison.verdict.first_divergence
    assert first is not None
    if first.is_explained:
        assert "cause: data" not in text
        assert "Look closer" not in text
        assert "next_step in verdict.json" in text
    else:
        assert f"cause: {first.cause}" in text


def test_the_cause_in_verdict_json_keeps_its_words(compare: Compare) -> None:
    """What to check first stands beside the cause and the next step, not in their place."""
    comparison = compare(Fault("root", LOG_PROB, step=1), actor_lr=0.5)
    line = "optimizers: actor.learning_rate: 0.001 in A, 0.5 in B"
    rows = [values for _, values in summary_of(comparison)[0].rows()]
    assert ["verdict", "check first", line] in [row[:3] for row in rows]
    first = comparison.to_json()["first_divergence"]
    assert (first["cause"], first["record"]) == ("data", "old_log_prob")
    assert first["next_step"]["actor_train_dump"] is True
    assert first["check_first"] == [
        {
            "near": "role",
            "section": "optimizers",
            "name": "actor.learning_rate",
            "a": "0.001",
            "b": "0.5",
            "role": "actor",
        }
    ]


def test_a_cell_that_computed_otherwise_has_its_own_attributes(compare: Compare) -> None:
    """An attribute of the origin comes first; of other cells, whose outputs agree, none does."""
    fault = Fault("layers.0.mlp", "reference_compute_log_prob", step=1)
    comparison = compare(fault, layers=True, reference_eps=1.0, reference_beta=1.0, actor_eps=1.0)
    first = comparison.verdict.first_divergence
    assert first is not None
    assert first.cause is Cause.COMPUTATION
    assert checked(comparison) == [("cell", "cells", "reference.layers.0.mlp.eps")]
    assert "cause: computation" in render(comparison)


def test_a_configuration_is_checked_before_another_recording(compare: Compare) -> None:
    """A setting of the YAML: what to record next stays, below it; those of the probe are none."""
    configurations = {"kl_coef": 1, "critic": {"lr": 3}, "msprobe_config": {"task": "tensor"}}
    comparison = compare(Fault("weights:head", None, step=0), configurations)
    assert [name for *_, name in checked(comparison)] == ["kl_coef"]
    text = render(comparison)
    assert text.index("Check this first") < text.index("If that does not explain it, look closer")
    lines = text.splitlines()
    begin = 1 + lines.index("Before any tensor, these settings differ:")
    assert [line.split(":")[1].strip() for line in lines[begin : begin + 3]] == [
        *("kl_coef", "critic", "msprobe_config")
    ]


def test_what_a_trainer_saves_or_logs_explains_nothing(compare: Compare) -> None:
    """By MindFormers' names; what it loads may."""
    configurations = {
        "checkpoint": {"enable_save": True, "save_max": 5, "load_path": "other"},
        "monitor": {"train_state": {"local_norm": ["*"]}, "tensorboard": {"x": 1}},
        "train_dataset": {"num_parallel_workers": 4, "prefetch_size": 2, "seed": 7},
    }
    comparison = compare(Fault("weights:head", None, step=0), configurations)
    names = {name for *_, name in checked(comparison)}
    assert not any("save" in name or "monitor" in name or "parallel" in name for name in names)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [(["layers.0"], True), (["layers.0.mlp"], True), (["root"], True), (["layers.1"], False)],
)
def test_the_mode_of_a_cell_holds_for_those_inside(
    tmp_path: Path, cells: list[str], expected: bool
) -> None:
    """A mode that is another one in the cell that computed otherwise, or in one around it."""
    runs = []
    for name, faults in (("a", ()), ("b", (Fault("layers.0.mlp", "actor_update", step=1),))):
        root = record_training(tmp_path / name, faults=faults)
        others = dict.fromkeys(cells, name == "a")
        modes = {"actor_update": [{"step": 0, "training": False, "others": others}]}
        rewrite(root / "run.json", {**sections(), "modes": modes})
        runs.append(root)
    comparison = compare_runs(*runs, output_path=None)
    first = comparison.verdict.first_divergence
    assert first is not None
    assert first.cause is Cause.COMPUTATION
    assert checked(comparison) == (
        [("phase", "modes", f"actor_update: {cells[0]}")] if expected else []
    )


def of_two_networks(beta: float) -> list[dict[str, Any]]:
    """Return two networks of the actor: one that generates, one with its loss that trains."""
    generating = {"class": "Policy", "attributes": {}, "cells": ["root"]}
    training = {"class": "Loss", "attributes": {"beta": beta}, "cells": ["loss"]}
    phases = (PHASES["actor"][:1], PHASES["actor"][1:])
    return [
        {"role": "actor", "phases": of, "class": "X", "training": False, "cells": [cell]}
        for of, cell in zip(phases, (generating, training))
    ]


def test_a_setting_of_a_network_that_runs_in_several_phases_holds_for_each(tmp_path: Path) -> None:
    """The cell of the loss belongs to the network that trains: it explains the loss, and stands
    with all of that network's phases; it does not explain what the other network generated."""
    loss, responses = Fault("root", "actor_update"), Fault("responses")
    for fault, expected in ((loss, ["actor.loss.beta"]), (responses, [])):
        runs = []
        for name, faults in (("a", ()), ("b", (fault,))):
            root = tmp_path / fault.place / name
            record_training(root, faults=faults, **KEY_DATA)
            networks = of_two_networks(0.05 if name == "a" else 0.06)
            rewrite(root / "run.json", {"networks": networks})
            runs.append(root)
        comparison = compare_runs(*runs, output_path=None)
        first = comparison.verdict.first_divergence
        assert first is not None
        found = first.to_json()["check_first"]
        assert [check["name"].partition(" in ")[0] for check in found] == expected
        (difference,) = (d for d in comparison.preflight.differences if d.section == "cells")
        assert difference.phases == ("actor_compute_log_prob", "actor_update")
        assert "in actor_compute_log_prob, actor_update: 0.05 in A" in render(comparison)


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "named"), [("fxz", "fyw", True), ("fxw", "fyz", False)]
)
def test_random_states_are_those_of_the_ranks_that_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank_0: str, rank_1: str, named: bool
) -> None:
    """`--ranks 0,1`: the states of A's rank 0 and B's rank 1, in the step of the finding."""
    seeded = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeded(seed if seed < 100 else 100))
    for name, states in (("a", ("fxz", "fxz")), ("b", (rank_0, rank_1))):
        faults = (Fault("responses", step=2, rank=1),) if name == "b" else ()
        record_training(tmp_path / name, ranks=(0, 1), steps=3, faults=faults, **KEY_DATA)
        for file, of_rank in zip(("run.json", "run.rank1.json"), states):
            digits = "".join(f"{ord(state):08x}" for state in of_rank)
            states = {"random_states": {"numpy_state": [[0, digits]]}}
            rewrite(tmp_path / name / file, states)
    compared = compare_runs(
        tmp_path / "a", tmp_path / "b", ranks=(0, 1), output_path=tmp_path / "out"
    )
    expected = [("run", "seeds", "numpy_state from step 1 on")]
    assert checked(compared) == (expected if named else [])
