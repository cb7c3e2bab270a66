"""Which rows of a step's batch an update was given, by its log-probabilities.

In the first update of a step the policy is still the old one: the log-probabilities of a row are
those of one row of the batch, and far from those of all others. What does not count is not looked
at: behind the end of a response one side may have zeros, and the other what its network made of
padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import OLD_LOG_PROB
from mindrlhf_msprobe.sequences.step_data import StepData, array_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum

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
