"""What run.json holds: one type for those who write it, those who read it, and its page."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.programs import read_json
from helpers.runs import Recording

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.manifest.manifest import (
    CheckpointPath,
    FirstEntry,
    Generated,
    Networks,
    Replaced,
    StepStates,
)
from mindrlhf_msprobe.storage.manifest.run_file import (
    Attempt,
    Cells,
    Change,
    Changed,
    Config,
    Generation,
    Graft,
    Mode,
    Network,
    Optimizer,
    Part,
    RunFile,
    Settings,
    Stop,
    Stopped,
    World,
)

DOCUMENTS = Path(__file__).parents[3] / "docs"
#: Which parts lie under a key.
PARTS: dict[str, tuple[type[Part], ...]] = {
    "world": (World,),
    "attempts": (Attempt,),
    "stopped": (Stopped,),
    "networks": (Network, Cells, Change),
    "modes": (Mode,),
    "optimizers": (Optimizer,),
    "generation": (Generation, Change),
    "grafted": (Graft, Changed),
}
STRANGE: list[Any] = [
    *(None, 3, -1, 10**400, 0.5, True, "text", [], [[]], {}, {"": None}, [1, "a", None, {}]),
    {"actor": 3, "x": [3, {"step": "1", "cells": 2, "phases": [1]}], "y": {"changes": [[]]}},
    [{"role": 1, "cells": [{"cells": 3, "attributes": []}], "changes": {}, "step": -(2**63)}],
]


def networks(value: int) -> Settings:
    """Return what a trainer's networks could be set to."""
    change = Change.make(step=1, phase="actor_update", cell="a", name="x", value=2)
    cells = Cells.make(kind="Dense", attributes={"n": value}, cells=["a", "b"])
    given = {"role": "actor", "phases": ["actor_update"], "kind": "Net", "training": True}
    mode = Mode.make(step=0, training=True, others={"a": False})
    adam = Optimizer.make(kind="Adam", settings={"learning_rate": 0.1}, changes=[change])
    network = Network.make(
        **given, cells=[cells], changes=[change], cut_at=9, parallel={"tp": 2}, strategy={"w": {}}
    )
    return Settings.make(networks=[network], modes={"p": [mode]}, optimizers={"actor": adam})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run.json of two attempts, the second with other settings, that says all it can."""
    root = tmp_path_factory.mktemp("written") / "run"
    for value, existing in ((1, "refuse"), (2, "resume")):
        recording = Recording(root, existing=existing)
        writer = recording.writer
        writer.manifest.begin(writer.next_step())
        settings = {name: {"x": value} for name in ("device", "seeds", "environment")}
        writer.note(FirstEntry("actor", {"w": f"xxh3_128:{value}"}, settings, "actor_update"))
        writer.note(FirstEntry("actor", None, {"seeds": {"x": value + 5}}, "actor_update"))
        writer.note(Networks(networks(value)))
        change = Change.make(step=1, name="temperature", value=3)
        parts = {"step": 0, "settings": {"temperature": value}, "changes": [change]}
        writer.note(Generated({"actor_generate_sequences": Generation.make(**parts)}))
        writer.note(CheckpointPath("actor", "policy.ckpt"))
        for steps in (value, value + 9):
            writer.note(CheckpointPath("actor", f"of_attempt_{value}.ckpt", steps))
        changed = {"phase": "p", "entry": "Cell.a.Dense", "what": "output"}
        changed |= {"records": value, "steps": [0, 1]}
        graft = {"from": "run_a", "what": ["output"], "entries": ["Cell.a.Dense"], "put_in": value}
        writer.note(
            Replaced(
                "grafted", [{**graft, "changed": [changed], "left_out": [{"reason": "shape"}]}]
            )
        )
        writer.note(StepStates({"numpy_state": [[value, "0123abcd"]]}))
        writer.manifest.note_graph_gaps("actor", {"cell": message("coverage.dtype", dtype="Int4")})
        writer.end_step(value, {message("lost.tensor"): 1})
        writer.close(Stop("failed", 4, "actor_update", "ValueError", "x") if value > 1 else None)
    return root / "run.json"


def unknown(part: Part, keys: set[str]) -> set[str]:
    """Return what a part holds that its type does not name; add to `keys` what it does."""
    found = {f"{type(part).__name__}.{name}" for name in part.json.keys() - part.every_key()}
    for name, key in part.every_key().items():
        if name in part.json and name != "config":
            keys.add(f"{type(part).__name__}.{name}")
            value = key.__get__(part, type(part))
            pending = [value]
            while pending:
                one = pending.pop()
                if isinstance(one, Part):
                    found |= unknown(one, keys)
                elif isinstance(one, (list, dict)):
                    pending += one.values() if isinstance(one, dict) else one
    return found


def test_saved_checkpoints_of_steps_that_stay_are_kept(written: Path) -> None:
    """What the first attempt saved after more steps than the second goes on from is gone."""
    saved = {"1": "of_attempt_1.ckpt", "2": "of_attempt_2.ckpt", "11": "of_attempt_2.ckpt"}
    assert RunFile.load(written).saved_checkpoints == {"actor": saved}


def test_the_type_names_every_key_that_is_written(written: Path) -> None:
    """Of all parts: nothing is written past the type, and nearly all it has is in this file."""
    keys: set[str] = set()
    file = RunFile.load(written)
    assert unknown(file, keys) == set()
    assert file.config.json.keys() == ProbeConfig(dump_path="x").to_json().keys()
    declared = {
        f"{kind.__name__}.{name}"
        for kind in (RunFile, *(kind for kinds in PARTS.values() for kind in kinds))
        for name in kind.every_key()
    }
    missing = {"RunFile.others", "RunFile.thinned", "Attempt.unfinished_step", "Attempt.versions"}
    missing |= {"RunFile.changed_training", "RunFile.played", "Network.same_as"}
    missing |= {"Network.untrained", "Network.mesh"}
    missing |= {"RunFile.config", "Attempt.device", "Attempt.determinism", "RunFile.determinism"}
    assert declared - keys <= missing


def test_what_is_read_is_what_was_written(written: Path) -> None:
    """The attributes give the values, those of the second attempt where they are its own."""
    file = open_run(written.parent).run_files[0]
    first, second = file.attempts
    assert (first.last_completed_step, second.begins_with, second.open_step) == (1, 2, 3)
    assert (file.rank, file.world.size, file.state) == (0, 1, "failed")
    assert (
        file.stopped
        == second.stopped
        == Stopped.make(step=4, phase="actor_update", error="ValueError", text="x")
    )
    assert file.networks == networks(1).networks
    assert second.networks == networks(2).networks
    assert file.modes["p"][0].others == {"a": False}
    assert file.optimizers["actor"].changes[0].value == 2
    assert second.generation["actor_generate_sequences"].settings == {"temperature": 2}
    assert file.initial_weights == {"actor": {"w": "xxh3_128:1"}}
    assert file.reasons["graph_mode"]["actor"]["cell"][0].code == "coverage.dtype"
    assert file.unread == []


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_whatever_stands_under_a_key_is_kept_and_reads(written: Path, value: Any) -> None:
    """No key raises, of the file or of what lies in it; the file says the same as before."""
    whole = read_json(written)
    for name in RunFile.every_key():
        content = {**copy.deepcopy(whole), name: copy.deepcopy(value)}
        before = json.dumps(content)
        file = RunFile.from_json(content)
        unknown(file, set())
        assert isinstance(file.unread, list)
        assert isinstance(file.reasons, dict)
        assert json.dumps(file.json) == before
        always = RunFile.every_key()[name].always
        assert (name in file.unread) == (always is not None and not isinstance(value, always))
    unknown(RunFile.from_json(value), set())


def test_what_a_file_lacks_has_a_default() -> None:
    """Every key has a default: None, or nothing of the kind."""
    file = RunFile.from_json({"world": {"rank": 3}})
    assert (file.rank, file.recorded, file.initial_weights, file.attempts) == (3, {}, None, [])
    assert (file.attempt.state, file.attempt.open_step, file.stopped.step) == (None, 0, None)
    assert file.unread == ["state", "attempts", "config", "coverage", "lost"]
    assert Config.from_json({"exclude": ["a", 3]}).exclude is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_lists_every_key(language: str) -> None:
    """files.md names the keys of the file in its first table, and those of parts in their row."""
    page = (DOCUMENTS / language / "files.md").read_text("utf-8")
    section = page.partition("\n## run.json")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = [row.split("|", 2)[1:] for row in section.splitlines()[2:]]
    listed = [name for row in rows for name in re.findall("`([^`]+)`", row[0])]
    assert sorted(listed) == sorted(RunFile.every_key())
    own = {kind: set(kind.every_key()) - set(Settings.every_key()) for kind in (Attempt,)}
    for keys, content in rows:
        for name in re.findall("`([^`]+)`", keys):
            for kind in PARTS.get(name, ()):
                names = own.get(kind, set(kind.every_key()))
                if kind is Change and name == "generation":
                    names -= {"phase", "cell"}
                assert names <= set(re.findall("`([^`]+)`", content)), name


def test_what_an_earlier_attempt_lost_stays_counted_when_a_run_is_resumed(tmp_path: Path) -> None:
    """Its steps stay in the run: what is missing of them is said of the whole."""
    tensor, entry = (
        message("lost.kind", what=message(f"lost.{n}"), why="E") for n in ("tensor", "entry")
    )
    for existing, step, lost in (
        ("refuse", 0, {tensor: 2}),
        ("resume", 1, {tensor: 1, entry: 3}),
        ("resume", 2, {}),
    ):
        recording = Recording(tmp_path / "run", existing=existing, step=step)
        recording.data("loss", 1.0)
        recording.writer.end_step(step, lost)
        recording.writer.close(lost=lost)
    (file,) = open_run(tmp_path / "run").run_files
    assert file.losses == [(tensor, 3), (entry, 3)]


@pytest.mark.parametrize("schema", [2, 0, True, "1", None])
def test_another_schema_is_refused(tmp_path: Path, schema: object) -> None:
    """By name, with the number found and the one expected: to read it, and to record into it."""
    Recording(tmp_path / "run").writer.close()
    path = tmp_path / "run" / "run.json"
    content = {**json.loads(path.read_text()), "schema": schema}
    path.write_text(json.dumps(content))
    said = f"{path} has the schema {schema!r}, this version reads 1"
    with pytest.raises(RunError, match=re.escape(said)):
        open_run(tmp_path / "run")
    with pytest.raises(RunError, match=re.escape(said)):
        Recording(tmp_path / "run", existing="resume")
    assert json.loads(path.read_text()) == content
