"""Two dumps of one network, MindSpore's and PyTorch's, and mappings in msprobe's four formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VALUE = {"Max": 1.0, "Min": -1.0, "Mean": 0.25, "Norm": 2.0, "shape": [2, 3]}
#: What a layer of the one network is called in the other, from the inside to the outside.
_NAMES = {
    "Dense": "Linear",
    "Block": "TransformerLayer",
    "qkv": "query_key_value",
    "attn": "self_attention",
    "fc1": "dense_h_to_4h",
    "emb": "embedding",
}
_CELLS = (
    ("emb", "Embedding", None),
    *(
        (f"layers.{n}{inside}", kind, parent if parent is None else f"layers.{n}{parent}")
        for n in (0, 1)
        for inside, kind, parent in (
            ("", "Block", None),
            (".attn", "Attn", ""),
            (".attn.qkv", "Dense", ".attn"),
            (".mlp", "Mlp", ""),
            (".mlp.fc1", "Dense", ".mlp"),
            (".mlp.act", "GELU", ".mlp"),
        )
    ),
    ("head", "Dense", None),
)

MAPPINGS: dict[str, dict[str, Any] | list[Any] | None] = {
    "cell_whole": {
        "emb.Embedding": "embedding.Embedding",
        **{
            f"layers.{n}{a}": f"layers.{n}{b}"
            for n in (0, 1)
            for a, b in (
                (".Block", ".TransformerLayer"),
                (".attn.Attn", ".self_attention.Attn"),
                (".attn.qkv.Dense", ".self_attention.query_key_value.Linear"),
                (".mlp.fc1.Dense", ".mlp.dense_h_to_4h.Linear"),
            )
        },
    },
    "cell_parts": {
        **{"attn": "self_attention", "qkv": "query_key_value", "Dense": "Linear"},
        **{"emb": "embedding", "fc1": "dense_h_to_4h", "Block": "TransformerLayer"},
    },
    "cell": None,
    "data": {
        "Cell.head.Dense.forward.0.input.0": "Module.head.Linear.forward.0.output.0",
        "Cell.head.Dense.forward.0.output.0": "Module.head.Linear.forward.0.output.0",
        "Cell.emb.Embedding.backward.0.output.0": "Module.embedding.Embedding.forward.0.input.0",
        "Cell.layers.0.mlp.Mlp.forward.0.input.0": "Module.layers.1.mlp.Mlp.forward.0.input.x",
        "Cell.layers.1.mlp.Mlp.forward.0.input.0": "N/A",
        "Cell.nothing.Dense.forward.0.input.0": "Module.head.Linear.forward.0.input.0",
    },
    "layer": {
        "Cell": {"emb": "embedding"},
        "Block": {"attn.qkv": "self_attention.query_key_value", "attn": "self_attention(old)"},
        "Mlp": {"fc1": "dense_h_to_4h"},
    },
    "layer_alone": None,
    "api": [
        *(
            {"ms_api": f"Functional.{name}", "pt_api": f"Torch.{name}"}
            | {"ms_args": [0, 1], "pt_args": [1, 0]}
            | {"ms_output": [0], "pt_output": [0]}
            for name in ("flip", "nowhere")
        )
    ],
    "api_alone": None,
}
#: What of a network's APIs is called how in both dumps.
_APIS = (
    *(("Mint.add", "Torch.add"), ("MintFunctional.relu", "Functional.relu")),
    *(("Functional.abs", "Torch.abs"), ("Functional.dense", "Functional.linear")),
    *(("Functional.gelu", "Functional.gelu"), ("Tensor.equal", "Tensor.eq")),
    *(("Functional.flip", "Torch.flip"), ("Functional.only", "Torch.only")),
    ("Tensor.reshape", "Tensor.reshape"),
)


def write_cells(root: Path) -> tuple[Path, Path]:
    """Write a dump of cells by each framework; return their dump.json."""

    def in_pytorch(name: str) -> str:
        parts = name.split(".")
        return ".".join(["Module", *(_NAMES.get(part, part) for part in parts[1:])])

    names: dict[str, str | None] = {}
    data: dict[str, Any] = {}
    kinds = {cell: kind for cell, kind, _ in _CELLS}
    for direction in ("forward", "backward"):
        for cell, kind, parent in _CELLS:
            around = None if parent is None else f"Cell.{parent}.{kinds[parent]}.{direction}.0"
            for call in (0, 1) if cell == "layers.0.mlp.act" else (0,):
                names[f"Cell.{cell}.{kind}.{direction}.{call}"] = around
    for cell, kind, _ in _CELLS:
        if kind in ("Dense", "Embedding"):
            names[f"Cell.{cell}.{kind}.parameters_grad.0"] = None
    for name in names:
        if ".parameters_grad." in name:
            data[name] = {"weight": [_VALUE], "bias": [_VALUE]}
        elif ".forward." in name:
            data[name] = {
                "input_args": [_VALUE, None],
                "input_kwargs": {"x": _VALUE},
                "output": [_VALUE, {"y": _VALUE}],
                "parameters": {"weight": _VALUE},
            }
        else:
            data[name] = {"input": [_VALUE], "output": [_VALUE]}
    own = _write(root / "ms", "mindspore", data, names, lambda name: name)
    return own, _write(root / "pt", "pytorch", data, names, in_pytorch)


def write_apis(root: Path) -> tuple[Path, Path]:
    """Write a dump of APIs by each framework; return their dump.json."""
    entry = {"input_args": [_VALUE, _VALUE], "input_kwargs": {}, "output": [_VALUE, _VALUE]}
    found = []
    for side, framework in enumerate(("mindspore", "pytorch")):
        data: dict[str, Any] = {
            f"{names[side]}.{call}.{direction}": entry
            if direction == "forward"
            else {"input": [_VALUE], "output": [_VALUE]}
            for names in _APIS
            for direction in ("forward", "backward")
            for call in (0, 1)
        }
        parents: dict[str, str | None] = dict.fromkeys(data)
        found.append(
            _write(root / framework, framework, data, parents, lambda name: name, level="L1")
        )
    return found[0], found[1]


def write_mixed(root: Path) -> tuple[Path, Path]:
    """Write dumps of cells and of what they call, in another order; return their dump.json.

    PyTorch numbers the layers of a pipeline stage from 0.
    """
    function = "File x/site-packages/{}/ops.py, line 1, in call_add, \\n add()"
    found = []
    for framework, scope, first, api, order in (
        ("mindspore", "Cell", 4, "Mint", (0, 1, 2)),
        ("pytorch", "Module", 0, "Torch", (2, 0, 1)),
    ):
        stage = f"{scope}.net.ParallelTransformer.forward.0"
        names: dict[str, str | None] = {stage: None}
        stacks: dict[str, list[str]] = {}
        for number in (0, 1):
            layer = f"{scope}.net.layers.{first + number}.Block.forward.0"
            names[layer] = stage
            names[layer.replace("Block", "fc.Dense")] = layer
        for call, place in enumerate(order):
            name = f"{api}.add.{call}.forward"
            names[name] = stage if place == 2 else [n for n in names if ".Block." in n][place]
            inner = function.format("mindspore" if framework == "mindspore" else "torch")
            stacks[name] = [inner] * (place == 1) + ["File main.py, line 1, in run, \\n run()"]
            names[f"{api}.add.{call}.backward"] = None
        for name in [name for name in names if name.startswith(scope)]:
            names[name.replace(".forward.", ".backward.")] = None
        data = {name: {"input_args": [_VALUE], "output": [_VALUE]} for name in names}
        own = _write(root / framework, framework, data, names, lambda name: name, level="mix")
        written = {str(n): [[name], frames] for n, (name, frames) in enumerate(stacks.items())}
        own.with_name("stack.json").write_text(json.dumps(written))
        found.append(own)
    return found[0], found[1]


def _write(
    step: Path,
    framework: str,
    data: dict[str, Any],
    parents: dict[str, str | None],
    rename: Callable[[str], str],
    level: str = "L0",
) -> Path:
    tensor = {
        "mindspore": {"type": "mindspore.Tensor", "dtype": "Float32"},
        "pytorch": {"type": "torch.Tensor", "dtype": "torch.float32", "requires_grad": False},
    }[framework]

    def described(content: Any) -> Any:
        if content is _VALUE:
            return {**tensor, **_VALUE}
        if isinstance(content, list):
            return [*map(described, content)]
        if isinstance(content, dict):
            return {name: described(item) for name, item in content.items()}
        return content

    rank = step / "step0/rank0"
    rank.mkdir(parents=True)
    head = {"task": "statistics", "level": level, "framework": framework, "dump_data_dir": None}
    named = {rename(name): described(content) for name, content in data.items()}
    around = {rename(n): None if p is None else rename(p) for n, p in parents.items()}
    stacks = {"0": [list(named), ["File main.py, line 1, in <module>, \n net(x)"]]}
    for file, content in (
        ("dump.json", {**head, "data": named}),
        ("construct.json", around),
        ("stack.json", stacks),
    ):
        (rank / file).write_text(json.dumps(content))
    return rank / "dump.json"
