"""Prompts and responses of one place, row by row, with log-probabilities and rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.findings.mismatch import LogProbs
from mindrlhf_msprobe.phases import LOG_PROB, OLD_LOG_PROB, PROMPTS, RESPONSES, ROLLOUT_LOG_PROB
from mindrlhf_msprobe.report.page.data import known
from mindrlhf_msprobe.report.page.overview import Place
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.step_data import StepData
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.reader import Run

_LOG_PROBS = (*ROLLOUT_LOG_PROB, *OLD_LOG_PROB, *LOG_PROB)
_REWARDS = ("rewards", "reward", "scores")
_MOST_ROWS = 200  # of a place
_MOST_ROWS_OF_GAPS = 50  # of a place, with both log-probabilities
_MOST_TOKENS = 4096  # of a row
_MOST_TEXT = 20_000  # characters of a row
_BEFORE = 400  # tokens, or characters, before a first difference that would be cut off

#: Token ids → the text they stand for.
Decode = Callable[[Sequence[int]], str]


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
    numbers = range(min(rows, 50 * _MOST_ROWS))
    apart = {number: _apart(number, *sides) for number in numbers} if len(sides) > 1 else {}
    unlike = [number for number, found in apart.items() if found.differs]
    others = {*numbers}.difference(unlike)
    chosen = sorted([*unlike, *sorted(others)][:_MOST_ROWS])
    shown = [_row(number, sides, apart.get(number), decode) for number in chosen]
    return {"samples": shown, "left_out": rows - len(shown), "different": len(unlike)}


def gaps_of(
    run: Run, place: Place, log_probs: LogProbs | None, decode: Decode | None = None
) -> dict[str, Any] | None:
    """Return prompts and responses with both log-probabilities of each token; None without any.

    Of too many rows, those with the largest difference. Of several saves the first.
    """
    if log_probs is None or log_probs.rollout.ndim != 2:
        return None
    side = _Side(run, place)
    if len(side.responses) < len(log_probs.rollout):
        return None
    both = [np.array(of, np.float64) for of in (log_probs.rollout, log_probs.training)]
    if log_probs.mask is not None:
        for one in both:
            one[np.asarray(log_probs.mask) == 0] = np.nan
    gaps = np.abs(both[0] - both[1])
    largest = np.where(np.isnan(gaps), -1, gaps).max(axis=1, initial=-1)
    worst = np.sort(np.argsort(-largest, kind="stable")[:_MOST_ROWS_OF_GAPS])
    shown = []
    for number in worst.tolist():
        row = _row(number, [side], None, decode)
        if row["a"] is None:
            return None
        row["a"].pop("log_probs", None)
        row["a"]["gaps"] = [_numbers(one[number], 0, digits=9) for one in both]
        shown.append(row)
    return {"samples": shown, "left_out": len(gaps) - len(shown)}


class _Side:
    """What one run saved in a place, by rows.

    Attributes:
        sizes: how many tokens of each response are real; empty where they are no token ids.
        texts: of prompts and responses that were saved as token ids, and as texts, too, the texts.
    """

    def __init__(self, run: Run, place: Place) -> None:
        data = StepData.at(run, *place)
        self.prompts, of_prompts = _ids_and_texts(data, PROMPTS)
        self.responses, of_responses = _ids_and_texts(data, RESPONSES)
        self.texts = of_prompts, of_responses
        self.log_probs = _saved(data, _LOG_PROBS)
        self.rewards = _saved(data, _REWARDS)
        self.sizes = [sample.size for sample in Sequences(data).samples]
        self.rows = max(len(self.prompts), len(self.responses))


def _saved(data: StepData, keys: Sequence[str]) -> list[Any]:
    """Return the rows of the first key that was saved, of all its saves one after the other."""
    for key in keys:
        found: list[Any] = []
        for datum in data.saved((key,)):
            try:
                found += _rows(datum.value)
            except (ArrayFileError, OSError, ValueError, KeyError, TypeError):
                continue
        if found:
            return found
    return []


def _ids_and_texts(data: StepData, keys: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return the rows of prompts or responses; and their texts, where these are saved beside ids.

    They are saved under the same key, one behind the other, or under one that names them as texts:
    as many as there are rows.
    """
    rows = _saved(data, keys)
    texts = [row for row in rows if isinstance(row, str)]
    ids = [row for row in rows if not isinstance(row, str)]
    if texts and len(ids) == len(texts):
        return ids, texts
    if texts or not ids:
        return rows, []
    for key in sorted(data.keys):
        words = [name.rstrip("s") for name in keys] + ["generated"] * (keys is RESPONSES)
        named = "text" in key.lower() and any(word in key.lower() for word in words)
        if named or key in keys:
            found = _saved(data, (key,))
            if len(found) == len(ids) and all(isinstance(text, str) for text in found):
                return ids, found
    return ids, []


def _rows(value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray):
        return [*value] if value.ndim else []
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


class _Apart(NamedTuple):
    """How a row of A and of B are apart.

    Attributes:
        first: the first token, or character of a text, of the response that is another one in B.
        differs: whether prompts or responses are not the same.
    """

    first: int | None
    differs: bool


def _apart(number: int, *sides: _Side) -> _Apart:
    """Return how a row is apart, of all of its tokens and characters."""
    a, b = (_words(_at(side.responses, number)) for side in sides)
    prompts = [_words(_at(side.prompts, number)) for side in sides]
    same = _same(a, b)
    if same or a is None or type(a) is not type(b):
        return _Apart(None, not same or not _same(*prompts))
    first = min(len(a), len(b))
    if isinstance(a, str):
        first = next((i for i, (own, other) in enumerate(zip(a, b)) if own != other), first)
    elif (unlike := a[:first] != b[:first]).any():
        first = int(unlike.argmax())
    return _Apart(first, True)


def _row(
    number: int, sides: Sequence[_Side], apart: _Apart | None, decode: Decode | None
) -> dict[str, Any]:
    prompts, responses, rewards = [], [], []
    first = None if apart is None else apart.first
    for side in sides:
        texts = [_at(of, number) for of in side.texts]
        prompt = _text(_at(side.prompts, number), decode, 0)
        prompts.append(prompt and known(text=texts[0] and texts[0][:_MOST_TEXT]) | prompt)
        words = _words(_at(side.responses, number))
        is_text = isinstance(words, str)
        most = _MOST_TEXT if is_text else _MOST_TOKENS
        begin = 0 if first is None or first < most else first - _BEFORE
        response = _text(words, decode, begin)
        if response is not None:
            log_probs = _numbers(_at(side.log_probs, number), 0 if is_text else begin)
            response |= known(log_probs=log_probs)
            response = known(text=texts[1] and texts[1][:_MOST_TEXT]) | response
            if len(side.sizes) == len(side.responses) and "size" in response:
                response["size"] = side.sizes[number]
        responses.append(response)
        rewards.append(_reward(_at(side.rewards, number)))
    row: dict[str, Any] = {"row": number, "prompt": dict(zip("ab", prompts))}
    row |= dict(zip("ab", responses))
    row["reward"] = dict(zip("ab", rewards))
    row["first_difference"] = first
    if apart is not None:
        row["differs"] = apart.differs
    return row


def _at(rows: Sequence[Any], row: int) -> Any:
    return rows[row] if row < len(rows) else None


def _words(value: Any) -> Any:
    """Return a text, or an array of token ids; None of what is neither."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        return None
    return value


def _text(value: Any, decode: Decode | None, begin: int) -> dict[str, Any] | None:
    """Return a text, or token ids, with what they stand for where a tokenizer is given.

    Args:
        begin: the first character or token that is shown.
    """
    words = _words(value)
    if words is None:
        return None
    most = _MOST_TEXT if isinstance(words, str) else _MOST_TOKENS
    part = words[begin : begin + most]
    shown: dict[str, Any] = known(begin=begin or None, cut=len(part) < len(words) or None)
    if isinstance(part, str):
        return {"text": part, **shown}
    shown["ids"] = ids = part.tolist()
    shown["size"] = len(words)
    if decode is not None:
        shown["tokens"] = [decode([one]) for one in ids]
        shown["text"] = decode(ids)
    return shown


def _numbers(value: Any, begin: int, digits: int = 5) -> list[Any] | None:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind != "f":
        return None
    part = value[begin : begin + _MOST_TOKENS].tolist()
    return [number_to_json(float(f"{one:.{digits}g}")) for one in part]


def _reward(value: Any) -> Any:
    """Return the reward of a row; of rewards a token their sum."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf" or not value.size:
            return None
        return number_to_json(float(np.asarray(value, np.float64).sum()))
    number = value.item() if isinstance(value, np.generic) else value
    return number_to_json(number) if isinstance(number, (int, float)) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)
