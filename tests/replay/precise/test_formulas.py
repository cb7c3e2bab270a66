"""Formulas: values, gradients, and what rounding explains of results in a lower precision."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.replay.precise.allowance import Opinion, judge
from mindrlhf_msprobe.replay.precise.formulas import FUNCTIONS, NoFormulaError
from mindrlhf_msprobe.replay.precise.formulas.answering import compute_operator
from mindrlhf_msprobe.replay.precise.tape import PRECISIONS
from mindrlhf_msprobe.replay.precise.values import leaves_of

EXACT = PRECISIONS["float64"]


class Settings:
    """The attributes of a primitive."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def convolution(**given):
    """Return the attributes of a convolution."""
    known = {"stride": 1, "dilation": 1, "pad": (0,) * 6, "group": 1, "pad_mode": "pad", "mode": 1}
    return Settings(**{"data_format": "0", **known, **given})


def calls():
    """Yield operators with arguments; what one or two tensors are enough for is found by itself."""
    r = np.random.default_rng(7)
    x, y, w = r.normal(size=(4, 6)), r.normal(size=(4, 6)), r.normal(size=(5, 6))
    positive, ids = np.abs(x) + 0.5, np.array([[0, 3], [2, 2]])
    labels, row = np.array([1, 0, 5, -100]), r.normal(size=(6,))
    image, kernel = r.normal(size=(2, 3, 5, 5)), r.normal(size=(4, 3, 2, 2))
    yield "Mint", "add", (x, row), {"alpha": 2}
    yield "Tensor", "__pow__", (positive, 3), {}
    yield "Mint", "clamp", (x, -0.3, 0.4), {}
    yield "Mint", "where", (x > 0, x, y), {}
    yield "Mint", "sum", (x,), {"dim": -1, "keepdim": True}
    yield "Functional", "mean", (x, 0), {}
    yield "Mint", "max", (x, 1), {}
    yield "Mint", "cumsum", (x, 1), {}
    yield "Mint", "var", (x, 1), {}
    yield "Mint", "logsumexp", (x, -1), {}
    yield "Mint", "topk", (x, 2), {}
    yield "Mint", "matmul", (x, row), {}
    yield "MintFunctional", "linear", (x, w, r.normal(size=5)), {}
    yield "Primitive", "MatMul", (x, w), {"settings": Settings(transpose_a=False, transpose_b=True)}
    yield "Functional", "conv2d", (image, kernel), {"stride": 2}
    yield "MintFunctional", "conv2d", (image, kernel), {"padding": 1, "dilation": 2}
    volume, cube = r.normal(size=(2, 2, 4, 3, 5)), r.normal(size=(3, 2, 2, 2, 3))
    yield "Primitive", "Conv3D", (volume, cube), {"settings": convolution(stride=(1, 1, 2, 1, 1))}
    given = r.normal(size=(2, 4, 2, 2)), r.normal(size=(4, 3, 2, 2)), (2, 3, 5, 5)
    yield "Primitive", "Conv2DTranspose", given, {"settings": convolution(stride=2, pad=(0, 1) * 2)}
    yield "Functional", "einsum", ("ij,kj->ki", x, w), {}
    yield "Mint", "einsum", ("bcij,dc->bdji", image, w[:, :3]), {}
    yield "Primitive", "Dense", (x, w, r.normal(size=5)), {}
    yield "Primitive", "SumExt", (x, 1, True), {}
    yield "Primitive", "SplitWithSize", (x, (1, 5), -1), {}
    yield "Primitive", "Swiglu", (x, -1), {}
    yield "Primitive", "StackExt", ((x, y),), {"settings": Settings(dim=1)}
    yield "Functional", "group_norm", (image[:, :, :2], 3, row[:3], row[3:]), {}
    yield "Functional", "cumprod", (positive, 1), {}
    yield "Mint", "scatter_add", (x, 1, np.array([[0, 0, 3]] * 4), y[:, :3]), {}
    yield "Mint", "index_add", (x, 0, np.array([1, 1, 3]), y[:3]), {}
    yield "Mint", "meshgrid", (row, row[:3]), {}
    yield "Tensor", "moveaxis", (image, 1, -1), {}
    for layout, shape in (("BSH", (2, 3, 8)), ("BNSD", (2, 2, 3, 4)), ("SBH", (3, 2, 8))):
        queries, keys, values = (r.normal(size=shape) for _ in range(3))
        attributes = Settings(
            head_num=2, scale_value=0.5, input_layout=layout, keep_prob=1.0, sparse_mode=0
        )
        vars(attributes).update(pre_tokens=1 << 31, next_tokens=1 << 31)
        given = queries, keys, values, None, None, None, np.triu(np.ones((3, 3)), 1)
        yield "Primitive", "FlashAttentionScore", given, {"settings": attributes}
    yield "Functional", "logit", (x, 0.01), {}
    yield "MintFunctional", "softmax", (x,), {"dim": -1}
    yield "Functional", "log_softmax", (x, 0), {}
    yield "Primitive", "Softmax", (x,), {"settings": Settings(axis=(-1,))}
    yield "MintFunctional", "layer_norm", (x, (6,), row, row), {}
    yield "MintFunctional", "batch_norm", (x, row, positive[0], row, row), {"training": True}
    yield "Tensor", "transpose", (x, 0, 1), {}
    yield "Mint", "cat", ([x, y], 1), {}
    yield "Mint", "stack", ([x, y],), {"dim": -1}
    yield "Mint", "split", (x, 4, 1), {}
    yield "Tensor", "__getitem__", (x, (slice(None), np.array([1, 1, 2]))), {}
    yield "Tensor", "__getitem__", (x, (Ellipsis, None, slice(0, 3))), {}
    yield "Tensor", "__setitem__", (x, (slice(1, 3), 2), 5.0), {}
    yield "Mint", "gather", (x, 1, np.array([[0, 0], [1, 2], [5, 5], [3, 3]])), {}
    yield "Functional", "gather", (x, np.array([[1, 1], [0, 2]]), 0), {}
    yield "MintFunctional", "embedding", (ids, w), {}
    yield "Mint", "tile", (x, (2, 1)), {}
    yield "Mint", "repeat_interleave", (x, 2, 1), {}
    yield "Mint", "roll", (x, 1, 1), {}
    yield "Mint", "tril", (x, 1), {}
    yield "Functional", "cross_entropy", (x, labels), {}
    yield "Functional", "nll_loss", (x, labels), {"reduction": "sum"}
    yield "Functional", "smooth_l1_loss", (x, y), {"reduction": "mean"}
    yield "Functional", "kl_div", (x, positive), {"reduction": "sum"}
    yield "MintFunctional", "binary_cross_entropy_with_logits", (x, (y > 0) * 1.0), {}
    yield "Functional", "rms_norm", (x, row), {}
    yield "Tensor", "__rsub__", (x, 2.0), {}
    yield "Tensor", "remainder", (x, positive), {}
    yield "Mint", "prod", (positive,), {"dim": 1}
    yield "Mint", "std", (x,), {"dim": 0}
    yield "Mint", "reshape", (x, (3, 8)), {}


CALLS = list(calls())
NAMES = [f"{kind}.{name}-{i}" for i, (kind, name, _, _) in enumerate(CALLS)]


def computed(kind, name, args, kwargs, precision=EXACT, **options):
    kwargs = dict(kwargs)
    settings = kwargs.pop("settings", None)
    return compute_operator(kind, name, args, kwargs, precision, settings=settings, **options)


@pytest.mark.parametrize(("kind", "name", "args", "kwargs"), CALLS, ids=NAMES)
def test_gradients_are_what_differences_say(kind, name, args, kwargs):
    """Along a direction, of every floating input, in float64."""
    assert differences_agree(kind, name, args, kwargs)


def test_gradients_of_all_functions_of_one_and_two_tensors_are_what_differences_say():
    """Of numbers of any sign, of those between 0 and 1, and of square matrices."""
    r, found = np.random.default_rng(3), set()
    pairs = [r.normal(size=(2, 4, 6)), r.uniform(0.1, 0.9, (2, 4, 6)), r.normal(size=(2, 5, 5))]
    for name in FUNCTIONS:
        for x, y in pairs:
            for args in ((x,), (x, y)):
                with suppress(NoFormulaError, ValueError, IndexError, np.AxisError):
                    found |= {name} if differences_agree("Functional", name, args, {}) else set()
    assert len(found) > 100


def differences_agree(kind, name, args, kwargs):
    """Make sure of the gradients of an operator; return how many it has."""
    rng = np.random.default_rng(3)
    found = computed(kind, name, args, kwargs, draws=0)
    arriving = [
        rng.normal(size=o.shape) if o is not None and o.floating else None for o in found.outputs
    ]
    if name == "rms_norm":
        arriving[1] = None  # what it keeps for its gradient has none
    if not all(np.isfinite(o.exact).all() for o in found.outputs if o is not None):
        return 0  # of a logarithm of what is negative
    gradients = found.gradients(arriving)
    arrays = [leaf for leaf in leaves_of(list(args)) if isinstance(leaf, np.ndarray)]
    assert len(arrays) == len(gradients)
    checked = 0
    for number, (array, gradient) in enumerate(zip(arrays, gradients)):
        if gradient is None or (name == "batch_norm" and number in (1, 2)):
            continue
        direction, step = rng.normal(size=array.shape), 1e-6
        ends = []
        for sign in (1, -1):
            moved = [*arrays]
            moved[number] = array + sign * step * direction
            there = computed(kind, name, _replaced(args, iter(moved)), kwargs, draws=0)
            pairs = zip(there.outputs, arriving)
            ends.append(sum(np.sum(o.exact * g) for o, g in pairs if g is not None))
        expected = (ends[0] - ends[1]) / (2 * step)
        along = np.sum(gradient.exact * direction)
        assert along == pytest.approx(expected, rel=1e-5, abs=1e-5), name
        checked += 1
    return checked


def _replaced(value, arrays):
    if isinstance(value, np.ndarray):
        new = next(arrays)
        return new if value.dtype.kind == "f" else value
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, arrays) for item in value)
    return value


@pytest.mark.parametrize(
    ("kind", "name", "args", "expected"),
    [
        ("Mint", "add", (np.float32([1, 2]), 3), [4, 5]),
        ("Mint", "div", (np.int32([7, -7]), 2), [3.5, -3.5]),
        ("Mint", "sum", (np.array([True, True, False]),), 2),
        ("Functional", "softmax", (np.array([1000.0, 0.0]),), [1, 0]),
        ("Tensor", "astype", (np.array([1.7]), "int32"), [1]),
        ("Tensor", "float", (np.array([True, False]),), [1, 0]),
        ("Mint", "argmax", (np.array([[1, 3], [9, 2]]),), 2),
        ("Mint", "arange", (2, 8, 3), [2, 5]),
        ("Mint", "isnan", (np.array([np.nan, 1]),), [True, False]),
    ],
)
def test_values(kind, name, args, expected):
    """What a program gets."""
    assert compute_operator(kind, name, args, {}, EXACT).outputs[0].exact.tolist() == expected


def test_attention_is_softmax_of_products():
    """Of each head, in every layout, where keys are shared by heads, too."""
    r = np.random.default_rng(0)
    q, k, v = r.normal(size=(2, 4, 3, 5)), r.normal(size=(2, 2, 6, 5)), r.normal(size=(2, 2, 6, 5))
    scores = np.exp(np.einsum("bnsd,bntd->bnst", q, k.repeat(2, 1)) * 0.3)
    expected = (scores / scores.sum(-1, keepdims=True)) @ v.repeat(2, 1)
    for layout, move in (
        ("BNSD", lambda x: x),
        ("BSND", lambda x: x.transpose(0, 2, 1, 3)),
        ("BSH", lambda x: x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1)),
        ("SBH", lambda x: x.transpose(2, 0, 1, 3).reshape(x.shape[2], 2, -1)),
    ):
        given, named = (move(q), move(k), move(v), 4), {"scalar_value": 0.3, "input_layout": layout}
        found = compute_operator("Functional", "flash_attention_score", given, named, EXACT)
        assert found.outputs[0].exact == pytest.approx(move(expected))


def by_loops(x, w, steps, widths, gaps, groups):
    """Return a convolution, place by place."""
    axes, outputs = w.ndim - 2, w.shape[0] // groups
    around = [(widths[2 * i], widths[2 * i + 1]) for i in range(axes)]
    x = np.pad(x, [(0, 0), (0, 0), *around])
    reach = [(n - 1) * gap + 1 for n, gap in zip(w.shape[2:], gaps)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, steps)]
    found = np.zeros((len(x), len(w), *sizes))
    for at in np.ndindex(*found.shape[1:]):
        first = at[0] // outputs * w.shape[1]
        here = tuple(slice(i * s, i * s + r, g) for i, s, r, g in zip(at[1:], steps, reach, gaps))
        covered = x[(slice(None), slice(first, first + w.shape[1]), *here)]
        found[(slice(None), *at)] = (covered * w[at[0]]).reshape(len(x), -1).sum(1)
    return found


@given(seed=st.integers(0, 2**32 - 1), axes=st.integers(2, 3), groups=st.integers(1, 2))
@settings(max_examples=12, deadline=None)
def test_convolutions_are_sums_of_products(seed, axes, groups):
    """In two and three dimensions, and transposed: what that gives is the gradient of one."""
    r = np.random.default_rng(seed)
    kernel, steps, gaps = (tuple(map(int, r.integers(1, 4, axes))) for _ in range(3))
    widths = tuple(map(int, r.integers(0, 3, 2 * axes)))
    reach = [(n - 1) * gap + 1 for n, gap in zip(kernel, gaps)]
    x = r.normal(size=(2, 2 * groups, *(n + int(r.integers(0, 4)) for n in reach)))
    w = r.normal(size=(3 * groups, 2, *kernel))
    expected = by_loops(x, w, steps, widths, gaps, groups)
    attributes = convolution(stride=steps, dilation=gaps, pad=widths, group=groups)
    name = f"Conv{axes}D"
    found = compute_operator("Primitive", name, (x, w), {}, EXACT, settings=attributes, draws=0)
    assert found.outputs[0].exact == pytest.approx(expected)
    if axes == 2:
        g = r.normal(size=expected.shape)
        for name in ("Conv2DTranspose", "Conv2DBackpropInput"):
            back = compute_operator(
                "Primitive", name, (g, w, x.shape), {}, EXACT, settings=attributes, draws=0
            )
            change = r.normal(size=x.shape)
            along = by_loops(change, w, steps, widths, gaps, groups)
            assert np.sum(back.outputs[0].exact * change) == pytest.approx(np.sum(g * along))


def rounded(value, precision):
    return np.asarray(value, precision.name)


def opinion_on(actual, value, precision=PRECISIONS["float32"]):
    """Return what is thought of a result."""
    return judge(actual, value.draws, precision).opinion


SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS, name=st.sampled_from(["float32", "float16"]))
@settings(max_examples=12, deadline=None)
def test_rounding_is_ordinary(seed, name):
    """Of numpy's own float32 and float16: long rows, cancellation, near zero, large scores."""
    r, precision = np.random.default_rng(seed), PRECISIONS[name]
    x, w = r.normal(size=(8, 300)), r.normal(size=(40, 300))
    x, w = rounded(x, precision), rounded(w, precision)
    near, scores = x + rounded(1e-3, precision) * x, x * rounded(30, precision)
    longest = rounded(np.abs(r.normal(size=(3, 20_000))) / 100, precision)
    exponents = np.exp(scores.astype(np.float32) - scores.max(-1, keepdims=True))
    softmax = rounded(exponents / exponents.sum(-1, keepdims=True), precision)
    product = rounded(x.astype(np.float32) @ w.T.astype(np.float32), precision)
    for kind, name, args, actual in (
        ("Mint", "sub", (near, x), near - x),
        ("Mint", "exp", (x,), np.exp(x)),
        ("Mint", "matmul", (x, w.T), product),
        ("MintFunctional", "softmax", (scores, -1), softmax),
        ("Mint", "sum", (longest, -1), rounded(longest.sum(-1, dtype=np.float32), precision)),
        ("Mint", "mean", (x,), rounded(x.mean(dtype=np.float32), precision)),
    ):
        value = compute_operator(kind, name, args, {}, precision, seed=seed).outputs[0]
        found = judge(actual, value.draws, precision)
        assert found.opinion is Opinion.ORDINARY, (name, found)
        assert found.ratio < 16, (name, found)


@given(seed=SEEDS, length=st.sampled_from([16, 256, 2000]))
@settings(max_examples=12, deadline=None)
def test_faults_are_wrong(seed, length):
    """Rounded to float16 on the way, without the last row, a gradient by half."""
    r = np.random.default_rng(seed)
    x, w = (r.normal(size=(n, length)).astype(np.float32) for n in (8, 12))
    found = compute_operator("Mint", "matmul", (x, w.T), {}, PRECISIONS["float32"], seed=seed)
    value, actual = found.outputs[0], x @ w.T
    assert opinion_on(actual, value) is Opinion.ORDINARY
    assert opinion_on(actual.astype(np.float16), value) is Opinion.WRONG
    assert opinion_on(np.concatenate([actual[:-1], 0 * actual[-1:]]), value) is Opinion.WRONG
    arriving = r.normal(size=actual.shape).astype(np.float32)
    gradient = found.gradients([arriving])[0]
    assert opinion_on(arriving @ w, gradient) is Opinion.ORDINARY
    assert opinion_on(0.5 * (arriving @ w), gradient) is Opinion.WRONG


ROUNDED = ["tanh", "sigmoid", "exp", "erf", "silu", "gelu", "log_softmax", "softmax", "softplus"]


@given(name=st.sampled_from(ROUNDED), wide=st.booleans(), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_functions_that_were_rounded_are_wrong(name, wide, seed):
    """To float16, results and gradients, in every draw of arguments."""
    r = np.random.default_rng(seed)
    shape = (8, 1000) if wide else (4, 8)
    x, g = (r.normal(size=shape).astype(np.float32) for _ in range(2))
    found = compute_operator("Functional", name, (x,), {}, PRECISIONS["float32"], seed=seed)
    for value in (found.outputs[0], found.gradients([g])[0]):
        assert opinion_on(value.exact.astype(np.float32), value) is Opinion.ORDINARY
        assert opinion_on(value.exact.astype(np.float16), value) is Opinion.WRONG


def test_small_rows_beside_large_ones_are_seen():
    """A row that is lost is wrong, however small it is."""
    x = np.ones((4, 16), np.float32)
    x[-1] = 1e-3
    value = compute_operator("Mint", "mul", (x, x), {}, PRECISIONS["float32"]).outputs[0]
    lost = np.concatenate([(x * x)[:-1], np.zeros((1, 16))])
    assert opinion_on(x * x, value) is Opinion.ORDINARY
    assert opinion_on(lost, value) is Opinion.WRONG


def test_what_the_dtype_cannot_hold_is_ordinary():
    """Infinity for what lies beyond float16; not for what does not."""
    precision, x = PRECISIONS["float16"], np.array([300.0, 200.0], np.float16)
    value = compute_operator("Mint", "mul", (x, x), {}, precision).outputs[0]
    assert opinion_on(np.array([np.inf, 40000]), value, precision) is Opinion.ORDINARY
    assert opinion_on(np.array([np.inf, np.inf]), value, precision) is Opinion.WRONG
    assert opinion_on(np.array([np.nan, 40000]), value, precision) is Opinion.ORDINARY
