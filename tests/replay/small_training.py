"""A short training in which nothing must be computed twice, and whose every bit is kept."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops


class Block(nn.Cell):
    """What must not be computed twice: averages, draws, counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.norm = nn.Dense(width, width), nn.BatchNorm1d(width)
        self.dropout, self.calls, self.seen = nn.Dropout(p=0.3), 0, []
        self.recomputed = False

    def construct(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        return x + self.dropout(ops.relu(self.norm(self.dense(x)))) * self.factor()

    def factor(self) -> int:
        """Return another number each time, unless the block is computed again for its gradient."""
        return 1 if self.recomputed else self.calls


class Policy(nn.Cell):
    """Two blocks and scores of tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = Block(width), Block(width)
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, 12)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(self.first(x))))


def loss_of(scores, taken, advantages):
    """Return a loss as a trainer has it, outside every cell."""
    log_probs = ops.log_softmax(scores, -1)
    chosen = mint.gather(log_probs, -1, taken).squeeze(-1)
    ratio = mint.exp(chosen - ops.stop_gradient(chosen) + 0.05)
    gain = mint.minimum(ratio * advantages, mint.clamp(ratio, 0.8, 1.2) * advantages)
    entropy = -mint.sum(ops.softmax(scores, -1) * log_probs, -1)
    return -mint.mean(gain) - 0.01 * mint.mean(entropy)


def with_gradients(network, loss, *, of=None):
    """Return what computes a loss, and gradients of a network's weights and of inputs."""
    return ms.value_and_grad(loss, of, network.trainable_params())


def trained(probe=None, *, recompute=False, set_grad=False, low=False, seed=3, steps=2, scale=1.0):
    """Return every loss, gradient and parameter of a short training, as bytes, and the network.

    Args:
        low: one layer computes in float16.
        scale: what scores are multiplied by.
    """
    ms.set_seed(seed)
    rng = np.random.default_rng(seed)
    network = Policy().set_train()
    if low:
        network.first.dense.to_float(ms.float16)
    if recompute:
        network.first.recompute()
        network.first.recomputed = True
    if set_grad:
        network.set_grad()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)

    def forward(x, taken, advantages):
        return loss_of(network(x) * scale, taken, advantages)

    grads = with_gradients(network, forward)
    if probe is not None:
        probe.watch(actor=network)
    found = []
    for _ in range(steps):
        x = Tensor(rng.standard_normal((8, 16)).astype(np.float32))
        taken = Tensor(rng.integers(0, 12, (8, 1)))
        advantages = Tensor(rng.standard_normal(8).astype(np.float32))
        if probe is None:
            loss, gradients = grads(x, taken, advantages)
            optimizer(gradients)
        else:
            with probe.phase("actor_update"):
                loss, gradients = grads(x, taken, advantages)
                optimizer(gradients)
            probe.step()
        tensors = [loss, *gradients, *network.get_parameters(), ops.randn(2)]
        found += [tensor.asnumpy().tobytes() for tensor in tensors]
        found += [network.first.calls, [*network.first.seen]]
    return found, network
