"""The masks that the losses of a step were given, and which rows of the batch they are of.

A loss may be given rows in any order, in parts, and behind their prompts. What stands beside a mask
says which rows it is of: ids that end with those of a response, or its old log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.phases import LOSS_INPUTS, MASK
from mindrlhf_msprobe.sequences.beginnings import run_at_end, shared_length
from mindrlhf_msprobe.sequences.step_data import StepData, arrays_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum


@dataclass(frozen=True)
class GivenMask:
    """A mask of a loss whose rows end with responses.

    Attributes:
        rows: int64 [rows], the number of the response; of several with the same ids the first.
        before: bool [rows, tokens], the part of the mask over the tokens before the responses.
        mask: bool [rows, width], of the tokens of the responses.
    """

    rows: np.ndarray
    before: np.ndarray
    mask: np.ndarray


class Rows:
    """The responses of a step, found by the ids of their rows, padding and all.

    Args:
        ids: int64 [width] each.
        pad: the id of padding where it is known.
    """

    def __init__(self, ids: Sequence[np.ndarray], pad: int | None) -> None:
        widths = {*map(len, ids)}
        self._width = widths.pop() if len(widths) == 1 else 0
        self._known: dict[bytes, int] = {}
        self._first = [self._known.setdefault(row.tobytes(), at) for at, row in enumerate(ids)]
        self._ids, self._pad = ids, pad

    def under(self, mask: np.ndarray, ids: np.ndarray) -> GivenMask | None:
        """Return a mask by the responses that its rows end with; None unless all do.

        None, too, where nothing says whether its elements are of their own or of the next token:
        most rows begin neither with the first token of the response nor with the one before it.

        Args:
            mask: bool [rows, columns].
            ids: of its tokens, [rows, columns], or one column more: then it is of the next token.
        """
        before = ids.shape[1] - self._width
        if not self._width or before < 0:
            return None
        ends = np.ascontiguousarray(ids[:, before:], np.int64)
        rows = np.array([self._known.get(row.tobytes(), -1) for row in ends], np.int64)
        if (rows < 0).any():
            return None
        shift = ids.shape[1] - mask.shape[1]
        if before and not shift:
            begins = mask.argmax(axis=1)[mask.any(axis=1)]
            of_own, of_next = (int((begins == column).sum()) for column in (before, before - 1))
            if of_own == of_next:
                return None
            shift = int(of_next > of_own)
        tokens = np.stack([shifted(row, ids.shape[1], shift) for row in mask])
        return GivenMask(rows, tokens[:, :before], tokens[:, before:])

    def masks(self, data: StepData) -> list[np.ndarray | None]:
        """Return the mask that losses were given of each response, bool [width]; None without one.

        None, too, of responses of the same ids whose masks differ, unless a loss was given all
        responses in their order.
        """
        found: dict[int, list[np.ndarray]] = {}
        for datum in data.saved((LOSS_INPUTS,)):
            masks = [*masks_given_to_loss(datum)]
            order = [*MASK, *(name for name, _, _ in masks)]  # the usual names first
            masks.sort(key=lambda one: order.index(one[0]))
            pairs = [(mask, ids) for _, mask, ids in masks if ids is not None]
            given = next((g for mask, ids in pairs if (g := self.under(mask, ids))), None)
            if given is not None and given.rows.tolist() == self._first:
                return [*given.mask]
            if given is not None:
                rows: Iterable[tuple[int, np.ndarray]] = zip(given.rows.tolist(), given.mask)
            else:
                rows = next((r for mask, ids in pairs if (r := self._inside(mask, ids))), ())
            for row, mask in rows:
                found.setdefault(row, []).append(mask)
        known = {n: m[0] for n, m in found.items() if all(np.array_equal(m[0], o) for o in m)}
        return [known.get(first) for first in self._first]

    @cached_property
    def _beginnings(self) -> dict[bytes, int]:
        """The responses by their ids, without the one that fills a row up, if one does."""
        found: dict[bytes, int] = {}
        for at in {*self._first}:
            ids = self._ids[at]
            run = run_at_end(ids, int(ids[-1])) if len(ids) else 0
            is_filled = run > 1 or (run == 1 and (ids[-1] < 0 or ids[-1] == self._pad))
            found[ids[: len(ids) - run * is_filled].tobytes()] = at
        return found

    def _inside(self, mask: np.ndarray, ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Return responses that stand in rows where the mask begins to select, and their masks."""
        best: list[tuple[int, np.ndarray]] = []
        for shift in (1,) if ids.shape[1] > mask.shape[1] else (0, 1):
            found = [
                one
                for row, of in zip(mask, np.asarray(ids, np.int64))
                for one in self._in_row(shifted(row, len(of), shift), of)
            ]
            best = found if len(found) > len(best) else best
        return best

    def _in_row(self, tokens: np.ndarray, ids: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        sizes = sorted({len(of) // ids.itemsize for of in self._beginnings} - {0}, reverse=True)
        end = 0
        for start, _ in runs_of(tokens):
            held = (self._beginnings.get(ids[start : start + size].tobytes()) for size in sizes)
            at = next((one for one in held if one is not None), None) if start >= end else None
            if at is not None:
                own = np.zeros(len(self._ids[at]), bool)
                size = shared_length(ids[start:], self._ids[at])
                own[:size] = tokens[start : start + size]
                end = start + size
                yield at, own


def shifted(mask: np.ndarray, width: int, shift: int) -> np.ndarray:
    """Return which tokens a row of a mask selects, bool [width].

    Args:
        shift: 0: an element is of the token in its column; 1: of the one behind it.
    """
    found = np.zeros(width, bool)
    part = mask[: width - shift]
    found[shift : shift + len(part)] = part
    return found


def runs_of(selects: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield where runs of True begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], selects.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist())


def masks_of_values(data: StepData, values: np.ndarray, names: Sequence[str]) -> np.ndarray | None:
    """Return which tokens count of rows that losses were given beside a mask; None if of none.

    Of rows that no loss was given nothing counts.

    Args:
        values: [rows, tokens].
        names: of them as an argument of a loss.
    """
    known: dict[bytes, np.ndarray] = {}
    for datum in data.saved((LOSS_INPUTS,)):
        held = arrays_of(datum, (*names, *MASK))
        own = next((held[name] for name in names if name in held), None)
        mask = next((held[name] for name in MASK if name in held), None)
        if own is not None and mask is not None and own.shape == mask.shape and own.ndim == 2:
            known |= {_bytes(row): of != 0 for row, of in zip(own, mask) if row.any()}
    found = [known.get(_bytes(row)) for row in values] if values.ndim == 2 else []
    if all(mask is None for mask in found):
        return None
    nothing = np.zeros(values.shape[1:], bool)
    return np.stack([nothing if mask is None else mask for mask in found])


def _bytes(row: np.ndarray) -> bytes:
    return (row.astype(np.float32) + np.float32(0)).tobytes()


def is_mask_name(name: str) -> bool:
    """Return whether an array of this name says which tokens of responses are trained."""
    words = name.lower().replace(".", "_").split("_")
    other = {"attention", "prompt", "prompts", "pad", "padding", "causal"}
    return words[-1] == "mask" and not other & {*words}


def masks_given_to_loss(
    datum: KeyDatum,
) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Yield the masks [rows, columns] that a loss was given: name, mask, and the ids of its tokens.

    The ids [rows, columns, or one more] are the widest that fit the mask; None where none do. A
    mask without a name of its own that lets all in may be one of attention: it is left out.

    Args:
        datum: a save of `loss_inputs`.
    """
    inputs = arrays_of(datum)
    for name, mask in inputs.items():
        if not is_mask_name(name) or mask.ndim != 2 or not mask.size:
            continue
        if name == "mask" and (mask != 0).all():
            continue
        yield name, mask != 0, ids_under(mask, inputs)


def ids_under(mask: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the token ids among what a loss was given: the widest that fit a mask; or None."""
    fitting = [
        array
        for name, array in inputs.items()
        if array.dtype.kind in "iu"
        and array.ndim == mask.ndim == 2
        and not {"mask", "index", "position"} & {*name.split("_")}
        and len(array) == len(mask)
        and array.shape[1] - mask.shape[1] in (0, 1)
    ]
    return max(fitting, key=lambda ids: ids.shape[1], default=None)
