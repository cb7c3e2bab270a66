"""Which API of PyTorch an API of MindSpore is, where a mapping's file does not say so.

In dumps, mindspore.ops and torch.nn.functional are `Functional`, torch is `Torch`, mindspore.mint
`Mint`, mint.nn.functional `MintFunctional`, and the methods of tensors `Tensor`. What does not
stand here has one name in both.
"""

from __future__ import annotations

#: Functions of mindspore.ops that PyTorch has in torch, not in torch.nn.functional.
_FUNCTIONS = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv angle arange arccos arccosh arcsinh
arctan arctanh argmax asin asinh atan atan2 atanh baddbmm bartlett_window bincount bitwise_and
bitwise_or bitwise_xor blackman_window ceil cholesky_solve clamp clip column_stack conj cosh cross
cumprod diag_embed diagflat diagonal digamma dist div divide einsum erf erfc exp exp2 expm1 eye
flip fliplr flipud floor_divide fmax fmod full full_like gcd geqrf greater greater_equal
hamming_window hann_window heaviside histc hsplit hstack hypot i0 igamma igammac imag inner
inverse is_nonzero is_tensor isinf isneginf isposinf isreal kaiser_window kron lcm lerp log1p
logaddexp logaddexp2 logdet logical_and logical_not logical_or logical_xor logit logspace lt
lu_solve lu_unpack masked_select matmul mm moveaxis movedim msort mul multiply nan_to_num nansum
neg negative nextafter nonzero not_equal numel ones_like orgqr outer permute polar pow rand
rand_like randn randn_like ravel real reciprocal remainder reshape roll rot90 round row_stack
rsqrt searchsorted sgn sign signbit sin sinc sinh slogdet square subtract sum swapdims t tan topk
trace trapz tril tril_indices triu_indices true_divide trunc unbind unsqueeze vander view_as_real
vsplit where xlogy zeros_like
"""
_IN_TORCH = frozenset(_FUNCTIONS.split())
_OTHERWISE = {
    "Functional.bidense": "Functional.bilinear",
    "Functional.dense": "Functional.linear",
    "Functional.equal": "Torch.eq",
    "Functional.swapaxes": "Torch.transpose",
    "Tensor.asnumpy": "Tensor.numpy",
    "Tensor.cauchy": "Tensor.cauchy_",
    "Tensor.equal": "Tensor.eq",
    "Tensor.fill_diagonal": "Tensor.fill_diagonal_",
    "Tensor.gather_elements": "Tensor.gather",
    "Tensor.swapaxes": "Tensor.transpose",
}
_MINT = {"Mint": "Torch", "MintFunctional": "Functional"}


def in_pytorch(api: str) -> str:
    """Return what an API, `<type>.<name>`, is called in a dump of PyTorch."""
    kind, _, name = api.partition(".")
    if kind in _MINT:
        return f"{_MINT[kind]}.{name}"
    if kind == "Functional" and name in _IN_TORCH:
        return f"Torch.{name}"
    return _OTHERWISE.get(api, api)


#: What an operator is called behind its kind, in either framework → the name it is compared under.
_SAME = {
    "batchmatmul": "matmul",
    "bmm": "matmul",
    "mm": "matmul",
    "notequal": "ne",
    "reducemean": "mean",
    "reducesum": "sum",
    "concat": "cat",
    "dense": "linear",
    "divide": "div",
    "equal": "eq",
    "greater": "gt",
    "greater_equal": "ge",
    "iadd": "add",
    "imul": "mul",
    "isub": "sub",
    "itruediv": "div",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "radd": "add",
    "reduce_mean": "mean",
    "reduce_sum": "sum",
    "rmul": "mul",
    "subtract": "sub",
    "true_divide": "div",
    "truediv": "div",
}


def in_both(api: str) -> str:
    """Return one name for an API, `<type>.<name>`, of either framework.

    What is a function in one is a method of tensors in the other, so only the name counts:
    `Tensor.__add__`, `Torch.add`, `Mint.add` and `Primitive.add.Add` are `add`.
    """
    kind, _, name = in_pytorch(api).partition(".")
    name = name.rpartition(".")[2].strip("_")
    if kind == "Primitive":  # named by its class
        name = name.lower()
    return _SAME.get(name, name)
