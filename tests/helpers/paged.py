"""MindFormers' incremental inference on a CPU: its own classes, with stand-ins for three operators.

Its cells, weights, block tables and slots are MindFormers'. No CPU computes ReshapeAndCache,
PagedAttention, ApplyRotaryPosEmb and SplitWithSize; numpy and ops.split do it here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import mindspore as ms
import numpy as np
from mindformers.models.llama import LlamaConfig, LlamaForCausalLM
from mindspore import Tensor, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.demo.rollout import fused

BLOCK = 4
LENGTH = 16  # of the sequences that the training is given
VOCABULARY = 20
CONFIG: dict[str, Any] = {
    **{"batch_size": 1, "seq_length": LENGTH, "hidden_size": 32, "num_layers": 2, "num_heads": 4},
    **{"n_kv_heads": 2, "vocab_size": VOCABULARY, "multiple_of": 16, "pad_token_id": 0},
    **dict.fromkeys(("compute_dtype", "layernorm_compute_type", "rotary_dtype"), "float32"),
    **dict.fromkeys(("softmax_compute_type", "param_init_type"), "float32"),
    **{
        "embedding_init_type": "float32",
        "use_flash_attention": False,
        "fused_rms_norm": False,
        "use_rope_slice": True,
    },
}


def training_network(seed: int = 0) -> LlamaForCausalLM:
    """Return the class that trains, with random weights."""
    network = LlamaForCausalLM(LlamaConfig(**CONFIG))
    rng = np.random.default_rng(seed)
    for parameter in network.get_parameters():
        if len(parameter.shape) > 1:
            values = rng.normal(0, 0.3, parameter.shape).astype(np.float32)
            parameter.set_data(Tensor(values))
    network.set_train(False)
    return network


def inference_network(*, concat: bool = True) -> LlamaForCausalLM:
    """Return the class that generates, with `use_past`.

    Args:
        concat: whether projections are fused, as `qkv_concat` does.
    """
    paged = {"use_past": True, "qkv_concat": concat, "block_size": BLOCK, "num_blocks": 64}
    network = LlamaForCausalLM(LlamaConfig(**CONFIG, **paged, is_dynamic=False))
    network.set_train(False)
    network.model.casual_mask.is_pynative = True  # prompts may be shorter than seq_length
    for layer in network.model.layers:
        attention = layer.attention.infer_attention
        attention.rotary_embedding.rotary_embedding_op = rotate
        manager = attention.paged_attention_mgr
        manager.reshape_and_cache = write
        manager.paged_attention = Attend(manager.n_heads, manager.scale_value, manager.n_kv_heads)
        if concat:
            layer.attention.split_qkv = ops.split
            layer.feed_forward.split = ops.split
    return network


def core_network(*, layers: int = 2) -> Any:
    """Return the class of MindFormers' parallel core that generates (Qwen2).

    It runs eagerly with RUN_MODE=predict and ENFORCE_EAGER=true in the environment.
    """
    from mindformers.models.qwen2.configuration_qwen2 import Qwen2Config
    from mindformers.models.qwen2.modeling_qwen2_infer import InferenceQwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=CONFIG["hidden_size"],
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=CONFIG["num_heads"],
        num_key_value_heads=CONFIG["n_kv_heads"],
        head_dim=CONFIG["hidden_size"] // CONFIG["num_heads"],
        max_position_embeddings=2048,
        seq_length=LENGTH,
        rms_norm_eps=1e-5,
        pad_token_id=0,
        **{"block_size": BLOCK, "num_blocks": 64, "batch_size": 1},
        **dict.fromkeys(("compute_dtype", "params_dtype", "layernorm_compute_dtype"), "float32"),
        **dict.fromkeys(("rotary_dtype", "softmax_compute_dtype"), "float32"),
    )
    # Its own returns a tensor without memory, whose astype ends a process under MindSpore 2.10.
    config.init_method = lambda shape: Tensor(np.zeros(shape, np.float32))
    network = InferenceQwen2ForCausalLM(config)
    network.set_train(False)
    for _, cell in network.cells_and_names():
        if type(cell).__name__ == "RMSNorm":
            cell.norm = Norm(cell.eps)
        elif type(cell).__name__ == "FlashAttention":
            heads = cell.head_num, cell.hidden_size_per_attention_head**-0.5, cell.kv_head_num
            cell.reshape_and_cache = write
            cell.paged_attention = Attend(*heads)
            cell.flash_attention = AttendPacked(*heads)
        elif hasattr(cell, "rotary_embedding_op"):
            cell.rotary_embedding_op = rotate
    return network


def synchronise_core(network: Any, training: LlamaForCausalLM) -> None:
    """Bring the training's weights over: queries, keys and values one behind the other."""
    weights = {parameter.name: parameter.asnumpy() for parameter in training.get_parameters()}
    names = {
        "embedding.word_embeddings.weight": ["model.tok_embeddings.embedding_weight"],
        "decoder.final_layernorm.weight": ["model.norm_out.weight"],
        "output_layer.weight": ["lm_head.weight"],
    }
    for layer in range(CONFIG["num_layers"]):
        for name, parts in {
            "input_layernorm": ["attention_norm"],
            "pre_mlp_layernorm": ["ffn_norm"],
            "self_attention.linear_qkv": [f"attention.{part}" for part in ("wq", "wk", "wv")],
            "self_attention.linear_proj": ["attention.wo"],
            "mlp.linear_fc1": ["feed_forward.w1", "feed_forward.w3"],
            "mlp.linear_fc2": ["feed_forward.w2"],
        }.items():
            names[f"decoder.layers.{layer}.{name}.weight"] = [
                f"model.layers.{layer}.{part}.weight" for part in parts
            ]
    for parameter in network.get_parameters():
        parts = [weights[part] for part in names[parameter.name]]
        parameter.set_data(Tensor(np.concatenate(parts)))


class Norm:
    """Stands in for RmsNorm."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def __call__(self, x: Tensor, weight: Tensor) -> tuple[Tensor]:
        values = x.asnumpy()
        mean = np.mean(np.square(values), axis=-1, keepdims=True)
        return (Tensor((values / np.sqrt(mean + self.eps) * weight.asnumpy()).astype(np.float32)),)


def synchronise(network: LlamaForCausalLM, training: LlamaForCausalLM) -> None:
    """Bring the training's weights over, fused as MindFormers fuses them."""
    weights = {parameter.name: parameter.asnumpy() for parameter in training.get_parameters()}
    for parameter in network.get_parameters():
        if "_cache" not in parameter.name:
            parameter.set_data(Tensor(fused(parameter.name, weights, CONFIG["n_kv_heads"])))


def rotate(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    """Stand in for ApplyRotaryPosEmb: rotate [..., heads * size] by a row a token.

    Of as many rows as there are positions, those of whole sequences are taken.
    """
    size = cos.shape[-1]
    tokens = query.size // query.shape[-1]
    if len(cos) != tokens:
        at = np.concatenate([np.arange(length) for length in lengths.asnumpy().reshape(-1)])
        cos, sin = cos[Tensor(at)], sin[Tensor(at)]
    found = []
    for x in (query.asnumpy(), key.asnumpy()):
        heads = x.reshape(-1, x.shape[-1] // size, size)
        turned = np.concatenate([-heads[..., size // 2 :], heads[..., : size // 2]], axis=-1)
        made = heads * cos.asnumpy()[:, None] + turned * sin.asnumpy()[:, None]
        found.append(Tensor(made.reshape(x.shape).astype(np.float32)))
    return tuple(found)


def write(key: Tensor, value: Tensor, keys: Any, values: Any, slots: Tensor) -> Tensor:
    """Stand in for ReshapeAndCache: write rows into their slots; those of slot -1 are padding."""
    at = slots.asnumpy()
    for cache, rows in ((keys, key), (values, value)):
        held = cache.asnumpy().copy()
        flat = held.reshape(-1, *held.shape[2:])
        flat[at[at >= 0]] = rows.asnumpy().reshape(-1, *held.shape[2:])[at >= 0]
        cache.set_data(Tensor(held))
    return key


class Attend:
    """Stands in for PagedAttention: of one token of each sample to those that its blocks hold."""

    def __init__(self, heads: int, scale: float, kv_heads: int) -> None:
        self.heads, self.scale, self.kv_heads = heads, scale, kv_heads

    def __call__(
        self, query: Tensor, keys: Any, values: Any, tables: Tensor, lengths: Tensor, *_: Any
    ) -> Tensor:
        asked = query.asnumpy().reshape(len(tables), self.heads, -1)
        made = np.zeros_like(asked)
        for sample, (blocks, length) in enumerate(zip(tables.asnumpy(), lengths.asnumpy())):
            held = []
            for cache in (keys, values):
                rows = cache.asnumpy()[blocks[blocks >= 0]]
                rows = rows.reshape(-1, *rows.shape[2:])[:length]
                held.append(rows.repeat(self.heads // self.kv_heads, axis=1))
            made[sample] = self.attended(asked[sample], *held)
        return Tensor(made.reshape(query.shape).astype(np.float32))

    def attended(self, query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return what one token attends to, [heads, size]."""
        scores = np.einsum("hd,khd->hk", query, keys) * self.scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("hk,khd->hd", weights, values)


class AttendPacked(Attend):
    """Stands in for FlashAttentionScore: causal, of samples that stand in one row of tokens."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *given: Any) -> tuple[Any, ...]:
        asked = query.asnumpy().reshape(-1, self.heads, query.shape[-1] // self.heads)
        size, group = asked.shape[-1], self.heads // self.kv_heads
        held = [x.asnumpy().reshape(-1, self.kv_heads, size).repeat(group, 1) for x in (key, value)]
        made, start = np.zeros_like(asked), 0
        for length in given[-1].asnumpy().reshape(-1):
            for at in range(start, start + int(length)):
                made[at] = self.attended(asked[at], *(rows[start : at + 1] for rows in held))
            start += int(length)
        return None, None, None, Tensor(made.reshape(query.shape).astype(np.float32))


def generate(network: Any, prompts: list[list[int]], responses: list[list[int]], **changed: Any):
    """Run prefill and decode as MindFormers' generation does; blocks are given out in turn.

    Args:
        changed: `slots`, `tables` and `lengths` change what decode is given: of the step and the
            array.
    """
    batch, width = len(prompts), max(map(len, prompts))
    # Blocks of samples are mixed, as in a cache that has been in use.
    order = np.random.default_rng(3).permutation(60).astype(np.int32) + 1
    tables = order[: batch * (LENGTH // BLOCK)].reshape(LENGTH // BLOCK, batch).T.copy()

    def slot(sample: int, place: int) -> int:
        return int(tables[sample, place // BLOCK]) * BLOCK + place % BLOCK

    def call(ids, lengths, slots, step=None):
        given = {"slots": np.array(slots, np.int32), "tables": tables}
        given["lengths"] = np.array(lengths, np.int32)
        if step is not None:
            given = {n: changed[n](step, v) if n in changed else v for n, v in given.items()}
        tensors = {name: Tensor(value, ms.int32) for name, value in given.items()}
        return network(
            Tensor(np.array(ids), ms.int32),
            batch_valid_length=tensors["lengths"],
            block_tables=tensors["tables"],
            slot_mapping=tensors["slots"],
        )

    network.add_flags_custom(is_first_iteration=True)
    ids = [p + [0] * (width - len(p)) for p in prompts]
    slots = [
        slot(n, at) if at < len(p) else -1 for n, p in enumerate(prompts) for at in range(width)
    ]
    call(ids, [*map(len, prompts)], slots)
    network.add_flags_custom(is_first_iteration=False)
    for step in range(max(map(len, responses)) - 1):
        tokens = [[response[step]] for response in responses]
        places = [len(prompt) + step for prompt in prompts]
        call(tokens, [at + 1 for at in places], [slot(n, at) for n, at in enumerate(places)], step)
    network.add_flags_custom(is_first_iteration=True)


def generate_packed(network: Any, prompts: list[list[int]], responses: list[list[int]]) -> None:
    """Run prefill and decode as vLLM does: all tokens of a call in one row."""
    size = CONFIG["hidden_size"] // CONFIG["num_heads"]
    shape = (64, BLOCK, CONFIG["n_kv_heads"], size)
    caches = [
        [
            ms.Parameter(Tensor(np.zeros(shape, np.float32)), name=f"{kind}{layer}")
            for layer in (0, 1)
        ]
        for kind in ("key", "value")
    ]
    tables = np.random.default_rng(4).permutation(60).reshape(-1, LENGTH // BLOCK)[: len(prompts)]

    def call(parts: list[list[int]], starts: list[int], prefill: bool) -> None:
        for _, cell in network.cells_and_names():
            if hasattr(cell, "is_prefill"):
                cell.is_prefill = prefill
        places = [[*range(start, start + len(part))] for part, start in zip(parts, starts)]
        slots = [
            int(tables[n, at // BLOCK]) * BLOCK + at % BLOCK
            for n, span in enumerate(places)
            for at in span
        ]
        given = {
            "positions": [at for span in places for at in span],
            "batch_valid_length": [span[-1] + 1 for span in places],
            "context_lens_tensor": starts if prefill else [0] * len(parts),
            "q_seq_lens": [*map(len, parts)],
            "block_tables": tables,
            "slot_mapping": slots,
        }
        tensors = {name: Tensor(np.array(value), ms.int32) for name, value in given.items()}
        ids = Tensor(np.array([token for part in parts for token in part]), ms.int32)
        network(ids, **tensors, key_cache=caches[0], value_cache=caches[1])

    with patch.multiple("mindspore.mint", split=ops.split, cumsum=ops.cumsum):
        call(prompts, [0] * len(prompts), True)
        for step in range(max(map(len, responses)) - 1):
            call([[r[step]] for r in responses], [len(p) + step for p in prompts], False)


PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3]]
RESPONSES = [[5, 8, 9, 7, 9, 3, 2], [3, 8, 4, 6, 2, 6, 4], [3, 3, 8, 3, 2, 7, 9]]


def recorded(
    path: Path,
    network: Any,
    training: Any,
    *,
    task: str = "tensor",
    calls: Any = None,
    score: Any = None,
    **changed: Any,
) -> Path:
    """Record generation by one network and log-probabilities by the other; return the run.

    Args:
        calls: generates in place of `generate`.
        score: calls the training network with its token ids.
        changed: see `generate`.
    """
    section = {"msprobe": True, "dump_path": str(path), "task": task, "token_range_end": 1000}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "directions": ["forward"]}
    ids = [(p + r + [0] * LENGTH)[:LENGTH] for p, r in zip(PROMPTS, RESPONSES)]
    with Probe.from_config(section) as probe:
        with probe.phase("actor_generate_sequences", model=network):
            (calls or generate)(network, PROMPTS, RESPONSES, **changed)
        with probe.phase("actor_compute_log_prob", model=training):
            (score or training)(Tensor(np.array(ids), ms.int32))
        probe.step()
    return path
