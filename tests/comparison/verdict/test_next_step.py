"""The rounds of a search: what is proposed next, how much it takes, and what is carried on.

Of networks of which all cells take too much: a few layers first, then those between.
"""

from __future__ import annotations

import json
import os
import random
import re

import numpy as np
import pytest
from helpers.runs import Fault, Recording, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.verdict import next_step
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Cause, Outcome, Relation
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.manifest.manifest import Networks
from mindrlhf_msprobe.storage.manifest.run_file import Settings
from mindrlhf_msprobe.storage.reading.reader import open_run

REFERENCE, UPDATE = "reference_compute_log_prob", "actor_update"
KEYS = {
    "actor_infer_dump": False,
    "actor_train_dump": False,
    "reference_dump": False,
    "critic_train_dump": False,
}


class Search:
    """Two trainings, one with a fault, recorded again as each answer proposes."""

    def __init__(self, root, fault, **training):
        self._root, self._fault, self._training = root, fault, training
        self.rounds = 0

    def round(self, settings, after=None):
        """Record both with these settings and return the comparison."""
        self.rounds += 1
        place = self._root / str(self.rounds)
        settings = {**KEYS, "key_data_dump": False, "step_end": 0, **self._training, **settings}
        record_training(place / "a", **settings)
        record_training(place / "b", faults=[self._fault], **settings)
        return compare_runs(place / "a", place / "b", output_path=place / "out", after=after)

    @property
    def last(self):
        """The output of the last round, and the size of what A recorded of cells in it."""
        place = self._root / str(self.rounds)
        files = [f for p in open_run(place / "a").phases for f in (place / "a" / p).rglob("*")]
        return place / "out", sum(f.lstat().st_blocks * 512 for f in files)


def fresh(settings):
    """Return proposed settings as record_training takes them, checked."""
    assert ProbeConfig(**settings).msprobe
    return {name: value for name, value in settings.items() if name != "msprobe"}


@pytest.mark.parametrize(
    ("fault", "entry", "include", "records"),
    [
        ("layers.1.mlp", "layers.1.mlp.Dense", [r"^layers\.1\.mlp(\.|$)"], 3),
        ("root", "root.Network", ["^root$"], 2),
        ("layers.0", "layers.0.Block", [r"^layers\.0$"], 2),
        ("layers.0:between", "layers.0.Block", [r"^layers\.0$", r"^layers\.0\.mlp(\.|$)"], 2),
    ],
)
def test_three_rounds_to_the_elements(tmp_path, fault, entry, include, records):
    """Key data, then the layers of one phase and step, then the elements of what is to blame."""
    search = Search(tmp_path, Fault(fault, REFERENCE, step=1), steps=3)
    first = search.round({"key_data_dump": True}).verdict.first_divergence
    assert (first.key, first.step, first.next_step_bytes) == ("ref_log_prob", 1, None)
    out, _ = search.last
    second = search.round(fresh(first.next_step), after=out)
    assert second.earlier[1] is Relation.INSIDE
    place = second.verdict.first_divergence
    assert (place.entry, place.cause) == (f"Cell.{entry}.forward.0", Cause.COMPUTATION)
    assert place.next_step["include"] == include
    assert place.next_step["task"] == "tensor"
    out, _ = search.last
    third = search.round(fresh(place.next_step), after=out)
    found = third.verdict.first_divergence
    assert (found.entry, found.cause, found.record) == (place.entry, place.cause, place.record)
    assert found.next_step is None
    assert found.inside is not None
    assert third.earlier[1] is Relation.SAME
    assert "left out" not in found.explanation
    assert third.verdict.compared == records
    assert "it named the same place; all cells were recorded then" in render(third)
    _, size = search.last
    assert place.next_step_bytes == pytest.approx(size, abs=os.statvfs(tmp_path).f_frsize)
    without = compare_runs(tmp_path / "3/a", tmp_path / "3/b").verdict.first_divergence
    assert without.next_step is None
    assert (without.entry, without.cause) == (place.entry, place.cause)


def test_one_call_of_one_rank(tmp_path):
    """Of several calls the one that differs is recorded, and of several ranks the first."""
    fault = Fault("head", UPDATE, rank=1, call=1)
    search = Search(tmp_path, fault, steps=1, ranks=(0, 1), rounds=3)
    layers = search.round({"actor_train_dump": True})
    place = layers.verdict.first_divergence
    assert place.entry == "Cell.head.Dense.forward.1"
    assert place.next_step["entries"] == [".forward.1"]
    assert place.next_step["ranks"] == [1]
    out, _ = search.last
    found = search.round(fresh(place.next_step), after=out).verdict
    assert found.first_divergence.entry == place.entry
    assert {f"{place.entry}.output.0", f"{place.entry}.input.0"} <= {
        record.name
        for entry in open_run(tmp_path / "2/a").entries(UPDATE)
        for record in entry.records
    }
    assert [entry.call for entry in open_run(tmp_path / "2/a").entries(UPDATE)] == [1]


def test_one_token_of_generation(tmp_path):
    """All tokens are recorded with statistics, then the elements of the one that differs."""
    fault = Fault("layers.1.mlp", "actor_generate_sequences", call=2)
    search = Search(tmp_path, fault, steps=1, tokens=4)
    keys = search.round({"key_data_dump": True}).verdict.first_divergence
    assert keys.next_step["actor_infer_dump"] is True
    layers = search.round(fresh(keys.next_step), after=search.last[0])
    place = layers.verdict.first_divergence
    assert place.entry == "Cell.layers.1.mlp.Dense.forward.2"
    settings = place.next_step
    assert (settings["token_range_start"], settings["token_range_end"]) == (2, 2)
    found = search.round(fresh(settings), after=search.last[0])
    assert found.verdict.first_divergence.entry == place.entry
    assert found.verdict.first_divergence.inside is not None
    assert found.verdict.compared == 3


def test_what_entered_the_phase_takes_its_inputs_alone(tmp_path):
    """At the root's input, the elements of that input are proposed: not the network's."""
    search = Search(tmp_path, Fault("responses"), steps=1)
    layers = search.round({"reference_dump": True})
    place = layers.verdict.first_divergence
    assert place.cause is Cause.INPUT
    assert place.next_step["include"] == ["^root$"]
    assert place.next_step["parts"] == ["input"]
    found = search.round(fresh(place.next_step), after=search.last[0])
    assert found.verdict.compared == 1
    known = found.verdict.first_divergence
    assert known.next_step is None
    # What the round before knew is not in doubt again.
    assert "The input of reference_compute_log_prob differs already" in known.explanation
    assert "include/exclude" not in known.explanation


def test_two_unlike_phases_are_both_recorded_again(tmp_path):
    """Whichever switch each of them has."""
    fault = Fault("layers.0.mlp", REFERENCE)
    run = record_training(tmp_path / "a", steps=1, faults=[fault])
    found = compare_runs(run, phases=("actor_compute_log_prob", REFERENCE))
    place = found.verdict.first_divergence
    assert place.next_step["actor_train_dump"] is True
    assert place.next_step["reference_dump"] is True
    assert "Look closer: record it again, into another dump_path" in render(found)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """Return two runs that part in a cell, and where their comparison was written."""
    root = tmp_path_factory.mktemp("diverged")
    a = record_training(root / "a", steps=1)
    b = record_training(root / "b", steps=1, faults=[Fault("head", REFERENCE)])
    compare_runs(a, b, output_path=root / "out")
    return a, b, root / "out"


@pytest.mark.parametrize(
    ("change", "relation"),
    [
        ({}, Relation.SAME),
        ({"entry": "Cell.embed.Dense.forward.0"}, Relation.ELSEWHERE),
        ({"step": 3}, Relation.ELSEWHERE),
        ({"entry": None, "record": "log_prob", "phase": UPDATE}, Relation.BEFORE),
        (None, Relation.NEW),
    ],
)
def test_how_two_answers_stand_to_each_other(diverged, tmp_path, change, relation):
    """The same place, a key that comes of it, another place, or none before."""
    content = json.loads((diverged[2] / "verdict.json").read_text())
    content["first_divergence"] = (
        None if change is None else {**content["first_divergence"], **change}
    )
    if change is None:
        content["status"] = "identical"
    (tmp_path / "verdict.json").write_text(json.dumps(content))
    result = compare_runs(diverged[0], diverged[1], after=tmp_path)
    assert result.earlier[1] is relation
    assert result.to_json()["after"]["relation"] == relation.value
    assert f"The earlier comparison {tmp_path}" in render(result)
    if relation is Relation.ELSEWHERE:
        assert "repeatable" in render(result)


def test_a_verdict_of_another_schema_is_refused(diverged, tmp_path):
    """By the file's name, with the number found and the one expected."""
    content = json.loads((diverged[2] / "verdict.json").read_text())
    file = tmp_path / "verdict.json"
    file.write_text(json.dumps({**content, "schema": 2}))
    said = f"{file} has the schema 2, this version reads 1"
    with pytest.raises(RunError, match=re.escape(said)):
        compare_runs(diverged[0], diverged[1], after=tmp_path)


def test_an_earlier_difference_that_is_not_seen_again(diverged, tmp_path):
    """Agreement now is no answer to the difference of before, and says so."""
    a = record_training(tmp_path / "a", steps=1)
    result = compare_runs(diverged[0], a, after=diverged[2])
    assert result.verdict.status is Outcome.IDENTICAL
    assert result.earlier[1] is Relation.NOT_SEEN
    assert "nothing that was recorded now differs" in render(result)


def test_names_of_an_earlier_verdict_do_not_reach_the_terminal_raw(diverged, tmp_path):
    """Control characters in it are shown as escapes."""
    content = json.loads((diverged[2] / "verdict.json").read_text())
    content["first_divergence"]["record"] = "a\x1b[2Jb"
    content["first_divergence"]["entry"] = None
    (tmp_path / "verdict.json").write_text(json.dumps(content))
    answer = render(compare_runs(diverged[0], diverged[1], after=tmp_path))
    assert "\x1b" not in answer
    assert "a\\x1b[2Jb" in answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"status": "odd"}',
        '{"status": ["identical"]}',
        '{"status": "diverged", "first_divergence": []}',
        '{"status": "diverged", "first_divergence": {"step": -1}}',
        '{"status": "diverged", "first_divergence": {"step": true}}',
        '{"status": "diverged", "first_divergence": {"record": 3}}',
        '{"status": "diverged", "first_divergence": {"record": "' + "x" * 2000 + '"}}',
        "[" * 100_000,
        '{"status": "diverged", "first_divergence": {"step": ' + "9" * 5000 + "}}",
    ],
)
def test_a_verdict_that_cannot_be_used(diverged, tmp_path, text, capsys):
    """It is data from elsewhere: one line and exit code 2, never a traceback."""
    (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(RunError, match="cannot be used as the verdict"):
        compare_runs(diverged[0], diverged[1], after=tmp_path)
    a, b = map(str, diverged[:2])
    assert main(["compare", a, b, "-o", str(tmp_path / "o"), "--after", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_there_must_be_an_earlier_comparison(diverged, tmp_path):
    """A directory without one, or none at all, is an error."""
    for wrong in (tmp_path, tmp_path / "none", diverged[0]):
        with pytest.raises(RunError, match=r"holds no verdict\.json"):
            compare_runs(diverged[0], diverged[1], after=wrong)


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
