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

from mindrlhf_msprobe.capture.tensors.summary import is_tensor
from mindrlhf_msprobe.capture.tensors.torch_tensors import is_torch_tensor
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16
from mindrlhf_msprobe.storage.leaves import Leaf

Form = dict[str, Any]

MAX_DEPTH = 32


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


def put_together(form: Form, leaves: Sequence[tuple[Leaf, Any]]) -> Any:
    """Return the value of a form.

    Args:
        leaves: of each leaf its description, and its elements or text. The value shares no memory
            with them.

    Raises:
        UsageError: a class or PyTorch is not there, a part did not come back, or the form is none.
        KeyError, IndexError, TypeError, ValueError: the form is none.
    """
    return _Built(leaves).of(form)


def _form(value: Any, leaves: list[Any], depth: int) -> Form:
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if depth > MAX_DEPTH:
        return {"opaque": _name_of(type(value))}
    kind = _kind_of_leaf(value)
    if kind is not None:
        leaves.append(value)
        return {kind: len(leaves) - 1}
    return _structure(value, lambda item: _form(item, leaves, depth + 1))


_PLAIN: dict[type, Callable[[Any], Form]] = {
    **dict.fromkeys((type(None), bool, int), lambda value: {"value": value}),
    float: lambda value: {"float": value.hex()},
    complex: lambda value: {"complex": [value.real.hex(), value.imag.hex()]},
}


def _kind_of_leaf(value: Any) -> str | None:
    if type(value) is str:
        return "text"
    if is_tensor(value) or is_torch_tensor(value):
        return "scalar" if isinstance(value, np.generic) else "leaf"
    return None


def _structure(value: Any, form_of: Callable[[Any], Form]) -> Form:
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind in "OU":
        items = [form_of(item) for item in value.reshape(-1).tolist()]
        return {"array": items, "shape": list(value.shape), "dtype": value.dtype.str}
    if kind in (list, tuple):
        return {kind.__name__: [form_of(item) for item in value]}
    if kind is dict:
        return {"dict": [[_key(key), form_of(item)] for key, item in value.items()]}
    if (names := _fields(kind)) is not None:
        fields = [[name, form_of(getattr(value, name, None))] for name in names]
        return {"record": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}
    return {"opaque": _name_of(kind)}


def _key(key: Any) -> Form:
    """Return the form of a dict's key: a text stays in it."""
    return {"value": key} if type(key) is str else _form(key, [], MAX_DEPTH)


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


class _Built:
    """Values of forms."""

    def __init__(self, leaves: Sequence[tuple[Leaf, Any]]) -> None:
        self._leaves = leaves
        self._kinds: dict[str, Callable[[Any, Form], Any]] = {
            "value": lambda content, _: content,
            "float": lambda content, _: float.fromhex(content),
            "complex": lambda content, _: complex(*map(float.fromhex, content)),
            "text": self._text,
            "leaf": lambda content, _: tensor_of(*leaves[content]),
            "scalar": lambda content, _: np.asarray(tensor_of(*leaves[content]))[()],
            "array": self._array,
            "list": lambda content, _: [self.of(item) for item in content],
            "tuple": lambda content, _: tuple(self.of(item) for item in content),
            "dict": lambda content, _: {self.of(key): self.of(item) for key, item in content},
            "record": self._record,
            "opaque": self._opaque,
        }

    def of(self, form: Any) -> Any:
        ((kind, content), *_) = form.items()
        if kind not in self._kinds:
            raise UsageError.saying("error.playback_form", form=kind)
        return self._kinds[kind](content, form)

    def _text(self, content: int, _: Form) -> str:
        text = self._leaves[content][1]
        if not isinstance(text, str):
            raise UsageError.saying("error.playback_form", form="text")
        return text

    def _array(self, content: list[Any], form: Form) -> np.ndarray:
        array = np.empty(len(content), object)
        for i, item in enumerate(content):
            array[i] = self.of(item)
        dtype = np.dtype(form["dtype"])
        if dtype.kind not in "OU":
            raise UsageError.saying("error.playback_form", form=str(dtype))
        return array.reshape(form["shape"]).astype(dtype)

    def _record(self, content: str, form: Form) -> Any:
        module, _, name = content.partition(":")
        kind: Any = sys.modules.get(module)
        for part in name.split("."):
            kind = getattr(kind, part, None)
        names = _fields(kind) if isinstance(kind, type) else None
        if names is None or names != [name for name, _ in form["fields"]]:
            raise UsageError.saying("error.playback_class", name=content)
        items = [self.of(item) for _, item in form["fields"]]
        if issubclass(kind, tuple):
            return tuple.__new__(kind, items)
        made = object.__new__(kind)
        for field, item in zip(names, items):
            object.__setattr__(made, field, item)
        return made

    def _opaque(self, content: str, _: Form) -> Any:
        raise UsageError.saying("error.playback_opaque", name=content)


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
