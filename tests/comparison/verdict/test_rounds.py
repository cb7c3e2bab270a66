"""The rounds of a search: what is proposed next, how much it takes, and what is carried on."""

from __future__ import annotations

import json
import os
import re

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Cause, Outcome, Relation
from mindrlhf_msprobe.report.comparison import render
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
