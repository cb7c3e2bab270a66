"""What may be wrong in one of the two ways through a network, planted into the demo's trainer.

Each takes the number of a layer, and returns what changes a trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe.demo.fault import change_inputs

FORCED = 3

#: What some kinds need of a network.
MODELS = {
    "forgotten_bias": {"qkv_has_bias": True},
    "repeated_heads": {"num_heads": 4, "n_kv_heads": 2},
    "constant_positions": {"max_position_embedding": 32},
    "positions_given_from_two": {"max_position_embedding": 32},
}


def change_output(cell: nn.Cell, changed: Callable[[Any], Any]) -> None:
    """Let a cell return something else than it computes."""
    right = cell.construct
    cell.construct = lambda *inputs, **named: changed(right(*inputs, **named))


def rollout_layer(trainer, layer):
    """Return a layer of the network that generates."""
    return trainer.rollout.model.layers[layer]


def training_layer(trainer, layer):
    """Return a layer of the network that computes log-probabilities."""
    return trainer.networks["actor"].model.layers[layer]


def noisy(scale: float) -> Callable[[Tensor], Tensor]:
    """Return what makes each value wrong by a share of its size."""
    rng = np.random.default_rng(0)

    def changed(x: Tensor) -> Tensor:
        return x * Tensor(1 + scale * rng.normal(size=x.shape).astype(np.float32))

    return changed


def projection(layer):
    """One projection is wrong by 1e-3, in decode and prefill of the rollout."""
    return lambda t: change_output(rollout_layer(t, layer).attention.w_qkv, noisy(1e-3))


def output_projection(layer):
    """The same of the one behind attention."""
    return lambda t: change_output(rollout_layer(t, layer).attention.wo, noisy(1e-3))


def small_down_projection(layer):
    """By 1e-4, in the training network."""
    return lambda t: change_output(training_layer(t, layer).feed_forward.w2, noisy(1e-4))


def training_projection(layer):
    """One of the parts of a fused projection, in the training network."""
    return lambda t: change_output(training_layer(t, layer).attention.wk, noisy(1e-3))


def gate_projection(layer):
    """The fused gate of the rollout."""
    return lambda t: change_output(rollout_layer(t, layer).feed_forward.w_gate_hidden, noisy(1e-3))


def _change_cache(trainer, layer, changed):
    """Change keys and values that are cached, once, before the second token is computed."""
    attention = rollout_layer(trainer, layer).attention
    right = attention.construct

    def construct(x, freqs_cis, mask):
        if len(attention.cache) and not construct.done:
            construct.done = True
            made = [Tensor(changed(part.asnumpy().copy())) for part in attention.cache]
            attention.cache = tuple(made)
        return right(x, freqs_cis, mask)

    construct.done = False
    attention.construct = construct


def swapped_heads(layer):
    """One head of two samples is swapped in the cache."""

    def changed(cache):
        cache[[0, 1], 0] = cache[[1, 0], 0]
        return cache

    return lambda t: _change_cache(t, layer, changed)


def stale_cache(layer):
    """The cache of one sample holds what another prompt left there."""

    def changed(cache):
        cache[2] = cache[5]
        return cache

    return lambda t: _change_cache(t, layer, changed)


def lost_block(layer):
    """One block of the cache of one sample is zeros."""

    def changed(cache):
        cache[3, :, -2:] = 0
        return cache

    return lambda t: _change_cache(t, layer, changed)


def norm_epsilon(layer):
    """Another epsilon in the rollout's norm."""

    def plant(trainer):
        rollout_layer(trainer, layer).ffn_norm.eps = 1e-2

    return plant


def norm_epsilon_small(layer):
    """1e-5 against 1e-6: what two configurations often differ by."""

    def plant(trainer):
        norm = rollout_layer(trainer, layer).attention_norm
        norm.eps = norm.eps + 1e-3

    return plant


def forgotten_bias(layer):
    """The bias of the projections is there, and not added (needs qkv_has_bias)."""

    def plant(trainer):
        for parameter in trainer.networks["actor"].get_parameters():
            if parameter.name.endswith("bias"):
                rng = np.random.default_rng(1)
                parameter.set_data(Tensor(rng.normal(size=parameter.shape).astype(np.float32)))
        trainer.synchronise()
        rollout_layer(trainer, layer).attention.w_qkv.has_bias = False

    return plant


def _attention(trainer, layer, *, scale=None, tile=False, window=0):
    """Compute attention anew, with something wrong in it."""
    cell = rollout_layer(trainer, layer).attention
    scale = scale or math.sqrt(cell.head_dim)

    def construct(x, freqs_cis, mask):
        batch, length, size = x.shape
        group = cell.heads // cell.kv_heads
        qkv = cell.w_qkv(x).reshape(batch, length, cell.kv_heads, -1)
        query, key, value = ops.split(qkv, [group * cell.head_dim, cell.head_dim, cell.head_dim], 3)
        query = query.reshape(batch, length, cell.heads, cell.head_dim).swapaxes(1, 2)
        query, key = cell.apply_rotary_emb(query, key.swapaxes(1, 2), freqs_cis)
        value = value.swapaxes(1, 2)
        if cell.cache:
            key, value = (ops.cat(both, 2) for both in zip(cell.cache, (key, value)))
        cell.cache = (key, value)
        if group > 1:
            wide = (lambda y: ops.tile(y, (1, group, 1, 1))) if tile else None
            wide = wide or (lambda y: y.repeat_interleave(group, 1))
            key, value = wide(key), wide(value)
        if window and length == 1:
            mask = mask + Tensor(
                np.where(np.arange(mask.shape[-1]) < mask.shape[-1] - window, -1e4, 0), ms.float32
            )
        scores = ops.matmul(query, key.swapaxes(2, 3)) / scale + mask
        seen = ops.matmul(ops.softmax(scores, -1), value)
        return cell.wo(seen.swapaxes(1, 2).reshape(batch, length, size))

    cell.construct = construct


def repeated_heads(layer):
    """Key-value heads are repeated in the wrong order (needs n_kv_heads 2 of 4 heads)."""
    return lambda t: _attention(t, layer, tile=True)


def attention_scale(layer):
    """Scores are divided by the head size and not by its root."""
    return lambda t: _attention(t, layer, scale=16)


def attention_window(layer):
    """Decode sees the last two tokens only."""
    return lambda t: _attention(t, layer, window=2)


def skipped_layer(layer):
    """One layer is skipped for one token of one sample."""

    def plant(trainer):
        cell = rollout_layer(trainer, layer)
        right = cell.construct

        def construct(x, freqs_cis, mask):
            made = right(x, freqs_cis, mask)
            if len(cell.attention.cache) and made.shape[1] == 1:
                made = made.asnumpy().copy()
                made[1] = x.asnumpy()[1]
                made = Tensor(made)
            return made

        cell.construct = construct

    return plant


def wrong_residual(layer):
    """What attention returns is added twice."""

    def plant(trainer):
        cell = rollout_layer(trainer, layer)

        def construct(x, freqs_cis, mask):
            attended = cell.attention(cell.attention_norm(x), freqs_cis, mask)
            x = x + attended + attended * 1e-3
            return x + cell.feed_forward(cell.ffn_norm(x))

        cell.construct = construct

    return plant


def dropout_in_training(layer):
    """Dropout is on where log-probabilities are computed."""

    def plant(trainer):
        rng = np.random.default_rng(0)

        def changed(x):
            kept = rng.random(x.shape) > 0.1
            return x * Tensor((kept / 0.9).astype(np.float32))

        change_output(training_layer(trainer, layer).feed_forward, changed)

    return plant


def other_expert(layer):
    """One token of one sample goes through other weights."""

    def plant(trainer):
        cell = rollout_layer(trainer, layer).feed_forward
        right = cell.construct

        def construct(x):
            made = right(x).asnumpy().copy()
            if made.shape[1] == 1:
                made[4, 0] = right(-x).asnumpy()[4, 0]
            return Tensor(made)

        cell.construct = construct

    return plant


def keys_not_rotated(layer):
    """One layer's keys are not rotated in decode."""

    def plant(trainer):
        cell = rollout_layer(trainer, layer).attention.apply_rotary_emb
        right = cell.construct

        def construct(query, key, freqs):
            made = right(query, key, freqs)
            return (made[0], key) if query.shape[2] == 1 else made

        cell.construct = construct

    return plant


def wrong_order_of_fused(layer):
    """The fused weight has queries, keys and values behind each other, and is read by head."""

    def plant(trainer):
        right = trainer.synchronise

        def synchronise():
            right()
            actor = {p.name: p.asnumpy() for p in trainer.networks["actor"].get_parameters()}
            names = [f"model.layers.{layer}.attention.{part}.weight" for part in ("wq", "wk", "wv")]
            weight = rollout_layer(trainer, layer).attention.w_qkv.weight
            weight.set_data(Tensor(np.concatenate([actor[name] for name in names])))

        trainer.synchronise = synchronise
        synchronise()

    return plant


def _weights(changed):
    """Change what is brought over."""

    def plant(trainer):
        right = trainer.synchronise

        def synchronise():
            right()
            changed(trainer)

        trainer.synchronise = synchronise
        synchronise()

    return plant


def weights_of_another_layer(layer):
    """A layer's output projection is that of the layer before it."""

    def changed(trainer):
        other = rollout_layer(trainer, layer - 1).attention.wo.weight
        rollout_layer(trainer, layer).attention.wo.weight.set_data(Tensor(other.asnumpy()))

    return _weights(changed)


def projections_of_another_layer(layer):
    """A layer's fused projection is that of the layer before it."""

    def changed(trainer):
        own, other = (rollout_layer(trainer, n).attention.w_qkv.weight for n in (layer, layer - 1))
        own.set_data(Tensor(other.asnumpy()))

    return _weights(changed)


def one_weight(layer):
    """One element of a projection."""

    def changed(trainer):
        weight = rollout_layer(trainer, layer).attention.w_qkv.weight
        values = weight.asnumpy().copy()
        values[5, 7] += 1e-2
        weight.set_data(Tensor(values))

    return _weights(changed)


def rounded_weights(layer):
    """All weights are rounded to bfloat16."""

    def changed(trainer):
        for parameter in trainer.rollout.get_parameters():
            parameter.set_data(Tensor(rounded(parameter.asnumpy())))

    return _weights(changed)


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to the nearest number of bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits + 0x7FFF + ((bits >> 16) & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def nan_in_one_row(layer):
    """One value of one decoded token is NaN."""

    def plant(trainer):
        def changed(x):
            if x.shape[1] > 1:
                return x
            made = x.asnumpy().copy()
            made[2, 0, 3] = np.nan
            return Tensor(made)

        change_output(rollout_layer(trainer, layer).feed_forward.w2, changed)
        trainer.sample = lambda logits, ended: (
            np.full(len(ended), 3, np.int32),
            np.full(len(ended), -1.0, np.float32),
        )

    return plant


def one_wrong_row(layer):
    """One decoded token of one sample is a little off in all columns."""

    def plant(trainer):
        calls = iter(range(1000))

        def changed(x):
            if x.shape[1] > 1 or next(calls) != 1:
                return x
            made = x.asnumpy().copy()
            made[1] *= 1 + 1e-2 * np.sign(np.sin(np.arange(made.shape[-1]) ** 2))
            return Tensor(made)

        change_output(rollout_layer(trainer, layer).feed_forward.w2, changed)

    return plant


def layers_in_the_wrong_order(layer):
    """Two layers run in the other order."""

    def plant(trainer):
        model = trainer.rollout.model
        right = [*model.layers]

        def construct(tokens, position_ids, batch_valid_length):
            freqs = model.freqs_mgr(position_ids)
            mask = model.casual_mask(tokens, batch_valid_length)
            hidden = model.tok_embeddings(tokens)
            order = [*right]
            order[layer - 1], order[layer] = order[layer], order[layer - 1]
            for one in order:
                hidden = one(hidden, freqs, mask)
            return model.norm_out(hidden)

        model.construct = construct

    return plant


def embedding_scale(layer):
    """Embeddings are scaled in decode only."""

    def plant(trainer):
        def changed(x):
            return x * 1.001 if x.shape[1] == 1 else x

        change_output(trainer.rollout.model.tok_embeddings, changed)

    return plant


def one_column_of_the_head(layer):
    """The logit of one token of the vocabulary is shifted."""

    def plant(trainer):
        def changed(x):
            made = x.asnumpy().copy()
            made[..., 4] += 1e-2
            return Tensor(made)

        change_output(trainer.rollout.lm_head, changed)

    return plant


def last_norm(layer):
    """The norm behind the layers has another epsilon in training."""

    def plant(trainer):
        trainer.networks["actor"].model.norm_out.eps = 1e-2

    return plant


def training_positions(layer):
    """The training counts positions one too high from some token on."""

    def plant(trainer):
        def changed(made):
            cos, sin, swap = made
            order = np.r_[0:5, 6 : cos.shape[2], cos.shape[2] - 1]
            return (
                Tensor(cos.asnumpy()[:, :, order]),
                Tensor(sin.asnumpy()[:, :, order]),
                swap,
            )

        change_output(trainer.networks["actor"].model.freqs_mgr, changed)

    return plant


def training_mask(layer):
    """The training's mask lets a token see the one behind it."""

    def plant(trainer):
        def changed(mask):
            made = mask.asnumpy().copy()
            for at in range(made.shape[-1] - 1):
                made[..., at, at + 1] = 0
            return Tensor(made)

        change_output(trainer.networks["actor"].model.casual_mask, changed)

    return plant


def padding_hidden_elsewhere(layer, fault=None):
    """The rollout's mask lets in padding, which attention hides by itself; nothing is wrong.

    Args:
        fault: what is wrong otherwise, if anything is.
    """

    def plant(trainer):
        if fault is not None:
            fault(trainer)
        mask, kept = trainer.rollout.model.casual_mask, []
        right = mask.construct

        def construct(tokens, batch_valid_length):
            kept[:] = [right(tokens, batch_valid_length)]
            length, columns = kept[0].shape[-2:]
            later = np.arange(columns) > np.arange(columns - length, columns)[:, None]
            made = np.broadcast_to(np.where(later, -1e4, 0), kept[0].shape)
            return Tensor(made.astype(np.float32))

        mask.construct = construct
        for one in trainer.rollout.model.layers:
            attends = one.attention.construct
            one.attention.construct = lambda x, freqs, _, attends=attends: attends(
                x, freqs, kept[0]
            )

    return plant


def rollout_dtype(layer):
    """The whole rollout network computes and keeps float16."""

    def plant(trainer):
        _rebuild(trainer, "float16")

    return plant


def both_in_float16(layer):
    """Both networks do: the same precision, and nothing wrong."""

    def plant(trainer):
        _rebuild(trainer, "float16", both=True)

    return plant


def _rebuild(trainer, dtype, both=False):
    from mindformers.models.llama import LlamaForCausalLM

    from mindrlhf_msprobe.demo.rollout import RolloutNetwork

    actor = trainer.networks["actor"]
    config = actor.config
    kinds = ("compute_dtype", "softmax_compute_type", "rotary_dtype", "residual_dtype")
    kinds += ("layernorm_compute_type", "embedding_init_type", "param_init_type")
    kept = {kind: getattr(config, kind) for kind in kinds}
    for kind in kinds:
        setattr(config, kind, getattr(ms, dtype))
    if both:
        other = LlamaForCausalLM(config)
        for parameter in other.get_parameters():
            value = {p.name: p for p in actor.get_parameters()}[parameter.name]
            parameter.set_data(Tensor(value.asnumpy(), parameter.dtype))
        other.set_train(False)
        trainer.networks["actor"] = other
        trainer.probe.watch(actor=other)
    trainer.rollout = RolloutNetwork(config)
    if not both:
        for kind, value in kept.items():
            setattr(config, kind, value)
    change_output(trainer.rollout.model.casual_mask, lambda mask: mask.astype(getattr(ms, dtype)))
    right = trainer.rollout.synchronise

    def synchronise():
        right(trainer.networks["actor"])
        for parameter in trainer.rollout.get_parameters():
            parameter.set_data(Tensor(parameter.asnumpy(), getattr(ms, dtype)))

    trainer.synchronise = synchronise
    synchronise()
    sample = trainer.sample
    trainer.sample = lambda logits, ended: sample(logits.astype(ms.float32), ended)
    score = trainer.compute_log_prob
    trainer.compute_log_prob = lambda network, tokens: score(network, tokens)


def layer_in_float16(layer):
    """One layer's feed-forward multiplies in float16."""

    def plant(trainer):
        cell = rollout_layer(trainer, layer).feed_forward.w2
        cell.dtype = ms.float16

    return plant


def training_in_float16(layer):
    """One projection of the training network does."""

    def plant(trainer):
        training_layer(trainer, layer).attention.wo.dtype = ms.float16

    return plant


def hidden_rounded(layer):
    """What a layer returns is rounded to bfloat16 in the rollout."""
    return lambda t: change_output(rollout_layer(t, layer), lambda x: Tensor(rounded(x.asnumpy())))


def padding_rows(layer):
    """The rows of padding are others; nobody reads them."""

    def plant(trainer):
        def changed(x):
            if x.shape[1] == 1:
                return x
            made = x.asnumpy().copy()
            made[:, :4] += 1
            return Tensor(made)

        change_output(trainer.rollout.model.tok_embeddings, changed)

    return plant


def constant_positions(layer):
    """All positions are counted from 2: rotary embeddings do not see it."""

    def plant(trainer):
        change_inputs(trainer.rollout.model.freqs_mgr, lambda ids: (ids + 2,))

    return plant


def positions_given_from_two(layer):
    """The trainer itself counts from 2."""

    def plant(trainer):
        rollout = trainer.rollout

        class Shifted:
            def __call__(self, ids, positions, lengths):
                return rollout(ids, positions + 2, lengths)

            clear_cache = rollout.clear_cache

        right = trainer.generate

        def generate(prompts):
            trainer.rollout = Shifted()
            try:
                return right(prompts)
            finally:
                trainer.rollout = rollout

        trainer.generate = generate

    return plant


def forced_token(layer):
    """The second token is forced; its log-probability is that of the network."""

    def plant(trainer):
        right = trainer.sample
        calls = []

        def sample(logits, ended):
            tokens, log_probs = right(logits, ended)
            calls.append(1)
            if len(calls) == 2:
                tokens = np.where(ended, tokens, FORCED).astype(np.int32)
                every = ops.log_softmax(logits, -1).asnumpy()
                log_probs = every[np.arange(len(tokens)), tokens]
            return tokens, log_probs

        trainer.sample = sample

    return plant


def repetition_penalty(layer):
    """The sampler changes the logits of a token."""

    def plant(trainer):
        right = trainer.sample

        def sample(logits, ended):
            made = logits.asnumpy().copy()
            made[:, 3] -= 1
            return right(Tensor(made), ended)

        trainer.sample = sample

    return plant


def other_tokens(layer):
    """The training is given another first token of each response: tokenized again."""

    def plant(trainer):
        right = trainer.compute_log_prob

        def compute_log_prob(network, tokens):
            made = tokens.asnumpy().copy()
            made[:, 4] = made[:, 4] % 12 + 1
            return right(network, Tensor(made))

        trainer.compute_log_prob = compute_log_prob

    return plant
