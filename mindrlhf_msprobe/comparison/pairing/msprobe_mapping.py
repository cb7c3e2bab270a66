"""The four kinds of mappings, as their files have them; and which API is which without a file.

As msprobe calls them, NPU is the run under test, B of a comparison, and Bench the baseline, A.
msprobe_partners.py applies what is read here.

In dumps, mindspore.ops and torch.nn.functional are `Functional`, torch is `Torch`, mindspore.mint
`Mint`, mint.nn.functional `MintFunctional`, and the methods of tensors `Tensor`. An API that does
not stand here has one name in both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.common.yaml_file import line_of, read_yaml
from mindrlhf_msprobe.errors import ConfigError, UsageError, nearest_of
from mindrlhf_msprobe.storage.operators import KINDS

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
_RENAMED = {
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
    return _RENAMED.get(api, api)


#: The name that an operator is compared under: what it is called behind its kind, in either
#: framework.
_SAME = {
    called: name
    for name, others in {
        "add": "iadd radd",
        "cat": "concat",
        "div": "divide itruediv true_divide truediv",
        "eq": "equal",
        "ge": "greater_equal",
        "gt": "greater",
        "le": "less_equal",
        "linear": "dense",
        "lt": "less",
        "matmul": "batchmatmul bmm mm",
        "mean": "reducemean reduce_mean",
        "mul": "imul multiply rmul",
        "ne": "notequal not_equal",
        "neg": "negative",
        "sub": "isub subtract",
        "sum": "reducesum reduce_sum",
    }.items()
    for called in others.split()
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


#: What is given for a mapping: a file, true for what needs none, or data_mapping's content itself.
Given = str | os.PathLike[str] | bool | Mapping[str, str] | None


class Kind(Enum):
    """The kinds, by the names of msprobe's options; of several, the first that is given counts."""

    API = "api_mapping"
    CELL = "cell_mapping"
    LAYER = "layer_mapping"
    DATA = "data_mapping"


_EXAMPLES = {
    Kind.CELL: "fc2.Dense: fc2.Linear",
    Kind.DATA: "Cell.relu.ReLU.forward.0.input.0: Module.relu.ReLU.forward.0.input.0",
    Kind.LAYER: "ParallelAttention: {qkv_proj: query_key_value}",
    Kind.API: "- {ms_api: Functional.abs, pt_api: Torch.abs, ms_args: [0], pt_args: [0]}",
}
#: The lists of an api_mapping's item, by the part of an entry they are of.
_LISTS = {
    "input": ("args",),
    "output": ("outputs", "output"),
    "parameters": ("parameters",),
    "parameters_grad": ("parameters_grad",),
}
_API = re.compile(r"[^.]+\.[^.]+")


@dataclass(frozen=True)
class ApiRule:
    """One item of an api_mapping: an API of NPU under the name it has in Bench.

    Attributes:
        places: part of an entry → place of NPU's value in it → that of Bench's. A part that is not
            listed is the same in both; of one that is, what is not listed has no partner.
    """

    source: str
    target: str
    places: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class MsprobeMapping:
    """One mapping.

    Attributes:
        kind: which of the four.
        names: of a cell_mapping or data_mapping, names of NPU → of Bench, in the file's order.
        apis: of an api_mapping.
        layers: of a layer_mapping, class of a layer of NPU → path inside it → path in Bench.
    """

    kind: Kind
    names: Mapping[str, str] = field(default_factory=dict)
    apis: tuple[ApiRule, ...] = ()
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


_WITH_CLASS = re.compile(r"[^*\\]+\.[A-Z]\w*")
_OF_OPERATOR = re.compile(rf"(?:{'|'.join(KINDS)})\.")
_OF_A_PASS = re.compile(r"\.(forward|backward)\.")


def recognised(path: str | os.PathLike[str]) -> Kind | None:
    """Return which of msprobe's mappings a file is; None: it is none, names of cells say it.

    api_mapping is a list, or an item with `ms_api`; layer_mapping holds a mapping for each class;
    data_mapping names records of a pass, forward or backward; in cell_mapping each name ends with
    a class.

    Raises:
        ConfigError: it cannot be read.
    """
    file = message("error.name_pattern")
    content = read_yaml(
        Path(path), file, message("error.names"), items=message("error.list_of_apis")
    )
    if not isinstance(content, Mapping) or "ms_api" in content:
        return Kind.API if content else None
    if content and all(isinstance(of, Mapping) and "parts" not in of for of in content.values()):
        return Kind.LAYER
    names = [str(name) for name in content]
    if names and all(_OF_A_PASS.search(name) for name in names):
        return Kind.DATA
    names += map(str, content.values())
    are_cells = names and all(_WITH_CLASS.fullmatch(name) for name in names)
    return Kind.CELL if are_cells and not any(map(_OF_OPERATOR.match, names)) else None


def load_msprobe_mapping(
    given: Mapping[Kind, Given],
) -> tuple[MsprobeMapping | None, list[Message]]:
    """Read the mapping that counts; say which others are given for nothing.

    Raises:
        ConfigError: its file cannot be read, or has another form.
        UsageError: what is given is no file.
    """
    wanted = [kind for kind in Kind if given.get(kind) not in (None, False)]
    if not wanted:
        return None, []
    loaded = [_load(kind, given[kind]) for kind in wanted]
    notes = [
        message("pairing.mapping_not_used", mapping=kind.value, used=wanted[0].value)
        for kind in wanted[1:]
    ]
    return loaded[0], notes


def _load(kind: Kind, given: Given) -> MsprobeMapping:
    if kind is Kind.DATA and isinstance(given, Mapping):
        return MsprobeMapping(kind, _pairs(kind, None, (), given))
    if given is True and kind is not Kind.DATA:
        return MsprobeMapping(kind)
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        more = message("error.or_dict" if kind is Kind.DATA else "error.or_true")
        raise UsageError.saying("error.mapping_given", value=kind.value, given=given, more=more)
    path = Path(given)
    content = read_yaml(
        path,
        message("error.mapping_file", kind=kind.value),
        message("error.names"),
        items=message("error.list_of_apis") if kind is Kind.API else None,
    )
    if not content:
        raise ConfigError.saying("error.mapping_empty", path=path, value=_EXAMPLES[kind])
    if kind is Kind.API:
        is_one = isinstance(content, Mapping)
        items = {(): content} if is_one else {(n,): item for n, item in enumerate(content)}
        apis: list[ApiRule] = []
        for at, item in items.items():
            if not isinstance(item, Mapping):
                raise _wrong(kind, path, at, repr(item), message("mapping.api_item"))
            apis.append(_api(path, at, item))
        return MsprobeMapping(kind, apis=tuple(apis))
    if kind is not Kind.LAYER:
        return MsprobeMapping(kind, _pairs(kind, path, (), content))
    layers: dict[str, dict[str, str]] = {}
    for layer, inside in content.items():
        if not (isinstance(layer, str) and layer and isinstance(inside, Mapping)):
            own = f"{layer!r}: {inside!r}"
            raise _wrong(kind, path, (layer,), own, message("mapping.layer"))
        layers[layer] = _pairs(kind, path, (layer,), inside)
    return MsprobeMapping(kind, layers=layers)


def _pairs(
    kind: Kind, path: Path | None, at: tuple[Any, ...], content: Mapping[Any, Any]
) -> dict[str, str]:
    """Return a mapping of names that stands at a place (`at`) of a file, after a look at it."""
    for name, target in content.items():
        if not (isinstance(name, str) and isinstance(target, str) and name and target):
            shown = ": ".join([*at, f"{name!r}", f"{target!r}"])
            raise _wrong(kind, path, (*at, name), shown, message("mapping.two_names"))
    return dict(content)


def _api(path: Path, at: tuple[Any, ...], item: Mapping[Any, Any]) -> ApiRule:
    def wrong(key: Any, expected: Message) -> ConfigError:
        return _wrong(Kind.API, path, (*at, key), f"{key}: {item.get(key)!r}", expected)

    known = {"ms_api", "pt_api"}
    known |= {f"{side}_{n}" for names in _LISTS.values() for n in names for side in ("ms", "pt")}
    for key in item:
        if key not in known:
            listed, hint = ", ".join(sorted(known)), nearest_of(str(key), known)
            raise wrong(key, message("mapping.one_of", names=listed, hint=hint))
    for key in ("ms_api", "pt_api"):  # as they are named in dump.json
        if not isinstance(item.get(key), str) or not _API.fullmatch(item[key]):
            raise wrong(key, message("mapping.api"))
    places: dict[str, dict[str, str]] = {}
    for part, names in _LISTS.items():
        found: list[list[str] | None] = []
        for side in ("ms", "pt"):
            key = next((k for name in names if (k := f"{side}_{name}") in item), None)
            value = None if key is None else item[key]
            if value is not None and not _is_places(value):
                raise wrong(key, message("mapping.places"))
            found.append(None if value is None else [str(place) for place in value])
        if found == [None, None]:
            continue
        sides = [own or [] for own in found]
        if len(sides[0]) != len(sides[1]):
            many = message("mapping.as_many", key=f"pt_{names[0]}", count=len(sides[1]))
            raise wrong(f"ms_{names[0]}", many)
        places[part] = dict(zip(*sides))
    return ApiRule(item["ms_api"], item["pt_api"], places)


def _is_places(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    if any(isinstance(item, bool) or not isinstance(item, (int, str)) for item in value):
        return False
    return len({str(item) for item in value}) == len(value)


def _wrong(
    kind: Kind, path: Path | None, at: tuple[Any, ...], found: str, expected: Message
) -> ConfigError:
    lines = [] if path is None else [line_of(path, *at[:n]) for n in range(len(at), 0, -1)]
    line = next((line for line in lines if line is not None), None)
    where: Message | str = "data_mapping" if path is None else str(path)
    if line is not None:
        where = message("error.at_line", path=where, line=line)
    found = cut(found, 200)
    return ConfigError.saying(
        "error.mapping_form", where=where, found=found, expected=expected, value=_EXAMPLES[kind]
    )
