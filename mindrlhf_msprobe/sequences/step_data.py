"""The key data of one step and rank, and which saves of them are of the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.phases import (
    ATTENTION_MASK,
    LENGTHS,
    LOG_PROB,
    LOSS_INPUTS,
    MASK,
    OLD_LOG_PROB,
    OLD_TOKENS,
    PROMPTS,
    REF_LOG_PROB,
    RESPONSES,
    ROLLOUT_PROMPTS,
    ROLLOUT_TOKENS,
)
from mindrlhf_msprobe.sequences.settings import PAD, Settings, token_ids_of
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run

#: What is saved of an update: rows are those of its own micro-batch.
OF_UPDATES = frozenset((*LOG_PROB, "ratio", "kl", "kl_loss", "entropy"))
#: The keys that say which tokens of a step are real.
KEYS_READ = frozenset(
    (
        *(*PROMPTS, *RESPONSES, *MASK, *ATTENTION_MASK, *LENGTHS, *PAD[0], LOSS_INPUTS),
        *(*ROLLOUT_TOKENS, *ROLLOUT_PROMPTS, *OLD_TOKENS),
    )
)


class Unavailable(SpokenError):
    """A quantity cannot be derived in a step; the message says why."""


class StepData:
    """The key data of one step and rank, read as they are asked for.

    Args:
        keys: the names of what was saved.
        read: returns the saves of a key, by micro-step.
        settings: the trainer's.
    """

    def __init__(
        self,
        keys: Collection[str],
        read: Callable[[str], Sequence[KeyDatum]],
        settings: Settings,
    ) -> None:
        self.keys, self.settings = keys, settings
        self._read = read
        self._saves: dict[str, Sequence[KeyDatum]] = {}

    @classmethod
    def of(cls, saves: Mapping[str, Sequence[KeyDatum]], settings: Settings) -> StepData:
        """Return key data that were read: key → its saves, by micro-step."""
        return cls(saves, saves.__getitem__, settings)

    @classmethod
    def at(cls, run: Run, step: int, rank: int) -> StepData:
        """Return the key data of one step and rank of a run."""
        keys = run.keys_at(step, rank)
        return cls(keys, lambda key: run.key_data(key, step, rank), Settings.read(run))

    def saved(self, names: Sequence[str]) -> Sequence[KeyDatum]:
        """Return the saves of the first of these keys that there is, or nothing."""
        for name in names:
            if name in self.keys and name not in self._saves:
                self._saves[name] = self._read(name)
            if found := self._saves.get(name):
                return found
        return ()

    @property
    def pad(self) -> int | None:
        """The id of padding, as it was saved with the step or is configured; None if neither."""
        for datum in self.saved(PAD[0]):
            with contextlib.suppress(ArrayFileError, ValueError, TypeError):
                if len(ids := token_ids_of(np.asarray(datum.value).reshape(-1).tolist())) == 1:
                    return min(ids)
        return self.settings.pad

    def given_to_loss(self, names: Sequence[str], micro_step: int) -> np.ndarray | None:
        """Return what the loss of an update was given under one of these names, or None."""
        for datum in self.saved((LOSS_INPUTS,)):
            if datum.micro_step == micro_step:
                held = arrays_of(datum, names)
                return next((held[name] for name in names if name in held), None)
        return None

    def alike(
        self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum], names: Sequence[str]
    ) -> np.ndarray | None:
        """Return what was saved under one of `names` as often as `of`, in a save's shape, or None.

        Raises:
            Unavailable: it cannot be read.
        """
        others = self.saved(names)
        if len(others) != len(of):
            return None
        found = next((one for one in others if one.micro_step == datum.micro_step), None)
        other = None if found is None else array_of(found)
        return other if other is not None and other.shape == array.shape else None

    def beside(
        self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum], names: Sequence[str]
    ) -> np.ndarray | None:
        """Return what belongs to the same rows as one save, under one of `names`; None if unknown.

        It does where the loss of the same update was given it, or a loss was given the save itself
        beside it; or where as many saves of the same shapes were made of both.

        Raises:
            Unavailable: it cannot be read.
        """
        own = next((group for group in (OLD_LOG_PROB, REF_LOG_PROB) if datum.key in group), ())
        of_loss = self.given_to_loss(own, datum.micro_step) if own else None
        is_given = of_loss is not None and np.array_equal(of_loss, array, equal_nan=True)
        if datum.key in OF_UPDATES or is_given:
            given = self.given_to_loss(names, datum.micro_step)
            if given is not None and given.shape == array.shape:
                return given
        return self.alike(datum, array, of, names)


def array_of(datum: KeyDatum) -> np.ndarray:
    """Return the one tensor of a save.

    Raises:
        Unavailable: it holds none, several, or one that cannot be read.
    """
    if len(datum.records) != 1 or not datum.records[0].leaf.is_tensor:
        raise Unavailable(message("trend.no_one_tensor", key=datum.key))
    try:
        return datum.records[0].array()
    except ArrayFileError as error:
        why = message("error.unread", path=datum.key, why=error.said)
        raise Unavailable(why) from None


def arrays_of(datum: KeyDatum, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a dictionary that was saved, by name; those that can be read.

    Args:
        names: of these only; None: all.
    """
    found: dict[str, np.ndarray] = {}
    for record in datum.records:
        if record.leaf.is_tensor and record.path and (names is None or record.path in names):
            with contextlib.suppress(ArrayFileError):
                found[record.path] = record.array()
    return found


def rows_of(datum: KeyDatum, kinds: str = "iu") -> list[np.ndarray] | None:
    """Return the rows of a save, a sample each, [tokens]; None where it holds something else.

    A table has a row a sample, a list an array a sample; one array of one dimension is one sample.

    Args:
        kinds: which kinds of dtypes count, as numpy's `dtype.kind`.
    """
    try:
        value = datum.value
    except (ArrayFileError, OSError, ValueError, KeyError, TypeError):
        return None
    if isinstance(value, np.ndarray):
        value = [value] if value.ndim == 1 else [*value] if value.ndim == 2 else []
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if all(type(one) in (int, bool, float) for one in value):
        value = [value]
    if not all(isinstance(one, (np.ndarray, list, tuple)) for one in value):
        return None
    try:
        rows = [np.asarray(one) for one in value]
    except ValueError:  # lists in lists of other lengths
        return None
    fits = all(row.ndim == 1 and (row.dtype.kind in kinds or not row.size) for row in rows)
    return rows if fits else None
