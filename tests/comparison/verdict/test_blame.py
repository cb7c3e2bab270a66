"""Who is to blame where a difference is easily laid at another's door."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Recording, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Cause, Outcome, Status

UPDATE, CRITIC = "actor_update", "critic_update"


def step(path, *, critic=1.0, rewards=1.0, loss_at="end", **settings):
    """Record one step of two updates in which what is given is multiplied by these factors."""
    recording = Recording(path, task="tensor", **settings)
    x = np.ones(3, np.float32)
    reward = np.float32(0.5) * np.float32(rewards)
    recording.data("rewards", reward)
    with recording.phase("critic_compute_values"):
        values = recording.call("v", "Dense", lambda x, r: x * r, x, reward)
    recording.data("mine", values * 2)
    recording.data("values", values)
    with recording.phase(UPDATE):
        actor = recording.call("a", "Dense", lambda x: x * 2, x)
    with recording.phase(CRITIC):
        other = recording.call("b", "Dense", lambda x: x * np.float32(critic), x)
    recording.data("loss", actor.sum() + other.sum())
    recording.end_step()
    return recording.close()


def first(tmp_path, **changes):
    a, b = step(tmp_path / "a"), step(tmp_path / "b", **changes)
    return compare_runs(a, b).verdict.first_divergence


def test_the_critics_update_not_the_loss_that_comes_of_it(tmp_path):
    """A loss saved after both updates does not hide the cell of the second."""
    found = first(tmp_path, critic=1.5)
    assert (found.entry, found.cause) == ("Cell.b.Dense.forward.0", Cause.COMPUTATION)


def test_rewards_not_the_critic_that_was_given_them(tmp_path):
    """Rewards saved before the critic ran come before what the critic made of them."""
    found = first(tmp_path, rewards=3.0)
    assert (found.record, found.cause) == ("rewards", Cause.DATA)


def lines_of(run, phase):
    path = run / phase / "step0" / "rank0" / "records.jsonl"
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def with_backward(path, leave_out=()):
    """Record a run and add backward entries to its journal, but those that are left out."""
    run = step(path)
    journal, lines = lines_of(run, UPDATE)
    gradient = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [1], "Max": 1.0}
    for seq, cell in ((100, "a"), (102, "c")):
        name = f"Cell.{cell}.Dense.backward.0"
        if cell not in leave_out:
            line = {"entry": name, "seq": seq, "end": seq + 1, "parent": None}
            lines.append({**line, "opening": 0, "input": [gradient]})
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_gradient_missing_among_others_is_no_coverage(tmp_path):
    """A run that recorded gradients lacks one: that it says it records none is no excuse."""
    a, b = with_backward(tmp_path / "a"), with_backward(tmp_path / "b", leave_out=["a"])
    found = compare_runs(a, b).verdict.first_divergence
    assert (found.entry, found.cause) == ("Cell.a.Dense.backward.0", Cause.MISSING)


@pytest.mark.parametrize("io", ["input", "output"])
@pytest.mark.parametrize("same", [True, False])
def test_a_damaged_file_is_to_blame_itself(tmp_path, io, same):
    """An unreadable file says nothing about cells, and whether the fingerprints agree."""
    a, b = step(tmp_path / "a"), step(tmp_path / "b", critic=1.0 if same else 2.0)
    name = f"Cell.b.Dense.forward.0.{io}.0.npy"
    (b / CRITIC / "step0" / "rank0" / "dump_tensor_data" / name).unlink()
    found = compare_runs(a, b).verdict.first_divergence
    assert found.cause is Cause.UNREADABLE
    assert found.entry == "Cell.b.Dense.forward.0"
    assert "computed a different result" not in found.explanation
    expected = "agree" if same or io == "input" else "differ"
    assert f"the recorded fingerprints {expected}" in found.explanation


def test_a_damaged_key_is_not_the_trainers_fault(tmp_path):
    """A key's file that is missing is not blamed on arithmetic."""
    a, b = step(tmp_path / "a"), step(tmp_path / "b")
    (b / "data" / "loss" / "step0" / "rank0" / "micro_step0" / "loss.npy").unlink()
    found = compare_runs(a, b).verdict.first_divergence
    assert found.cause is Cause.UNREADABLE
    assert "arithmetic" not in found.explanation


def test_an_argument_that_cannot_be_compared_is_a_doubt(of_both):
    """A cell that was handed an unknown object is blamed with that reservation."""

    def record(recording, run):
        with recording.phase(UPDATE):
            recording.call("a", "Dense", lambda x, _: x * (1 + (run == "b")), np.ones(2), object())

    found = of_both(record).verdict.first_divergence
    assert "input.1 has type" in found.explanation
    assert "may be to blame" in found.explanation


def test_key_data_that_could_not_be_saved_never_pass(of_both):
    """Values of a type that cannot be saved are unreadable in both runs, not the same."""

    def record(recording, run):
        recording.data("rewards", run.encode())
        recording.data("loss", 1.0)

    comparison = of_both(record)
    assert comparison.verdict.status is Outcome.DIVERGED
    assert comparison.verdict.first_divergence.cause is Cause.UNREADABLE


def as_msprobe(path, **changes):
    """Record a network with an outermost cell and take from it what msprobe does not record."""
    run = record_training(path, steps=1, key_data_dump=False, **changes)
    dump = path.with_name(path.name + "_msprobe")
    (dump / "step0" / "rank").mkdir(parents=True)
    source = run / UPDATE / "step0" / "rank0" / "dump.json"
    content = json.loads(source.read_text())
    for name in list(content["data"]):
        if name.startswith("Cell.root."):
            del content["data"][name]
    for entry in content["data"].values():
        for leaf in [*entry["input_args"], *entry["output"], *entry.get("parameters", {}).values()]:
            for name in ("fingerprint", "nan_count", "inf_count"):
                leaf.pop(name, None)
            leaf["Norm"] *= 1 + 1e-7
    (dump / "step0" / "rank" / "dump.json").write_text(json.dumps(content))
    return run / UPDATE, dump


def test_msprobes_dump_of_the_same_network_agrees(tmp_path):
    """It holds no outermost cell, names no phase, and sums in float32."""
    ours, theirs = as_msprobe(tmp_path / "run")
    comparison = compare_runs(ours, theirs)
    assert comparison.verdict.status is Outcome.WITHIN_TOLERANCE, comparison.verdict
    assert any("outermost" in gap.reason for gap in comparison.verdict.coverage)
    assert any("is compared with" in note for note in comparison.notes)


def test_statistics_of_two_tools_that_differ_are_different(tmp_path):
    """What two tools may round unlike is little."""
    ours, theirs = as_msprobe(tmp_path / "run")
    dump = theirs / "step0" / "rank" / "dump.json"
    content = json.loads(dump.read_text())
    content["data"]["Cell.layers.1.mlp.Dense.forward.0"]["output"][0]["Norm"] *= 1.001
    dump.write_text(json.dumps(content))
    found = compare_runs(ours, theirs).verdict.first_divergence
    assert found.entry == "Cell.layers.1.mlp.Dense.forward.0"


def test_phases_that_do_not_meet_are_said(tmp_path):
    """Nothing in common: the note names the phases and the option."""
    run = record_training(tmp_path / "a", steps=1, key_data_dump=False)
    comparison = compare_runs(run, MSPROBE_DATA / "statistics_a")
    assert comparison.verdict.status is Outcome.INCOMPARABLE
    assert any("--phases" in note for note in comparison.notes)


def test_cells_outside_a_prefix_still_meet_under_their_own_name(tmp_path):
    """A head beside the wrapped backbone is compared, and its fault named."""
    runs = []
    for name, prefix, factor in (
        ("a", "", 1),
        ("b", "policy.model.", 1),
        ("f", "policy.model.", 2),
    ):
        recording = Recording(tmp_path / name, key_data_dump=False)

        def network(x, prefix=prefix, factor=factor, recording=recording):
            for cell in ("emb", "mid", "last"):
                x = recording.call(prefix + cell, "Dense", lambda x: x + 1, x)
            return recording.call("head", "Dense", lambda x: x * factor, x)

        with recording.phase(UPDATE):
            recording.call("root", "Net", network, np.ones(3))
        recording.end_step()
        runs.append(recording.close())
    assert compare_runs(runs[0], runs[1]).verdict.status is Outcome.IDENTICAL
    found = compare_runs(runs[0], runs[2])
    assert found.verdict.first_divergence.entry == "Cell.head.Dense.forward.0"
    assert not any(f.status in (Status.ONLY_IN_A, Status.ONLY_IN_B) for f in found.findings)


def test_both_names_msprobe_gave_a_tensors_file(tmp_path):
    """`<key>0.npy` of the old layout meets `<key>.npy` of the new one."""
    for name, file in (("a", "x.npy"), ("b", "x0.npy")):
        directory = tmp_path / name / "data" / "x" / "step0" / "rank0"
        directory.mkdir(parents=True)
        np.save(directory / file, np.arange(4.0))
    assert compare_runs(tmp_path / "a", tmp_path / "b").verdict.status is Outcome.IDENTICAL


def test_key_data_that_cannot_be_listed_are_unreadable(tmp_path):
    """A link in the place of data/ that leaves the run is no reason to call keys missing."""
    a, b = step(tmp_path / "a"), step(tmp_path / "b")
    (b / "data").rename(tmp_path / "elsewhere")
    (b / "data").symlink_to(tmp_path / "elsewhere")
    comparison = compare_runs(a, b)
    of_keys = {f.key: f.status for f in comparison.findings if f.key is not None}
    assert set(of_keys.values()) == {Status.UNREADABLE}
    assert comparison.verdict.first_divergence.cause is Cause.UNREADABLE
