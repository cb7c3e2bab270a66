"""Experts that tokens go to: a real network with routers, recorded in two phases."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement

EXPERTS, TOP, HIDDEN, PAD = 6, 2, 16, 0
PROMPTS = [[3, 1, 4], [2, 7, 1, 8]]
RESPONSES = [[5, 9, 2, 6], [8, 3]]
CONFIG = {
    "msprobe": True,
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "key_data_dump": True,
    "configurations_dump": True,
    "token_range_end": 99,
    "directions": ["forward"],
}


def networks(kind="cell"):
    """Return a network of two layers with experts, and another one with the same weights.

    Args:
        kind: what tells the choice: `cell` (the router returns it), `flat` (it does for all tokens
            of a batch in one axis), `block` (the layer's second output),
            `operator` (topk, inside the layer's own code), `logits` (the scores alone).
    """
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    class TopK(nn.Cell):
        def __init__(self):
            super().__init__()
            self.top_k, self.change = TOP, None

        def construct(self, logits):
            values, indices = ops.topk(logits, self.top_k, -1)
            indices = indices.astype(ms.int32)
            if self.change is not None:
                values, indices = self.change(values, indices)
            return ops.softmax(values, -1), indices

    class Router(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.topk = nn.Dense(HIDDEN, EXPERTS, has_bias=False), TopK()
            self.top_k = TOP

        def construct(self, x):
            logits = self.dense(x)
            return logits if kind == "logits" else self.topk(logits)

    class Moe(nn.Cell):
        def __init__(self):
            super().__init__()
            self.top_k = TOP
            if kind in ("cell", "flat", "logits"):
                self.router = Router()
            else:
                self.router = nn.Dense(HIDDEN, EXPERTS, has_bias=False)
            self.experts = nn.CellList([nn.Dense(HIDDEN, HIDDEN) for _ in range(EXPERTS)])

        def construct(self, x):
            shape = x.shape
            x = x.reshape(-1, HIDDEN) if kind == "flat" else x
            given = self.router(x)
            if kind in ("cell", "flat"):
                weights, indices = given
            else:
                values, indices = ops.topk(given, TOP, -1)
                weights = ops.softmax(values, -1)
            all_of_them = ops.stack([expert(x) for expert in self.experts], -2)
            index = indices.expand_dims(-1).broadcast_to((*indices.shape, HIDDEN))
            chosen = ops.gather_elements(all_of_them, all_of_them.ndim - 2, index)
            out = (chosen * weights.expand_dims(-1)).sum(-2).reshape(shape)
            return (out, indices) if kind == "block" else out

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.moe = nn.Dense(HIDDEN, HIDDEN), Moe()

        def construct(self, x):
            x = x + ops.tanh(self.dense(x))
            out = self.moe(x)
            return x + (out[0] if kind == "block" else out)

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, HIDDEN)
            self.layers = nn.CellList([Layer(), Layer()])
            self.head = nn.Dense(HIDDEN, 10)

        def construct(self, input_ids, position_ids=None):
            x = self.embedding(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    both = Network(), Network()
    random = np.random.default_rng(1)
    for mine, theirs in zip(*(net.trainable_params() for net in both)):
        value = random.normal(0, 0.5, mine.shape).astype(np.float32)
        mine.set_data(Tensor(value))
        theirs.set_data(Tensor(value))
    return both


def recorded(path, change=None, *, kind="cell", task="tensor", **section):
    """Record a rollout that computes a token at a time, and a training of whole rows.

    Args:
        change: is given the rollout's network.
    """
    from mindspore import Tensor

    rollout, training = networks(kind)
    if change is not None:
        change(rollout)
    width = max(len(p) + len(r) for p, r in zip(PROMPTS, RESPONSES))
    rows = np.array([(p + r + [PAD] * width)[:width] for p, r in zip(PROMPTS, RESPONSES)], np.int32)
    with Probe.from_config({**CONFIG, "dump_path": str(path), "task": task, **section}) as probe:
        probe.watch(actor=training)
        probe.save_configs({"actor": {"pad_token_id": PAD}})
        ids = [[np.array(row) for row in given] for given in (PROMPTS, RESPONSES)]
        probe.save_data(dict(zip(("prompts", "responses"), ids)))
        with probe.phase("actor_generate_sequences", model=rollout):
            size = max(map(len, PROMPTS))
            padded = [[PAD] * (size - len(p)) + p for p in PROMPTS]
            places = [[0] * (size - len(p)) + [*range(len(p))] for p in PROMPTS]
            rollout(Tensor(np.array(padded, np.int32)), Tensor(np.array(places, np.int32)))
            for at in range(max(map(len, RESPONSES)) - 1):
                tokens = [[r[at] if at < len(r) else PAD] for r in RESPONSES]
                places = [[len(p) + at] for p in PROMPTS]
                rollout(*(Tensor(np.array(of, np.int32)) for of in (tokens, places)))
        with probe.phase("actor_compute_log_prob"):
            training(Tensor(rows))
        probe.step()
    return path


#: Tokens with a row in both phases: all but the last one of the longest response.
TOKENS = sum(len(p) + len(r) for p, r in zip(PROMPTS, RESPONSES)) - 1


@pytest.mark.parametrize("kind", ["cell", "flat", "block", "operator", "logits"])
@pytest.mark.parametrize("task", ["tensor", "sketch"])
def test_healthy_routers_choose_the_same(tmp_path, capsys, kind, task):
    """Of every aligned token in either layer; rows behind ends and padding do not count."""
    if kind == "operator" and task == "sketch":
        pytest.skip("the level of operators records full tensors or statistics")
    section = {"level": "mix"} if kind == "operator" else {}
    run = recorded(tmp_path / "run", kind=kind, task=task, **section)
    (one,) = find_mismatch(run).found
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING), one.said
    assert not any(note.code == "mismatch.experts" for note in one.notes)
    if (kind, task) == ("cell", "sketch"):  # of three axes, which sketches do not store
        assert one.experts == ()
        return
    assert [(of.chosen, of.tokens, of.others) for of in one.experts] == [(TOP, TOKENS, 0)] * 2
    assert main(["mismatch", str(run)]) == 0
    assert "experts: all 2 routers chose the same" in capsys.readouterr().out


def other_dense(rollout):
    """Change what the second layer does before its router."""
    from mindspore import Tensor

    weight = rollout.layers[1].dense.weight
    weight.set_data(Tensor(weight.asnumpy()[::-1].copy()))


def other_router(rollout):
    """Change the weight of the second router."""
    from mindspore import Tensor

    router = rollout.layers[1].moe.router
    weight = (router.dense if hasattr(router, "dense") else router).weight
    weight.set_data(Tensor(weight.asnumpy()[::-1].copy()))


@pytest.mark.parametrize(
    ("kind", "change", "side"),
    [
        ("cell", other_dense, "before"),
        ("cell", other_router, "by"),
        ("flat", other_router, "by"),
        ("block", other_dense, "before"),
        ("operator", other_router, "by"),
        ("logits", other_dense, "before"),
    ],
)
def test_where_tokens_part(tmp_path, kind, change, side):
    """Layer by layer: before the router, or by it."""
    section = {"level": "mix"} if kind == "operator" else {}
    run = recorded(tmp_path / "run", change, kind=kind, **section)
    (one,) = find_mismatch(run).found
    first, second = one.experts
    assert (first.others, first.tokens) == (0, TOKENS)
    assert 0 < second.others <= second.tokens == TOKENS
    assert getattr(second, side) == second.others
    assert second.before + second.by == second.others
    (note,) = [note for note in one.notes if note.code == "mismatch.experts"]
    assert (note.params["cell"], note.params["others"]) == (second.cell, second.others)


def test_what_is_said_of_them(tmp_path, capsys):
    """On the console, in the JSON and in the workbook, in both languages."""
    run = recorded(tmp_path / "run", other_router)
    assert main(["mismatch", str(run), "-o", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "experts: 1 of 2 routers chose differently" in shown
    assert "differ by it (its input agrees within rounding)" in shown
    (step,) = json.loads((tmp_path / "out" / "mismatch.json").read_text("utf-8"))["steps"]
    second = step["experts"][1]
    assert second["cell"].startswith("layers.1.moe.router")
    assert second["by"] == second["others"] > 0 == second["before"]
    assert main(["mismatch", str(run), "--lang", "zh"]) == 1
    assert "2 个路由中有 1 个选择不同" in capsys.readouterr().out


def test_another_order_of_the_same_experts_is_none(tmp_path):
    """A token's experts are a set."""

    def turned(rollout):
        for layer in rollout.layers:
            layer.moe.router.topk.change = lambda values, indices: (
                values[..., ::-1],
                indices[..., ::-1],
            )

    (one,) = find_mismatch(recorded(tmp_path / "run", turned)).found
    assert [of.others for of in one.experts] == [0, 0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING), one.said


def test_one_token_of_all(tmp_path):
    """The one that another expert was chosen for is counted, in the layer where it was."""
    from mindspore import Tensor

    def one_flipped(rollout):
        calls = []

        def change(values, indices):
            calls.append(1)
            if len(calls) == 2:  # the first token behind the prompts
                chosen = indices.asnumpy().copy()
                free = [n for n in range(EXPERTS) if n not in chosen[0, 0]]
                chosen[0, 0, 0] = free[0]
                indices = Tensor(chosen)
            return values, indices

        rollout.layers[0].moe.router.topk.change = change

    (one,) = find_mismatch(recorded(tmp_path / "run", one_flipped)).found
    assert (one.experts[0].others, one.experts[0].by) == (1, 1)


def test_networks_without_routers_have_none(tmp_path):
    """Nothing is said of a network that only gates."""
    from mindspore import Tensor, nn

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Embedding(10, HIDDEN), nn.Dense(HIDDEN, HIDDEN)

        def construct(self, ids):
            return self.up(self.gate(ids))

    network = Network()
    config = {**CONFIG, "dump_path": str(tmp_path / "run"), "task": "tensor"}
    ids = Tensor(np.array([[1, 2, 3]], np.int32))
    with Probe.from_config(config) as probe:
        probe.watch(actor=network)
        for phase in ("actor_generate_sequences", "actor_compute_log_prob"):
            with probe.phase(phase):
                network(ids)
        probe.step()
    (one,) = find_mismatch(tmp_path / "run").found
    assert one.experts == ()
