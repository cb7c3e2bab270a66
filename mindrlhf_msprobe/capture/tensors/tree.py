"""Nested inputs and outputs → JSON structures of described leaves.

Tuples, lists, dicts, named tuples, dataclasses and ModelOutputs are followed to any depth below
`MAX_DEPTH`, one that holds itself only once; None and Python scalars become leaves of their own;
dtypes and slices are leaves, too; what cannot be looked into is named by its type and marked
opaque, so that nobody takes it for compared. A masked array is followed into its `data` and its
`mask`, a sparse tensor into what it is made of.

While MindSpore compiles a graph, outlines stand for what is known only when it runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.leaves import Leaf, child_path

MAX_DEPTH = 32

_SCALARS = (bool, int, float, complex, str)
_MAX_TEXT = 4096

#: (tensor, record path) → its leaf
DescribeTensor = Callable[[Any, str], Leaf]


def _as_json(leaf: Any) -> dict[str, Any]:
    return leaf if type(leaf) is dict else leaf.to_json()


@dataclass(eq=False)
class TreeDescriber:
    """Turns values into JSON structures, handing every tensor to one function.

    Attributes:
        is_tensor: tells which values are tensors.
        describe_tensor: called with each tensor and its path; returns its leaf.
        describe_text: the same for texts; without it a text is a scalar leaf.
        to_json: how a leaf is written; JSON stays as it is.
    """

    is_tensor: Callable[[Any], bool]
    describe_tensor: DescribeTensor
    describe_text: DescribeTensor | None = None
    to_json: Callable[[Any], dict[str, Any]] = _as_json

    def describe(self, value: Any, path: str, around: tuple[int, ...] = ()) -> Any:
        """Return the JSON structure of `value`, whose record path is `path`.

        Args:
            around: the ids of the structures it lies in, so that one which holds itself ends.
        """
        kind = type(value)
        plain = kind is list or kind is tuple or kind is dict  # most are, and need no more looks
        if not plain:
            if self.is_tensor(value):
                return self.to_json(self.describe_tensor(value, path))
            if isinstance(value, str) and self.describe_text is not None:
                return self.to_json(self.describe_text(value, path))
            if value is None or isinstance(value, _SCALARS):
                if isinstance(value, str) and len(value) > _MAX_TEXT:
                    digest = hashlib.sha1(value.encode("utf-8", errors="surrogatepass")).hexdigest()
                    value = f"{value[:_MAX_TEXT]}… ({len(value)} characters, sha1 {digest})"
                leaf = Leaf(type(value).__name__, value=printable_integer(value))
                return self.to_json(leaf)
        if len(around) >= MAX_DEPTH or id(value) in around:
            return self.to_json(Leaf(_type_name(value), opaque=True))
        around = (*around, id(value))
        if isinstance(value, np.ma.MaskedArray):
            parts = {"data": np.ma.getdata(value, subok=False), "mask": np.ma.getmaskarray(value)}
            return self._describe_items(parts.items(), path, around)
        if isinstance(value, (np.ndarray, np.generic)):  # texts or objects, no numbers
            return self.describe(value.tolist(), path, around)
        items = fields_of(value)
        if items is not None:
            return self._describe_items(items, path, around)
        if isinstance(value, (list, tuple)):
            return [
                self.describe(item, child_path(path, index), around)
                for index, item in enumerate(value)
            ]
        return self.to_json(_named(value))

    def _describe_items(
        self, items: Iterable[tuple[Any, Any]], path: str, around: tuple[int, ...]
    ) -> Any:
        described: dict[str, Any] = {}
        for key, item in items:
            name = str(key)
            while name in described:  # 1 and "1" are two keys of a dict, but one of JSON
                name += "~"
            described[name] = self.describe(item, child_path(path, name), around)
        return described


def described_leaves(structure: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the leaves of a JSON structure that a `TreeDescriber` made, each with its path."""
    if type(structure) is dict and type(structure.get("type")) is str:
        yield path, structure
    elif type(structure) is dict or type(structure) is list:
        items = structure.items() if type(structure) is dict else enumerate(structure)
        for key, item in items:
            yield from described_leaves(item, child_path(path, key))


def fields_of(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the (name, item) pairs of a mapping-like value, or None if it is not one.

    A ModelOutput is both a mapping and a dataclass: as a mapping it has only what was set. A sparse
    tensor has those tensors that it is made of, and its shape.
    """
    if type(value) is list or type(value) is tuple:
        return None
    kind = type(value)
    parts = _SPARSE.get(kind.__name__)
    if parts and kind is getattr(sys.modules.get("mindspore"), kind.__name__, None):
        return [(part, getattr(value, part)) for part in parts]
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    return None


#: Of what MindSpore's sparse tensors are made, by their classes.
_SPARSE = {
    "COOTensor": ("indices", "values", "shape"),
    "CSRTensor": ("indptr", "indices", "values", "shape"),
    "RowTensor": ("indices", "values", "dense_shape"),
}


def _named(value: Any) -> Leaf:
    """Return the leaf of a value without elements: a dtype, a slice; else its type alone."""
    bounds = [value.start, value.stop, value.step] if isinstance(value, slice) else ()
    if bounds and all(bound is None or type(bound) is int for bound in bounds):
        return Leaf("slice", value=bounds)
    if value is Ellipsis:
        return Leaf("ellipsis", value="...")
    dtype = getattr(sys.modules.get("mindspore"), "Type", None)
    if dtype is not None and isinstance(value, dtype):
        return Leaf("mindspore.dtype", value=str(value))
    return Leaf(_type_name(value), opaque=True)


def printable_integer(value: Any) -> Any:
    """Return `value`, an integer with more digits than Python prints as its hexadecimal text."""
    if isinstance(value, int) and value.bit_length() > 4096:
        return hex(value)
    return value


def _type_name(value: Any) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


#: The keys and indices that lead from an argument list or an output to one value in it.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class TensorOutline:
    """A tensor that will be handed over when the graph runs.

    Attributes:
        dtype: MindSpore's name, e.g. `Float32`.
        is_parameter: it is a Parameter of the network that is passed on as an argument.
    """

    dtype: str
    shape: tuple[int, ...]
    is_parameter: bool = False

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient can reach it (a Parameter's is that of the optimizer)."""
        return self.dtype.startswith(("Float", "BFloat", "Complex")) and not self.is_parameter


@dataclass(frozen=True)
class UnknownOutline:
    """A value that is not known before the graph runs, and why it cannot be handed over then."""

    type: str
    reason: Message

    @property
    def why(self) -> Message:
        """What stands in the place of the value."""
        return message("coverage.graph_mode", why=[self.reason])


def outline(shape: Any, dtype: Any, value: Any, depth: int = 0) -> Any:
    """Return the outline of a value from what MindSpore's inference says about it.

    Tuples, lists and dicts become ones of outlines; constants stand for themselves.

    Args:
        shape, dtype, value: what `Primitive.__infer__` is given: nested as the value is; the value
            of what is not constant is None, or a placeholder that must not be read.
    """
    if depth < MAX_DEPTH and isinstance(value, dict):
        return {
            key: outline(*item, depth + 1) for key, item in zip(value, _items(shape, dtype, value))
        }
    if depth < MAX_DEPTH and isinstance(dtype, (tuple, list)):
        return type(dtype)(outline(*item, depth + 1) for item in _items(shape, dtype, value))
    element_type = getattr(dtype, "element_type", None)
    if callable(element_type) and isinstance(shape, (tuple, list)) and "ensor" in str(dtype):
        kind = type(dtype).__name__
        if kind not in ("TensorType", "RefType"):
            return UnknownOutline("object", message("coverage.object_of_graph"))
        if any(not isinstance(size, int) or size < 0 for size in shape):
            return UnknownOutline("mindspore.Tensor", message("coverage.dynamic_shape"))
        return TensorOutline(str(dtype.element_type()), tuple(shape), kind == "RefType")
    if dtype is None or value is not None:
        return value
    return UnknownOutline(str(dtype), message("coverage.value_of_graph", type=str(dtype)))


def _items(shape: Any, dtype: Any, value: Any) -> Iterator[tuple[Any, Any, Any]]:
    values = list(value.values() if isinstance(value, dict) else value or [])
    values += [None] * (len(dtype) - len(values))
    return zip(shape, dtype, values)


def values_in(tree: Any) -> Iterator[Any]:
    """Yield what is in a value, and no tuple, list or mapping."""
    if isinstance(tree, (Mapping, list, tuple)):
        for child in tree.values() if isinstance(tree, Mapping) else tree:
            yield from values_in(child)
    else:
        yield tree


def filled(
    tree: Any,
    fill: Callable[[Any, Path], Any],
    path: Path = (),
    *,
    key_of: Callable[[Any], Any] = str,
) -> Any:
    """Return a structure nested as a value is, tuples as lists.

    Args:
        fill: returns what stands for a value that is no tuple, list or dict, and for its path.
        key_of: returns what stands for a key.
    """
    if isinstance(tree, dict):
        return {
            key_of(key): filled(item, fill, (*path, key), key_of=key_of)
            for key, item in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        return [filled(item, fill, (*path, i), key_of=key_of) for i, item in enumerate(tree)]
    return fill(tree, path)
