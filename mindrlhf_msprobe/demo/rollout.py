"""The network that writes the answers: a decoder with a key-value cache, of the actor's weights.

As in large trainers, generation and training are two ways through one set of weights: here fused
projections, and one token of each answer at a time; there separate ones, and whole sequences. What
both compute of a token agrees to rounding.

The parts are MindFormers' own and have MindFormers' names, except for what knows of the cache.
MindFormers' incremental inference (`use_past`) does not run on a CPU: its ReshapeAndCache and
PagedAttention take no float32, and no kernel of the CPU computes them.
"""

import math
from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindformers.models.llama import LlamaConfig
from mindformers.models.llama.llama_layer import LlamaEmbedding, LlamaFeedForward, LlamaRMSNorm
from mindformers.modules.layers import FreqsMgr, Linear, RotaryEmbedding
from mindspore import Tensor, nn, ops

BUCKET = 8
"""Prompts are padded to a multiple of so many tokens, so that few shapes are computed."""

MASKED = -10000.0
"""What MindFormers adds to the scores of tokens that must not be seen."""


class RolloutNetwork(nn.Cell):
    """Compute the logits of the next token from the new tokens and a cache of those before.

    The first call after `clear_cache` takes the prompts, each later one the next token of each.

    Args:
        config: the actor's.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.kv_heads = config.n_kv_heads or config.num_heads
        self.model = RolloutModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, **linear(config))
        for parameter in self.get_parameters():
            parameter.requires_grad = False
        self.set_train(False)

    def construct(
        self, input_ids: Tensor, position_ids: Tensor, batch_valid_length: Tensor
    ) -> Tensor:
        """Compute the logits behind each of the tokens.

        Args:
            input_ids: prompts that end in the last column, or the next tokens; int32
                [batch, length].
            position_ids: the place of each token in its sequence, from 0 on; that of padding does
                not matter; int32 [batch, length].
            batch_valid_length: how many tokens of each sequence, from its first one on, may be
                seen; those in front of it and behind it are padding; int32 [batch].

        Returns:
            logits, float32 [batch, length, vocab_size].
        """
        return self.lm_head(self.model(input_ids, position_ids, batch_valid_length))

    def clear_cache(self) -> None:
        """Forget all sequences: the next call begins new ones."""
        self.model.casual_mask.clear()
        for layer in self.model.layers:
            layer.attention.clear()

    def synchronise(self, actor: nn.Cell) -> None:
        """Take over the actor's weights."""
        weights = {parameter.name: parameter.asnumpy() for parameter in actor.get_parameters()}
        for parameter in self.get_parameters():
            parameter.set_data(Tensor(fused(parameter.name, weights, self.kv_heads)))


class RolloutModel(nn.Cell):
    """The decoder without its head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.freqs_mgr = RolloutFreqs(
            head_dim=config.hidden_size // config.num_heads,
            seq_length=config.seq_length,
            max_position_embedding=config.max_position_embedding,
            rotary_dtype=config.rotary_dtype,
            theta=config.theta,
            scaling_factor=config.scaling_factor,
            extend_method=config.extend_method,
        )
        self.casual_mask = RolloutMask()
        self.tok_embeddings = LlamaEmbedding(
            config.vocab_size, config.hidden_size, param_init_type=config.embedding_init_type
        )
        self.layers = nn.CellList([RolloutLayer(config) for _ in range(config.num_layers)])
        self.norm_out = rms_norm(config)

    def construct(self, tokens: Tensor, position_ids: Tensor, batch_valid_length: Tensor) -> Tensor:
        """Compute the hidden states, float32 [batch, length, hidden_size].

        Args: those of RolloutNetwork.
        """
        freqs_cis = self.freqs_mgr(position_ids)
        mask = self.casual_mask(tokens, batch_valid_length)
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden, freqs_cis, mask)
        return self.norm_out(hidden)


class RolloutLayer(nn.Cell):
    """One layer of the decoder."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = rms_norm(config)
        self.attention = RolloutAttention(config)
        self.ffn_norm = rms_norm(config)
        self.feed_forward = LlamaFeedForward(
            dim=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_dim=4 * config.hidden_size,
            multiple_of=config.multiple_of,
            ffn_dim_multiplier=config.ffn_dim_multiplier,
            compute_dtype=config.compute_dtype,
            param_init_type=config.param_init_type,
            ffn_concat=True,
        )
        self.feed_forward.split = ops.split  # MindFormers' SplitWithSize has no kernel for a CPU

    def construct(self, x: Tensor, freqs_cis: tuple[Tensor, ...], mask: Tensor) -> Tensor:
        """Compute the next hidden states.

        Args:
            x: float32 [batch, length, hidden_size].
            freqs_cis: what RolloutFreqs returns.
            mask: what RolloutMask returns.
        """
        x = x + self.attention(self.attention_norm(x), freqs_cis, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class RolloutAttention(nn.Cell):
    """Self-attention of the new tokens to themselves and to those in the cache.

    Attributes:
        cache: keys and values of the tokens so far, both float32 [batch, kv_heads, length,
            head_dim]; empty before the prompts.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.kv_heads = config.n_kv_heads or config.num_heads
        self.head_dim = config.hidden_size // config.num_heads
        kv_size = self.kv_heads * self.head_dim
        self.w_qkv = Linear(
            config.hidden_size,
            config.hidden_size + 2 * kv_size,
            **linear(config, has_bias=config.qkv_has_bias),
        )
        self.wo = Linear(
            config.hidden_size,
            config.hidden_size,
            **linear(config, has_bias=config.attn_proj_has_bias),
        )
        self.apply_rotary_emb = RotaryEmbedding(
            self.head_dim, config.rotary_dtype, use_rope_slice=config.use_rope_slice
        )
        self.clear()

    def clear(self) -> None:
        """Forget the tokens so far."""
        self.cache: tuple[Tensor, ...] = ()

    def construct(self, x: Tensor, freqs_cis: tuple[Tensor, ...], mask: Tensor) -> Tensor:
        """Attend; arguments and result as those of RolloutLayer."""
        batch, length, size = x.shape
        group = self.heads // self.kv_heads  # queries that share a key
        qkv = self.w_qkv(x).reshape(batch, length, self.kv_heads, -1)
        query, key, value = ops.split(qkv, [group * self.head_dim, self.head_dim, self.head_dim], 3)
        query = query.reshape(batch, length, self.heads, self.head_dim).swapaxes(1, 2)
        query, key = self.apply_rotary_emb(query, key.swapaxes(1, 2), freqs_cis)
        value = value.swapaxes(1, 2)
        if self.cache:
            key, value = (ops.cat(both, 2) for both in zip(self.cache, (key, value), strict=True))
        self.cache = (key, value)
        if group > 1:
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = ops.matmul(query, key.swapaxes(2, 3)) / math.sqrt(self.head_dim) + mask
        seen = ops.matmul(ops.softmax(scores, -1), value)
        return self.wo(seen.swapaxes(1, 2).reshape(batch, length, size))


class RolloutFreqs(FreqsMgr):
    """The cosines and sines of positions that are given, not counted."""

    def construct(self, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return cosines and sines, float32 [batch, 1, length, head_dim], and the swap matrix."""
        cos = self.gather(self.freqs_cos, position_ids, 0).expand_dims(1)
        sin = self.gather(self.freqs_sin, position_ids, 0).expand_dims(1)
        return cos, sin, self.swap_mask


class RolloutMask(nn.Cell):
    """Let a token see itself and those before it, but no padding.

    Attributes:
        past: the column of each sequence's first token, int32 [batch, 1], and how many columns are
            in the cache; empty before the prompts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Forget the tokens so far."""
        self.past: tuple[Any, ...] = ()

    def construct(self, tokens: Tensor, batch_valid_length: Tensor) -> Tensor:
        """Return the mask of new tokens and all that are then in the cache.

        Returns:
            0 where a new token sees a cached one, else MASKED; float32 [batch, 1, new
            tokens, cached tokens].
        """
        length, valid = tokens.shape[1], batch_valid_length.expand_dims(-1)
        first, cached = self.past or (length - valid, 0)
        self.past = (first, cached + length)
        columns = ops.arange(cached + length)
        no_padding = ops.logical_and(columns >= first, columns < first + valid)
        not_later = columns <= columns[-length:].expand_dims(-1)
        seen = ops.logical_and(no_padding.expand_dims(1), not_later).expand_dims(1)
        return (1 - seen.astype(ms.float32)) * MASKED


def linear(config: LlamaConfig, has_bias: bool = False) -> dict[str, object]:
    """Return how MindFormers makes the Linear cells of a network."""
    return {
        "has_bias": has_bias,
        "compute_dtype": config.compute_dtype,
        "param_init_type": config.param_init_type,
    }


def rms_norm(config: LlamaConfig) -> LlamaRMSNorm:
    """Make a norm as MindFormers does."""
    return LlamaRMSNorm(
        config.hidden_size,
        config.rms_norm_eps,
        compute_type=config.layernorm_compute_type,
        fused_kernel=config.fused_rms_norm,
    )


def fused(name: str, weights: Mapping[str, np.ndarray], kv_heads: int) -> np.ndarray:
    """Return a parameter of the rollout network, made of the actor's.

    The fused ones are laid out as MindFormers' `qkv_concat` has it: in w_qkv the queries, the key
    and the value of each key-value head stand together, in w_gate_hidden rows of w1 and w3 in turn.

    Args:
        name: of the rollout network's parameter.
        weights: the actor's, by name.
        kv_heads: heads that have keys and values of their own.
    """
    if ".w_qkv." in name:
        parts = [weights[name.replace("w_qkv", part)] for part in ("wq", "wk", "wv")]
        groups = kv_heads
    elif ".w_gate_hidden." in name:
        parts = [weights[name.replace("w_gate_hidden", part)] for part in ("w1", "w3")]
        groups = len(parts[0])
    else:
        return weights[name].copy()
    rest = parts[0].shape[1:]
    together = np.concatenate([part.reshape(groups, -1, *rest) for part in parts], axis=1)
    return together.reshape(-1, *rest)
