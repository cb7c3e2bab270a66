"""A value ⇄ its form, as JSON, and the tensors and texts in it.

Key data say what was saved; a value that a training goes on with has to come back as it was, too:
a tuple as a tuple, a numpy scalar as one. The form says that:

    {"list": [form, …]}  {"tuple": [form, …]}  {"dict": [[form of the key, form], …]}
    {"leaf": i}                          the i-th leaf: a tensor or a numpy array; of numbers
    {"scalar": i}                        … a numpy scalar
    {"text": i}                          … a text
    {"value": x}                         None, True, 3, a text that is a key
    {"float": "0x1.8p+1"}  {"complex": [real, imaginary]}
    {"array": [form, …], "shape", "dtype"}   numpy's of texts or objects
    {"record": "module:name", "fields": [[name, form], …]}   a dataclass or named tuple
    {"opaque": "module.name"}            anything else: it does not come back

Classes that a form names are looked up among those that the training has imported. None is
imported, and nothing of them runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.tensors.summary import is_tensor, is_torch_tensor
from mindrlhf_msprobe.capture.tensors.tree import MAX_DEPTH
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16
from mindrlhf_msprobe.storage.leaves import Leaf

Form = dict[str, Any]
#: Of each leaf its description, and its elements or text.
Leaves = Sequence[tuple[Leaf, Any]]


def take_apart(value: Any) -> tuple[Form, list[Any]]:
    """Return the form of a value, and its leaves as they are: tensors, arrays, texts."""
    leaves: list[Any] = []
    return _form(value, leaves, 0), leaves


def opaque_parts(form: Any) -> Iterator[str]:
    """Yield the types of what does not come back."""
    if isinstance(form, Mapping):
        if isinstance(form.get("opaque"), str):
            yield form["opaque"]
        for item in form.values():
            yield from opaque_parts(item)
    elif isinstance(form, list):
        for item in form:
            yield from opaque_parts(item)


def put_together(form: Form, leaves: Leaves) -> Any:
    """Return the value of a form.

    Args:
        leaves: of each leaf its description, and its elements or text. The value shares no memory
            with them.

    Raises:
        UsageError: a class or PyTorch is not there, a part did not come back, or the form is none.
        KeyError, IndexError, TypeError, ValueError: the form is none.
    """
    ((kind, content), *_) = form.items()
    if kind == "value":
        return content
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(*map(float.fromhex, content))
    if kind == "text" and isinstance(leaves[content][1], str):
        return leaves[content][1]
    if kind == "leaf":
        return tensor_of(*leaves[content])
    if kind == "scalar":
        return np.asarray(tensor_of(*leaves[content]))[()]
    if kind == "opaque":
        raise UsageError.saying("error.playback_opaque", name=content)
    if kind == "dict":
        pairs = [[put_together(part, leaves) for part in pair] for pair in content]
        return dict(pairs)
    if kind == "record":
        return _record(content, form["fields"], leaves)
    if kind in ("list", "tuple", "array"):
        items = [put_together(item, leaves) for item in content]
        if kind == "array":
            return _array(items, form)
        return tuple(items) if kind == "tuple" else items
    raise UsageError.saying("error.playback_form", form=kind)


def _form(value: Any, leaves: list[Any], depth: int) -> Form:
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if depth > MAX_DEPTH:
        return {"opaque": _name_of(type(value))}
    text = type(value) is str
    if text or is_tensor(value) or is_torch_tensor(value):
        leaves.append(value)
        kind = "text" if text else "scalar" if isinstance(value, np.generic) else "leaf"
        return {kind: len(leaves) - 1}
    return _structure(value, lambda item: _form(item, leaves, depth + 1))


_PLAIN: dict[type, Callable[[Any], Form]] = {
    **dict.fromkeys((type(None), bool, int), lambda value: {"value": value}),
    float: lambda value: {"float": value.hex()},
    complex: lambda value: {"complex": [value.real.hex(), value.imag.hex()]},
}


def _structure(value: Any, form_of: Callable[[Any], Form]) -> Form:
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind in "OU":
        items = [form_of(item) for item in value.reshape(-1).tolist()]
        return {"array": items, "shape": list(value.shape), "dtype": value.dtype.str}
    if kind in (list, tuple):
        return {kind.__name__: [form_of(item) for item in value]}
    if kind is dict:
        # A text that is a key stays in the form.
        keys = [{"value": k} if type(k) is str else _form(k, [], MAX_DEPTH) for k in value]
        return {"dict": [[key, form_of(item)] for key, item in zip(keys, value.values())]}
    if (names := _fields(kind)) is not None:
        fields = [[name, form_of(getattr(value, name, None))] for name in names]
        return {"record": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}
    return {"opaque": _name_of(kind)}


def _fields(kind: type) -> list[str] | None:
    """Return the names of the fields of a dataclass or named tuple; None of any other class."""
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        return None if names is None else list(names)
    if dataclasses.is_dataclass(kind) and not issubclass(kind, Mapping):
        return [field.name for field in dataclasses.fields(kind)]
    return None


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _array(items: list[Any], form: Form) -> np.ndarray:
    """Return a numpy array of texts or objects."""
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    dtype = np.dtype(form["dtype"])
    if dtype.kind not in "OU":
        raise UsageError.saying("error.playback_form", form=str(dtype))
    return array.reshape(form["shape"]).astype(dtype)


def _record(name: str, fields: Sequence[tuple[str, Form]], leaves: Leaves) -> Any:
    """Return a dataclass or named tuple of a class that the training has imported."""
    module, _, path = name.partition(":")
    kind: Any = sys.modules.get(module)
    for part in path.split("."):
        kind = getattr(kind, part, None)
    names = _fields(kind) if isinstance(kind, type) else None
    if names is None or names != [field for field, _ in fields]:
        raise UsageError.saying("error.playback_class", name=name)
    items = [put_together(item, leaves) for _, item in fields]
    if issubclass(kind, tuple):
        return tuple.__new__(kind, items)
    made = object.__new__(kind)
    for field, item in zip(names, items):
        object.__setattr__(made, field, item)
    return made


def tensor_of(leaf: Leaf, elements: Any) -> Any:
    """Return a tensor of the kind and dtype that were recorded, with elements of its own."""
    array = np.array(elements)
    if leaf.type == "mindspore.Tensor":
        import mindspore

        if leaf.dtype in FLOAT8:
            return mindspore.Tensor(array, getattr(mindspore, FLOAT8[leaf.dtype]))
        tensor = mindspore.Tensor(array)
        return tensor.astype(mindspore.bfloat16) if leaf.dtype == BFLOAT16 else tensor
    if leaf.type == "torch.Tensor":
        if "torch" not in sys.modules:
            raise UsageError.saying("error.playback_class", name=leaf.type)
        torch = sys.modules["torch"]
        made = torch.from_numpy(array)
        return made.to(torch.bfloat16) if leaf.dtype == BFLOAT16 else made
    return array.astype(np.dtype("bfloat16")) if leaf.dtype == BFLOAT16 else array
