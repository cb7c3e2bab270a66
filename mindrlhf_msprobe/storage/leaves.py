"""The description of one value: what stands in the journal, in dump.json and in key data's JSON.

A structure of inputs or outputs is stored as nested JSON lists and objects whose leaves describe
one value each: a tensor by its statistics, a Python scalar or None by its value. In the JSON of key
data the statistics have lower-case names.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import (
    Message,
    as_json_or_text,
    as_message,
    message,
    quoted,
    read_message,
)
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json, number_to_json
from mindrlhf_msprobe.storage.arrays.sketches import SketchPlace
from mindrlhf_msprobe.storage.layout import UnreadError

#: Statistics beside those that every tensor has, of floats on the host: name → function of the
#: elements [n]. They are recorded, compared, and followed by `trend --statistic NAME`.
FURTHER: dict[str, Callable[[np.ndarray], float]] = {}
_ESCAPED = re.compile(r"[.%/\\\x00-\x1f\x7f]")


def child_path(path: str, key: object) -> str:
    """Return the path of an element below `path`; a key's own dots and slashes are escaped."""
    name = key if type(key) is int else _escaped(str(key))
    return f"{path}.{name}" if path else str(name)


@lru_cache(maxsize=4096)
def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda m: f"%{ord(m.group()):02X}", name) or "%"


def plain_path(path: str) -> str:
    """Return a path with the characters that `child_path` escaped."""
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), path)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One described value.

    Attributes:
        type: `mindspore.Tensor`, `numpy.ndarray`, `str`, or the name of a Python type.
        dtype, shape: of a tensor, e.g. `Float32`, `BFloat16`.
        max, min, mean, norm: over all elements, NaN if one is; norm is the L2 norm. None for an
            empty tensor; for bool only max and min.
        nan_count, inf_count: None where not counted (msprobe's files).
        fingerprint: `<algorithm>:<hex>`, or None.
        at_optimizer: a gradient as it entered the optimizer, unscaled and clipped if the training
            does so.
        rounding: of a gradient that is the difference of two, how much each element may be off.
        md5: the CRC-32 of the bytes, which msprobe calls md5, or None; of bfloat16 as float32.
        value: of a Python scalar or a text.
        data_name: the .npy file that holds all elements, or None.
        why: why it could not be recorded or read, or None.
        opaque: nothing but the type is known.
        whole: a gradient summed over all places in which the cell was given, or returned, the
            tensor.
        dialect: the tool that made the statistics, "" for this package; the reader of its files
            names it (`storage.foreign.dialect`).
        sketch: where the sketch of its rows lies, or None; see `storage.arrays.sketches`.
        shard: of a tensor spread over ranks, which part this is, or None.
        signs: of a gradient under `task: grad_probe`, the .npy file that holds which elements are
            above zero, one bit each, or None.
        shares: of its elements, in each interval of the run's `bounds`, then of zeros; or None.
        further: the statistics of `FURTHER`, or None.
    """

    type: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    nan_count: int | None = None
    inf_count: int | None = None
    fingerprint: str | None = None
    value: Any = None
    data_name: str | None = None
    why: Message | None = None
    opaque: bool = False
    whole: bool = False
    md5: str | None = None
    rounding: float | None = None
    at_optimizer: bool = False
    dialect: str = ""
    sketch: SketchPlace | None = None
    shard: Shard | None = None
    signs: str | None = None
    shares: tuple[float, ...] | None = None
    further: Mapping[str, Any] | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the value has elements, a dtype and a shape."""
        return self.shape is not None

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers; bool is none."""
        return (self.dtype or "").lower().startswith(("int", "uint"))

    @property
    def is_discrete(self) -> bool:
        """Whether the elements are integers or bool."""
        return self.is_integer or (self.dtype or "").lower().startswith("bool")

    def __reduce__(self) -> tuple[Any, ...]:
        return Leaf, tuple(
            getattr(self, name) for name in Leaf.__slots__
        )  # pickles in half the time

    def stored(
        self, data_name: str | None, *, fingerprint: bool, sketch: SketchPlace | None = None
    ) -> Leaf:
        """Return the leaf with what holds its elements or rows, its fingerprint kept or not."""
        if data_name is None and sketch is None and fingerprint:
            return self
        return replace(
            self,
            data_name=data_name,
            fingerprint=self.fingerprint if fingerprint else None,
            sketch=sketch,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the leaf as dump.json holds it (msprobe's names, then ours)."""
        return self._json("Max", "Min", "Mean", "Norm")

    def to_key_data_json(self) -> dict[str, Any]:
        """Return the leaf as a key's JSON holds it (msprobe's lower-case names, then ours)."""
        return self._json("max", "min", "mean", "norm")

    def _json(self, *statistics: str) -> dict[str, Any]:
        if self.shape is None:
            said = {"type": self.type, "value": number_to_json(self.value)}
            if self.opaque:
                said["opaque"] = True
            if self.why is not None:
                said["error"] = as_json_or_text(self.why)
            return said
        largest, smallest, mean, norm = statistics
        content: dict[str, Any] = {
            "type": self.type,
            "dtype": self.dtype,
            "shape": list(self.shape),
            largest: self.max,
            smallest: self.min,
            mean: self.mean,
            norm: self.norm,
        }
        for name in statistics:
            value = content[name]
            if not (type(value) is float and -math.inf < value < math.inf):
                content[name] = number_to_json(value)
        if self.nan_count is not None:
            content["nan_count"] = self.nan_count
        if self.inf_count is not None:
            content["inf_count"] = self.inf_count
        if self.fingerprint is not None:
            content["fingerprint"] = self.fingerprint
        # These few have; what every tensor has stands above.
        for name, value in (("md5", self.md5), ("text", self.value), ("data_name", self.data_name)):
            if value is not None:
                content[name] = value
        if self.why is not None:
            content["error"] = as_json_or_text(self.why)
        if self.whole:
            content["whole"] = True
        if self.rounding is not None:
            content["rounding"] = self.rounding
        if self.at_optimizer:
            content["at_optimizer"] = True
        if self.sketch is not None:
            place, why = self.sketch, self.sketch.why
            told = {"algorithm": place.algorithm, "block": place.block, "offset": place.offset}
            content["sketch"] = told if why is None else {**told, "error": why.as_json()}
        if self.shard is not None:
            content["shard"] = self.shard.to_json()
        if self.signs is not None:
            content["signs"] = self.signs
        if self.shares is not None:
            content["shares"] = list(self.shares)
        if self.further:
            content["further"] = {name: number_to_json(of) for name, of in self.further.items()}
        return content


def made_by(dialect: str, leaf: Leaf) -> Leaf:
    """Return a leaf that was read as the tool of that name made it; "": this package."""
    return replace(leaf, dialect=dialect) if dialect else leaf


def is_leaf(content: Any) -> bool:
    """Return whether a JSON value describes one value rather than a structure of values."""
    if not isinstance(content, dict):
        return False
    if isinstance(content.get("type"), str):
        return True
    shape = content.get("shape")
    is_shape = isinstance(shape, list) and all(isinstance(n, int) for n in shape)
    return is_shape and "max" in content and not isinstance(content["max"], (dict, list))


def leaf_from_json(content: dict[str, Any]) -> Leaf:
    """Read a leaf of ours or of msprobe's.

    Raises:
        ValueError: the content is not a leaf's.
    """
    shape = content.get("shape")
    if shape is None:
        kind, value = content.get("type"), content.get("value")
        return Leaf(
            type=str(kind),
            value=value if kind == "str" and isinstance(value, str) else _value(value),
            opaque=bool(content.get("opaque")) or (value is None and kind != "NoneType"),
            why=_why(content.get("error")),
        )
    if not (
        isinstance(shape, list)
        and len(shape) <= bounds.DIMENSIONS
        and all(type(n) is int and 0 <= n <= bounds.SIZE for n in shape)
    ):
        raise UnreadError.saying("unread.shape", shown=_shown(shape))
    shard = None if "shard" not in content else Shard.from_json(content["shard"])
    if shard is None and "shard" in content:
        raise UnreadError.saying("unread.shard", shown=_shown(content["shard"]))
    fingerprint, md5 = _text(content.get("fingerprint")), _text(content.get("md5") or None)
    if fingerprint is None and md5 is not None:
        fingerprint = f"crc32:{md5}"
    rounding: Any = content.get("rounding")
    is_number = isinstance(rounding, (int, float)) and not isinstance(rounding, bool)
    largest, smallest, mean, norm = [
        _statistic(content[name] if name in content else content.get(lower))
        for name, lower in _STATISTICS
    ]
    return Leaf(
        type=str(content.get("type", "mindspore.Tensor")),
        dtype=_dtype(content.get("dtype")),
        shape=tuple(shape),
        max=largest,
        min=smallest,
        mean=mean,
        norm=norm,
        nan_count=_count(content.get("nan_count")),
        inf_count=_count(content.get("inf_count")),
        fingerprint=fingerprint,
        value=content.get("text"),
        data_name=_text(content.get("data_name")),
        why=_why(content.get("error")),
        whole=content.get("whole") is True,
        md5=md5,
        rounding=float(rounding) if is_number and 0 < rounding < math.inf else None,
        at_optimizer=content.get("at_optimizer") is True,
        sketch=None if "sketch" not in content else _sketch(content["sketch"]),
        shard=shard,
        signs=_text(content.get("signs")),
        shares=_shares(content.get("shares")),
        further=_further(content.get("further")),
    )


def _why(error: Any) -> Message | None:
    """Return why a value is not there, as its JSON says."""
    if error is None:
        return None
    return quoted(read_message(error) or as_message(str(error)))


#: The statistics of a tensor as dump.json calls them, and as the JSON of key data does.
_STATISTICS = (("Max", "max"), ("Min", "min"), ("Mean", "mean"), ("Norm", "norm"))


def _statistic(value: Any) -> Any:
    """Return a statistic; what cannot be one is kept as text, so that it shows and never counts."""
    if type(value) is float:
        return value
    value = number_from_json(value)
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return str(value)
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise UnreadError.saying("unread.statistic", shown=_shown(value))


def _value(value: Any, depth: int = 0) -> Any:
    """Return the value of a Python scalar, or of a short list of them (a slice, a size)."""
    if isinstance(value, list) and depth < 3 and len(value) <= bounds.VALUES:  # lists in a value
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, (list, dict)):
        raise UnreadError.saying("unread.value", shown=_shown(value))
    if isinstance(value, int) and abs(value) >= bounds.NUMBER:
        return str(value)
    return number_from_json(value)


def _shown(value: Any) -> str:
    """Return what a message shows of a JSON value, however large or deep it is."""
    try:
        text = reprlib.repr(value)
    except RecursionError:
        text = f"a {type(value).__name__}"
    return text[:200]


def _shares(value: Any) -> tuple[float, ...] | None:
    is_list = isinstance(value, list) and 2 <= len(value) <= bounds.SHARES
    if is_list and all(type(share) in (int, float) and 0 <= share <= 1 for share in value):
        return tuple(map(float, value))
    return None


def _further(content: Any) -> Mapping[str, Any] | None:
    if not isinstance(content, dict) or len(content) > 64:
        return None
    return {name: _statistic(value) for name, value in content.items()}


def _sketch(content: Any) -> SketchPlace:
    """Return where a sketch lies; what does not say so makes one that cannot be read."""
    held = content if isinstance(content, dict) else {}
    algorithm, block, offset = held.get("algorithm"), held.get("block"), held.get("offset")
    if not (isinstance(algorithm, str) and bounds.is_place(block) and bounds.is_place(offset)):
        return SketchPlace("", 0, 0, message("unread.sketch_place", shown=_shown(content)))
    return SketchPlace(algorithm, int(block or 0), int(offset or 0), _why(held.get("error")))


def _dtype(content: Any) -> str | None:
    """Return a dtype by MindSpore's name; dumps of PyTorch say torch.float32."""
    name = _text(content)
    if name is None or not name.startswith("torch."):
        return name
    own = name.removeprefix("torch.")
    upper = 2 if own.startswith(("bfloat", "uint")) else 1  # BFloat16, UInt8; Float32, Int8
    return own[:upper].upper() + own[upper:]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _count(value: Any) -> int | None:
    return value if bounds.is_place(value) and value >= 0 else None


def leaves(
    content: Any, path: str = "", depth: int = 0, *, empty: bool = False, together: bool = False
) -> Iterator[tuple[str, Leaf]]:
    """Yield (path, leaf) for every leaf below a JSON structure, in order.

    Args:
        empty: a list or dict without elements is a leaf, too, of type `list` or `dict`.
        together: more than `bounds.NULLS` nulls that follow each other are one leaf.

    Raises:
        ValueError: something in it is neither a structure nor a leaf, or it is nested too deeply.
    """
    if depth > bounds.DEPTH:
        raise UnreadError.saying("unread.deep_values", most=bounds.DEPTH)
    if content is None:  # msprobe writes null for None and for what it does not know
        yield path, Leaf("NoneType")
    elif is_leaf(content):
        yield path, leaf_from_json(content)
    elif empty and content in ([], {}):
        yield path, Leaf(type(content).__name__, value="empty")
    elif isinstance(content, (list, dict)):
        items: Iterable[tuple[Any, Any]]
        items = enumerate(content) if isinstance(content, list) else content.items()
        if together and len(content) > bounds.NULLS:
            items = _with_nulls_together(items)
        for key, item in items:
            at = child_path(path, key)
            if isinstance(item, Leaf):
                yield at, item
            else:
                yield from leaves(item, at, depth + 1, empty=empty, together=together)
    else:
        raise UnreadError.saying("unread.description", shown=_shown(content))


def _with_nulls_together(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield the elements of a structure; nulls that follow each other, if many, as one leaf."""
    for null, found in itertools.groupby(items, key=lambda item: item[1] is None):
        members = [*found]
        keys = [key for key, _ in members]
        if null and len(keys) > bounds.NULLS:
            # Of a list, first and last say which they are.
            names = "" if isinstance(keys[0], int) else "\n".join(keys)
            digest = hashlib.sha1(names.encode("utf-8", errors="surrogatepass")).hexdigest()
            value = f"{len(keys)} times None" + (f", {digest[:16]}" if names else "")
            yield f"{keys[0]}-{keys[-1]}", Leaf("NoneType", value=value)
        else:
            yield from members


def count_leaves(content: Any) -> int:
    """Return how many values a JSON structure describes."""
    count = 0
    inside = [content]
    while inside:
        content = inside.pop()
        if type(content) is dict:
            if type(content.get("type")) is str:
                count += 1
                continue
            content = content.values()
        elif type(content) is not list:
            continue
        for item in content:
            if type(item) is dict or type(item) is list:
                inside.append(item)
    return count


#: What is at each place of an axis, beside a number: the dimension that is cut. As in layout.yaml.
COPY, SUM, MEAN = "copy", "partial", "mean"
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ShardAxis:
    """An axis of the device mesh.

    Attributes:
        size: how many places it has.
        place: that of the rank; None where it is not known.
        how: the dimension that is cut over it, COPY, SUM, MEAN, or another placement's own name.
    """

    size: int
    place: int | None
    how: int | str


@dataclass(frozen=True, slots=True)
class Shard:
    """The part that a rank holds.

    Attributes:
        shape: of the whole tensor.
        axes: by their names, the outermost first.
    """

    shape: tuple[int, ...]
    axes: Mapping[str, ShardAxis]

    @property
    def ranks(self) -> int:
        """Over how many ranks the tensor is spread."""
        return math.prod(axis.size for axis in self.axes.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as a leaf's JSON holds it."""
        axes = {
            name: {"size": axis.size, "place": axis.place, "how": axis.how}
            for name, axis in self.axes.items()
        }
        return {"shape": list(self.shape), "axes": axes}

    @classmethod
    def from_json(cls, content: Any) -> Shard | None:
        """Read it; None where the content is none."""
        shape = content.get("shape") if isinstance(content, dict) else None
        axes = content.get("axes") if isinstance(content, dict) else None
        if not (
            isinstance(shape, list)
            and len(shape) <= bounds.DIMENSIONS
            and all(_is_number(size, bounds.SIZE) for size in shape)
            and isinstance(axes, dict)
            and len(axes) <= 16
            and all(len(name) <= _LONGEST_NAME and _is_axis(axis) for name, axis in axes.items())
        ):
            return None
        found = {
            name: ShardAxis(axis["size"], axis.get("place"), axis["how"])
            for name, axis in axes.items()
        }
        return cls(tuple(shape), found)


def _is_axis(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    size, place, how = (content.get(name) for name in ("size", "place", "how"))
    dimension = _is_number(how, bounds.DIMENSIONS - 1)
    named = isinstance(how, str) and len(how) <= _LONGEST_NAME
    at = place is None or _is_number(place, bounds.SIZE)
    return _is_number(size, bounds.SIZE) and at and (dimension or named)


def _is_number(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
