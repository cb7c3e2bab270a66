"""The preflight: settings, versions and weights that differ, and what nobody knows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import MSPROBE_DATA, record_training
from helpers.snapshots import changed, rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.preflight.preflight import (
    MAX_DIFFERENCES,
    compare_snapshots,
    preflight,
)
from mindrlhf_msprobe.comparison.preflight.preflight import remark as messages_of
from mindrlhf_msprobe.comparison.preflight.values import Notes
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Difference, Preflight, Weights
from mindrlhf_msprobe.report.messages import paragraph, text_of
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.snapshot import Snapshot

CONFIGURATIONS = {"actor": {"layers": [2, 4], "lr": 1.0, "nan": "NaN", "name": "llama"}}
NETWORKS: dict[str, Any] = {
    "networks": [
        {
            "role": "actor",
            "phases": ["actor_generate_sequences", "actor_compute_log_prob"],
            "class": "Policy",
            "training": False,
            "cells": [
                {
                    "class": "Dropout",
                    "attributes": {"p": 0.1},
                    "cells": [f"layers.{i}.dropout" for i in range(4)],
                },
                {"class": "Norm", "attributes": {"eps": 1e-5}, "cells": ["norm"]},
                {"class": "Policy", "attributes": {"width": 8}, "cells": ["root"]},
            ],
        },
        {
            "role": "actor",
            "phases": ["actor_update"],
            "class": "Loss",
            "training": True,
            "cells": [
                {"class": "Loss", "attributes": {"beta": 0.1, "clip": None}, "cells": ["outer"]},
                {"class": "Norm", "attributes": {"eps": 1e-5}, "cells": ["norm"]},
            ],
            "changes": [
                {"step": 2, "phase": "actor_update", "cell": "outer", "name": "beta", "value": 0.2}
            ],
        },
    ],
    "modes": {
        "actor_compute_log_prob": [{"step": 0, "training": False}],
        "actor_update": [{"step": 0, "training": True, "others": {"layers.0": False}}],
    },
    "optimizers": {
        "actor": {
            "class": "AdamW",
            "settings": {"learning_rate": 0.001, "weight_decay": [0.1, 0.0]},
            "changes": [{"step": 1, "name": "learning_rate", "value": 0.002}],
        }
    },
}
SETTINGS: dict[str, Any] = {
    "device": {"machine": "aarch64", "device_target": "Ascend", "mode": "PyNative"},
    "seeds": {"mindspore": 1234, "PYTHONHASHSEED": None, "numpy_state": "x", "random_state": "y"},
    "determinism": {"deterministic": "ON", "HCCL_DETERMINISTIC": "true"},
    "environment": {"HCCL_ALGO": "ring", "MS_SCHED_PORT": "8118"},
}
MANIFEST: dict[str, Any] = {
    **{"schema": 1, "tool": "mindrlhf_msprobe", "tool_version": "0.1.0", "state": "finished"},
    "attempts": [{"last_completed_step": 4}],
    "world": {"size": 1, "rank": 0},
    "config": ProbeConfig(key_data_dump=True, dump_path="a").to_json(),
    **{"coverage": {}, "lost": {}, "taken": "first_phase", "taken_in": "actor_update"},
    "versions": {"mindspore": "2.7.0", "numpy": "1.26"},
    **SETTINGS,
    "initial_weights": {
        "actor": {f"layers.{i}.weight": f"xxh3_128:{i}" for i in range(4)},
        "reference": {"head.weight": "xxh3_128:9"},
    },
    **NETWORKS,
}


def run(
    changes: Mapping[str, Any] | None = None,
    *,
    ranks: tuple[int, ...] = (0,),
    only: int | None = None,
    configurations: Any = CONFIGURATIONS,
) -> Snapshot:
    """Return what a run says, with values changed on all ranks or on one."""
    files = [
        RunFile(changed(MANIFEST, {**((changes or {}) if only in (None, rank) else {})}))
        for rank in ranks
    ]
    for rank, file in zip(ranks, files):
        file.json["world"]["rank"] = rank
    return Snapshot(Path("run"), files, configurations)


def compared(a: Snapshot, b: Snapshot, ranks: Mapping[int, int] | None = None) -> Preflight:
    return compare_snapshots(a, b, Notes(), ranks)


def shown(found: Preflight) -> list[tuple[str, str | None, str | None]]:
    return [(d.name, d.a, d.b) for d in found.differences]


def remark(found: Preflight, role: str | None) -> str:
    """Return what is said of a preflight, in English."""
    return paragraph(messages_of(found, role), "en")


def test_two_runs_of_one_configuration_differ_in_nothing() -> None:
    """Times, ids, ports and directories are other in any two runs, and are not reported.

    Nor what came after the end of the shorter run.
    """
    other = {
        **{"environment.MS_SCHED_PORT": "9000", "config.dump_path": "b", "config.buffer_mb": 1},
        "modes.actor_update.1": {"step": 5, "training": False},
    }
    found = compared(run(), run(other))
    assert found.differences == ()
    assert found.unknown == ()
    assert [(w.role, w.compared, w.agree) for w in found.weights] == [
        ("actor", 4, True),
        ("reference", 1, True),
    ]
    assert remark(found, "actor") == (
        "The initial weights of the actor agree (4 parameters), and no setting that both recorded "
        "differs."
    )


BOTH = "in actor_generate_sequences, actor_compute_log_prob"
DROPOUTS = "actor.layers.0.dropout.p and 3 more Dropout cells"
POLICY, LOSS, ADAM = "networks.0.cells", "networks.1.cells.0.attributes", "optimizers.actor"
FAST = {"step": 1, "name": "learning_rate", "value": 0.003}
#: What is changed, and the one difference: section, name, both values, the step.
CASES: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"seeds.mindspore": 1235}, ("seeds", "mindspore", "1234", "1235", None)),
    ({"seeds.numpy_state": "z"}, ("seeds", "numpy_state", "x", "z", None)),
    ({"determinism.deterministic": "OFF"}, ("determinism", "deterministic", "ON", "OFF", None)),
    (
        {"determinism.HCCL_DETERMINISTIC": None},
        ("determinism", "HCCL_DETERMINISTIC", "true", None, None),
    ),
    ({"device.mode": "graph"}, ("device", "mode", "PyNative", "graph", None)),
    ({"environment.HCCL_ALGO": "mesh"}, ("environment", "HCCL_ALGO", "ring", "mesh", None)),
    ({"environment.OMP_NUM_THREADS": "8"}, ("environment", "OMP_NUM_THREADS", None, "8", None)),
    ({"environment.HCCL_ALGO": WITHHELD}, ("environment", "HCCL_ALGO", "ring", WITHHELD, None)),
    ({"versions.mindspore": "99.0"}, ("versions", "mindspore", "2.7.0", "99.0", None)),
    # The task counts, which changes what is recorded; the buffer does not.
    ({"config.task": "tensor"}, ("msprobe_config", "task", "statistics", "tensor", None)),
    ({f"{POLICY}.0.attributes.p": 0.2}, ("cells", f"{DROPOUTS} {BOTH}", "0.1", "0.2", None)),
    (
        {
            f"{POLICY}.0.cells.2": ...,
            f"{POLICY}.3": {
                **{"class": "Dropout", "attributes": {"p": 0.2}},
                "cells": ["layers.2.dropout"],
            },
        },
        ("cells", f"actor.layers.2.dropout.p {BOTH}", "0.1", "0.2", None),
    ),
    (
        {f"networks.{i}.cells.1.attributes.eps": 1e-6 for i in range(2)},
        ("cells", "actor.norm.eps", "1e-05", "1e-06", None),
    ),
    ({f"{LOSS}.clip": 1.0}, ("cells", "actor.outer.clip in actor_update", "None", "1.0", None)),
    ({f"{LOSS}.clip": ...}, ("cells", "actor.outer.clip in actor_update", "None", None, None)),
    ({f"{POLICY}.1.cells": []}, ("cells", f"actor.norm {BOTH}", "Norm", None, None)),
    ({f"{POLICY}.1.class": "Other"}, ("cells", f"actor.norm {BOTH}", "Norm", "Other", None)),
    (
        {"networks.1.changes.0.value": 0.3},
        ("cells", "actor.outer.beta in actor_update from step 2 on", "0.2", "0.3", 2),
    ),
    (
        {"networks.1.changes": ...},
        ("cells", "actor.outer.beta in actor_update from step 2 on", "0.2", "0.1", 2),
    ),
    (
        {"modes.actor_update.0.training": False},
        ("modes", "actor_update", "training", "evaluation", None),
    ),
    (
        {"modes.actor_update.0.others": {}},
        ("modes", "actor_update: layers.0", "evaluation", "training", None),
    ),
    *(
        (
            {"modes.actor_compute_log_prob.1": {"step": step or 0, "training": True}},
            ("modes", f"actor_compute_log_prob{said}", "evaluation", "training", step),
        )
        for step, said in ((3, " from step 3 on"), (None, ""))
    ),
    (
        {f"{ADAM}.settings.learning_rate": 0.01},
        ("optimizers", "actor.learning_rate", "0.001", "0.01", None),
    ),
    (
        {f"{ADAM}.changes": ...},
        ("optimizers", "actor.learning_rate from step 1 on", "0.002", "0.001", 1),
    ),
    (  # set to another one within a step, and back
        {f"{ADAM}.changes": [FAST, *NETWORKS["optimizers"]["actor"]["changes"]]},
        ("optimizers", "actor.learning_rate from step 1 on", "0.002", "0.003", 1),
    ),
    (
        {f"{ADAM}.settings.weight_decay": 0.1},
        ("optimizers", "actor.weight_decay", "[0.1, 0.0]", "0.1", None),
    ),
    ({f"{ADAM}.class": "Adam"}, ("optimizers", "actor", "AdamW", "Adam", None)),
]


@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_one_changed_setting_is_the_one_difference(
    changes: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    """Its name says whose it is, how many cells it holds for, and from which step on."""
    found = compared(run(), run(changes))
    (one,) = found.differences
    assert (one.section, one.name, one.a, one.b, one.step) == expected
    assert one.role == ("actor" if one.section in ("modes", "cells", "optimizers") else None)
    (mirrored,) = compared(run(changes), run()).differences
    assert (mirrored.a, mirrored.b) == (one.b, one.a)
    assert found.unknown == ()
    if one.section == "msprobe_config":
        assert remark(found, None).startswith("The initial weights of the 2 networks agree")


@pytest.mark.parametrize(
    ("a", "b", "differences"),
    [
        (  # lists by index, missing keys on one side; equal numbers and NaNs are equal
            {**CONFIGURATIONS, "msprobe_config": {"dump_path": "a"}},
            {
                "actor": {"layers": [2, 5, 6], "lr": 1, "nan": "NaN", "seq": None, "name": "llama"},
                "msprobe_config": {"dump_path": "b"},
            },
            [
                ("actor.layers.1", "4", "5"),
                ("actor.layers.2", None, "6"),
                ("actor.seq", None, "None"),
            ],
        ),
        # What reads the same but is of another type shows how.
        ({"x": 1, "y": True}, {"x": "1", "y": 1}, [("x", "1", "'1'"), ("y", "True", "1")]),
    ],
)
def test_configurations_are_compared_by_path(a: Any, b: Any, differences: Any) -> None:
    assert shown(compared(run(configurations=a), run(configurations=b))) == differences


def test_weights_are_compared_by_role_and_name() -> None:
    """Different ones, and those of one run alone; unlike algorithms and None are unknown."""
    weights = {
        "actor": {
            "layers.0.weight": "xxh3_128:0",
            "layers.1.weight": "xxh3_128:changed",
            "layers.2.weight": "crc32:2",
            "layers.3.weight": None,
            "new": "xxh3_128:5",
        },
        "critic": {"w": "xxh3_128:1"},
    }
    found = compared(run(), run({"initial_weights": weights}))
    (actor,) = found.weights
    assert actor == Weights("actor", 2, ("layers.1.weight",), (), ("new",))
    assert not actor.agree
    assert found.unknown == (
        "initial weights of actor: 1 parameter without a fingerprint in one run",
        "initial weights of actor: 1 parameter with fingerprints of different algorithms",
        "initial weights of reference: only run A recorded them",
        "initial weights of critic: only run B recorded them",
    )
    assert remark(found, "actor") == (
        "The initial weights of the actor differ in 1 of 2 parameters, first layers.1.weight: "
        "check which checkpoint was loaded."
    )
    assert remark(found, "reference") == ""


def test_ranks_are_named_where_they_are_not_all() -> None:
    """One difference for all ranks has no rank in its name, one of a single rank has."""
    ranks = (0, 1, 2)
    a = run(ranks=ranks)
    assert shown(compared(a, run({"seeds.mindspore": 1}, ranks=ranks))) == [
        ("mindspore", "1234", "1")
    ]
    found = compared(a, run({"determinism.deterministic": "OFF"}, ranks=ranks, only=1))
    assert [d.name for d in found.differences] == ["deterministic (rank 1)"]
    weights = {"layers.0.weight": "xxh3_128:changed"}
    found = compared(a, run({"initial_weights.actor": weights}, ranks=ranks, only=2))
    assert found.weights[0].different == ("layers.0.weight (rank 2)",)
    assert found.weights[0].compared == 4
    # Other values on each rank do not fill the report.
    many = [Snapshot(Path("x"), [], {}) for _ in "ab"]
    for side, name in zip(many, "ab"):
        side.run_files.extend(
            run({"seeds.random_state": f"{name}{i}"}, ranks=(i,)).run_files[0] for i in range(9)
        )
    names = [d.name for d in compared(*many).differences]
    assert names[-1] == "random_state (rank 4, 5, 6, 7, 8)"
    assert len(names) == 5


def test_ranks_of_one_run_alone_are_unknown() -> None:
    """They are no difference; without a common rank nothing can be said."""
    both, one = run(ranks=(0, 1)), run(ranks=(1,))
    assert compared(both, one).unknown == ("rank 0: recorded by run A only",)
    found = compared(run(), one)
    assert found.unknown == ("settings and initial weights: the runs have no rank in common",)
    assert found.weights == ()


def test_seeds_at_the_start_say_little() -> None:
    """Where a run entered no network, only the seeds that were set by then are compared."""
    seeds = {"seeds.mindspore": None, "seeds.numpy_state": "z", "seeds.PYTHONHASHSEED": "0"}
    found = compared(run({"taken": "start", "initial_weights": ...}), run(seeds))
    assert [d.name for d in found.differences] == ["PYTHONHASHSEED"]
    assert [line.partition(" were")[0] for line in found.unknown] == [
        "seeds: mindspore, numpy_state",
        "initial weights: recorded by run B only",
    ]
    # A run that noted both moments is compared with another's start by its own start.
    both = run({"seeds.mindspore": 77, "at_start": {"seeds": SETTINGS["seeds"]}})
    assert compared(run({"taken": "start"}), both).differences == ()


def test_generators_of_unlike_phases_are_not_held_against_each_other() -> None:
    """One run entered its first network in another phase, the first one not being recorded."""
    other = {"taken_in": "reference_compute_log_prob", "seeds.numpy_state": "z"}
    found = compared(run(), run(other))
    assert not found.differences
    assert any("in another phase than in the other run" in said for said in found.unknown)


def test_what_a_run_lacks_is_unknown_not_different() -> None:
    """One line for the sections that only one run has, one for those that neither has."""
    lacking = dict.fromkeys([*SETTINGS, "taken", "initial_weights", "versions.numpy"], ...)
    b = run(lacking)
    found = compared(run(), b)
    assert found.differences == ()
    assert found.unknown == (
        "versions: only run A recorded numpy",
        "device, seeds, determinism, environment, initial weights: recorded by run A only",
    )
    assert compared(b, b).unknown == (
        "device, seeds, determinism, environment, initial weights: neither run recorded them",
    )
    assert remark(found, "actor") == ""


def test_networks_of_one_run_alone_are_unknown() -> None:
    """Where neither watched a network, nothing is said; nor of another version's attributes."""
    b = run(dict.fromkeys(NETWORKS, ...))
    line = "the settings of networks and optimizers: recorded by run A only"
    assert line in compared(run(), b).unknown
    assert compared(b, b).unknown == ()
    found = compared(run(), run({"modes.actor_update": ..., "optimizers": {}}))
    assert found.differences == ()
    assert "modes: only run A recorded actor_update" in found.unknown
    assert "optimizers: only run A recorded actor" in found.unknown
    found = compared(run(), run({f"{LOSS}.clip": ..., "versions.mindspore": "99"}))
    assert [d.section for d in found.differences] == ["versions"]
    assert "cells: only run A recorded Loss.clip" in found.unknown


def test_networks_without_phases_are_compared_by_their_role() -> None:
    """A trainer that only watches: attributes, and the mode it was watched in."""
    watched = {"networks.1": ..., "networks.0.phases": [], "modes": {}}
    other = {**watched, "networks.0.training": True, f"{POLICY}.2.attributes.width": 9}
    assert shown(compared(run(watched), run(other))) == [
        ("actor", "evaluation", "training"),
        ("actor.width", "8", "9"),
    ]


def test_msprobes_dumps_have_no_preflight(tmp_path: Path) -> None:
    """Runs without a run.json: one line, whichever side they stand on."""
    theirs = open_run(next(path for path in sorted(MSPROBE_DATA.iterdir()) if path.is_dir()))
    ours = open_run(record_training(tmp_path / "a", steps=1))
    line = "versions, settings and initial weights: run B has no run.json that can be read"
    assert preflight(ours, theirs).unknown[0] == line
    assert preflight(theirs, theirs).differences == ()
    assert preflight(theirs, theirs).unknown[0].startswith("versions, settings and initial")


def test_what_was_withheld_in_both_runs_is_unknown() -> None:
    """Two secrets are not called equal; several stand in one line."""
    for names, said in (("X", "MS_X was"), ("XY", "MS_X, MS_Y were")):
        side = run({f"environment.MS_{name}": WITHHELD for name in names})
        found = compared(side, side)
        assert found.differences == ()
        assert found.unknown == (f"environment: {said} withheld in both runs, possibly secret",)


def test_what_shares_its_reason_stands_in_one_line() -> None:
    """Many names are counted, and braces in them are only braces."""
    notes = Notes()
    for i in range(30):
        notes.about("only_in", f"{{{i}}}", section="x", side="A")
    notes.add("weights_unreadable", role="{actor", side="A")
    (first, second) = (text_of(one, "en") for one in notes.messages())
    assert first.startswith("x: only run A recorded {0}, {1}, ")
    assert first.endswith(" and 10 more")
    assert second == "initial weights of {actor: those of run A cannot be read"


TWO_SECRETS = (WITHHELD, f"{WITHHELD}, another value")


@pytest.mark.parametrize(
    ("key", "a", "b", "expected"),
    [
        ("db.password", "hunter2", "hunter3", TWO_SECRETS),
        ("db.dbPassword", 1234, 2345, TWO_SECRETS),
        ("obs.access_key", "hunter2", "", TWO_SECRETS),
        ("hub.api_token", "hunter2", None, (WITHHELD, "None")),
        ("hub.url", "https://a:hunter2@b", "x", TWO_SECRETS),
        ("hub.command", "x", "run --token hunter2", TWO_SECRETS),
        ("hub.tokens.0", "hunter2", "x", TWO_SECRETS),
        ("credentials.name", "hunter2", "x", TWO_SECRETS),
        ("hub.x", {"secret": "hunter2"}, 3, (f"{{'secret': '{WITHHELD}'}}", "3")),
        ("hub.x", ..., {"y": [{"pwd": "hunter2"}]}, (None, f"{{'y': [{{'pwd': '{WITHHELD}'}}]}}")),
        ("hub.x", "ghp_hunter2hunter2", ..., (WITHHELD, None)),
        ("model.num_key_value_heads", 8, 4, ("8", "4")),
        ("model.pad_token", "<pad>", "</s>", ("<pad>", "</s>")),
        ("model.use_token_type", True, False, ("True", "False")),
        ("model.max_tokens", 8, 4, ("8", "4")),
        ("model.tokenizer", "llama", "qwen", ("llama", "qwen")),
    ],
)
def test_secrets_of_configurations_are_not_shown(key: str, a: Any, b: Any, expected: Any) -> None:
    """What looks like a secret, by its key or content, differs but is withheld on both sides."""
    sides = []
    for content in (a, b):
        for part in reversed(key.split(".")):
            content = [content] if part == "0" else {} if content is ... else {part: content}
        sides.append(run(configurations=content))
    found = compared(*sides)
    (difference,) = found.differences
    assert (difference.a, difference.b) == expected
    assert "hunter2" not in json.dumps(found.to_json())


@pytest.mark.parametrize("path", ["environment.MS_X", f"{LOSS}.url"])
def test_secrets_of_a_stranger_are_not_shown(path: str) -> None:
    """A run.json that holds a credential, of another tool say, does not pass it on."""
    found = compared(run({path: "Bearer hunter2"}), run({path: "Bearer hunter3"}))
    (difference,) = found.differences
    assert (difference.a, difference.b) == TWO_SECRETS
    assert "hunter" not in json.dumps(found.to_json())


def two_ranks() -> Snapshot:
    """Return a run whose rank 1 differs from rank 0 in everything that a preflight compares."""
    environment = {"HCCL_ALGO": "mesh", "RANK_ID": "1", "DEVICE_ID": "1"}
    changes = {
        **{"seeds.mindspore": 99, "environment": environment, "device.device_id": 1},
        "initial_weights.actor": {"layers.0.weight": "xxh3_128:changed"},
    }
    return run(changes, ranks=(0, 1), only=1)


RANK_1 = [("mindspore", "1234", "99"), ("HCCL_ALGO", "ring", "mesh")]


def test_chosen_ranks_are_compared_across_runs() -> None:
    """`--ranks 0,1` compares A's rank 0 with B's rank 1, and what makes them two is left out."""
    a, b = two_ranks(), two_ranks()
    assert compared(a, b) == compared(a, b, {}) == compared(a, b, {0: 0, 1: 1})
    assert compared(a, b).differences == ()
    for ranks, expected in (({0: 1}, RANK_1), ({1: 1}, []), ({1: 0}, None)):
        found = compared(a, b, ranks)
        wanted = [(n, y, x) for n, x, y in RANK_1] if expected is None else expected
        assert shown(found) == wanted
        assert found.weights[0].agree == (expected == [])
        assert found.unknown == ()
    within = compared(a, a, {0: 1})
    assert shown(within) == RANK_1
    assert within.weights[0].different == ("layers.0.weight",)


def test_runs_without_a_common_rank_are_compared_in_their_order() -> None:
    """Ranks 0 and 1 of A against 4 and 5 of B: the comparison's rank, A's, is named."""
    b = run({"seeds.mindspore": 7}, ranks=(4, 5), only=5)
    found = compared(run(ranks=(0, 1)), b, {0: 4, 1: 5})
    assert [d.name for d in found.differences] == ["mindspore (rank 1)"]
    assert found.unknown == ()
    assert all(weights.agree for weights in found.weights)


def test_a_chosen_rank_without_a_manifest_is_unknown() -> None:
    """Nothing is taken from another rank in its place."""
    a, b = run(), run(ranks=(0, 1))
    line = "versions, settings and initial weights: run A has no run.json of rank 1 that can be"
    assert compared(a, b, {1: 1}).unknown == (f"{line} read",)
    assert compared(b, a, {0: 0, 1: 1}).unknown == ("rank 1: recorded by run A only",)


def test_an_attempt_with_other_settings_is_said() -> None:
    """The first attempt is compared; that a further one was different is not hidden."""
    attempt = {"versions": {}, "initial_weights": {}, "seeds": {}}
    (line,) = compared(run(), run({"attempts.1": attempt})).unknown
    assert line.startswith("attempt 2 of run B ran with other versions than")


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": [value]}
    return value


STRANGE: list[Any] = [
    *(None, 3, "text", [], [[]], {}, {"x": 1}, True, 1e400, -1, [1, "a", None], {"": {"": []}}),
    deep(80),
    {"rank": "0", "size": [1]},
    {"actor": 3, "reference": {"head.weight": 3}, "": {}},
    {"mindspore": {"a": []}, "HCCL_ALGO": ["x"], "numpy_state": 3},
    10**400,
    "\ud800",
]


def compared_all_ways(*manifests: dict[str, Any]) -> None:
    """Compare in both directions and each with itself: nothing raises, and JSON is written."""
    sides = [Snapshot(Path("x"), [RunFile(content)], None) for content in manifests]
    for a, b in itertools.product(sides, repeat=2):
        found = compared(a, b)
        assert isinstance(remark(found, "actor") + remark(found, None), str)
        json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("key", sorted({*SETTINGS, "schema", "versions", "world", "config"}))
def test_strange_values_never_raise(key: str) -> None:
    """Whatever stands under a key of run.json, the rest is compared."""
    others = ("initial_weights", "attempts", "taken", "at_start", "tool_version")
    for value, other in itertools.product(STRANGE, others):
        compared_all_ways(MANIFEST, {**MANIFEST, key: value, other: value})


def _names_in(content: Any) -> set[str]:
    """Return the keys of all dicts."""
    if isinstance(content, dict):
        return {*content}.union(*map(_names_in, content.values()))
    return set().union(*map(_names_in, content)) if isinstance(content, list) else set()


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(sorted({*_names_in(NETWORKS), "training", "others", "cell"})),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NETWORKS, _JSON)), _JSON)
def test_strange_networks_never_raise(strange: dict[str, Any], attempts: Any) -> None:
    """Whatever a stranger's run.json holds, the comparison goes on."""
    compared_all_ways(NETWORKS, {**strange, "attempts": attempts})


def test_strange_manifests_and_configurations_never_raise(tmp_path: Path) -> None:
    """Lists of nothing, configurations that are no JSON or nested beyond measure."""
    paths = [record_training(tmp_path / name, steps=1) for name in "ab"]
    a, b = map(open_run, paths)
    listed = [None, 3, {}, {"world": {"rank": 0}}, {"world": {"rank": 0}}]
    b.run_files = [*map(RunFile.from_json, listed)]
    assert "run B has two manifests of rank 0; the first was taken" in preflight(a, b).unknown
    unread = "configurations: configurations.json of run B cannot be read"
    for of_a, of_b, said in (
        ("[" * 400 + "1" + "]" * 400, "[" * 400 + "]" * 400, "nested deeper"),
        ("{}", "{", unread),
    ):
        for path, content in zip(paths, (of_a, of_b)):
            (path / "configurations.json").write_text(content)
        assert any(said in line for line in preflight(*map(open_run, paths)).unknown)


def test_the_number_of_differences_is_capped() -> None:
    """Two quite different configurations keep the other sections whole and say how many more."""
    a = run(configurations={"x": list(range(5000))})
    found = compared(a, run({"seeds.mindspore": 1}, configurations={"x": list(range(1, 5001))}))
    assert len(found.differences) == MAX_DIFFERENCES
    assert found.differences[0].section == "seeds"
    assert found.unknown == ("configurations: 4001 more differences, which are not listed",)


def test_a_comparison_says_what_the_preflight_found(tmp_path: Path) -> None:
    """Of runs on disk: the manifests that were written are those that are compared."""
    paths = [record_training(tmp_path / name, steps=1) for name in ("a", "b")]
    for path, phase in zip(paths, ("actor_generate_sequences", "reference_compute_log_prob")):
        taken = {"taken": "first_phase", "taken_in": phase, "determinism": {"x": phase}}
        rewrite(path / "run.json", taken)
    (difference,) = compare_runs(*paths).preflight.differences
    assert (difference.section, difference.name) == ("determinism", "x")


def apart(*differences: tuple[str, ...], weights: Weights | None = None) -> Preflight:
    """Return a preflight of differences; each is a section, a name and perhaps both values."""
    listed = (Difference(*of, *(("1", "2") if len(of) == 2 else ())) for of in differences)
    return Preflight(tuple(listed), () if weights is None else (weights,))


SEED = ("seeds", "mindspore")


@pytest.mark.parametrize(
    ("found", "role", "sentence"),
    [
        (apart(), "actor", ""),
        (apart(weights=Weights("critic", 3)), "actor", ""),
        (
            apart(SEED, weights=Weights("actor", 39)),
            "actor",
            "The initial weights of the actor agree (39 parameters), but the seed differs: 1 "
            "against 2.",
        ),
        (
            apart(SEED, weights=Weights("reference", 39, ("a.b", "c"))),
            "reference",
            "The initial weights of the reference differ in 2 of 39 parameters, first a.b: check "
            "which checkpoint was loaded. The seed differs: 1 against 2.",
        ),
        (
            apart(weights=Weights("actor", 2, (), ("a",), ("b", "c"))),
            None,
            "The networks of the actor do not have the same parameters: 3 are in one run only, "
            "first a in A.",
        ),
        (
            apart(("versions", "mindspore"), ("determinism", "HCCL_DETERMINISTIC", None, "true")),
            "actor",
            "The determinism setting HCCL_DETERMINISTIC differs: not set against true.",
        ),
        (
            apart(("environment", "X"), ("configurations", "a.lr")),
            "actor",
            "2 settings differ, the first: configurations a.lr: 1 against 2.",
        ),
        (apart(("versions", "cann")), None, "1 setting differs: versions cann: 1 against 2."),
        (
            apart(("seeds", "random_state"), weights=Weights("actor", 1)),
            None,
            "The initial weights of the actor agree (1 parameter); of the settings, only the state "
            "of Python's random generator differs.",
        ),
        (apart(("seeds", "random_state")), None, ""),
        (apart(("msprobe_config", "task")), None, ""),
    ],
)
def test_the_remark_names_what_most_probably_matters(
    found: Preflight, role: str | None, sentence: str
) -> None:
    """Weights first, then the seed, determinism, and a count of the other settings."""
    assert remark(found, role) == sentence


@pytest.mark.parametrize(
    ("found", "english", "chinese"),
    [
        (
            Difference("generation", "p.top_k", "1", "2", step=3, ranks=(1, 2)),
            "p.top_k from step 3 on (rank 1, 2)",
            "p.top_k（从 step 3 起）（rank 1, 2）",
        ),
        (
            Difference(
                "cells", "actor.a.p", "1", "2", "actor", ("actor_update",), None, ("a", "b"), "Norm"
            ),
            "actor.a.p and 1 more Norm cell in actor_update",
            "actor.a.p 等 2 个 Norm Cell（actor_update）",
        ),
        (
            Difference("modes", "a", "1", "2", "actor", ("actor_update",), 1, ("a", "b", "c")),
            "actor_update: a and 2 more cells from step 1 on",
            "actor_update：a 等 3 个 Cell（从 step 1 起）",
        ),
    ],
)
def test_what_a_setting_is_called_is_made_of_its_fields(found, english, chinese) -> None:
    """Code decides by setting, step and ranks; the words around them are each language's."""
    assert found.name == english == found.to_json()["name"]
    assert found.to_json()["setting"] == found.setting
    assert text_of(found.label, "zh") == chinese
