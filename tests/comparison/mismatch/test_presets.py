"""Cells of MindFormers' classes find each other without a mapping; no two become one.

The names are those of the real classes, and of networks that are called as vLLM's are.
"""

from __future__ import annotations

import pytest

from mindrlhf_msprobe.comparison.pairing.frameworks import presets
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.names import match_names

#: What does what, in each class.
LEGACY = {
    "embedding": "model.tok_embeddings",
    "layer": "model.layers.1",
    "norm before attention": "model.layers.1.attention_norm",
    "attention": "model.layers.1.attention",
    "rotary": "model.layers.1.attention.apply_rotary_emb",
    "output": "model.layers.1.attention.wo",
    "norm before mlp": "model.layers.1.ffn_norm",
    "mlp": "model.layers.1.feed_forward",
    "down": "model.layers.1.feed_forward.w2",
    "norm": "model.norm_out",
    "head": "lm_head",
}
SEPARATE = {"query": "wq", "key": "wk", "value": "wv"}
LEGACY_SEPARATE = {
    **LEGACY,
    **{role: f"model.layers.1.attention.{cell}" for role, cell in SEPARATE.items()},
    "gate": "model.layers.1.feed_forward.w1",
    "up": "model.layers.1.feed_forward.w3",
}
LEGACY_PAGED = {
    **LEGACY,
    "rotary": "model.layers.1.attention.infer_attention.rotary_embedding",
    "qkv": "model.layers.1.attention.w_qkv",
    "gate and up": "model.layers.1.feed_forward.w_gate_hidden",
}
CORE = {
    "embedding": "model.embedding.word_embeddings",
    "layer": "model.decoder.layers.1",
    "norm before attention": "model.decoder.layers.1.input_layernorm",
    "attention": "model.decoder.layers.1.self_attention",
    "rotary": "model.decoder.layers.1.self_attention.rotary_embedding",
    "qkv": "model.decoder.layers.1.self_attention.linear_qkv",
    "output": "model.decoder.layers.1.self_attention.linear_proj",
    "norm before mlp": "model.decoder.layers.1.pre_mlp_layernorm",
    "mlp": "model.decoder.layers.1.mlp",
    "gate and up": "model.decoder.layers.1.mlp.linear_fc1",
    "down": "model.decoder.layers.1.mlp.linear_fc2",
    "norm": "model.decoder.final_layernorm",
    "head": "model.output_layer",
}
CORE_TRAINING = {
    **{role: name.removeprefix("model.") for role, name in CORE.items()},
    "rotary": "decoder.layers.1.self_attention.apply_rotary_pos_emb",
}
VLLM = {
    "embedding": "model.embed_tokens",
    "layer": "model.layers.1",
    "norm before attention": "model.layers.1.input_layernorm",
    "attention": "model.layers.1.self_attn",
    "rotary": "model.layers.1.self_attn.rotary_emb",
    "qkv": "model.layers.1.self_attn.qkv_proj",
    "output": "model.layers.1.self_attn.o_proj",
    "norm before mlp": "model.layers.1.post_attention_layernorm",
    "mlp": "model.layers.1.mlp",
    "gate and up": "model.layers.1.mlp.gate_up_proj",
    "down": "model.layers.1.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
CLASSES = {
    "legacy": LEGACY_SEPARATE,
    "legacy, paged": LEGACY_PAGED,
    "core": CORE,
    "core, training": CORE_TRAINING,
    "vllm": VLLM,
}


def with_layers(roles):
    """Return the names of a network of three layers, with those that stand around them."""
    names = {name.replace("layers.1", f"layers.{n}") for name in roles.values() for n in range(3)}
    return names | {around for name in names for around in _around(name)}


def _around(name):
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


@pytest.mark.parametrize("training", CLASSES)
@pytest.mark.parametrize("rollout", CLASSES)
@pytest.mark.parametrize("wrapped", ["", "rollout", "training"])
def test_what_does_the_same_is_called_the_same(rollout, training, wrapped):
    """In each pair of classes, whichever generates, and in a wrapper or not."""
    mine, theirs = CLASSES[rollout], CLASSES[training]
    prefix = ["network." if wrapped == side else "" for side in ("rollout", "training")]
    cells = [
        {f"{before}{name}" for name in with_layers(roles)}
        for before, roles in zip(prefix, (mine, theirs))
    ]
    names = match_names(*cells, preset_names(*cells))
    for role in mine.keys() & theirs.keys():
        own = names.common_a(prefix[0] + mine[role])
        assert own == names.common_b(prefix[1] + theirs[role]), role
        assert own is not None
    common = [names.common_a(cell) for cell in sorted(cells[0])]
    assert len({*common} - {None}) == len([name for name in common if name is not None])


def test_networks_that_are_called_alike_need_no_rules():
    """Nor do those of which nothing is known."""
    for roles in CLASSES.values():
        assert preset_names(with_layers(roles), with_layers(roles)) == ()
    assert preset_names({"a.b", "c"}, {"d"}) == ()


def built():
    """Return the names of the cells of each real class."""
    pytest.importorskip("mindformers")
    from helpers import paged
    from mindformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from mindformers.parallel_core.training_graph.base_models.gpt import gpt_layer_specs
    from mindformers.parallel_core.training_graph.base_models.gpt.gpt_model import GPTModel
    from mindformers.parallel_core.transformer_config_utils import convert_to_transformer_config

    config = convert_to_transformer_config(
        Qwen3Config(
            **{"vocab_size": 20, "hidden_size": 32, "intermediate_size": 48},
            **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
            **{"head_dim": 8, "seq_length": 16, "batch_size": 1, "use_flash_attention": False},
        )
    )
    spec = gpt_layer_specs.get_gpt_layer_local_spec(use_contiguous_weight_layout=False)
    core = GPTModel(config, spec, 20, 32, position_embedding_type="rope")
    return {
        "legacy": paged.training_network(),
        "legacy, paged": paged.inference_network(),
        "core": paged.core_network(),
        "core, training": core,
    }


def test_the_real_classes_are_called_so():
    """Each name of the table is that of a cell."""
    for kind, network in built().items():
        cells = dict(network.cells_and_names())
        assert not {*CLASSES[kind].values()} - {*cells}, kind


def test_every_entry_names_roles_that_presets_know():
    """A network that is added by an entry is called by the roles of all others, in no other."""
    roles = {role for network in presets._NETWORKS for role in network}
    assert roles == {*presets._IN_LAYERS, *presets._BESIDE}
