"""The callback for `Model.train` and MindFormers' Trainer."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import run_python

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, Decoder, hook_count
from mindspore import Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model, RunContext
from mindspore.train.callback import _InternalCallbackParam

from mindrlhf_msprobe import ConfigError, Probe, RunError, UsageError, open_run
from mindrlhf_msprobe.integrations.mindformers import ProbeCallback

STEPS_AN_EPOCH, EPOCHS = 2, 2
MODES = {"PyNative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}


class Loss(nn.Cell):
    """The negative log-likelihood of the labels, in plain operators."""

    def construct(self, logits, labels):
        chosen = ops.one_hot(labels, 11, Tensor(1.0), Tensor(0.0))
        return -(ops.log_softmax(logits, -1) * chosen).mean()


class DecoderWithLoss(Assembled, decoder=Decoder, loss=Loss):
    """A network that computes its own loss, as MindFormers' do."""

    def construct(self, tokens, labels):
        return self.loss(self.decoder(tokens), labels)


class TrainStep(nn.TrainOneStepCell):
    """A cell that trains, given to the Model ready-made, as MindFormers' Trainer does."""

    def construct(self, *inputs):
        loss = super().construct(*inputs)
        return loss, Tensor(False)


class Losses(Callback):
    """Keeps the bits of every loss."""

    def __init__(self):
        super().__init__()
        self.bits = []

    def on_train_step_end(self, run_context):
        outputs = run_context.original_args().net_outputs
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        self.bits.append(loss.asnumpy().tobytes())


class Interrupted(Callback):
    """Raises in the middle of the second step."""

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 2:
            raise RuntimeError("the training broke")


@pytest.fixture
def settings(tmp_path):
    """Return a function that returns a configuration which records every step."""

    def of(**others):
        on = {"msprobe": True, "key_data_dump": True, "actor_train_dump": True, "step_end": 9}
        return {**on, "dump_path": str(tmp_path / "run"), **others}

    return of


def batches():
    """Return a data set of two batches."""
    tokens = (np.arange(4 * 5).reshape(4, 5) * 7 % 11).astype(np.int32)
    data = {"tokens": tokens, "labels": (tokens + 1) % 11}
    return NumpySlicesDataset(data, shuffle=False).batch(2)


def separate_loss():
    """Return a Model of network, loss function and optimizer, and the network."""
    network = Decoder()
    return Model(network, Loss(), nn.Adam(network.trainable_params(), 0.01)), network


def loss_inside():
    """Return a Model of a network that computes its loss, and the network."""
    network = DecoderWithLoss()
    return Model(network, optimizer=nn.Adam(network.trainable_params(), 0.01)), network


def ready_made_step():
    """Return a Model of a cell that trains, and the network inside it."""
    network = DecoderWithLoss()
    return Model(TrainStep(network, nn.Adam(network.trainable_params(), 0.01))), network


def train(build, mode, *callbacks, **how):
    """Train and return the bits of every loss and, at the end, weight."""
    ms.set_context(mode=mode)
    try:
        model, network = build()
        losses = Losses()
        model.train(EPOCHS, batches(), callbacks=[*callbacks, losses], **how)
        assert hook_count(network) == 0
        return losses.bits + [p.asnumpy().tobytes() for p in network.get_parameters()]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def names(run, step):
    """Return the names of a step's entries."""
    return {entry.name for entry in run.entries(phase="actor_update", step=step)}


@pytest.fixture(scope="module")
def names_of_the_decoder(tmp_path_factory):
    """Return the entries that the decoder has where a trainer watches it by hand."""
    path = tmp_path_factory.mktemp("by_hand") / "run"
    on = {"msprobe": True, "actor_train_dump": True, "dump_path": str(path)}
    network, loss = Decoder(), Loss()
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    with Probe.from_config(on) as probe:
        probe.watch(actor=network)
        step = ms.value_and_grad(lambda x, y: loss(network(x), y), None, optimizer.parameters)
        with probe.phase("actor_update"):
            step(*next(iter(batches())))
        probe.step()
    return names(open_run(path), 0)


@pytest.mark.parametrize(
    ("mode", "sink"),
    [(ms.PYNATIVE_MODE, False), (ms.GRAPH_MODE, True)],  # on CPU MindSpore sinks nothing
    ids=["PyNative", "graph"],
)
def test_a_training_is_recorded_step_by_step_under_the_networks_own_names(
    mode, sink, settings, names_of_the_decoder
):
    """The bits of the training stay; each step holds the same entries, the loss function's too."""
    bits = train(separate_loss, mode, dataset_sink_mode=sink)
    callback = ProbeCallback(settings())
    assert train(separate_loss, mode, callback, dataset_sink_mode=sink) == bits
    run = open_run(settings()["dump_path"])
    assert run.steps == list(range(EPOCHS * STEPS_AN_EPOCH))
    for step in run.steps:
        around = {name for name in names(run, step) if name.startswith("Cell.outer.")}
        assert names(run, step) - around == names_of_the_decoder
        assert {"Cell.outer.WithLossCell.forward.0", "Cell.outer._loss_fn.Loss.forward.0"} < (
            around
        )
    saved = [datum.value.tobytes() for datum in run.key_data("loss")]
    assert saved == bits[: len(saved)]
    assert len(saved) == EPOCHS * STEPS_AN_EPOCH
    content = json.loads((Path(settings()["dump_path"]) / "run.json").read_text())
    assert content["state"] == "finished"
    assert not content.get("lost")


@pytest.mark.parametrize(
    ("build", "mode"),
    [
        (loss_inside, ms.PYNATIVE_MODE),
        (ready_made_step, ms.PYNATIVE_MODE),
        (ready_made_step, ms.GRAPH_MODE),
    ],
)
def test_a_network_with_its_own_loss_is_the_root(build, mode, settings):
    """Nothing stands around it, whether the Model or a trainer made the cell that trains."""
    bits = train(build, mode)
    assert train(build, mode, ProbeCallback(settings())) == bits
    found = names(open_run(settings()["dump_path"]), 1)
    assert "Cell.root.DecoderWithLoss.forward.0" in found
    assert "Cell.decoder.embedding.Embedding.parameters_grad.0" in found
    assert "Cell.decoder.blocks.1.up.Dense.backward.0" in found
    assert not [name for name in found if name.startswith("Cell.outer.")]


def test_evaluation_between_the_epochs_is_no_step(settings):
    """`Model.fit` hands its callbacks to the evaluation too."""
    losses, bits = [], []
    for callback in (None, ProbeCallback(settings())):
        network, kept = Decoder(), Losses()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        model = Model(network, Loss(), optimizer, metrics={"loss"})
        model.fit(EPOCHS, batches(), batches(), callbacks=[*filter(None, [callback]), kept])
        losses.append(kept.bits)
        bits.append([p.asnumpy().tobytes() for p in network.get_parameters()])
    assert losses[0] == losses[1]
    assert bits[0] == bits[1]
    run = open_run(settings()["dump_path"])
    assert run.steps == [0, 1, 2, 3]
    assert run.finished
    assert "Cell.root.Decoder.forward.1" not in names(run, 1)
    assert model.eval(batches(), callbacks=ProbeCallback(settings())) is not None


def test_names_may_be_those_of_a_cell_inside(settings, names_of_the_decoder):
    """`network` says whose; what is none of the trained cells is refused, and nothing hooked."""
    model, network = loss_inside()
    model.train(1, batches(), callbacks=[ProbeCallback(settings(), network=network.decoder)])
    found = names(open_run(settings()["dump_path"]), 1)
    assert names_of_the_decoder < found
    assert "Cell.outer.loss.Loss.forward.0" in found
    other = ProbeCallback(settings(existing="overwrite"), network=Decoder())
    with pytest.raises(UsageError, match="Decoder, which is not a cell of the DecoderWithLoss"):
        model.train(1, batches(), callbacks=[other])
    assert hook_count(network) == 0


def test_a_training_that_raises_leaves_a_readable_run_that_failed(settings):
    """The first step is whole, the second unfinished; the exception is the training's own."""
    model, network = separate_loss()
    with pytest.raises(RuntimeError, match="the training broke"):
        model.train(EPOCHS, batches(), callbacks=[Interrupted(), ProbeCallback(settings())])
    assert hook_count(network) == 0
    path = Path(settings()["dump_path"])
    assert json.loads((path / "run.json").read_text())["state"] == "failed"
    run = open_run(path)
    assert run.steps == [0, 1]
    assert names(run, 0) == names(run, 1)
    assert [datum.step for datum in run.key_data("loss")] == [0]


def test_a_probe_of_the_trainer_stays_open_for_the_phases_after(make_probe):
    """Supervised steps and what follows them are one run, counted on."""
    probe = make_probe(actor_train_dump=True, key_data_dump=True, step_end=9)
    callback = ProbeCallback(probe)
    train(separate_loss, ms.PYNATIVE_MODE, callback)
    assert callback.probe is None
    assert probe.current_step == EPOCHS * STEPS_AN_EPOCH
    probe.save_data(rewards=1.0)
    probe.step()
    probe.close()
    assert open_run(probe.config.dump_path).steps == list(range(EPOCHS * STEPS_AN_EPOCH + 1))


def test_a_phase_of_ones_own_and_configurations(settings):
    """`phase` names what a training step is; the configurations are written at the beginning."""
    callback = ProbeCallback(
        settings(phases={"sft": "student"}, configurations_dump=True, actor_train_dump=False),
        "sft",
        configurations={"sft": {"epochs": EPOCHS}},
    )
    train(separate_loss, ms.PYNATIVE_MODE, callback)
    run = open_run(settings()["dump_path"])
    assert run.phases == ["sft"]
    written = json.loads((Path(settings()["dump_path"]) / "configurations.json").read_text())
    assert written == {"sft": {"epochs": EPOCHS}}


def test_a_resumed_training_goes_on_counting(settings):
    """Epochs that a training skips were trained before: its first step has their number."""
    train(separate_loss, ms.PYNATIVE_MODE, ProbeCallback(settings()), initial_epoch=1)
    assert open_run(settings()["dump_path"]).steps == [2, 3]


def test_a_second_training_does_not_mix_with_the_first(settings):
    """The same callback for another network, or another with the same dump_path, is refused."""
    callback = ProbeCallback(settings())
    train(separate_loss, ms.PYNATIVE_MODE, callback)
    for again, said in (
        (callback, "has recorded the training of another network.*a dump_path of its own"),
        (ProbeCallback(settings()), "already holds"),
    ):
        with pytest.raises(RunError, match=said):
            train(separate_loss, ms.PYNATIVE_MODE, again)
    assert open_run(settings()["dump_path"]).steps == [0, 1, 2, 3]


def test_a_training_in_pieces_is_one_run(settings):
    """Model.train again and again with one callback: the steps are counted on."""
    model, _ = separate_loss()
    callback = ProbeCallback(settings())
    for _ in range(2):
        model.train(EPOCHS, batches(), callbacks=[callback], dataset_sink_mode=False)
    run = open_run(settings()["dump_path"])
    assert run.finished
    assert run.steps == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(run.key_data("loss")) == 8


def test_steps_that_run_in_one_call_are_said_to_be_one(settings, warnings_of):
    """A device's sink mode counts several steps a call (CPU has none): said once."""
    network = DecoderWithLoss()
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.01))
    arguments = _InternalCallbackParam(
        train_network=step, network=network, cur_step_num=0, cur_epoch_num=1, batch_num=4
    )
    context, callback = RunContext(arguments), ProbeCallback(settings())
    callback.on_train_epoch_begin(context)
    for _ in range(2):
        arguments.cur_step_num += 4
        callback.on_train_step_begin(context)
        for batch in batches():
            arguments.net_outputs = step(*batch)
        callback.on_train_step_end(context)
    callback.on_train_end(context)
    assert len([w for w in warnings_of() if "runs 4 training steps in one call" in w]) == 1
    run = open_run(settings()["dump_path"])
    assert run.steps == [0, 1]
    assert "Cell.root.DecoderWithLoss.forward.1" in names(run, 1)


def test_switched_off_it_does_nothing(settings, tmp_path):
    """No file, no hook."""
    train(separate_loss, ms.PYNATIVE_MODE, ProbeCallback(settings(msprobe=False)))
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_refused_before_the_training(settings, tmp_path):
    """An unknown phase, an unknown key and a file without the section."""
    with pytest.raises(UsageError, match="Did you mean 'actor_update'"):
        ProbeCallback(settings(), "actor_updat")
    with pytest.raises(ConfigError, match="key_data_dmp"):
        ProbeCallback(settings(key_data_dmp=True))
    trainer_yaml = tmp_path / "sft.yaml"
    trainer_yaml.write_text("runner_config: {epochs: 2}\n")
    with pytest.raises(ConfigError, match="no section 'msprobe_config'"):
        ProbeCallback(trainer_yaml)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_mindformers_trainer_takes_it(mode, tmp_path):
    """Its real Trainer trains a small Llama, with and without, to the same bits."""
    pytest.importorskip("mindformers")
    program = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    driver = Path(__file__).parent / "drivers" / "mindformers_trainer.py"
    result = run_python(program, tmp_path, str(driver), str(mode))
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("build", [separate_loss, ready_made_step])
def test_a_first_round_of_key_data_holds_the_optimizer_and_the_mode(build, mode, settings):
    """Without a switch for layers: what Model.train trains with, and in which mode."""
    section = settings(actor_train_dump=False)
    expected = train(build, mode)
    assert train(build, mode, ProbeCallback(section)) == expected
    run = open_run(section["dump_path"])
    assert run.phases == []
    (manifest,) = run.manifests
    assert manifest["optimizers"]["actor"]["class"] == "Adam"
    assert manifest["optimizers"]["actor"]["settings"]["learning_rate"] == 0.01
    assert [change["training"] for change in manifest["modes"]["actor_update"]] == [True]
    assert not run.lost
