"""The callback as mindformers.pynative's Trainer calls it, which needs no MindFormers."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, Decoder, hook_count
from mindspore import Tensor, nn

from mindrlhf_msprobe import ConfigError, ProbeCallback, RunError, UsageError, open_run
from mindrlhf_msprobe.storage.reading.reader import Run

TOKENS = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


@pytest.fixture
def settings(tmp_path):
    """Return a function that returns a configuration which records every step."""
    on = {"msprobe": True, "key_data_dump": True, "actor_train_dump": True, "step_end": 9}
    return partial(dict, on, dump_path=str(tmp_path / "run"), task="tensor")


@pytest.fixture
def trainer(settings):
    """Return a function that makes a Trainer with a callback, of a network unless told so."""

    def make(*model: Any, **others: Any) -> Trainer:
        return Trainer(ProbeCallback(settings(**others)), *(model or [Named()]))

    return make


@pytest.fixture
def run(tmp_path):
    """Return a function that opens what was recorded."""
    return lambda: open_run(tmp_path / "run")


class Named(Assembled, model=Decoder):
    """Takes its tokens by name, as MindFormers' models do."""

    def construct(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids)


class Counting(nn.learning_rate_schedule.LearningRateSchedule):
    """A tenth of the number of updates."""

    def construct(self, global_step: Tensor) -> Tensor:
        return global_step.astype(ms.float32) / 10


class Config:
    """A Trainer's configuration."""

    def __init__(self, **sections: Any) -> None:
        vars(self).update(sections)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Trainer:
    """Calls a callback as MindFormers' Trainer does; steps of two micro-batches."""

    def __init__(self, callback: ProbeCallback, model: Any, config: Any = None) -> None:
        self.callback, self.model = callback, model
        self.config = Config() if config is None else config
        self.networks = [net for net in (model if isinstance(model, list) else [model]) if net]
        rate = Counting()
        parameters = [net.trainable_params() for net in self.networks[:1]]
        self.optimizer = nn.SGD(*parameters, rate) if parameters else None
        self.state = SimpleNamespace(global_step=0)

    def call(self, event: str, **given: Any) -> None:
        given = {"model": self.model, "optimizer": self.optimizer, "lr_scheduler": None, **given}
        getattr(self.callback, event)(self.config, self.state, **given)

    def step(self, loss: Any = 0.5, **of_state: Any) -> None:
        self.call("on_step_begin")
        vars(self.state).update(of_state)
        for part in (TOKENS[:1], TOKENS[1:]):
            for network in self.networks:
                network(input_ids=Tensor(part))
        self.state.global_step += 1
        self.call("on_step_end", loss=loss, grad_norm=Tensor(2.0))

    def train(self, steps: int = 2, **of_step: Any) -> None:
        self.call("on_begin")
        self.call("on_train_begin")
        for _ in range(steps):
            self.call("on_epoch_begin")
            self.step(**of_step)
            self.call("on_epoch_end")
        self.call("on_train_end")
        self.call("on_end")


def values(run: Run, key: str) -> list[Any]:
    return [datum.records[0].leaf.max for datum in run.key_data(key)]


def cells(run: Run, step: int = 0) -> set[str]:
    return {entry.cell for entry in run.entries("actor_update", step, 0)}


def test_every_step_is_a_phase_with_what_it_computed(trainer, run):
    trainer().train()
    assert (run().steps, run().phases) == ([0, 1], ["actor_update"])
    assert {"root", "model"} < cells(run())
    assert (values(run(), "loss"), values(run(), "grad_norm")) == ([0.5, 0.5], [2.0, 2.0])
    batches = run().key_data("loss_inputs")
    assert [(datum.step, datum.micro_step) for datum in batches] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [record.path for record in batches[0].records] == ["input_ids"]


def test_the_learning_rate_is_that_of_the_update_not_of_the_next(trainer, run):
    training = trainer()
    training.call("on_train_begin")
    for updates in (3, 4):
        training.optimizer.global_step.set_data(Tensor([updates], ms.int32))
        training.step()
    training.call("on_train_end")
    assert np.allclose(values(run(), "lr"), [0.3, 0.4])


def test_skipped_steps_and_the_loss_scale_are_saved(trainer, run):
    training = trainer()
    training.state = SimpleNamespace(global_step=0, skipped_steps=4, loss_scale=1.0)
    training.call("on_train_begin")
    training.step()
    training.step(skipped_steps=5, loss_scale=0.5)
    training.call("on_train_end")
    assert [bool(value) for value in values(run(), "overflow")] == [False, True]
    assert values(run(), "loss_scale") == [1.0, 0.5]


@pytest.mark.parametrize("model", [[Named()], [None, Named()]], ids=["one", "none_and_one"])
def test_one_network_in_a_list_is_named_as_alone(trainer, run, model):
    trainer(model).train(1)
    assert {"root", "model"} < cells(run())


def test_several_networks_are_named_by_their_places(trainer, run):
    first, third = Named(), Named()
    before = [p.name for p in first.get_parameters()]
    trainer([first, None, third]).train(1)
    assert {"stage0", "stage0.model", "stage2", "stage2.model"} < cells(run())
    assert not {"root", "stage1"} & cells(run())
    assert [p.name for p in first.get_parameters()] == before


def test_without_a_network_key_data_are_recorded(trainer, run):
    trainer([None]).train(1)
    assert values(run(), "loss") == [0.5]
    assert "stage" in str(run().manifests[0]["coverage"])


def test_a_loss_of_another_stage_is_coverage(trainer, run):
    trainer().train(loss=None)
    assert (run().key_data("loss"), values(run(), "grad_norm")) == ([], [2.0, 2.0])
    assert "loss" in str(run().manifests[0]["coverage"])


def test_a_resumed_training_counts_on(trainer, run):
    training = trainer()
    training.state.global_step = 5
    training.train()
    assert run().steps == [5, 6]


def test_off_registers_nothing(trainer, tmp_path):
    training = trainer(msprobe=False)
    training.call("on_train_begin")
    training.call("on_step_begin")
    assert hook_count(training.model) == 0
    training.train()
    assert not (tmp_path / "run").exists()


def test_a_training_after_one_that_raised_is_recorded(trainer, run):
    """And nothing stays on the network."""
    training = trainer()
    training.call("on_train_begin")
    training.call("on_step_begin")  # and then it raises
    training.train()
    assert (len(run().key_data("loss")), hook_count(training.model)) == (2, 0)


def test_the_trainers_own_section_is_enough(settings, run):
    config = Config(msprobe_config=settings(configurations_dump=True), training={"steps": 2})
    Trainer(ProbeCallback(), Named(), config).train(1)
    assert run().steps == [0]
    assert run().configurations()["training"] == {"steps": 2}
    assert "msprobe_config" not in run().configurations()


def test_no_configuration_is_refused(settings):
    with pytest.raises(ConfigError, match="msprobe_config"):
        Trainer(ProbeCallback(), Named()).train()
    with pytest.raises(UsageError, match="config="):
        ProbeCallback(settings(), config=settings())
    with pytest.raises(ConfigError, match="msprob"):
        Trainer(ProbeCallback(), Named(), Config(msprobe_config={"msprob": True})).train()


def test_a_second_callback_of_the_same_run_is_refused(trainer):
    first = trainer()
    first.call("on_train_begin")
    with pytest.raises(RunError):
        trainer(first.model).call("on_train_begin")
    first.call("on_train_end")
    with pytest.raises(RunError, match="Two trainings"):
        Trainer(first.callback, Named()).train()


def test_a_rate_that_cannot_be_read_is_coverage(trainer, run):
    training = trainer()
    training.optimizer = SimpleNamespace(get_lr=lambda: 1 / 0)
    training.train()
    assert (values(run(), "loss"), run().key_data("lr")) == ([0.5, 0.5], [])
    assert "division" in str(run().manifests[0]["coverage"])
