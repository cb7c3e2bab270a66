"""What a trainer hands over by name → a JSON structure and the arrays beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.graph.outline import UnknownOutline
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, is_tensor, summarise, to_host
from mindrlhf_msprobe.capture.tensors.torch_tensors import elements_of, is_torch_tensor
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.capture.words import why_not_in_graph, why_raised
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.leaves import Leaf, is_leaf


@dataclass
class DescribedKeyData:
    """One save, ready to be written.

    Attributes:
        arrays: file name → elements.
        unsaved: path → why a value in it could not be saved.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    unsaved: dict[str, Message] = field(default_factory=dict)
    _tree: Any = None
    _to_summarise: list[tuple[dict[str, Any], Callable[[], Leaf]]] = field(default_factory=list)

    @property
    def structure(self) -> Any:
        """The JSON structure of described leaves; their statistics are computed when asked for."""
        while self._to_summarise:
            leaf, summarised = self._to_summarise.pop()
            leaf.update(summarised().to_key_data_json())
        return self._tree


def describe_key_data(
    key: str, value: Any, *, fingerprint: bool, numbered: bool = False
) -> DescribedKeyData:
    """Describe tensors (PyTorch's, too), numpy arrays, numbers, texts, None, structures of them.

    A number becomes a 0-d array of int64, float64, bool or complex128; a text becomes its UTF-8
    bytes as uint8, its text kept in the JSON; bfloat16 is stored as float32, exactly. What a
    compiled graph could not hand over is unsaved.

    Args:
        numbered: call the files of a tensor and of a list's elements `<key><i>.npy`.
    """
    described = DescribedKeyData()

    def save(host: HostTensor, path: str, array: np.ndarray, text: str | None = None) -> Any:
        name = layout.file_name(_numbered(key, path) if numbered else path)
        described.arrays[name] = array
        leaf: dict[str, Any] = {}

        def summarised() -> Leaf:
            found = summarise(host, fingerprint=fingerprint)
            return replace(found, data_name=name, value=text)

        described._to_summarise.append((leaf, summarised))
        return leaf

    def tensor(value: Any, path: str) -> Any:
        if isinstance(value, UnknownOutline):
            described.unsaved[path] = why_not_in_graph(value.reason)
            return Leaf(value.type, why=described.unsaved[path])
        try:
            host = to_host(value) if is_tensor(value) else _of_torch_or_number(value)
        except Exception as error:
            described.unsaved[path] = why_raised(error)
            return Leaf(type(value).__name__, why=described.unsaved[path])
        return save(host, path, host.values())

    def text(value: str, path: str) -> Any:
        array = np.frombuffer(value.encode("utf-8", errors="surrogatepass"), np.uint8)
        return save(HostTensor("str", "UInt8", array), path, array, value)

    def to_json(leaf: Any) -> dict[str, Any]:
        return leaf if isinstance(leaf, dict) else leaf.to_key_data_json()

    described._tree = TreeDescriber(_is_array, tensor, text, to_json).describe(value, key)
    _note_opaque(described._tree, key, described.unsaved)
    return described


def _numbered(key: str, path: str) -> str:
    """Return what a file is called in the place of a path that begins with the key."""
    rest = path[len(key) :]
    number, dot, inside = rest[1:].partition(".")
    if rest and not (number.isascii() and number.isdigit()):
        return path
    return f"{key}{number or 0}{dot}{inside}"


def _of_torch_or_number(value: Any) -> HostTensor:
    if not is_torch_tensor(value):
        return to_host(value)
    dtype, array = elements_of(value)
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return HostTensor("torch.Tensor", dtype, contiguous)


def _is_array(value: Any) -> bool:
    if isinstance(value, UnknownOutline):
        return True
    return is_tensor(value) or _fits_array(value) or is_torch_tensor(value)


def _fits_array(value: Any) -> bool:
    """Return whether `value` is a Python number that numpy holds without loss."""
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    return isinstance(value, (bool, float, complex))


def _note_opaque(structure: Any, path: str, unsaved: dict[str, Message]) -> None:
    if is_leaf(structure):
        if structure.get("opaque"):
            unsaved[path] = message("coverage.cannot_be_saved", type=structure["type"])
    elif isinstance(structure, dict):
        for key, item in structure.items():
            _note_opaque(item, f"{path}.{key}", unsaved)
    elif isinstance(structure, list):
        for index, item in enumerate(structure):
            _note_opaque(item, f"{path}.{index}", unsaved)
