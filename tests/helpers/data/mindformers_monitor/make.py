"""Write the event files of this directory: MindFormers 1.6 on MindSpore 2.7, CPU.

TrainingStateMonitor and MFLossMonitor are MindFormers' own. The step is not: that of MindFormers
asks an NPU whether anything overflowed. `b` learns twice as fast as `a`.
"""

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindformers.core.callback.callback import MFLossMonitor, TrainingStateMonitor
from mindformers.utils import tensorboard
from mindspore import nn
from mindspore.dataset import GeneratorDataset

HERE = Path(__file__).parent
LEARNING_RATES = {"a": 0.01, "b": 0.02}
EPOCHS, BATCHES = 3, 2


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)


class Step(nn.TrainOneStepCell):
    """Returns what MFTrainOneStepCell does: loss, overflow, scale, learning rate, norm."""

    def __init__(self, network, optimizer, learning_rate):
        super().__init__(network, optimizer)
        self.rate = learning_rate

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y, ms.ops.ones_like(loss))
        squares = 0.0
        for grad in grads:
            squares += (grad * grad).sum()
        loss = ms.ops.depend(loss, self.optimizer(grads))
        rate = ms.Tensor(self.rate)
        return loss, ms.Tensor(False), ms.Tensor(1.0), rate, ms.ops.sqrt(squares)


def batches():
    for row in np.random.default_rng(0).normal(size=(2 * BATCHES, 4)).astype(np.float32):
        yield row, np.ones(1, np.float32)


def train(directory, learning_rate):
    ms.set_seed(1)
    settings = SimpleNamespace(tensorboard_dir=str(directory), tensorboard_queue_size=10)
    tensorboard._set_tensorboard_writer(settings)
    net = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU(), nn.Dense(3, 1))
    optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate)
    formats = {"optimizer_state_format": "tensorboard", "weight_state_format": "tensorboard"}
    sizes = {"dataset_size": BATCHES, "global_batch_size": 2}
    callbacks = [
        TrainingStateMonitor(EPOCHS, formats, **sizes),
        MFLossMonitor(learning_rate=learning_rate, origin_epochs=EPOCHS, **sizes),
    ]
    model = ms.Model(Step(Loss(net), optimizer, learning_rate))
    dataset = GeneratorDataset(batches, ["x", "y"], shuffle=False).batch(2)
    model.train(EPOCHS, dataset, callbacks=callbacks, dataset_sink_mode=False)
    tensorboard._unset_tensorboard_writer()


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    for name, rate in LEARNING_RATES.items():
        with tempfile.TemporaryDirectory() as work:
            train(Path(work), rate)
            (events,) = Path(work).iterdir()
            kept = HERE / name / "rank_0"
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            shutil.copy(events, kept / f"events.out.tfevents.{1_790_000_000}.host")
