"""Prompts and responses of one place, row by row, with log-probabilities and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.phases import PROMPTS
from mindrlhf_msprobe.report.page.heat import Place
from mindrlhf_msprobe.report.page.words import known
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.reader import Run

RESPONSES = ("responses", "response")
_LOG_PROBS = ("rollout_log_prob", "old_log_prob", "log_prob")
_REWARDS = ("rewards", "reward", "scores")
_MOST_ROWS = 200  # of a place
_MOST_TOKENS = 4096  # of a row
_MOST_TEXT = 20_000  # characters of a row

#: Token ids → the text they stand for.
Decode = Callable[[Sequence[int]], str]


def has_texts(run: Run, place: Place) -> bool:
    """Return whether prompts or responses were saved in a place."""
    return not {*PROMPTS, *RESPONSES}.isdisjoint(run.keys_at(*place))


def samples_of(
    runs: Sequence[Run], place: Place, decode: Decode | None = None
) -> dict[str, Any] | None:
    """Return the block of the samples of one place; None where there are none.

    The rows that differ come first if there are more than are shown.
    """
    sides = [_Side(run, place) for run in runs]
    rows = max(side.rows for side in sides)
    if not rows:
        return None
    found = [_row(number, sides, decode) for number in range(min(rows, 50 * _MOST_ROWS))]
    unlike = [row for row in found if row["first_difference"] is not None or row.get("differs")]
    others = [
        row for row in found if not (row["first_difference"] is not None or row.get("differs"))
    ]
    shown = sorted((unlike + others)[:_MOST_ROWS], key=lambda row: row["row"])
    return {"samples": shown, "left_out": rows - len(shown), "different": len(unlike)}


class _Side:
    """What one run saved in a place."""

    def __init__(self, run: Run, place: Place) -> None:
        self.prompts = _saved(run, place, PROMPTS)
        self.responses = _saved(run, place, RESPONSES)
        self.log_probs = _saved(run, place, _LOG_PROBS)
        self.rewards = _saved(run, place, _REWARDS)
        self.rows = max(map(_rows, (self.prompts, self.responses)))


def _saved(run: Run, place: Place, keys: Sequence[str]) -> Any:
    for key in keys:
        for datum in run.key_data(key, *place) if key in run.keys_at(*place) else ():
            try:
                return datum.value
            except (ArrayFileError, OSError, ValueError, KeyError, TypeError):
                continue
    return None


def _rows(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.shape[0] if value.ndim else 0
    if isinstance(value, str):
        return 1
    return len(value) if isinstance(value, list) else 0


def _row(number: int, sides: Sequence[_Side], decode: Decode | None) -> dict[str, Any]:
    prompts, responses, rewards = [], [], []
    for side in sides:
        prompts.append(_text(_at(side.prompts, number), decode))
        response = _text(_at(side.responses, number), decode)
        if response is not None:
            response |= known(log_probs=_numbers(_at(side.log_probs, number)))
        responses.append(response)
        rewards.append(_reward(_at(side.rewards, number)))
    row: dict[str, Any] = {"row": number, "prompt": dict(zip("ab", prompts))}
    row |= dict(zip("ab", responses))
    row["reward"] = dict(zip("ab", rewards))
    row["first_difference"] = _first_difference(*responses) if len(sides) > 1 else None
    if len(sides) > 1:
        row["differs"] = prompts[0] != prompts[1] or _words(responses[0]) != _words(responses[1])
    return row


def _at(value: Any, row: int) -> Any:
    if isinstance(value, str):
        return value if row == 0 else None
    return value[row] if row < _rows(value) else None


def _text(value: Any, decode: Decode | None) -> dict[str, Any] | None:
    """Return a text, or token ids, with what they stand for where a tokenizer is given."""
    if isinstance(value, str):
        return {"text": value[:_MOST_TEXT], **known(cut=len(value) > _MOST_TEXT or None)}
    if isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        return None
    ids = value[:_MOST_TOKENS].tolist()
    shown: dict[str, Any] = {"ids": ids, **known(cut=value.size > _MOST_TOKENS or None)}
    if decode is not None:
        shown["tokens"] = [decode([one]) for one in ids]
        shown["text"] = decode(ids)
    return shown


def _numbers(value: Any) -> list[Any] | None:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind != "f":
        return None
    return [number_to_json(float(f"{one:.5g}")) for one in value[:_MOST_TOKENS].tolist()]


def _reward(value: Any) -> Any:
    """Return the reward of a row; of rewards a token their sum."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf" or not value.size:
            return None
        return number_to_json(float(np.asarray(value, np.float64).sum()))
    number = value.item() if isinstance(value, np.generic) else value
    return number_to_json(number) if isinstance(number, (int, float)) else None


def _words(side: Mapping[str, Any] | None) -> Any:
    return None if side is None else side.get("ids", side.get("text"))


def _first_difference(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> int | None:
    """Return the first token, or character of a text, that is another one in B."""
    x, y = _words(a), _words(b)
    if x is None or y is None or type(x) is not type(y) or x == y:
        return None
    pairs = enumerate(zip(x, y))
    return next((i for i, (own, other) in pairs if own != other), min(len(x), len(y)))
