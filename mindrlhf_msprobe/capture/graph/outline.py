"""What MindSpore knows about a value while it compiles: its structure, and where tensors stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mindrlhf_msprobe.capture.tensors.tree import MAX_DEPTH
from mindrlhf_msprobe.common.message import Message, message

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
    """Yield what is in a value, and no tuple, list or dict."""
    if isinstance(tree, (dict, list, tuple)):
        for child in tree.values() if isinstance(tree, dict) else tree:
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
