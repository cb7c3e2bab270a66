"""MindSpore's own operators in float32 against their formulas, as `task: accuracy_check` does."""

from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.mint.nn import functional as F
from mindspore.ops.auto_generate import gen_ops_prim as generated

from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
from mindrlhf_msprobe.findings.accuracy import Accuracy

pytestmark = pytest.mark.slow

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def tensors(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def ramp(shape: tuple[int, ...]) -> Tensor:
    """Return numbers by which elements of a result are told apart in a sum."""
    return Tensor(np.cos(np.arange(int(np.prod(shape)))).reshape(shape).astype(np.float32))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Yield name, operator and floating arguments, of shapes that are drawn."""
    rows, width, batch = (int(n) for n in rng.integers(2, 9, 3))
    heads, size = 2, 2 * int(rng.integers(2, 5))
    x, y, w, bias = tensors(rng, (rows, width), (rows, width), (5, width), (5,))
    cube, even = tensors(rng, (batch, rows, width), (rows, size))
    image, kernel = tensors(rng, (batch, 4, 7, 6), (6, 4, 3, 3))
    share = Tensor(rng.uniform(0.05, 0.95, (rows, width)).astype(np.float32))
    labels = Tensor(rng.integers(0, width, rows).astype(np.int32))
    places = Tensor(rng.integers(0, rows, (rows, width)))

    # nn.Dense and mint.nn.Linear, what attention and rotary positions are made of
    yield "Dense", generated.Dense(), (cube, w, bias)
    yield "Dense.no_bias", lambda x, w: generated.Dense()(x, w, None), (x, w)
    yield "linear", F.linear, (cube, w, bias)
    yield "BatchMatMul", ops.BatchMatMul(transpose_b=True), (cube, cube * 2)
    yield "MatMul", ops.MatMul(transpose_b=True), (x, w)
    yield "bias_add", ops.bias_add, (x @ w.T, bias)
    yield "Softmax", ops.Softmax(-1), (cube,)
    yield "LogSoftmax", ops.LogSoftmax(-1), (cube,)
    yield "Cos", ops.Cos(), (x,)
    yield "Sin", ops.Sin(), (x,)
    yield "Concat", lambda x, y: ops.Concat(-1)((x, y)), (x, y)
    yield "Split", ops.Split(-1, 2), (even,)
    yield "StridedSlice", lambda x: ops.StridedSlice()(x, (0, 1), (rows, size), (1, 2)), (even,)
    yield "Tile", lambda x: ops.Tile()(x, (1, 2)), (x,)
    yield "Gather", lambda x: ops.Gather()(x, labels % rows, 0), (x,)
    yield "GatherD", lambda x: ops.GatherD()(x, 0, places), (x,)
    yield "LayerNorm", lambda x, g, b: ops.LayerNorm(-1, -1, 1e-5)(x, g, b)[0], (cube, y[0], x[0])
    yield "Rsqrt", ops.Rsqrt(), (share,)
    yield "Mod", lambda x: ops.Mod()(x, 0.7), (x,)
    yield "FloorMod", lambda x: ops.FloorMod()(x, 0.7), (x,)
    yield "remainder", ops.remainder, (x * 1000, y)  # what is left of a product that is rounded
    # LogitGrad of MindSpore 2.7 and 2.10 on CPU writes outside its result: the forward pass alone
    yield "logit", lambda x: ops.logit(ops.stop_gradient(x)) + x, (share,)
    yield "logit.eps", lambda x: ops.logit(ops.stop_gradient(x), 1e-6) + x, (x * 2,)
    # losses of trainers, what is outside of cells
    yield "log_softmax", lambda x: ops.log_softmax(x, -1), (x,)
    yield "cross_entropy", lambda x: ops.cross_entropy(x, labels), (x,)
    yield "cross_entropy.sum", lambda x: ops.cross_entropy(x, labels, reduction="sum"), (x,)
    yield "nll_loss", lambda x: ops.nll_loss(x, labels), (x,)
    yield "SparseSoftmax", lambda x: ops.SparseSoftmaxCrossEntropyWithLogits()(x, labels), (x,)
    yield "binary_cross_entropy", lambda p: ops.binary_cross_entropy(p, share), (share * 0.9,)
    yield "bce_logits", lambda x: F.binary_cross_entropy_with_logits(x, share), (x,)
    yield "huber_loss", ops.huber_loss, (x, y)
    yield "SmoothL1Loss", ops.SmoothL1Loss(), (x, y)
    yield "kl_div", lambda x: ops.kl_div(x, share, "sum"), (x,)
    yield "clamp", lambda x: mint.clamp(x, -0.5, 0.5), (x,)
    yield "minimum", mint.minimum, (x, y)
    yield "masked_select", lambda x: mint.masked_select(x, share > 0.5), (x,)
    yield "masked_fill", lambda x: x.masked_fill(share > 0.5, -1e4), (x,)
    yield "logsumexp", lambda x: ops.logsumexp(x, -1), (x,)
    yield "logaddexp", ops.logaddexp, (x, y)
    yield "xlogy", ops.xlogy, (x, share)
    yield "cumsum", lambda x: ops.cumsum(x, 1), (x,)
    yield "cumprod", lambda x: ops.cumprod(x, 1), (share,)
    yield "flip", lambda x: mint.flip(x, (1,)), (x,)
    yield "var_mean", lambda x: ops.var_mean(x, 1), (x,)
    yield "std_mean", lambda x: ops.std_mean(x, 1), (x,)
    yield "addn", lambda x, y: ops.addn([x, y, x]), (x, y)
    yield "vector_norm", ops.vector_norm, (x,)
    yield "gather_nd", lambda x: ops.gather_nd(x, Tensor([[0, 1], [1, 0]])), (x,)
    yield "topk", lambda x: ops.topk(x, 2)[0], (x,)
    yield "ArgMaxWithValue", lambda x: ops.ArgMaxWithValue(1)(x)[1], (x,)
    yield "Sort", lambda x: ops.Sort()(x)[0], (x,)
    yield "pad", lambda x: ops.pad(x, (1, 2)), (x,)
    yield "trace", ops.trace, (x,)
    yield "meshgrid", lambda x, y: ops.meshgrid(x, y)[0], (x[0], y[0])
    # activations of MindFormers and of mint.nn
    for name in (
        *("silu", "relu", "gelu", "tanh", "sigmoid", "relu6", "mish", "selu", "softsign", "elu"),
        *("hardswish", "hardsigmoid", "hardshrink", "softshrink", "hardtanh", "tanhshrink"),
        *("leaky_relu", "celu", "fast_gelu", "softmin", "logsigmoid", "softplus", "erfc", "atan"),
        *("sinh", "cosh", "expm1", "log1p", "asin", "acos", "tan", "rsqrt", "frac", "log2"),
    ):
        inside = name in ("log1p", "asin", "acos", "rsqrt", "log2")
        yield name, getattr(ops, name, None) or getattr(mint, name), (share if inside else x * 2,)
    yield "glu", lambda x: ops.glu(x, -1), (even,)
    yield "prelu", ops.prelu, (x, share[0][:1])
    # convolutions
    yield "Conv2D", ops.Conv2D(6, 3, pad_mode="pad", pad=1, stride=2), (image, kernel)
    yield "Conv2D.same", ops.Conv2D(6, 3, pad_mode="same"), (image, kernel)
    grouped = ops.Conv2D(6, 3, group=2, dilation=2)
    yield "Conv2D.group", grouped, (image, kernel[:, :2])
    yield "AvgPool", ops.AvgPool(2, 2), (image,)
    yield "MaxPool", ops.MaxPool(3, 2), (image,)
    yield "group_norm", lambda x: ops.group_norm(x, heads), (image,)


@pytest.mark.parametrize("seed", range(2))
def test_healthy_operators_are_ordinary(layer_probe, seed):
    """Each has an opinion on its result and its gradients, and rounding explains both."""
    probe = layer_probe(task="accuracy_check", level="L1")
    probe.watch(actor=nn.Dense(2, 2))
    ran = {}
    with probe.phase("actor_update"):
        for name, operator, given in cases(np.random.default_rng(seed)):

            def forward(*tensors, operator=operator):
                found = operator(*tensors)
                found = found if isinstance(found, tuple) else (found,)
                floating = [one for one in found if one.is_floating_point()]
                weights = [ramp(one.shape) for one in floating]
                return sum((one * w).sum() for one, w in zip(floating, weights))

            ms.grad(forward, tuple(range(len(given))))(*given)
            ran[name] = operator
    probe.step()
    probe.close()
    found = accuracy_of(probe.config.dump_path)
    assert [(one.call, str(one.why)) for one in found.not_computed] == []
    bad = [
        (one.call, one.tensor, one.worst)
        for one in found.ranked
        if one.opinion is not Accuracy.ORDINARY
    ]
    assert bad == []
    assert found.status is Accuracy.ORDINARY
