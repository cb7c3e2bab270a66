"""save, save_grad and step: key data from inside networks, in Python and in compiled graphs."""

import threading

import mindspore as ms
import numpy as np
import pytest
from helpers.small_networks import MODES, Assembled
from mindspore import Tensor, mutable, nn, ops

import mindrlhf_msprobe
from mindrlhf_msprobe import Probe, ProbeConfig, UsageError, open_run, save, save_grad, step
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message

KEYS = ["half", "loss", "nothing", "tree", "y", "y_grad"]


class Loss(Assembled, dense=lambda: nn.Dense(4, 3, weight_init="ones", bias_init="zeros")):
    """Saves what `save` takes."""

    def construct(self, x):
        y = save_grad("ignored", "y", self.dense(x))
        save("ignored", "y", y)
        save("ignored", "tree", {"a": y * 2, "b": [y, 3, "text", None], "c": (x > 0,)})
        save("ignored", "half", y.astype(ms.bfloat16))
        save("ignored", "nothing", None)
        loss = (y * y).sum()
        save("ignored", "loss", loss)
        return loss


class Plain(Loss):
    """Computes the same."""

    def construct(self, x):
        y = self.dense(x)
        return (y * y).sum()


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(CURRENT, "expected", False)
    monkeypatch.setattr(CURRENT, "_logged", set())
    monkeypatch.setattr(CURRENT, "_missed", False)
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


def recording(path, **settings):
    given = {"msprobe": True, "key_data_dump": True, "dump_path": str(path), **settings}
    return Probe(ProbeConfig(**given))


@pytest.fixture
def probe(tmp_path):
    with recording(tmp_path) as probe:
        yield probe


def trainer(loss):
    return nn.TrainOneStepCell(loss, nn.SGD(loss.trainable_params(), 0.1))


def train(loss, steps=2):
    cell = trainer(loss)
    losses = []
    for number in range(steps):
        losses.append(cell(Tensor(np.arange(8).reshape(2, 4) + number, ms.float32)).asnumpy())
        step()
    weights = [p.asnumpy().tobytes() for p in loss.get_parameters()]
    return losses, weights


class Saving(nn.Cell):
    """Saves its output, its gradient, and the gradient once more from a hook."""

    def __init__(self, factor):
        super().__init__()
        self.dense = nn.Dense(
            4, 4, weight_init=Tensor(np.eye(4) * factor, ms.float32), bias_init="ones"
        )

    def construct(self, x):
        y = save_grad("ignored", "y", self.dense(x))
        save("ignored", "y", y)
        return ops.HookBackward(_save_in_a_hook)(y * y)


def _save_in_a_hook(gradients):
    save("ignored", "in_a_hook", gradients[0])


class Recomputed(nn.Cell):
    """Cells that save: one that runs twice, a container, and one in a container."""

    def __init__(self, how):
        super().__init__()
        self.twice = Saving(0.5)
        self.inside = nn.SequentialCell(Saving(0.25), nn.SequentialCell(Saving(2)))
        if how:
            self.twice.recompute()
            self.inside.recompute()
        if how == "nested":
            self.inside[0].recompute()
            self.inside[1].recompute()

    def construct(self, x):
        return self.inside(self.twice(self.twice(x))).sum()


@pytest.mark.parametrize("how", ["recomputed", "nested"])
def test_a_recomputed_cell_saves_once(tmp_path, how):
    """Not again when it runs for its gradients; what hooks save then, is saved."""
    found = {}
    for name in ("", how):
        path = tmp_path / (name or "plain")
        with recording(path) as probe:
            train(Recomputed(name))
            probe.save_data({"saved_last": 1})
        run = open_run(path)
        found[name] = {k: [(d.step, d.micro_step) for d in run.key_data(k)] for k in run.keys}
        values = [d.value.tobytes() for k in ("y", "y_grad", "in_a_hook") for d in run.key_data(k)]
        found[name]["values"] = values
    assert len(found[""]["y"]) == len(found[""]["y_grad"]) == len(found[""]["in_a_hook"]) == 8
    assert found[how] == found[""]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_values_are_saved_as_they_were_and_training_stays_as_it_is(mode, probe, tmp_path):
    ms.set_context(mode=mode)
    losses, weights = train(Loss())
    probe.close()
    plain, untouched = train(Plain())
    assert [x.tobytes() for x in losses] == [x.tobytes() for x in plain]
    assert weights == untouched
    run = open_run(tmp_path)
    assert run.keys == KEYS
    assert run.steps == [0, 1]
    assert not run.lost
    for key in KEYS:
        assert [(d.step, d.micro_step) for d in run.key_data(key)] == [(0, 0), (1, 0)]
    assert [d.value for d in run.key_data("loss")] == losses
    y = run.key_data("y", step=0)[0].value
    assert y.tolist() == [[6.0] * 3, [22.0] * 3]
    assert (run.key_data("y_grad", step=0)[0].value == 2 * y).all()
    tree = run.key_data("tree", step=0)[0].value
    assert (tree["a"] == 2 * y).all()
    assert (tree["b"][0] == y).all()
    assert tree["b"][1:] == [3, "text", None]
    assert tree["c"][0].tolist() == [[False, True, True, True], [True] * 4]
    (half,) = run.key_data("half", step=0)[0].records
    assert half.leaf.dtype == "BFloat16"
    assert run.key_data("nothing")[0].value is None


def test_what_was_compiled_without_a_probe_is_coverage(tmp_path, caplog):
    ms.set_context(mode=ms.GRAPH_MODE)
    cell = trainer(Loss())
    x = Tensor(np.ones((2, 4), np.float32))
    cell(x)
    assert caplog.text.count("no probe records") == 1
    with recording(tmp_path) as probe:
        cell(x)
        probe.step()
    run = open_run(tmp_path)
    assert run.keys == []
    assert set(run.coverage()["key_data"]) >= {"y", "y_grad", "tree", "loss"}
    assert "while no probe took key data" in caplog.text


def test_what_is_compiled_again_with_a_probe_is_no_coverage(tmp_path, caplog):
    """Each key that the first graph would have saved comes from another one, gradients too."""
    ms.set_context(mode=ms.GRAPH_MODE)
    x = Tensor(np.ones((2, 4), np.float32))
    trainer(Loss())(x)
    with recording(tmp_path):
        trainer(Loss())(x)
        step()
    run = open_run(tmp_path)
    assert run.keys == KEYS
    assert not run.coverage().get("key_data")
    assert "while no probe took key data" not in caplog.text


def test_after_a_run_it_is_said_again(tmp_path, caplog):
    """Once for all names, and once more when there was a probe between."""
    for name in ("a", "b"):
        save("ignored", name, 1.0)
    with recording(tmp_path):
        save("ignored", "a", 1.0)
    for name in ("a", "b"):
        save("ignored", name, 1.0)
    assert caplog.text.count("no probe records") == 2


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_switched_off_probe_saves_nothing_and_says_nothing(mode, tmp_path, caplog):
    ms.set_context(mode=mode)
    Probe(ProbeConfig(msprobe=False, dump_path=str(tmp_path / "run")))
    train(Loss())
    assert not caplog.text
    assert not (tmp_path / "run").exists()


def test_a_bad_name_is_said_once_and_training_goes_on(probe, tmp_path, caplog):
    for name in ("a/b", "a/b", 3, None):
        save("ignored", name, 1.0)
    assert save_grad("ignored", "count", 3) == 3
    save("ignored", "loss", 2.0)
    probe.close()
    assert caplog.text.count("'a/b'") == 2  # the call's name, and the key that is refused
    assert "expected a tensor that can have a gradient" in caplog.text
    assert open_run(tmp_path).keys == ["loss"]


def test_the_newest_probe_that_records_counts(tmp_path):
    first, second = recording(tmp_path / "first"), recording(tmp_path / "second")
    save("ignored", "loss", 1.0)
    second.close()
    save("ignored", "loss", 2.0)
    first.close()
    values = [open_run(tmp_path / n).key_data("loss")[0].value for n in ("first", "second")]
    assert [float(v) for v in values] == [2.0, 1.0]


def test_saves_of_other_threads_are_kept(probe, tmp_path):
    threads = [
        threading.Thread(target=lambda: [save("ignored", "loss", i) for i in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    probe.close()
    assert len(open_run(tmp_path).key_data("loss")) == 80


def test_step_inside_a_phase_is_said_and_does_nothing(tmp_path, caplog):
    network = nn.Dense(2, 2)
    with recording(tmp_path, key_data_dump=False, actor_train_dump=True) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            step()
            network(Tensor(np.ones((1, 2), np.float32)))
        assert probe.current_step == 0
        with pytest.raises(UsageError):
            probe.phase("no_phase")
    assert "step() inside the phase" in caplog.text


def test_the_names_are_not_among_those_of_an_import_of_all():
    assert not {"save", "save_grad", "step"} & set(mindrlhf_msprobe.__all__)


def test_a_probe_without_key_data_takes_none(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    with recording(tmp_path, key_data_dump=False, actor_train_dump=True):
        train(Loss(), steps=1)
    assert open_run(tmp_path).keys == []


def test_a_gradient_of_a_part_of_the_network(probe, tmp_path):
    def loss(x):
        return (save_grad("ignored", "inner", ops.exp(x)) * 3).sum()

    gradient = ms.value_and_grad(loss)(Tensor([0.0, 1.0]))[1]
    probe.close()
    assert gradient.asnumpy() == pytest.approx(3 * np.exp([0.0, 1.0]))
    assert open_run(tmp_path).key_data("inner_grad")[0].value.tolist() == [3.0, 3.0]


def test_what_is_held_is_as_it_was(probe):
    parameter = ms.Parameter(Tensor([1.0, 2.0]), name="p")
    with CURRENT.hold() as held:
        save("ignored", "p", parameter)
        save("ignored", "tree", {"a": [parameter]})
        parameter.set_data(Tensor([5.0, 5.0]))
    assert held[0][1].array.tolist() == held[1][1]["a"][0].array.tolist() == [1.0, 2.0]
    assert probe.current_step == 0


class Unknown(nn.Cell):
    """Saves what a graph cannot hand over, between what it can."""

    def construct(self, x, limit, number):
        save("", "chosen", x[x > limit])
        save("", "mixed", [x * limit, x[x > limit]])
        save("", "number", number)
        save("", "whole", x)
        return x.sum()


def test_what_a_graph_cannot_hand_over_is_never_taken_for_the_same(tmp_path, caplog):
    ms.set_context(mode=ms.GRAPH_MODE)
    for name, limit in (("a", 1.5), ("b", 0.5)):
        with recording(tmp_path / name):
            Unknown()(Tensor([1.0, 2.0], ms.float32), Tensor(limit, ms.float32), mutable(2))
            step()
    run = open_run(tmp_path / "a")
    assert run.keys == ["mixed", "whole"]
    left_out = run.coverage()["key_data"]
    assert left_out["chosen"] == (message("coverage.dynamic_shape"),)
    assert left_out["number"] == (message("coverage.value_of_graph", type="Int64"),)
    first, second = run.key_data("mixed")[0].records
    assert first.array().tolist() == [1.5, 3.0]
    assert "dynamic" in str(second.leaf.why)
    assert any("mixed" in lost for lost in run.lost)
    assert caplog.text.count("chosen are not recorded") == 2
    result = mindrlhf_msprobe.compare_runs(tmp_path / "a", tmp_path / "b", keys="mixed,whole")
    statuses = {finding.record: finding.status.name for finding in result.findings}
    assert statuses["mixed.1"] == "UNREADABLE"
    line = "chosen: left out of A and of B: a tensor whose shape is dynamic"
    assert line in result.preflight.unknown


def test_a_save_that_is_left_out_keeps_its_micro_step(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    dynamic, fixed = Unknown(), Unknown()
    dynamic.set_inputs(Tensor(shape=[None], dtype=ms.float32), Tensor(1.0), mutable(2))
    with recording(tmp_path):
        for network in (dynamic, fixed):
            network(Tensor([1.0, 2.0], ms.float32), Tensor(1.0), mutable(2))
        step()
    assert [datum.micro_step for datum in open_run(tmp_path).key_data("whole")] == [1]


def test_a_tensor_of_integers_has_no_gradient_to_save(probe, caplog):
    save_grad("", "ids", Tensor([1, 2], ms.int32))
    assert "got a tensor of dtype Int32" in caplog.text


class Copied(nn.Cell):
    """Changes in place what `save_grad` returned, or what it was given; uses both."""

    def __init__(self, changed, saving):
        super().__init__()
        self.dense = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")
        self.changed, self.saving = changed, saving

    def construct(self, x):
        y = self.dense(x)
        z = save_grad("", "y", y) if self.saving else y
        if self.changed == "item":
            z[0] = 5.0
        else:
            changed = z if self.changed == "returned" else y
            changed.copy_(changed * 3)
        return (ops.exp(y / 100) * z).sum()


@pytest.mark.parametrize("changed", ["returned", "given", "item"])
def test_a_change_in_place_behind_save_grad_reaches_all_who_hold_the_tensor(
    probe, tmp_path, changed
):
    """The gradients of the weights are bit for bit those without save_grad."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    x = Tensor(np.arange(8).reshape(2, 4), ms.float32)
    found = []
    for saving in (False, True):
        loss = Copied(changed, saving)
        value, gradients = ms.value_and_grad(loss, None, loss.trainable_params())(x)
        found.append([tensor.asnumpy().tobytes() for tensor in (value, *gradients)])
    assert found[0] == found[1]
    probe.close()
    assert open_run(tmp_path).keys == ["y_grad"]
