"""What may be wrong in one of the two ways through a network, planted into the demo's trainer.

Each takes the number of a layer, and returns what changes a trainer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import wraps
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


def planted(change):
    """Let a function of a trainer and a layer be given the layer first, and the trainer later."""

    @wraps(change)
    def of_layer(layer, *more):
        return lambda trainer: change(trainer, layer, *more)

    return of_layer


def brought_over(change):
    """Change the rollout's weights so each time they are brought over, now and later."""

    @planted
    @wraps(change)
    def plant(trainer, layer):
        after_synchronising(trainer, lambda: change(trainer, layer))

    return plant


def after_synchronising(trainer, change):
    """Do something whenever the rollout was given the actor's weights, and once now."""
    right = trainer.synchronise

    def synchronise():
        right()
        change()

    trainer.synchronise = synchronise
    synchronise()


def edited(change):
    """Return what gives back a tensor whose elements a function has changed in place."""

    def changed(x: Tensor) -> Tensor:
        made = x.asnumpy().copy()
        change(made)
        return Tensor(made)

    return changed


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


def noisy_output(layer_of, name: str, scale: float = 1e-3):
    """Return what makes the output of one cell of a layer wrong by a share of its size."""
    cell = operator.attrgetter(name)
    return planted(
        lambda trainer, layer: change_output(cell(layer_of(trainer, layer)), noisy(scale))
    )


projection = noisy_output(rollout_layer, "attention.w_qkv")
output_projection = noisy_output(rollout_layer, "attention.wo")
gate_projection = noisy_output(rollout_layer, "feed_forward.w_gate_hidden")
training_projection = noisy_output(training_layer, "attention.wk")  # a part of the fused one
small_down_projection = noisy_output(training_layer, "feed_forward.w2", 1e-4)


def change_cache(trainer, layer, change):
    """Change keys and values that are cached, once, before the second token is computed."""
    attention = rollout_layer(trainer, layer).attention
    right = attention.construct

    def construct(x, freqs_cis, mask):
        if len(attention.cache) and not construct.done:
            construct.done = True
            attention.cache = tuple(map(edited(change), attention.cache))
        return right(x, freqs_cis, mask)

    construct.done = False
    attention.construct = construct


@planted
def swapped_heads(trainer, layer):
    """One head of two samples is swapped in the cache."""

    def change(cache):
        cache[[0, 1], 0] = cache[[1, 0], 0]

    change_cache(trainer, layer, change)


@planted
def stale_cache(trainer, layer):
    """The cache of one sample holds what another prompt left there."""

    def change(cache):
        cache[2] = cache[5]

    change_cache(trainer, layer, change)


@planted
def lost_block(trainer, layer):
    """One block of the cache of one sample is zeros."""

    def change(cache):
        cache[3, :, -2:] = 0

    change_cache(trainer, layer, change)


@planted
def norm_epsilon(trainer, layer):
    """Another epsilon in the rollout's norm."""
    rollout_layer(trainer, layer).ffn_norm.eps = 1e-2


@planted
def forgotten_bias(trainer, layer):
    """The bias of the projections is there, and not added (needs qkv_has_bias)."""
    for parameter in trainer.networks["actor"].get_parameters():
        if parameter.name.endswith("bias"):
            rng = np.random.default_rng(1)
            parameter.set_data(Tensor(rng.normal(size=parameter.shape).astype(np.float32)))
    trainer.synchronise()
    rollout_layer(trainer, layer).attention.w_qkv.has_bias = False


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


@planted
def repeated_heads(trainer, layer):
    """Key-value heads are repeated in the wrong order (needs n_kv_heads 2 of 4 heads)."""
    _attention(trainer, layer, tile=True)


@planted
def attention_scale(trainer, layer):
    """Scores are divided by the head size and not by its root."""
    _attention(trainer, layer, scale=16)


@planted
def attention_window(trainer, layer):
    """Decode sees the last two tokens only."""
    _attention(trainer, layer, window=2)


@planted
def skipped_layer(trainer, layer):
    """One layer is skipped for one token of one sample."""
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


@planted
def wrong_residual(trainer, layer):
    """What attention returns is added twice."""
    cell = rollout_layer(trainer, layer)

    def construct(x, freqs_cis, mask):
        attended = cell.attention(cell.attention_norm(x), freqs_cis, mask)
        x = x + attended + attended * 1e-3
        return x + cell.feed_forward(cell.ffn_norm(x))

    cell.construct = construct


@planted
def dropout_in_training(trainer, layer):
    """Dropout is on where log-probabilities are computed."""
    rng = np.random.default_rng(0)

    def changed(x):
        kept = rng.random(x.shape) > 0.1
        return x * Tensor((kept / 0.9).astype(np.float32))

    change_output(training_layer(trainer, layer).feed_forward, changed)


@planted
def other_expert(trainer, layer):
    """One token of one sample goes through other weights."""
    cell = rollout_layer(trainer, layer).feed_forward
    right = cell.construct

    def construct(x):
        made = right(x).asnumpy().copy()
        if made.shape[1] == 1:
            made[4, 0] = right(-x).asnumpy()[4, 0]
        return Tensor(made)

    cell.construct = construct


@planted
def keys_not_rotated(trainer, layer):
    """One layer's keys are not rotated in decode."""
    cell = rollout_layer(trainer, layer).attention.apply_rotary_emb
    right = cell.construct

    def construct(query, key, freqs):
        made = right(query, key, freqs)
        return (made[0], key) if query.shape[2] == 1 else made

    cell.construct = construct


@brought_over
def wrong_order_of_fused(trainer, layer):
    """The fused weight has queries, keys and values behind each other, and is read by head."""
    actor = {p.name: p.asnumpy() for p in trainer.networks["actor"].get_parameters()}
    names = [f"model.layers.{layer}.attention.{part}.weight" for part in ("wq", "wk", "wv")]
    weight = rollout_layer(trainer, layer).attention.w_qkv.weight
    weight.set_data(Tensor(np.concatenate([actor[name] for name in names])))


@brought_over
def weights_of_another_layer(trainer, layer):
    """A layer's output projection is that of the layer before it."""
    other = rollout_layer(trainer, layer - 1).attention.wo.weight
    rollout_layer(trainer, layer).attention.wo.weight.set_data(Tensor(other.asnumpy()))


@brought_over
def projections_of_another_layer(trainer, layer):
    """A layer's fused projection is that of the layer before it."""
    own, other = (rollout_layer(trainer, n).attention.w_qkv.weight for n in (layer, layer - 1))
    own.set_data(Tensor(other.asnumpy()))


@brought_over
def one_weight(trainer, layer):
    """One element of a projection."""
    weight = rollout_layer(trainer, layer).attention.w_qkv.weight
    values = weight.asnumpy().copy()
    values[5, 7] += 1e-2
    weight.set_data(Tensor(values))


@brought_over
def rounded_weights(trainer, layer):
    """All weights are rounded to bfloat16."""
    for parameter in trainer.rollout.get_parameters():
        parameter.set_data(Tensor(rounded(parameter.asnumpy())))


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to the nearest number of bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits + 0x7FFF + ((bits >> 16) & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@planted
def nan_in_one_row(trainer, layer):
    """One value of one decoded token is NaN."""

    def change(made):
        if made.shape[1] == 1:
            made[2, 0, 3] = np.nan

    change_output(rollout_layer(trainer, layer).feed_forward.w2, edited(change))
    trainer.sample = lambda logits, ended: (
        np.full(len(ended), 3, np.int32),
        np.full(len(ended), -1.0, np.float32),
    )


@planted
def one_wrong_row(trainer, layer):
    """One decoded token of one sample is a little off in all columns."""
    calls = iter(range(1000))

    def change(made):
        if made.shape[1] == 1 and next(calls) == 1:
            made[1] *= 1 + 1e-2 * np.sign(np.sin(np.arange(made.shape[-1]) ** 2))

    change_output(rollout_layer(trainer, layer).feed_forward.w2, edited(change))


@planted
def one_column_of_the_head(trainer, layer):
    """The logit of one token of the vocabulary is shifted."""

    def change(made):
        made[..., 4] += 1e-2

    change_output(trainer.rollout.lm_head, edited(change))


@planted
def last_norm(trainer, layer):
    """The norm behind the layers has another epsilon in training."""
    trainer.networks["actor"].model.norm_out.eps = 1e-2


@planted
def training_positions(trainer, layer):
    """The training counts positions one too high from some token on."""

    def changed(made):
        cos, sin, swap = made
        order = np.r_[0:5, 6 : cos.shape[2], cos.shape[2] - 1]
        return (Tensor(cos.asnumpy()[:, :, order]), Tensor(sin.asnumpy()[:, :, order]), swap)

    change_output(trainer.networks["actor"].model.freqs_mgr, changed)


@planted
def training_mask(trainer, layer):
    """The training's mask lets a token see the one behind it."""

    def change(mask):
        for at in range(mask.shape[-1] - 1):
            mask[..., at, at + 1] = 0

    change_output(trainer.networks["actor"].model.casual_mask, edited(change))


@planted
def padding_hidden_elsewhere(trainer, layer, fault=None):
    """The rollout's mask lets in padding, which attention hides by itself; nothing is wrong.

    Args:
        fault: what is wrong otherwise, if anything is.
    """
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
        one.attention.construct = lambda x, freqs, _, attends=attends: attends(x, freqs, kept[0])


@planted
def rollout_dtype(trainer, layer):
    """The whole rollout network computes and keeps float16."""
    _rebuild(trainer, "float16")


@planted
def both_in_float16(trainer, layer):
    """Both networks do: the same precision, and nothing wrong."""
    _rebuild(trainer, "float16", both=True)


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

    def lower():
        for parameter in trainer.rollout.get_parameters():
            parameter.set_data(Tensor(parameter.asnumpy(), getattr(ms, dtype)))

    trainer.synchronise = lambda: trainer.rollout.synchronise(trainer.networks["actor"])
    after_synchronising(trainer, lower)
    sample = trainer.sample
    trainer.sample = lambda logits, ended: sample(logits.astype(ms.float32), ended)


@planted
def layer_in_float16(trainer, layer):
    """One layer's feed-forward multiplies in float16."""
    cell = rollout_layer(trainer, layer).feed_forward.w2
    cell.dtype = ms.float16


@planted
def hidden_rounded(trainer, layer):
    """What a layer returns is rounded to bfloat16 in the rollout."""
    change_output(rollout_layer(trainer, layer), lambda x: Tensor(rounded(x.asnumpy())))


@planted
def padding_rows(trainer, layer):
    """The rows of padding are others; nobody reads them."""

    def change(made):
        if made.shape[1] > 1:
            made[:, :4] += 1

    change_output(trainer.rollout.model.tok_embeddings, edited(change))


@planted
def constant_positions(trainer, layer):
    """All positions are counted from 2: rotary embeddings do not see it."""
    change_inputs(trainer.rollout.model.freqs_mgr, lambda ids: (ids + 2,))


@planted
def positions_given_from_two(trainer, layer):
    """The trainer itself counts from 2."""
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


@planted
def forced_token(trainer, layer):
    """The second token is forced; its log-probability is that of the network."""
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


@planted
def repetition_penalty(trainer, layer):
    """The sampler changes the logits of a token."""
    right = trainer.sample

    def change(logits):
        logits[:, 3] -= 1

    trainer.sample = lambda logits, ended: right(edited(change)(logits), ended)


@planted
def other_tokens(trainer, layer):
    """The training is given another first token of each response: tokenized again."""
    right = trainer.compute_log_prob

    def change(tokens):
        tokens[:, 4] = tokens[:, 4] % 12 + 1

    trainer.compute_log_prob = lambda network, tokens: right(network, edited(change)(tokens))
