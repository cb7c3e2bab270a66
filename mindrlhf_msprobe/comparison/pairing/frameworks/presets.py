"""What cells of the networks of MindFormers, vLLM and Hugging Face are called in another one.

The training and the inference classes of MindFormers do the same under other names: what is
`model.layers.0.attention.wo` in its Llama is `model.decoder.layers.0.self_attention.linear_proj`
in its parallel core.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, NameRule, NameRules, literal
from mindrlhf_msprobe.storage.records import cell_of_parameter

_LAYERS = re.compile(r"(?:(.*)\.)?layers\.[0-9]+")

#: What the cells of networks are called, by what they do; one that is called by several names has
#: `|` between them. To know another network, add it here.
NETWORKS = {
    "MindFormers": """
        attention=attention query=attention.wq key=attention.wk value=attention.wv
        qkv=attention.w_qkv output=attention.wo
        query_norm=attention.q_norm key_norm=attention.k_norm
        rotary=attention.apply_rotary_emb|attention.rotary_embedding
        rotary=attention.infer_attention.rotary_embedding
        mlp=feed_forward gate=feed_forward.w1 up=feed_forward.w3
        gate_up=feed_forward.w_gate_hidden down=feed_forward.w2
        before_attention=attention_norm before_mlp=ffn_norm
        embedding=tok_embeddings final_norm=norm_out table=freqs_mgr head=lm_head""",
    "MindFormers, parallel core; Megatron": """
        attention=self_attention query=self_attention.linear_q key=self_attention.linear_k
        value=self_attention.linear_v qkv=self_attention.linear_qkv
        output=self_attention.linear_proj
        query_norm=self_attention.q_layernorm key_norm=self_attention.k_layernorm
        rotary=self_attention.apply_rotary_pos_emb|self_attention.rotary_embedding
        mlp=mlp gate=mlp.gating up=mlp.hidden gate_up=mlp.linear_fc1 down=mlp.linear_fc2
        router=mlp.router shared_down=mlp.shared_experts.linear_fc2
        before_attention=input_layernorm before_mlp=pre_mlp_layernorm
        embedding=word_embeddings final_norm=final_layernorm table=rotary_pos_emb
        head=output_layer""",
    "Hugging Face, vLLM": """
        attention=self_attn query=self_attn.q_proj key=self_attn.k_proj value=self_attn.v_proj
        qkv=self_attn.qkv_proj output=self_attn.o_proj
        query_norm=self_attn.q_norm key_norm=self_attn.k_norm rotary=self_attn.rotary_emb
        mlp=mlp gate=mlp.gate_proj up=mlp.up_proj gate_up=mlp.gate_up_proj down=mlp.down_proj
        router=mlp.gate shared_down=mlp.shared_experts.down_proj
        before_attention=input_layernorm before_mlp=post_attention_layernorm
        embedding=embed_tokens final_norm=norm table=rotary_emb head=lm_head""",
    "GLM": """
        attention=self_attention qkv=self_attention.query_key_value|self_attn.query_key_value
        output=self_attention.dense mlp=mlp gate_up=mlp.dense_h_to_4h down=mlp.dense_4h_to_h
        before_attention=input_norm before_mlp=post_attention_norm final_norm=final_norm""",
}
#: What cells do inside a layer; what lies inside others stands before these. And beside the layers.
_IN_LAYERS = (
    *("rotary", "output", "query", "key", "value", "qkv", "query_norm", "key_norm"),
    *("gate_up", "gate", "up", "down", "router", "shared_down"),
    *("attention", "mlp", "before_attention", "before_mlp"),
)
_BESIDE = ("embedding", "final_norm", "table", "head")


#: What each network calls the cells of each role.
_NETWORKS: list[dict[str, list[str]]] = []
for _network in NETWORKS.values():
    _NETWORKS.append(defaultdict(list))
    for _role, _, _names in (item.partition("=") for item in _network.split()):
        _NETWORKS[-1][_role] += _names.split("|")


def called(role: str) -> list[str]:
    """Return what any network calls the cells of a role."""
    return [*dict.fromkeys(name for network in _NETWORKS for name in network.get(role, ()))]


def own_names(*roles: str) -> list[tuple[str, ...]]:
    """Return what networks that have cells of all these roles call them, inside what is around."""
    known = [[network.get(role, [""])[0] for role in roles] for network in _NETWORKS]
    return [tuple(name.rpartition(".")[2] for name in names) for names in known if all(names)]


#: What fused cells are called, and their parts. In some networks one weight is called as a fused
#: one of others is.
FUSED: tuple[tuple[tuple[str, ...], list[tuple[str, ...]]], ...] = (
    (
        (*(name for (name,) in own_names("qkv")), "wqkv", "qkv"),
        [*own_names("query", "key", "value"), ("q", "k", "v"), ("query", "key", "value")],
    ),
    (
        tuple(name for (name,) in own_names("gate_up") if name != "dense_h_to_4h"),
        own_names("gate", "up"),
    ),
)
_FUSED = {name for names, _ in FUSED for name in names}
_PARTS = {name for _, each in FUSED for parts in each for name in parts}


def last_name(parameter: str) -> str:
    """Return what the cell of a parameter is called inside what is around it."""
    return cell_of_parameter(parameter).rpartition(".")[2]


def is_of_fused(parameter: str) -> bool:
    """Return whether a parameter's cell is called as fused ones usually are."""
    return last_name(parameter) in _FUSED


def is_of_part(parameter: str) -> bool:
    """Return whether a parameter's cell is called as a part of fused ones usually is."""
    return last_name(parameter) in _PARTS


#: What projections are called whose rows a rotary embedding turns.
ROTATED = [name for both in own_names("query", "key") for name in both]


def preset_names(rollout: Iterable[str], training: Iterable[str]) -> NameRules:
    """Return what cells of the rollout network are called in the training network.

    Only where exactly one name of each network is known, and both are unlike. A wrapper around one
    of the networks is left to `match_names`.
    """
    cells = {*rollout}, {*training}
    before = []  # what stands before the layers, with its dot
    for one in cells:
        found = Counter(match[1] for cell in one if (match := _LAYERS.fullmatch(cell)))
        if not found:
            return NO_RULES
        most = found.most_common(1)[0][0]
        before.append(f"{most}." if most else "")
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
    roles: list[set[str]] = []  # what the cells inside layers are called there
    for cells, before in ((rollout, a), (training, b)):
        inside = re.compile(rf"{re.escape(before)}layers\.[0-9]+\.(.+)")
        roles.append({match[1] for cell in cells if (match := inside.fullmatch(cell))})
    source, target = a.replace("*", r"\*"), literal(target)
    for names in map(called, _IN_LAYERS):
        mine, theirs = ([name for name in names if name in known] for known in roles)
        if len(mine) == len(theirs) == 1 and mine != theirs:
            yield NameRule(f"{source}layers.*.{mine[0]}", f"{target}layers.*.{theirs[0]}")
    if not wrapped:
        yield NameRule(f"{source}layers.*", f"{target}layers.*")
    for names in map(called, _BESIDE):
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
                yield NameRule(re.escape(mine[0]), literal(name))
