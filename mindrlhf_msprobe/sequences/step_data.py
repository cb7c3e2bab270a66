"""The key data of one step and rank, which saves of them are of the same rows, and the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run

_CLIP = (
    *("clip_range", "cliprange", "clip_eps", "clip_epsilon", "eps_clip", "clip_ratio"),
    *("epsilon_clip", "epsilon"),
)
_CLIP_LOW = ("epsilon_low", "clip_ratio_low", "eps_clip_low")
_CLIP_HIGH = ("epsilon_high", "clip_ratio_high", "eps_clip_high")
#: Names of the id of padding, and of those that end a response, the usual ones first.
PAD = (("pad_token_id", "pad_id"), ("pad_token", "pad_idx", "padding_idx"), ("pad",))
EOS = (("eos_token_id", "eos_id"), ("eos_token", "end_token_id", "stop_token_ids"), ("eos",))
#: Sections whose special tokens count where several sections name different ones.
_SECTIONS = ("tokenizer", "generat", "sampling", "rollout")

#: The keys from the outermost section to a setting, and its value.
_Setting = tuple[tuple[str, ...], Any]


@dataclass(frozen=True)
class Settings:
    """What a batch of sequences needs to know of the trainer's settings.

    Attributes:
        clip_range: ε_low and ε_high of the clipped objective; None where it is not known.
        pad: the id that fills sequences up; None where it is not known.
        eos: the ids that end a response; empty where they are not known.
    """

    clip_range: tuple[float, float] | None = None
    pad: int | None = None
    eos: frozenset[int] = frozenset()

    @classmethod
    def read(cls, run: Run) -> Settings:
        """Return what a run recorded: the settings of `generate`, then configurations.json."""
        return cls.of(run.configurations(), generation_of(run))

    @classmethod
    def of(cls, configurations: Any, generation: Any = None) -> Settings:
        """Return what configurations say; of special tokens, the settings of `generate` first.

        Of several values of one setting those in a section of the tokenizer or the generation
        count; where these differ, none does.
        """
        found = [*_settings(configurations)]
        clips: list[float | None] = []
        for names in (_CLIP, _CLIP_LOW, _CLIP_HIGH):
            values = (value for path, value in found if path[-1] in names)
            # An optimizer's `epsilon` is smaller.
            known = {value for value in values if type(value) is float and 0.01 <= value < 10}
            clips.append(known.pop() if len(known) == 1 else None)
        usual, low, high = clips
        low, high = (usual if low is None else low), (usual if high is None else high)
        clip_range = None if low is None or high is None else (low, high)
        given = [*_settings(generation)]
        pad = _special(given, PAD) or _special(found, PAD)
        eos = _special(given, EOS) or _special(found, EOS)
        return cls(clip_range, min(pad) if len(pad) == 1 else None, eos)


def generation_of(run: Run) -> Mapping[str, Any]:
    """Return the settings that `generate` was first given, as far as the run recorded them."""
    for file in run.run_files:
        known: Any = file.json.get("generation")
        found = known.get(phases.GENERATE) if isinstance(known, dict) else None
        settings = found.get("settings") if isinstance(found, dict) else None
        if isinstance(settings, dict):
            return settings
    return {}


def configured(run: Run, *names: str) -> list[Any]:
    """Return the values of these keys anywhere in the trainer's recorded configurations."""
    return [value for path, value in _settings(run.configurations()) if path[-1] in names]


def token_ids_of(value: Any) -> frozenset[int]:
    """Return the token ids that a setting holds, one or a list; empty where it holds none."""
    held = value if isinstance(value, (list, tuple)) else [value]
    if not all(type(one) is int and one >= 0 for one in held):
        return frozenset()
    return frozenset(held)


def _special(settings: Sequence[_Setting], names: Sequence[Collection[str]]) -> frozenset[int]:
    """Return the token ids of the first of these names that has one value; else none."""
    for of in names:
        found = [(p, ids) for p, v in settings if p[-1] in of and (ids := _ids_of(p, v, settings))]
        decisive = [one for one in found if any(s in key for key in one[0] for s in _SECTIONS)]
        for candidates in (found, decisive):
            values = {ids for _, ids in candidates}
            if len(values) == 1:
                return values.pop()
    return frozenset()


def _ids_of(path: tuple[str, ...], value: Any, settings: Sequence[_Setting]) -> frozenset[int]:
    """Return the token ids of a setting; a token's text is looked up in its own section."""
    if not isinstance(value, str):
        return token_ids_of(value)
    decoder = (*path[:-1], "added_tokens_decoder")
    ids = (
        at[-2]
        for at, content in settings
        if at[: len(decoder)] == decoder and at[-1] == "content" and content == value
    )
    return frozenset(int(text) for text in ids if text.isdigit())


def _settings(content: Any) -> Iterator[_Setting]:
    """Yield each setting below a configuration, with its keys in lower case."""
    waiting: list[_Setting] = [((), content)]
    seen = 0
    while waiting and seen < 100_000:  # values of configurations.json that are looked at
        path, item = waiting.pop()
        seen += 1
        if isinstance(item, dict):
            inside = [((*path, str(name).lower()), value) for name, value in item.items()]
            yield from inside
            waiting += inside
        elif isinstance(item, list):
            waiting += [(path, one) for one in item if isinstance(one, (dict, list))]


#: What is saved of an update: rows are those of its own micro-batch.
OF_UPDATES = frozenset((*phases.LOG_PROB, "ratio", "kl", "kl_loss", "entropy"))
#: The keys that say which tokens of a step are real.
KEYS_READ = frozenset(
    (
        *(
            *phases.PROMPTS,
            *phases.RESPONSES,
            *phases.MASK,
            *phases.ATTENTION_MASK,
            *phases.LENGTHS,
            *PAD[0],
            phases.LOSS_INPUTS,
        ),
        *(*phases.ROLLOUT_TOKENS, *phases.ROLLOUT_PROMPTS, *phases.OLD_TOKENS),
    )
)


class Unavailable(SpokenError):
    """A quantity cannot be derived in a step; the message says why."""


class StepData:
    """The key data of one step and rank, read when they are wanted.

    Args:
        keys: the names of what was saved.
        read: returns the saves of a key, by micro-step.
        settings: the trainer's.
    """

    def __init__(
        self, keys: Collection[str], read: Callable[[str], Sequence[KeyDatum]], settings: Settings
    ) -> None:
        self.keys, self.settings = keys, settings
        self._read = read
        self._saves: dict[str, Sequence[KeyDatum]] = {}

    @classmethod
    def at(cls, run: Run, step: int, rank: int) -> StepData:
        """Return the key data of one step and rank of a run."""
        keys = run.keys_at(StepPlace(step, rank))
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
        for datum in self.saved((phases.LOSS_INPUTS,)):
            if datum.micro_step == micro_step:
                return first_of(arrays_of(datum, names), names)
        return None

    def in_shape_of(
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
        own = next(
            (group for group in (phases.OLD_LOG_PROB, phases.REF_LOG_PROB) if datum.key in group),
            (),
        )
        of_loss = self.given_to_loss(own, datum.micro_step) if own else None
        is_given = of_loss is not None and np.array_equal(of_loss, array, equal_nan=True)
        if datum.key in OF_UPDATES or is_given:
            given = self.given_to_loss(names, datum.micro_step)
            if given is not None and given.shape == array.shape:
                return given
        return self.in_shape_of(datum, array, of, names)


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


def first_of(held: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """Return the first of some arrays by name that there is, or None."""
    return next((held[name] for name in names if name in held), None)


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
