"""The masks that the losses of a step were given, and which rows of the batch updates are of.

A loss may be given rows in any order, in parts, and behind their prompts. What stands beside a mask
says which rows it is of: ids that end with those of a response, or its old log-probabilities.

In the first update of a step the policy is still the old one: the log-probabilities of a row are
those of one row of the batch, and far from those of all others. What does not count is not looked
at: behind the end of a response one side may have zeros, and the other what its network made of
padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import LOSS_INPUTS, MASK, OLD_LOG_PROB
from mindrlhf_msprobe.sequences.beginnings import run_at_end, shared_length
from mindrlhf_msprobe.sequences.step_data import StepData, array_of, arrays_of, first_of
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
        known = self._beginnings
        width = np.dtype(np.int64).itemsize
        sizes = sorted({len(of) // width for of in known} - {0}, reverse=True)
        for shift in (1,) if ids.shape[1] > mask.shape[1] else (0, 1):
            found: list[tuple[int, np.ndarray]] = []
            for row, of in zip(mask, np.asarray(ids, np.int64)):
                tokens, end = shifted(row, len(of), shift), 0
                for start, _ in runs_of(tokens):
                    if start < end:
                        continue
                    held = (known.get(of[start : start + size].tobytes()) for size in sizes)
                    at = next((one for one in held if one is not None), None)
                    if at is not None:
                        own = np.zeros(len(self._ids[at]), bool)
                        size = shared_length(of[start:], self._ids[at])
                        own[:size] = tokens[start : start + size]
                        end = start + size
                        found.append((at, own))
            best = found if len(found) > len(best) else best
        return best


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
    """Return which tokens count of rows that losses were given beside a mask; None without any.

    Of rows that no loss was given nothing counts.

    Args:
        values: [rows, tokens].
        names: of them as an argument of a loss.
    """
    known: dict[bytes, np.ndarray] = {}
    for datum in data.saved((LOSS_INPUTS,)):
        held = arrays_of(datum, (*names, *MASK))
        own, mask = first_of(held, names), first_of(held, MASK)
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


def masks_given_to_loss(datum: KeyDatum) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
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


_MOST_DISTANCES = 50_000_000  # differences of elements, for finding rows by their values
_NEARER = 0.01


@dataclass(frozen=True)
class Counted:
    """Which elements of a save by token count.

    Attributes:
        mask: bool, in the shape of the save.
        notes: what it rests on, where that is no mask.
    """

    mask: np.ndarray
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The log-probabilities of one save, and others of the same tokens.

    Attributes:
        own, other: by token, of one shape.
        rows: which rows of the other saves they are, where they were found by their values.
        counted: which tokens of these count; None where nothing says it, or rows are not known.
    """

    own: np.ndarray
    other: np.ndarray
    rows: Sequence[int] | None = None
    counted: Counted | None = None


def before_zeros(values: np.ndarray) -> np.ndarray:
    """Return which elements stand before the zeros that rows end with, bool in their shape."""
    behind = np.logical_and.accumulate((values == 0)[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(~behind)


class OldRows:
    """The old log-probabilities of a step, whose rows those of updates are.

    Args:
        data: of the step.
        counted: of each save of them which tokens count.
    """

    def __init__(self, data: StepData, counted: Sequence[Counted | None]) -> None:
        self._data, self._counted = data, counted

    def of(self, datum: KeyDatum, of: Sequence[KeyDatum]) -> Pair | None:
        """Return a save with the old log-probabilities of its rows; None where these are not known.

        They were given to its own loss, saved as often in its shape, or are found by their values.

        Args:
            of: all saves of its key.

        Raises:
            Unavailable: one cannot be read.
        """
        array = array_of(datum)
        given = self._data.given_to_loss(OLD_LOG_PROB, datum.micro_step)
        if given is not None and given.shape == array.shape:
            return Pair(array, given)
        beside = self._data.beside(datum, array, of, OLD_LOG_PROB)
        found = self._whole(None if beside is None else datum.micro_step)
        rows = None if found is None else self._rows(array, array_of(of[0]), found)
        if found is None or rows is None:
            return None if beside is None else Pair(array, beside)
        whole, counted = found
        if counted is None and not (mask := before_zeros(whole)).all():
            counted = Counted(mask, (message("trend.mask_of_rollout"),))
        own = counted and Counted(counted.mask[rows], counted.notes)
        in_order = beside is not None and rows == [*range(len(array))]
        return Pair(array, whole[rows], None if in_order else rows, own)

    def _whole(self, micro_step: int | None = None) -> tuple[np.ndarray, Counted | None] | None:
        """Return the log-probabilities of one save, or of all, and which tokens count.

        None where they are no tables of one width.
        """
        saves = zip(self._data.saved(OLD_LOG_PROB), self._counted)
        chosen = [one for one in saves if micro_step in (None, one[0].micro_step)]
        arrays = [array_of(datum) for datum, _ in chosen]
        if {a.ndim for a in arrays} != {2} or len({a.shape[1] for a in arrays}) > 1:
            return None
        counted = [one for _, one in chosen if one is not None]
        if len(counted) < len(chosen):
            return np.concatenate(arrays), None
        notes = dict.fromkeys(note for one in counted for note in one.notes)
        mask = np.concatenate([one.mask for one in counted])
        return np.concatenate(arrays), Counted(mask, (*notes,))

    def _rows(
        self, array: np.ndarray, first: np.ndarray, found: tuple[np.ndarray, Counted | None]
    ) -> list[int] | None:
        """Return which rows of a batch those of a save are, found by their values; None: unknown.

        An update of the whole batch has the batch's order if the first of the step has, or if each
        row is nearest to that of its own number.
        """
        distances = _distances(array, *found)
        if distances is None:
            return None
        own = [*range(len(array))]
        rows = _nearest(distances, found[0])
        if rows is None and array.shape == found[0].shape == first.shape:
            of_first = _distances(first, *found)
            in_order = of_first is not None and _nearest(of_first, found[0]) == own
            if in_order or distances.argmin(axis=1).tolist() == own:
                return own
        return rows

    def distance(self, array: np.ndarray, allowed: float) -> float | None:
        """Return how far rows are in the mean from those that most of them are; None: not known.

        Of the rows that are no rows of the batch as many are left out as have no token that counts.

        Args:
            array: log-probabilities [rows, tokens].
            allowed: how far a row may be from the one that it is, in nats.
        """
        found = self._whole()
        if found is None or found[1] is None or not np.isfinite(array).all():
            return None
        distances = _distances(array, *found)
        if distances is None:
            return None
        empty = int((~found[1].mask.any(axis=1)).sum())
        off = np.sort(distances.min(axis=1))[: len(array) - empty or None]
        off = off[np.isfinite(off)]
        return float(off.mean()) if 2 * (off <= allowed).sum() > len(off) else None


def _distances(array: np.ndarray, whole: np.ndarray, counted: Counted | None) -> np.ndarray | None:
    """Return the mean distance of each row from each row of a batch over its tokens that count.

    Infinite from rows without any; None where they are not to be compared, or are too many.

    Returns:
        float64 [rows, rows of the batch].
    """
    if array.ndim != 2 or array.shape[1:] != whole.shape[1:] or len(array) > len(whole):
        return None
    if array.size * len(whole) > _MOST_DISTANCES or not array.size:
        return None
    rows, others = (of.astype(np.float64) for of in (array, whole))
    counts = before_zeros(others) if counted is None else counted.mask
    if not (np.isfinite(rows).all() and np.isfinite(others).all()):
        return None
    sizes = counts.sum(axis=1)
    found = [(np.abs(others - row) * counts).sum(axis=1) for row in rows]
    return np.where(sizes > 0, np.stack(found) / np.maximum(sizes, 1), np.inf)


def _nearest(distances: np.ndarray, whole: np.ndarray) -> list[int] | None:
    """Return the row of a batch that each is; None unless each is far nearer to it than to others.

    Of equal rows each is another one, and so is each of the rows without a token that counts.
    """
    empty = np.flatnonzero(np.isinf(distances).all(axis=0)).tolist()
    taken: list[int] = []
    for distance in distances:
        nearest = int(distance.argmin())
        equal = (whole == whole[nearest]).all(axis=1)
        far = distance[nearest] > _NEARER * distance[~equal].min(initial=np.inf)
        same = empty if far or np.isinf(distance[nearest]) else np.flatnonzero(equal).tolist()
        free = [number for number in same if number not in taken]
        if not free:
            return None
        taken.append(free[0])
    return taken
