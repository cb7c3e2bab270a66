"""The weights and tokens of a small Llama, the same in PyTorch and MindFormers; and its dumps.

As a script, in an environment with torch, transformers and mindstudio-probe:

    python tests/helpers/torch_llama.py DIRECTORY [--task tensor] [--level L0] [--fault rope]
    python tests/helpers/torch_llama.py DIRECTORY --network perceptron
    python tests/helpers/torch_llama.py DIRECTORY --samples

It dumps one forward and backward pass with msprobe. `tests/helpers/data/torch` was made by it.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, HEADS, LAYERS, INSIDE, VOCABULARY, LENGTH = 16, 2, 2, 48, 17, 8
FAULTS = ("rope", "transposed", "interleaved")
NETWORKS = ("llama", "tied", "perceptron")
#: What Hugging Face calls cells, by what MindFormers calls them.
NAMES = {
    "tok_embeddings.embedding_weight": "embed_tokens.weight",
    "attention.wo": "self_attn.o_proj",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "norm_out": "norm",
}


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values of a parameter, float32, by its name in Hugging Face's Llama."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.1
    return (drawn * scale + (len(shape) == 1 and name.endswith("weight"))).astype(np.float32)


def of_hugging_face(name: str) -> str:
    """Return what Hugging Face calls a parameter of MindFormers' Llama."""
    for own, other in NAMES.items():
        name = name.replace(own, other)
    return name


def tokens() -> np.ndarray:
    """Return token ids, int32 [2, LENGTH]."""
    return np.random.default_rng(3).integers(1, VOCABULARY, (2, LENGTH)).astype(np.int32)


def samples() -> dict[str, np.ndarray]:
    """Return what the files in `data/torch/samples` hold, by dtype and form."""
    values = np.arange(-6, 6).reshape(3, 4)
    names = ("float32", "float64", "float16", "int64", "int32", "int16", "int8")
    found: dict[str, np.ndarray] = {name: values.astype(name) for name in names}
    found |= {"uint8": (values % 256).astype(np.uint8), "bool": values > 0}
    found |= {"bfloat16": values.astype(np.float32), "complex64": values.astype(np.complex64)}
    turned = values.astype(np.float32).T
    found |= {"float32_transposed": turned, "float32_parameter": values.astype(np.float32)}
    return found | {"float32_empty": np.zeros((0, 3), np.float32), "float32_0d": turned[0, 0]}


def save_samples(path: Path) -> None:
    """Save them by torch."""
    import torch

    path.mkdir(parents=True, exist_ok=True)
    for name, values in samples().items():
        dtype = getattr(torch, name.partition("_")[0])
        tensor: Any = torch.tensor(np.array(values)).to(dtype)
        if name == "float32_transposed":
            tensor = torch.tensor(np.array(values.T)).T
        if name == "float32_parameter":
            tensor = torch.nn.Parameter(tensor)
        torch.save(tensor, path / f"{name}.pt")


def _llama(fault: str | None, *, tied: bool) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INSIDE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0 if fault == "rope" else 1e4},
        use_cache=False,
        attn_implementation="eager",
        tie_word_embeddings=tied,
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.from_numpy(weights(name, tuple(parameter.shape)))
            if fault == "transposed" and name == "model.layers.1.self_attn.o_proj.weight":
                values = values.T
            if fault == "interleaved" and name.endswith(("q_proj.weight", "k_proj.weight")):
                values = values.reshape(HEADS, 2, -1, HIDDEN).transpose(1, 2).reshape(-1, HIDDEN)
            parameter.copy_(values)
    return network


def features() -> np.ndarray:
    """Return what the perceptron is given, float32 [5, 6]."""
    return np.random.default_rng(4).normal(size=(5, 6)).astype(np.float32)


def _perceptron() -> Any:
    """Return layers with weights that are [inputs, outputs], one of them square, and norms."""
    import torch
    from transformers.pytorch_utils import Conv1D

    network = torch.nn.Sequential()
    network.add_module("fc1", Conv1D(10, 6))
    network.add_module("bn", torch.nn.BatchNorm1d(10))
    network.add_module("act", torch.nn.ReLU())
    network.add_module("fc2", Conv1D(10, 10))
    network.add_module("ln", torch.nn.LayerNorm(10))
    network.add_module("fc3", torch.nn.Linear(10, 3))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(weights(name, tuple(parameter.shape))))
    return network


def _loss(network: Any, kind: str) -> Any:
    import torch

    if kind == "perceptron":
        return (network(torch.from_numpy(features())) ** 2).mean()
    ids = torch.from_numpy(tokens()).long()
    logits = network(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)
    )


def dump(path: Path, task: str, level: str, fault: str | None, kind: str = "llama") -> None:
    """Dump one step."""
    from msprobe.pytorch import PrecisionDebugger

    network = _perceptron() if kind == "perceptron" else _llama(fault, tied=kind == "tied")
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.json")
        content = {"task": task, "dump_path": str(path), "rank": [], "step": [], "level": level}
        content[task] = {
            "scope": [],
            "list": [],
            "data_mode": ["all"],
            "summary_mode": "statistics",
        }
        config.write_text(json.dumps(content))
        debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(model=network)
    _loss(network, kind).backward()
    debugger.stop()
    debugger.step()


def trim(path: Path, kept: str) -> None:
    """Cut a dump to what a fixture needs.

    Args:
        kept: a regular expression: of the .pt files, those are kept in whose names it is found.
    """
    for file in path.rglob("*.pt"):
        if not re.search(kept, file.name):
            file.unlink()
    for file in path.rglob("*.json"):
        content = json.loads(file.read_text())
        if file.name == "dump.json":
            content["dump_data_dir"] = None
        if file.name == "stack.json":  # as the source has it, not the machine
            frames = {
                n: [e, [f for f in s if "transformers/models" in f]]
                for n, (e, s) in content.items()
            }
            content = json.loads(
                re.sub(r"File /[^\"]*?/site-packages/", "File ", json.dumps(frames))
            )
        file.write_text(json.dumps(content, separators=(",", ":")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--level", default="mix")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--network", choices=NETWORKS, default="llama")
    parser.add_argument("--keep", default="", metavar="RE")
    parser.add_argument("--samples", action="store_true")
    given = parser.parse_args()
    if given.samples:
        save_samples(given.path)
        raise SystemExit
    dump(given.path, given.task, given.level, given.fault, given.network)
    trim(given.path, given.keep)
