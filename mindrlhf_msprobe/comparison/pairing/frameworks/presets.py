"""What cells of the networks of MindFormers, vLLM and Hugging Face are called in another one.

The training and the inference classes of MindFormers do the same under other names: what is
`model.layers.0.attention.wo` in its Llama is `model.decoder.layers.0.self_attention.linear_proj`
in its parallel core.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, NameRule, NameRules

_LAYERS = re.compile(r"(?:(.*)\.)?layers\.[0-9]+")

#: What cells inside a layer are called; what lies inside others stands before these.
_IN_LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("attention.apply_rotary_emb", "attention.infer_attention.rotary_embedding"),
        *("self_attention.apply_rotary_pos_emb", "self_attention.rotary_embedding"),
        *("attention.rotary_embedding", "self_attn.rotary_emb"),
    ),
    ("attention.wo", "self_attention.linear_proj", "self_attn.o_proj", "self_attention.dense"),
    ("attention.wq", "self_attention.linear_q", "self_attn.q_proj"),
    ("attention.wk", "self_attention.linear_k", "self_attn.k_proj"),
    ("attention.wv", "self_attention.linear_v", "self_attn.v_proj"),
    (
        *("attention.w_qkv", "self_attention.linear_qkv", "self_attn.qkv_proj"),
        *("self_attn.query_key_value", "self_attention.query_key_value"),
    ),
    ("attention.q_norm", "self_attention.q_layernorm", "self_attn.q_norm"),
    ("attention.k_norm", "self_attention.k_layernorm", "self_attn.k_norm"),
    ("feed_forward.w_gate_hidden", "mlp.linear_fc1", "mlp.gate_up_proj", "mlp.dense_h_to_4h"),
    ("feed_forward.w1", "mlp.gating", "mlp.gate_proj"),
    ("feed_forward.w3", "mlp.hidden", "mlp.up_proj"),
    ("feed_forward.w2", "mlp.linear_fc2", "mlp.down_proj", "mlp.dense_4h_to_h"),
    ("attention", "self_attention", "self_attn"),
    ("feed_forward", "mlp"),
    ("attention_norm", "input_layernorm", "input_norm"),
    ("ffn_norm", "pre_mlp_layernorm", "post_attention_layernorm", "post_attention_norm"),
)
#: What cells beside the layers are called, whatever is around them.
_BESIDE = (
    ("tok_embeddings", "word_embeddings", "embed_tokens"),
    ("norm_out", "final_layernorm", "norm", "final_norm"),
    ("freqs_mgr", "rotary_emb", "rotary_pos_emb"),
    ("lm_head", "output_layer"),
)


def preset_names(rollout: Iterable[str], training: Iterable[str]) -> NameRules:
    """Return what cells of the rollout network are called in the training network.

    Only where exactly one name of each network is known, and both are unlike. A wrapper around one
    of the networks is left to `match_names`.
    """
    cells = {*rollout}, {*training}
    before = [_before_layers(one) for one in cells]
    if before[0] is None or before[1] is None:
        return NO_RULES
    return NameRules(_rules(*cells, before[0], before[1]))


def said_of_preset(
    code: str, preset: NameRules, rules: NameRules, cells: Collection[str]
) -> Iterator[Message]:
    """Say which rules of a preset name cells of A that the caller's rules do not name."""
    left = [cell for cell in cells if rules.rename(cell) is None]
    used = sorted({number for cell in left for number in preset.numbers(cell)})
    if used:
        shown = [f"{preset[number].source} → {preset[number].target}" for number in used[:2]]
        yield message(code, count=len(used), rules=", ".join(shown))


def _rules(rollout: set[str], training: set[str], a: str, b: str) -> Iterator[NameRule]:
    """Yield the rules, those of what is inside others first.

    Args:
        a, b: what stands before the layers of each, with its dot.
    """
    wrapped = a.endswith(b) or b.endswith(a)
    target = a if wrapped else b
    roles = _roles(rollout, a), _roles(training, b)
    for names in _IN_LAYERS:
        mine, theirs = ([name for name in names if name in known] for known in roles)
        if len(mine) == len(theirs) == 1 and mine != theirs:
            yield NameRule(f"{a}layers.*.{mine[0]}", f"{target}layers.*.{theirs[0]}")
    if not wrapped:
        yield NameRule(f"{a}layers.*", f"{b}layers.*")
    for names in _BESIDE:
        mine, theirs = (
            [c for c in cells if c.rpartition(".")[2] in names and "layers." not in c]
            for cells in (rollout, training)
        )
        if len(mine) == len(theirs) == 1 and mine != theirs:
            name = theirs[0]  # as it is called inside what wraps the rollout's network, if any does
            if a.endswith(b):
                name = a[: len(a) - len(b)] + name
            elif b.endswith(a):
                name = name.removeprefix(b[: len(b) - len(a)])
            if name != mine[0]:
                yield NameRule(re.escape(mine[0]), name)


def _before_layers(cells: set[str]) -> str | None:
    """Return what stands before the layers, with its dot; None without layers."""
    found = Counter(match[1] for cell in cells if (match := _LAYERS.fullmatch(cell)))
    if not found:
        return None
    most = found.most_common(1)[0][0]
    return f"{most}." if most else ""


def _roles(cells: set[str], prefix: str) -> set[str]:
    """Return what the cells inside layers are called there."""
    inside = re.compile(rf"{re.escape(prefix)}layers\.[0-9]+\.(.+)")
    return {match[1] for cell in cells if (match := inside.fullmatch(cell))}
