"""The Trainer of MindFormers 2.0, unmodified, on the CPU.

What it needs of an accelerator and of hyper-parallel, which is on no package index, is replaced
from outside: `prepare()`, before anything of MindFormers is imported. The Trainer, its callbacks,
the model, the loss and the optimizer are MindFormers' own, the gradients those of MindSpore's
engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

PACKAGE = "hyper_parallel"
LAYERS, WIDTH, HEADS, LENGTH, TOKENS = 2, 16, 2, 8, 32


def why_not() -> str:
    """Return why the Trainer cannot run here; "" if it can."""
    if importlib.util.find_spec("mindspore") is None:
        return "MindSpore is not installed"
    found = importlib.util.find_spec("mindformers")
    places = list(found.submodule_search_locations or ()) if found else []
    if not any((Path(place) / "pynative").is_dir() for place in places):
        return "this MindFormers has no mindformers.pynative: it came with 1.9"
    return ""


class DTensor:
    """A tensor that is sharded: with one process there is none."""


class Named:
    """Whatever a module of hyper-parallel is asked for: it can be called, subclassed and left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def __enter__(self) -> Named:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


class Stand(ModuleType):
    """A module of hyper-parallel."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = {
            "DTensor": DTensor,
            "enable_mindspore_backward_compat": give_tensors_backward,
            "get_platform": Named,
        }
        value = known[name] if name in known else type(name, (Named,), {})
        setattr(self, name, value)
        return value


class Finder:
    """Finds every module of hyper-parallel."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stand(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def give_tensors_backward() -> None:
    """Let tensors have `backward` and `grad`, by MindSpore's own engine."""
    from mindspore import Parameter, Tensor, ops
    from mindspore._c_expression import run_backward
    from mindspore.common.api import _pynative_executor as executor

    def backward(self: Tensor, gradient: Any = None) -> None:
        if gradient is None:
            gradient = 1.0
        if not isinstance(gradient, Tensor):
            gradient = ops.full_like(self, gradient)
        run_backward((self,), (gradient,), False, False, (), True, accumulate_grad=True)

    def put(self: Tensor, value: Any) -> None:
        self._grad = value

    for kind in (Tensor, Parameter):
        kind.backward = backward
        kind.grad = property(lambda self: self._grad, put)
    executor.set_enable_grad(True)
    executor.set_grad_flag(True)


def prepare() -> None:
    """Replace what is not there; called again, it does nothing."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    import mindspore as ms
    from mindspore import Tensor, mint, nn, ops
    from mindspore.communication import management

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    for module in (mint.distributed, management, sys.modules["mindspore.communication"]):
        module.get_world_size = module.get_group_size = lambda *_: 1
        module.get_rank = lambda *_: 0
    ms.DeviceCtx = lambda *_: contextlib.nullcontext()  # parameters are made where they stay
    nn.Cell.to_empty = lambda self, **_: self
    _replace_kernels(Tensor, mint, ops)


def _replace_kernels(tensor: Any, mint: Any, ops: Any) -> None:
    """Put what the CPU can do in the place of kernels that it has not."""
    import mindspore as ms
    from mindspore.ops.operations import nn_ops

    matmul = mint.matmul

    def in_place(self: Any, values: Any) -> Any:
        self.set_data(ms.Tensor(np.asarray(values), self.dtype))
        return self

    def fill(self: Any, value: float) -> Any:
        return in_place(self, np.full(self.shape, value, np.float32))

    def normal(self: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
        return in_place(self, np.random.normal(mean, std, self.shape).astype(np.float32))

    def multiply(first: Any, second: Any) -> Any:
        kind = first.dtype
        return matmul(first.float(), second.float()).astype(kind)

    def rms_norm(values: Any, weight: Any, epsilon: float = 1e-6) -> tuple[Any, None]:
        wide = values.astype(ms.float32)
        scale = ops.rsqrt((wide * wide).mean(-1, keep_dims=True) + epsilon)
        return (wide * scale * weight).astype(values.dtype), None

    tensor.fill_, tensor.normal_ = fill, normal
    tensor.zero_ = lambda self: fill(self, 0.0)
    mint.matmul = multiply
    mint.arange = lambda stop, dtype=None: ms.Tensor(np.arange(stop), dtype)
    mint.zeros_like = lambda like, dtype=None: ops.zeros(like.shape, dtype or like.dtype)
    mint.outer = lambda first, second: first.reshape(-1, 1) * second.reshape(1, -1)
    mint.stack = lambda tensors, dim=0: ops.stack(list(tensors), dim)
    mint.scatter_add = lambda values, dim, index, source: ops.tensor_scatter_elements(
        values, index, source, dim, "add"
    )
    ops.rms_norm = rms_norm
    nn_ops.FlashAttentionScore = _attention


def _attention(head_num: int, scale_value: float, input_layout: str = "BNSD", **_: Any) -> Any:
    """Return what FlashAttentionScore computes, in plain operators."""
    import mindspore as ms
    from mindspore import ops

    def of_heads(values: Any) -> Any:
        if input_layout == "BNSD":
            return values.astype(ms.float32)
        batch, length, _ = values.shape
        return values.astype(ms.float32).reshape(batch, length, head_num, -1).swapaxes(1, 2)

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, **_: Any) -> Any:
        kind = query.dtype
        query, key, value = of_heads(query), of_heads(key), of_heads(value)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (ops.repeat_interleave(x, groups, 1) for x in (key, value))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * scale_value
        if attn_mask is not None:
            scores = scores - attn_mask.astype(ms.float32) * 1e9
        out = ops.matmul(ops.softmax(scores, -1), value)
        if input_layout == "BSH":
            out = out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1)
        return None, None, None, out.astype(kind)

    return attend


def settings(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    """Return a configuration of a Qwen3 with two layers, two steps of two micro-batches."""
    return {
        "checkpoint": {"enable_save": False, "save_path": str(tmp_path / "checkpoints")},
        "training": {"steps": 2, "local_batch_size": 2, "global_batch_size": 4, "seed": 3},
        "train_dataset": {"dataloader": {"type": "given"}},
        "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01},
        "lr_scheduler": {
            "type": "CosineWithWarmUpLR",
            "learning_rate": 0.01,
            "lr_end": 0.001,
            "warmup_steps": 1,
        },
        "model": {
            "model_type": "qwen3",
            "architectures": "Qwen3ForCausalLM",
            "vocab_size": TOKENS,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": WIDTH // HEADS,
            "seq_length": LENGTH,
            "max_position_embeddings": LENGTH,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "compute_dtype": "float32",
            "params_dtype": "float32",
            "layernorm_compute_dtype": "float32",
            "rotary_dtype": "float32",
        },
        **sections,
    }


def batches(count: int = 4) -> Any:
    """Return a data set of that many batches of four rows."""
    from mindspore.dataset import NumpySlicesDataset

    rows = np.random.default_rng(5).integers(1, TOKENS, (4 * count, LENGTH + 1)).astype(np.int32)
    columns = {"input_ids": rows[:, :-1], "labels": rows[:, 1:]}
    return NumpySlicesDataset(columns, shuffle=False).batch(4)


def trainer(config: dict[str, Any], **given: Any) -> Any:
    """Return MindFormers' Trainer of a configuration."""
    prepare()
    from mindformers.pynative.trainer import Trainer

    return Trainer(config=config, train_dataset=batches(), **given)
