"""What a run says of its trainer's settings: padding, ends of responses, the clip range."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.phases import GENERATE
from mindrlhf_msprobe.storage.reading.reader import Run

_CLIP = frozenset(
    {
        *("clip_range", "cliprange", "clip_eps", "clip_epsilon", "eps_clip", "clip_ratio"),
        *("epsilon_clip", "epsilon"),
    }
)
_CLIP_LOW = frozenset({"epsilon_low", "clip_ratio_low", "eps_clip_low"})
_CLIP_HIGH = frozenset({"epsilon_high", "clip_ratio_high", "eps_clip_high"})
#: Names of the id of padding, and of those that end a response, the usual ones first.
PAD = (("pad_token_id", "pad_id"), ("pad_token", "pad_idx", "padding_idx"), ("pad",))
EOS = (("eos_token_id", "eos_id"), ("eos_token", "end_token_id", "stop_token_ids"), ("eos",))
#: Sections whose special tokens count where several sections name different ones.
_SECTIONS = ("tokenizer", "generat", "sampling", "rollout")
_MOST_SETTINGS = 100_000  # values of configurations.json that are looked at

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
        usual, low, high = (_clip_of(found, names) for names in (_CLIP, _CLIP_LOW, _CLIP_HIGH))
        low, high = (usual if low is None else low), (usual if high is None else high)
        clip_range = None if low is None or high is None else (low, high)
        given = [*_settings(generation)]
        pad = _special(given, PAD) or _special(found, PAD)
        eos = _special(given, EOS) or _special(found, EOS)
        return cls(clip_range, min(pad) if len(pad) == 1 else None, eos)


def generation_of(run: Run) -> Mapping[str, Any]:
    """Return the settings that `generate` was first given, as far as the run recorded them."""
    for file in run.run_files:
        phases: Any = file.json.get("generation")
        found = phases.get(GENERATE) if isinstance(phases, dict) else None
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


def _clip_of(settings: Sequence[_Setting], names: Collection[str]) -> float | None:
    """Return the one clip range that settings of these names have; None if there is not one.

    An optimizer's `epsilon` is smaller.
    """
    values = (value for path, value in settings if path[-1] in names)
    found = {value for value in values if type(value) is float and 0.01 <= value < 10}
    return found.pop() if len(found) == 1 else None


def _settings(content: Any) -> Iterator[_Setting]:
    """Yield each setting below a configuration, with its keys in lower case."""
    waiting: list[_Setting] = [((), content)]
    seen = 0
    while waiting and seen < _MOST_SETTINGS:
        path, item = waiting.pop()
        seen += 1
        if isinstance(item, dict):
            inside = [((*path, str(name).lower()), value) for name, value in item.items()]
            yield from inside
            waiting += inside
        elif isinstance(item, list):
            waiting += [(path, one) for one in item if isinstance(one, (dict, list))]
