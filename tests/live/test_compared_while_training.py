"""A run compared with another one while it trains: the first divergence, at once."""

from __future__ import annotations

import json
import shutil

import mindspore as ms
import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA
from mindspore import nn

from mindrlhf_msprobe import Probe, RunError, open_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("steps_wait")]

PARTS_AT = 3


def train(path, steps=6, parts=False, lacks=False, **options):
    """Train a small network; return its weights and the step after which it was ended.

    Args:
        parts: in one step, a parameter is another one.
        lacks: in that step, the loss is not saved.
    """
    net = nn.SequentialCell(
        nn.Dense(4, 8, weight_init="ones", bias_init="zeros"),
        nn.Tanh(),
        nn.Dense(8, 2, weight_init="ones", bias_init="zeros"),
    )
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    gradients = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    config = {"msprobe": True, "actor_train_dump": True, "key_data_dump": True, "step_end": 99}
    ended = None
    with Probe.from_config({**config, "dump_path": str(path), **options}) as probe:
        probe.watch(actor=net)
        for step in range(steps):
            if parts and step == PARTS_AT:
                net[2].bias.set_data(net[2].bias + 1e-3)
            with probe.phase("actor_update"):
                loss, found = gradients(ms.Tensor(np.full((2, 4), 0.1 * (step + 1), np.float32)))
            optimizer(found)
            if not (lacks and step == PARTS_AT):
                probe.save_data(loss=loss)
            try:
                probe.step()
            except SystemExit as end:
                ended = step, end.code
                break
    return [p.asnumpy().tobytes() for p in net.get_parameters()], ended


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "a"
    return path, train(path)[0]


def stored(path):
    entries = open_run(path).entries()
    return {(e.step, e.phase, e.cell) for e in entries if any(r.location for r in e.records)}


def test_the_first_divergence_is_logged_once_with_its_cause(tmp_path, other, caplog):
    train(tmp_path / "b", parts=True, compare_to=str(other[0]))
    (said,) = [m for m in caplog.messages if "DIVERGED from" in m]
    assert f"step {PARTS_AT}, actor_update: Cell.2.Dense.forward.0.parameters.bias" in said
    assert "cause: parameter. " in said
    assert "the optimizer step of actor_update in step 2" in said
    assert stored(tmp_path / "b") == set()


def test_stop_ends_the_training_with_the_step_that_diverges(tmp_path, other, caplog):
    _, ended = train(tmp_path / "b", parts=True, compare_to=str(other[0]), on_divergence="stop")
    assert ended == (PARTS_AT, 1)
    assert open_run(tmp_path / "b").completed(PARTS_AT)
    assert "on_divergence: stop" in caplog.text


def test_what_a_step_lacks_is_a_divergence_and_not_yet_to_come(tmp_path, other, caplog):
    """The run goes on, but its step has ended; without fingerprints, records are compared."""
    options = {"fingerprint": False, "compare_to": str(other[0]), "on_divergence": "stop"}
    _, ended = train(tmp_path / "b", lacks=True, **options)
    assert ended == (PARTS_AT, 1)
    assert f"step {PARTS_AT}, actor_update: loss: cause: missing" in caplog.text


def test_record_stores_the_elements_of_that_cell_in_the_next_step(tmp_path, other):
    options = {"compare_to": str(other[0]), "on_divergence": "record"}
    train(tmp_path / "b", parts=True, **options)
    assert stored(tmp_path / "b") == {(PARTS_AT + 1, "actor_update", "2")}
    statistics = [e.name for e in open_run(other[0]).entries(step=PARTS_AT + 1)]
    assert [e.name for e in open_run(tmp_path / "b").entries(step=PARTS_AT + 1)] == statistics


def test_record_waits_for_the_next_step_that_is_recorded(tmp_path, other, caplog):
    """With step_interval it is a later one; where there is none, that is said."""
    options = {"compare_to": str(other[0]), "on_divergence": "record", "step_start": 1}
    train(tmp_path / "b", steps=7, parts=True, step_interval=2, **options)
    assert stored(tmp_path / "b") == {(PARTS_AT + 2, "actor_update", "2")}
    assert "from step" not in caplog.text.partition("DIVERGED")[2]
    train(tmp_path / "c", parts=True, **{**options, "step_end": PARTS_AT})
    assert stored(tmp_path / "c") == set()
    assert f"from step {PARTS_AT + 1} on no step is recorded" in caplog.text


def test_a_training_that_agrees_stays_as_it_is_and_nothing_is_said(tmp_path, other, caplog):
    found = train(tmp_path / "b", compare_to=str(other[0]), on_divergence="stop")
    assert found == (other[1], None)
    assert "DIVERGED" not in caplog.text
    assert json.loads((tmp_path / "b/run.json").read_text())["lost"] == {}


def test_a_run_that_ends_earlier_is_said_once(tmp_path, other, caplog):
    train(tmp_path / "b", steps=9, compare_to=str(other[0]), on_divergence="stop")
    (said,) = [m for m in caplog.messages if "nothing is compared" in m]
    assert "whole steps up to 5: from step 6 on" in said


def begin(path, **options):
    options = {"msprobe": True, "key_data_dump": True, "dump_path": str(path), **options}
    return Probe.from_config(options)


def end_step(probe):
    probe.save_data(loss=1.5)
    probe.step()


def test_a_run_that_is_recorded_at_the_same_time_is_compared_as_far_as_it_came(tmp_path, caplog):
    with begin(tmp_path / "a") as a:
        end_step(a)
        with begin(tmp_path / "b", compare_to=str(tmp_path / "a"), on_divergence="stop") as b:
            end_step(b)
            for _ in range(2):
                end_step(a)
                end_step(b)
            assert "compared" not in caplog.text
            end_step(b)
            end_step(b)
    (said,) = [m for m in caplog.messages if "nothing is compared" in m]
    assert "whole steps up to 2, and is still being recorded: from step 3 on" in said


def test_a_run_that_is_removed_is_said_once_and_is_no_divergence(tmp_path, caplog):
    with begin(tmp_path / "a") as a:
        for _ in range(4):
            end_step(a)
    with begin(tmp_path / "b", compare_to=str(tmp_path / "a"), on_divergence="stop") as b:
        end_step(b)
        shutil.rmtree(tmp_path / "a")
        end_step(b)
        end_step(b)
    (said,) = [m for m in caplog.messages if "compared" in m]
    assert "no longer exists: from step 1 on nothing is compared" in said


def test_a_run_that_is_damaged_is_said_once_and_is_no_divergence(tmp_path, other, caplog):
    """It says nothing of the training, which goes on."""
    path = shutil.copytree(other[0], tmp_path / "a")
    journal = path / "actor_update" / f"step{PARTS_AT}" / "rank0" / "records.jsonl"
    journal.write_bytes(journal.read_bytes()[:-100])
    _, ended = train(tmp_path / "b", compare_to=str(path), on_divergence="stop")
    assert ended is None
    (said,) = [m for m in caplog.messages if "compared" in m]
    assert f"cannot be read at step {PARTS_AT}" in said


def test_a_run_that_has_nothing_in_common_is_said_once(tmp_path, caplog):
    """It is not called the same: a dump of MindSpore's graphs has other names."""
    dump = MSPROBE_DATA.parent / "mindspore_dump" / "a"
    options = {"key_data_dump": False, "on_divergence": "stop", "compare_to": str(dump)}
    _, ended = train(tmp_path / "b", steps=2, **options)
    assert ended is None
    (said,) = [m for m in caplog.messages if "could be compared" in m]
    assert "nothing of step 0 could be compared with" in said


def test_what_is_no_other_run_is_refused_at_the_start(tmp_path):
    (tmp_path / "empty").mkdir()
    for path, why in (("none", "none"), ("empty", "empty"), ("b", "own dump_path")):
        with pytest.raises(RunError, match=why):
            train(tmp_path / "b", compare_to=str(tmp_path / path))
    assert not (tmp_path / "b").exists()


def test_a_run_of_another_number_of_ranks_is_refused_at_the_start(tmp_path, other, monkeypatch):
    """Its rank 0 was given other samples, or holds another part of the weights."""
    monkeypatch.setenv("RANK_SIZE", "2")
    with pytest.raises(RunError, match=r"recorded by a job of 1 rank.*this one has 2"):
        train(tmp_path / "b", compare_to=str(other[0]))
    assert not (tmp_path / "b").exists()
