"""What a run recorded of the calls that can be played, and whether another call is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.playback.forms import Form, put_together
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, to_host
from mindrlhf_msprobe.capture.tensors.torch_tensors import elements_of, is_torch_tensor
from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import MsprobeError, RunError
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

#: The place in a value, what was recorded there, and what is given.
Difference = tuple[str, Message | str, Message | str]

#: Elements of a tensor that an error shows.
SHOWN = 6


@dataclass(frozen=True)
class Recorded:
    """One value as it was recorded: its form, and of each leaf the description and the content."""

    form: Form
    leaves: Sequence[tuple[Leaf, Any]]

    @property
    def value(self) -> Any:
        """The value: as it was, in memory of its own."""
        return put_together(self.form, self.leaves)


def content_of(form: Form, leaves: Sequence[Any]) -> dict[str, Any]:
    """Return what is saved of a value as key data."""
    return {"form": dump_json(form).decode("utf-8"), "leaves": list(leaves)}


class RecordedCalls:
    """The recorded calls under one key of a run.

    Args:
        root: the run's directory.
        key: as the key data are called that hold them.
        rank: whose.

    Raises:
        RunError: there is no such run, or it holds no such calls of this rank.
    """

    def __init__(self, root: Path, key: str, rank: int) -> None:
        self.root, self._key, self._rank = root, key, rank
        self._run: Run = open_run(root)
        self.steps = sorted({datum.step for datum in self._run.key_data(key, rank=rank)})
        if not self.steps:
            keys = sorted(self._run.keys)
            shown = ", ".join(keys) or message("error.playback_nothing")
            raise RunError.saying(
                "error.playback_no_calls", path=root, rank=rank, key=key, keys=shown
            )

    def calls(self, step: int) -> int:
        """Return how many calls of a step were recorded."""
        return len(self._run.key_data(self._key, step=step, rank=self._rank))

    def at(self, step: int, call: int, part: str = "") -> Recorded | None:
        """Return what was recorded of a call; None if nothing was.

        Args:
            part: "" the value, `.batch` what it was computed of.

        Raises:
            RunError: it cannot be read.
        """
        key = self._key + part
        for datum in self._run.key_data(key, step=step, rank=self._rank):
            if datum.micro_step == call:
                try:
                    return _recorded(datum)
                except MsprobeError as error:
                    why: Any = error.said
                except (ArrayFileError, KeyError, IndexError, TypeError, ValueError) as error:
                    why = getattr(error, "said", None) or str(error) or type(error).__name__
                raise RunError.saying(
                    "error.playback_unread", path=self.root, key=key, step=step, call=call, why=why
                )
        return None


def _recorded(datum: KeyDatum) -> Recorded:
    unread = next((r.leaf.why for r in datum.records if r.leaf.why is not None), None)
    if unread is not None:
        raise ArrayFileError(unread)
    by_path = {record.path: record for record in datum.records}
    form = loads(by_path["form"].leaf.value.encode("utf-8"))
    leaves: list[tuple[Leaf, Any]] = []
    while (record := by_path.get(f"leaves.{len(leaves)}")) is not None:
        text = record.leaf.type == "str"
        leaves.append((record.leaf, record.leaf.value if text else record.array()))
    return Recorded(form, leaves)


def differences(
    recorded: Recorded, form: Form, leaves: Sequence[Any], *, values: bool = True
) -> Iterator[Difference]:
    """Yield where a value is not the one that was recorded: the place, what was, and what is.

    Args:
        values: whether elements, texts and numbers must be the same, not only shapes and dtypes.
    """
    yield from _Compared(recorded, leaves, values).forms("", recorded.form, form)


class _Compared:
    """A recorded value beside a given one."""

    def __init__(self, recorded: Recorded, leaves: Sequence[Any], values: bool) -> None:
        self._recorded, self._leaves, self._values = recorded.leaves, leaves, values

    def forms(self, at: str, a: Form, b: Form) -> Iterator[Difference]:
        (kind, left), (other, right) = next(iter(a.items())), next(iter(b.items()))
        if kind != other or (kind in ("record", "opaque") and left != right):
            yield at, _said(kind, left), _said(other, right)
        elif kind in ("leaf", "scalar"):
            yield from self._tensors(at, *self._recorded[left], self._leaves[right])
        elif kind == "text":
            yield from self._plain(at, repr(self._recorded[left][1]), repr(self._leaves[right]))
        elif kind in ("list", "tuple", "array", "dict", "record"):
            yield from self._structures(at, kind, a, b)
        else:
            yield from self._plain(at, _said(kind, left), _said(kind, right))

    def _plain(self, at: str, a: Any, b: Any) -> Iterator[Difference]:
        if self._values and a != b:
            yield at, a, b

    def _structures(self, at: str, kind: str, a: Form, b: Form) -> Iterator[Difference]:
        items, others = (_items(kind, side) for side in (a, b))
        if items.keys() != others.keys() or a.get("shape") != b.get("shape"):
            yield at, _said(kind, a[kind]), _said(kind, b[kind])
            return
        for name, item in items.items():
            yield from self.forms(at + name, item, others[name])

    def _tensors(self, at: str, leaf: Leaf, a: Any, given: Any) -> Iterator[Difference]:
        torch = is_torch_tensor(given)
        host = HostTensor("torch.Tensor", *elements_of(given)) if torch else to_host(given)
        b = host.values()
        same = (leaf.dtype, a.shape) == (host.dtype, b.shape)
        if same and self._values:
            same = bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
        if not same:
            yield at, _elements(leaf.dtype, a), _elements(host.dtype, b)


def _items(kind: str, form: Form) -> dict[str, Form]:
    """Return what a structure holds, by how it is reached: `[0]`, `['ids']`, `.mask`."""
    if kind == "record":
        return {f".{name}": item for name, item in form["fields"]}
    if kind == "dict":
        return {f"[{key.get('value', key)!r}]": item for key, item in form["dict"]}
    return {f"[{i}]": item for i, item in enumerate(form[kind])}


def _said(kind: str, content: Any) -> Message | str:
    if kind in ("list", "tuple", "dict", "array"):
        return message("error.playback_items", kind=kind, count=len(content))
    if kind in ("leaf", "scalar", "text"):
        return message("error.playback_tensor" if kind != "text" else "error.playback_text")
    return str(content)


def _elements(dtype: str | None, array: np.ndarray) -> str:
    some = ", ".join(map(str, array.reshape(-1)[:SHOWN].tolist()))
    return f"{dtype} {list(array.shape)} [{some}{', …' if array.size > SHOWN else ''}]"
