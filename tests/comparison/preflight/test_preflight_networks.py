"""Modes, attributes of cells and optimizers of two runs, compared before any tensor."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import Recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.comparison.preflight.networks import compare_networks
from mindrlhf_msprobe.comparison.preflight.preflight import preflight
from mindrlhf_msprobe.comparison.preflight.values import Notes, Ranks
from mindrlhf_msprobe.storage.manifest.notes import Networks
from mindrlhf_msprobe.storage.manifest.run_file import RunFile, Settings
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

Change = Callable[[dict[str, Any]], object]

SECTIONS: dict[str, Any] = {
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


def record(root: Path, sections: dict[str, Any] | None, steps: int = 5) -> Run:
    recording = Recording(root)
    if sections is not None:
        recording.writer.note(Networks(Settings(sections)))
    for _ in range(steps):
        recording.data("loss", 1.0)
        recording.end_step()
    recording.close()
    return open_run(root)


def changed(change: Change) -> dict[str, Any]:
    sections = copy.deepcopy(SECTIONS)
    change(sections)
    return sections


def policy(sections: dict[str, Any], group: int) -> Any:
    return sections["networks"][0]["cells"][group]


def loss(sections: dict[str, Any]) -> Any:
    return sections["networks"][1]["cells"][0]["attributes"]


def both_norms(sections: dict[str, Any]) -> None:
    for network in sections["networks"]:
        network["cells"][1]["attributes"]["eps"] = 1e-6


def one_dropout(sections: dict[str, Any]) -> None:
    cells = policy(sections, 0)["cells"]
    group = {"class": "Dropout", "attributes": {"p": 0.2}, "cells": [cells.pop(2)]}
    sections["networks"][0]["cells"].append(group)


BOTH = "in actor_generate_sequences, actor_compute_log_prob"
DROPOUTS = "actor.layers.0.dropout.p and 3 more Dropout cells"
CASES: list[tuple[Change, tuple[Any, ...]]] = [
    (
        lambda s: policy(s, 0)["attributes"].update(p=0.2),
        (
            "cells",
            f"{DROPOUTS} {BOTH}",
            "0.1",
            "0.2",
            None,
        ),
    ),
    (
        one_dropout,
        (
            "cells",
            f"actor.layers.2.dropout.p {BOTH}",
            "0.1",
            "0.2",
            None,
        ),
    ),
    (both_norms, ("cells", "actor.norm.eps", "1e-05", "1e-06", None)),
    (
        lambda s: loss(s).update(clip=1.0),
        ("cells", "actor.outer.clip in actor_update", "None", "1.0", None),
    ),
    (
        lambda s: loss(s).pop("clip"),
        ("cells", "actor.outer.clip in actor_update", "None", None, None),
    ),
    (
        lambda s: policy(s, 1).update({"class": "LayerNorm"}),
        (
            "cells",
            f"actor.norm {BOTH}",
            "Norm",
            "LayerNorm",
            None,
        ),
    ),
    (
        lambda s: s["networks"][1]["changes"][0].update(value=0.3),
        ("cells", "actor.outer.beta in actor_update from step 2 on", "0.2", "0.3", 2),
    ),
    (
        lambda s: s["networks"][1].pop("changes"),
        ("cells", "actor.outer.beta in actor_update from step 2 on", "0.2", "0.1", 2),
    ),
    (
        lambda s: s["modes"]["actor_update"][0].update(training=False),
        ("modes", "actor_update", "training", "evaluation", None),
    ),
    (
        lambda s: s["modes"]["actor_update"][0].update(others={}),
        ("modes", "actor_update: layers.0", "evaluation", "training", None),
    ),
    (
        lambda s: s["modes"]["actor_compute_log_prob"].append({"step": 3, "training": True}),
        ("modes", "actor_compute_log_prob from step 3 on", "evaluation", "training", 3),
    ),
    (
        lambda s: s["modes"]["actor_compute_log_prob"].append({"step": 0, "training": True}),
        ("modes", "actor_compute_log_prob", "evaluation", "training", None),
    ),
    (
        lambda s: s["optimizers"]["actor"]["settings"].update(learning_rate=0.01),
        ("optimizers", "actor.learning_rate", "0.001", "0.01", None),
    ),
    (
        lambda s: s["optimizers"]["actor"].pop("changes"),
        ("optimizers", "actor.learning_rate from step 1 on", "0.002", "0.001", 1),
    ),
    (  # set to another one within a step, and back
        lambda s: s["optimizers"]["actor"]["changes"].insert(
            0, {"step": 1, "name": "learning_rate", "value": 0.003}
        ),
        ("optimizers", "actor.learning_rate from step 1 on", "0.002", "0.003", 1),
    ),
    (
        lambda s: s["optimizers"]["actor"]["settings"].update(weight_decay=0.1),
        ("optimizers", "actor.weight_decay", "[0.1, 0.0]", "0.1", None),
    ),
    (
        lambda s: s["optimizers"]["actor"].update({"class": "Adam"}),
        ("optimizers", "actor", "AdamW", "Adam", None),
    ),
]


@pytest.mark.parametrize(("change", "expected"), CASES)
def test_one_changed_setting_is_the_one_difference(
    tmp_path: Path, change: Change, expected: tuple[Any, ...]
) -> None:
    """Its name says whose it is, how many cells it holds for, and from which step on."""
    a = record(tmp_path / "a", SECTIONS)
    found = preflight(a, record(tmp_path / "b", changed(change)))
    shown = [(d.section, d.name, d.a, d.b, d.step) for d in found.differences]
    assert shown == [expected]
    assert found.differences[0].role == "actor"
    mirrored = preflight(record(tmp_path / "c", changed(change)), a).differences
    assert [(d.a, d.b) for d in mirrored] == [(expected[3], expected[2])]


def test_the_same_settings_differ_in_nothing(tmp_path: Path) -> None:
    """Two runs of one trainer, one of them shorter: what came later is not missing."""
    later = changed(lambda s: s["modes"]["actor_update"].append({"step": 4, "training": False}))
    a, b = record(tmp_path / "a", SECTIONS, steps=3), record(tmp_path / "b", later, steps=6)
    assert preflight(a, b).differences == ()
    assert not [line for line in preflight(a, b).unknown if "networks" in line]


def test_a_run_without_them_is_unknown(tmp_path: Path) -> None:
    """A run without them is not different; where neither watched a network, nothing is said."""
    a, b = record(tmp_path / "a", SECTIONS), record(tmp_path / "b", None)
    line = "the settings of networks and optimizers: only run A recorded it"
    assert line in preflight(a, b).unknown
    assert not [line for line in preflight(b, b).unknown if "networks" in line]
    without = changed(lambda s: (s["modes"].pop("actor_update"), s["optimizers"].clear()))
    found = preflight(a, record(tmp_path / "c", without))
    assert found.differences == ()
    assert "modes: only run A recorded actor_update" in found.unknown
    assert "optimizers: only run A recorded actor" in found.unknown


def test_another_version_may_have_other_attributes(tmp_path: Path) -> None:
    """An attribute that only one version's cells have is unknown, not different."""
    a = record(tmp_path / "a", SECTIONS)
    b = record(tmp_path / "b", changed(lambda s: loss(s).pop("clip")))
    content = json.loads((b.path / "run.json").read_text())
    content["versions"]["mindspore"] = "99"
    (b.path / "run.json").write_text(json.dumps(content))
    found = preflight(a, open_run(b.path))
    assert [d.section for d in found.differences] == ["versions"]
    assert "cells: only run A recorded Loss.clip" in found.unknown


def test_secrets_of_a_stranger_are_not_shown(tmp_path: Path) -> None:
    """A run.json that holds a credential, of another tool say, does not pass it on."""
    runs = [
        record(tmp_path / side, changed(lambda s, v=value: loss(s).update(url=v)))
        for side, value in (("a", "Bearer hunter2"), ("b", "Bearer hunter3"))
    ]
    found = preflight(*runs)
    assert [d.section for d in found.differences] == ["cells"]
    assert "hunter" not in json.dumps(found.to_json())


def test_networks_without_phases_are_compared_by_their_role(tmp_path: Path) -> None:
    """A trainer that only watches: attributes, and the mode it was watched in."""

    def watched(sections: dict[str, Any]) -> None:
        del sections["networks"][1]
        sections["networks"][0]["phases"] = []
        sections["modes"] = {}

    a = changed(watched)
    b = copy.deepcopy(a)
    b["networks"][0]["training"] = True
    policy(b, 2)["attributes"]["width"] = 9
    found = preflight(record(tmp_path / "a", a), record(tmp_path / "b", b)).differences
    assert [(d.section, d.name, d.a, d.b) for d in found] == [
        ("modes", "actor", "evaluation", "training"),
        ("cells", "actor.width", "8", "9"),
    ]


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
            st.sampled_from(sorted({*_names_in(SECTIONS), "training", "others", "cell"})),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS, _JSON)), _JSON)
def test_strange_sections_never_raise(strange: dict[str, Any], attempts: Any) -> None:
    """Whatever a stranger's run.json holds, the comparison goes on."""
    strange = {**strange, "attempts": attempts}
    for pair in ((SECTIONS, strange), (strange, SECTIONS), (strange, strange)):
        merged = Ranks(1)
        compare_networks(0, *map(RunFile.from_json, pair), merged, Notes())
        list(merged.differences())
