"""What a network was given beside its token ids: positions, lengths, masks, blocks of a cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry, Record

_MOST_IDS = 1 << 26  # elements of an input that is read whole


@dataclass(frozen=True)
class CallInputs:
    """The integer inputs of one call of an outermost cell, each as it was given.

    Attributes:
        ids: token ids, int64 [batch, width]; one dimension becomes [1, tokens].
        flat: whether the ids had one dimension.
        positions: position ids in the shape of ids, or None.
        counts: int64 [samples], tokens of each sample in this call, or None.
        lengths: int64 [samples], or None: tokens of each sample, with or without those of earlier
            calls.
        ends: int64 [samples], where each sample of a packed batch ends, or None.
        mask: bool [batch, any width], true where there is a token, or None.
        blocks: int64 [samples, any], the blocks of each sample in a paged cache, or None.
        slots: int64 [tokens], where each token is written to in a paged cache, -1 for padding; or
            None.
        parents: int64 [batch], which row of the call before each row goes on with, or None.
        square: a mask [batch or 1, any, width, width] or of fewer dimensions, as recorded, or None.
        ahead: int64 [batch, calls], the token ids of this call and of those right behind it that
            have one token of each sample, too; or None.
    """

    ids: np.ndarray
    flat: bool = False
    positions: np.ndarray | None = None
    counts: np.ndarray | None = None
    lengths: np.ndarray | None = None
    ends: np.ndarray | None = None
    mask: np.ndarray | None = None
    blocks: np.ndarray | None = None
    slots: np.ndarray | None = None
    parents: np.ndarray | None = None
    square: Record | None = None
    ahead: np.ndarray | None = None

    @cached_property
    def sees(self) -> np.ndarray | None:
        """Which columns each token sees, bool [batch or 1, width, width], by a square mask.

        What the last token but one has in the last column, a later token's, hides. None where there
        is no such mask, its elements were not stored, or it hides nothing.
        """
        values = None if self.square is None else _if_stored(self.square)
        if values is None:
            return None
        width = self.ids.shape[1]
        batch = values.shape[0] if values.ndim > 2 else 1
        values = values.reshape(batch, -1, width, width)[:, 0]
        hidden = values[0, -2, -1]
        sees: np.ndarray = values > hidden / 2 if hidden < 0 else values != hidden
        inside = sees[:, np.arange(width), np.arange(width)]
        return sees if inside.any() and not sees.all() else None


def token_ids(entry: Entry) -> Record | None:
    """Return the record of a call's token ids: its first integer input [batch, sequence].

    A network that is given one row of tokens for all samples (vLLM) has them in its first integer
    input of one dimension, whose name says what it is.
    """
    integers = [r for r in entry.records if r.io == "input" and r.leaf.is_integer]
    tables = [r for r in integers if len(r.leaf.shape or ()) == 2 and _kind(r) is None]
    rows = [r for r in integers if len(r.leaf.shape or ()) == 1]
    named = [r for r in rows if _name(r).endswith(("ids", "tokens"))]
    return next(iter([*tables, *named]), None)


class Starts:
    """Says which outermost entries begin a call, and with what; called in the order of time.

    Args:
        given: what the trainer said by `phase.tokens`, each with its place in time; where it said
            nothing, an entry that is given token ids begins a call.
    """

    def __init__(self, given: Sequence[tuple[int, CallInputs]] = ()) -> None:
        self._given = sorted(given, key=lambda item: item[0])
        self._is_told = bool(given)
        self._next = 0

    def at(self, entry: Entry) -> CallInputs | Record | None:
        """Return what a call is given that begins with this entry; None: it begins none."""
        if not self._is_told:
            return token_ids(entry)
        found = None
        while self._next < len(self._given) and self._given[self._next][0] < entry.seq:
            found = self._given[self._next][1]
            self._next += 1
        return found


def given_by_trainer(saves: Iterable[KeyDatum], phase: str) -> list[tuple[int, CallInputs]]:
    """Return what `phase.tokens` saved of a phase, with its places in time.

    Args:
        saves: of the key `phase_tokens`, in one step of one rank.

    Raises:
        ArrayFileError: one cannot be read.
    """
    found = []
    for datum in saves:
        value = datum.value
        if not isinstance(value, dict) or value.get("phase") != phase or datum.seq is None:
            continue
        arrays = {
            name: np.asarray(value[name]).astype(np.int64)
            for name in ("ids", "lengths", "positions")
            if value.get(name) is not None
        }
        ids = arrays.pop("ids")
        flat = ids.ndim == 1
        ids = ids.reshape(1, -1) if flat else ids
        if "positions" in arrays:
            arrays["positions"] = arrays["positions"].reshape(ids.shape)
        lengths, positions = arrays.get("lengths"), arrays.get("positions")
        found.append((datum.seq, CallInputs(ids, flat, lengths=lengths, positions=positions)))
    return found


def prints_of_ids(entry: Entry, ids: CallInputs | Record) -> set[int]:
    """Return what tells the tensors from others that a call's tokens are read from: ids, positions.

    Args:
        ids: what `Starts.at` returned.
    """
    found = [r for r in entry.records if r.io == "input" and _kind(r) == "positions"]
    found += [ids] if isinstance(ids, Record) else []
    prints = (record.leaf.fingerprint for record in found)
    return {hash(one) for one in prints if one is not None}


def read_inputs(entry: Entry, ids: Record) -> CallInputs:
    """Read what a call was given.

    Args:
        ids: what `token_ids` returned.

    Raises:
        ArrayFileError: the token ids were not stored, or cannot be read.
    """
    tokens = _array(ids).astype(np.int64)
    flat = tokens.ndim == 1
    tokens = tokens.reshape(1, -1) if flat else tokens
    found: dict[str, np.ndarray] = {}
    square: Record | None = None
    for record in entry.records:
        shape = record.leaf.shape or ()
        is_mask = record.io == "input" and any(word in _name(record) for word in _KINDS["mask"][0])
        if is_mask and _is_square(shape, tokens.shape):
            square = square or record
            continue
        if record is ids or record.io != "input" or not record.leaf.is_discrete or not shape:
            continue
        kind = _kind(record)
        if kind is None or kind in found or (kind == "mask" and flat):
            continue
        value = _if_stored(record)
        fitted = None if value is None else _KINDS[kind][1](value.astype(np.int64), tokens.shape)
        if fitted is not None:
            hides = kind == "mask" and any(word in _name(record) for word in _PADDING)
            found[kind] = ~fitted if hides else fitted
    return replace(CallInputs(tokens, flat, square=square), **found)  # type: ignore[arg-type]


def _is_square(shape: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    """Return whether a shape is that of a mask of each token and column, of each sample or all."""
    batch, width = ids[0], ids[-1]
    leading = shape[0] if len(shape) > 2 else 1
    return (
        2 <= len(shape) <= 4
        and shape[-2:] == (width, width)
        and leading in (1, batch)
        and (width > 1 and (len(shape) > 2 or batch != width))
    )


def _mask(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    fits = value.ndim == 2 and len(value) == shape[0] and value.shape[1] >= shape[1]
    return value != 0 if fits else None


def _blocks(value: np.ndarray, _: tuple[int, ...]) -> np.ndarray | None:
    return value if value.ndim == 2 and value.shape[1] else None


def _slots(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    return value.reshape(-1) if value.size == math.prod(shape) else None


def _parents(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    fits = value.size == shape[0] and shape[1] == 1 and (value >= 0).all()
    return value.reshape(-1) if fits else None


def _sizes(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a number for each sample; of one row of tokens there may be any samples."""
    fits = value.size == shape[0] or (shape[0] == 1 and value.size >= 1)
    return value.reshape(-1) if fits else None


def _positions(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return positions in the shape of the ids; those of one row are those of all samples."""
    if value.size == math.prod(shape):
        return value.reshape(shape)
    return np.broadcast_to(value.reshape(1, -1), shape) if value.size == shape[1] else None


def _ends(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return where the samples of a packed row end, from lengths that are added up; None of others.

    Some begin with 0, the start of the first sample.
    """
    batch, width = shape
    if batch != 1:
        return None
    value = value.reshape(-1)
    ends = value[1:] if value.size > 1 and value[0] == 0 else value
    if not ends.size or ends[0] <= 0 or ends[-1] > width:
        return None
    return ends if bool(np.all(np.diff(ends) > 0)) else None


#: Field of `CallInputs` → parts of an argument's name that say it, of several the first that fits;
#: and what makes the field of an input and the shape of the ids, None where it is something else.
_KINDS = {
    "blocks": (("block_table",), _blocks),
    "slots": (("slot_mapping",), _slots),
    "parents": (("beam_idx", "beam_index", "reorder"), _parents),
    "ends": (("cu_seq", "actual_seq", "actual_qlen"), _ends),
    "counts": (("q_seq", "query_len", "q_len"), _sizes),
    "lengths": (("valid_length", "seq_len", "seqlen", "lengths", "length"), _sizes),
    "mask": (("mask",), _mask),
    "positions": (("position",), _positions),
}
_PADDING = ("padding_mask", "pad_mask")  # true where there is no token


def _kind(record: Record) -> str | None:
    """Return the field of `CallInputs` that an input is by its name; None if it is none."""
    name = _name(record)
    kinds = (kind for kind, (words, _) in _KINDS.items() if any(word in name for word in words))
    return next(kinds, None)


def _name(record: Record) -> str:
    return (record.argument or record.path.rpartition(".")[2]).lower()


def _if_stored(record: Record) -> np.ndarray | None:
    try:
        return _array(record)
    except ArrayFileError:
        return None


def _array(record: Record) -> np.ndarray:
    size = int(np.prod(record.leaf.shape or (0,)))
    if size > min(_MOST_IDS, bounds.SIZE):
        raise ArrayFileError.saying("tokens.too_many", count=size, most=_MOST_IDS)
    return np.asarray(record.array())
