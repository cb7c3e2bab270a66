"""A small policy-gradient training with faults to choose from: as a script, and as a function.

    python policy_trainer.py CONFIG.json [FAULT …]

A rollout network with weights of its own generates, the actor and a frozen reference score, the
actor is updated by Adam, twice a step. Each fault changes one thing that a real trainer gets wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe

STEPS, EPOCHS, TOKENS, BATCH, VOCABULARY, WIDTH = 3, 2, 3, 4, 11, 8
CONFIG = {
    "msprobe": True,
    "key_data_dump": True,
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "reference_dump": True,
    "token_range_end": 9,
    "step_end": 9,
}


class Layer(nn.Cell):
    """A residual layer: norm, two linear cells, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.up = nn.Dense(WIDTH, 2 * WIDTH)
        self.down = nn.Dense(2 * WIDTH, WIDTH)
        self.approximate = "none"
        self.wrong_factor = False
        self.before_up: list[nn.Cell] = []  # not cells of the network

    def construct(self, x: Tensor) -> Tensor:
        """Return x with what the layer adds."""
        given = self.norm(x)
        for change in self.before_up:
            given = change(given)
        added = self.down(ops.gelu(self.up(given), approximate=self.approximate))
        return x * 1.001 + added if self.wrong_factor else x + added


class Policy(nn.Cell):
    """Tokens → logits of the next ones."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.CellList([Layer(), Layer(), Layer()])
        self.head = nn.Dense(WIDTH, VOCABULARY)
        self.wrong_factor = False
        self.is_tied = False  # the code below uses the table of the embedding, too
        rng = np.random.default_rng(seed)
        for parameter in self.get_parameters():
            values = rng.normal(size=parameter.shape, scale=0.4)
            parameter.set_data(Tensor(values.astype(np.float32)))

    def construct(self, tokens: Tensor) -> Tensor:
        """Return the logits, batch × length × vocabulary."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        x = x * 1.001 if self.wrong_factor else x
        logits = self.head(x)
        return logits + ops.matmul(x, self.embedding.embedding_table.T) if self.is_tied else logits


class WrongGradient(nn.Cell):
    """The identity, with a gradient that is slightly wrong."""

    def construct(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        """Return the gradient, 1 % too large."""
        return (dout * 1.01,)


def instead(cell: nn.Cell, change: Callable[..., Tensor]) -> None:
    """Have a cell's construct changed: `change` is given it and its input."""
    own = cell.construct
    cell.construct = lambda x: change(own, x)


def plant(actor: Policy, rollout: Policy, reference: Policy, faults: Collection[str]) -> None:
    """Change what faults name: `KIND:NAME` a cell of the actor, or of the network of that role."""
    of_kernels = {"kernel": actor, "rollout": rollout, "reference": reference}
    wrong = WrongGradient()
    for fault in faults:
        kind, _, name = fault.partition(":")
        cells = dict(of_kernels.get(kind, actor).cells_and_names())
        if kind in of_kernels:
            instead(cells[name], lambda own, x: own(x) * 1.001)
        elif kind == "backward":
            instead(cells[name], lambda own, x: own(wrong(x)))
        elif kind == "gelu":
            for layer in actor.layers:
                layer.approximate = "tanh"
        elif kind == "between":
            for layer in actor.layers:
                layer.before_up = [wrong]
        elif kind == "factor":
            for cell in actor.layers if name == "layers" else [actor]:
                cell.wrong_factor = True
        elif kind == "norms":
            for layer in actor.layers:
                instead(layer.norm, lambda own, x: own(x) * 1.0005)
        elif kind == "normalisation":
            for layer in (*actor.layers, *rollout.layers, *reference.layers):
                instead(layer.norm, lambda own, x: own(x) * 1.0005)
        elif kind == "tied":  # no fault
            for network in (actor, rollout, reference):
                network.is_tied = True
        elif kind == "cut":
            instead(actor.layers[1].down, lambda own, x: own(ops.stop_gradient(x)))
        elif kind == "weights":
            actor.head.bias.set_data(actor.head.bias + 0.01)
        elif kind == "reference_weights":
            reference.head.bias.set_data(reference.head.bias + 0.01)
        elif kind == "doubled":  # the trainer halves it again
            instead(actor.head, lambda own, x: own(x) * 2)
        elif kind == "sampler":
            instead(rollout.head, lambda own, x: own(x) * 0.5 + 0.1)


def train(config: dict[str, Any], faults: Collection[str] = ()) -> None:
    """Train for three steps, recorded as a section `msprobe_config` says."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    actor, rollout, reference = Policy(1), Policy(1), Policy(2)
    plant(actor, rollout, reference, faults)
    optimizer = nn.Adam(
        actor.trainable_params(),
        0.011 if "rate" in faults else 0.01,
        eps=1e-6 if "epsilon" in faults else 1e-8,
        weight_decay=0.01 if "decay" in faults else 0.0,
    )
    noise = np.random.default_rng() if "noise" in faults else None

    def log_prob(network: Policy, tokens: Tensor) -> Tensor:
        logits = network(tokens[:, :-1])
        if "doubled" in faults and network is actor:
            logits = logits * 0.5
        logits = ops.log_softmax(logits, -1)
        return ops.gather_elements(logits, 2, tokens[:, 1:].expand_dims(2)).squeeze(2)

    def loss_of(tokens: Tensor, advantages: Tensor) -> Tensor:
        loss = -(log_prob(actor, tokens) * advantages).mean()
        return loss * 1.01 if "loss" in faults else loss

    gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)
    rng = np.random.default_rng(7)
    with Probe.from_config(config) as probe:
        probe.watch(actor=actor, reference=reference)
        for step in range(STEPS):
            if not ("stale" in faults and step):
                for own, trained in zip(rollout.get_parameters(), actor.get_parameters()):
                    if not ("forgotten" in faults and trained.name == "layers.0.up.bias"):
                        own.set_data(trained.value().copy())
            prompts = rng.integers(VOCABULARY, size=(BATCH, 2))
            if "prompts" in faults and step:
                prompts[0, 0] = (prompts[0, 0] + 1) % VOCABULARY
            tokens = Tensor(prompts, ms.int32)
            probe.save_data(prompts=tokens)
            with probe.phase("actor_generate_sequences", model=rollout):
                for _ in range(TOKENS):
                    following = rollout(tokens)[:, -1].argmax(-1).astype(ms.int32)
                    tokens = ops.cat((tokens, following.expand_dims(1)), 1)
            probe.save_data(responses=tokens)
            with probe.phase("actor_compute_log_prob"):
                old = log_prob(actor, tokens)
            with probe.phase("reference_compute_log_prob"):
                fixed = log_prob(reference, tokens)
            spread = Tensor(np.linspace(-1, 1, BATCH, dtype=np.float32)).expand_dims(1)
            rewards = 0.1 * (old - fixed) * (1.5 if "rewards" in faults else 1)
            probe.save_data(rewards=rewards)
            advantages = spread - rewards
            if noise is not None:
                advantages += float(noise.normal(scale=0.1))
            advantages = advantages * 1.02 if "advantages" in faults else advantages
            if "replaces" in faults:
                advantages = probe.replace("advantages", advantages)
            probe.save_data(advantages=advantages)
            kl = (old - fixed).mean()
            probe.save_data(kl=kl * 1.5 if "logged" in faults else kl)
            with probe.phase("actor_update"):
                for _ in range(EPOCHS):
                    loss, gradients = gradients_of(tokens, advantages)
                    if "clip" in faults:
                        gradients = tuple(gradient * 0.99 for gradient in gradients)
                    norms = ops.stack([ops.norm(gradient) for gradient in gradients])
                    probe.save_data(grad_norm=ops.norm(norms))
                    optimizer(gradients)
            if "sync" in faults:
                ops.assign(actor.head.bias, actor.head.bias + 0.001)
            probe.save_data(loss=loss)
            probe.step()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    train(settings, sys.argv[2:])
