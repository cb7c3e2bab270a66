"""Training against inference: what the page shows of where the same token gets other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, in_words
from mindrlhf_msprobe.findings.mismatch import (
    Agreement,
    Mismatch,
    Mismatches,
    Stage,
    Token,
    TokenMap,
)
from mindrlhf_msprobe.report.messages import say, text_of
from mindrlhf_msprobe.report.mismatch import facts_of, headline, scope
from mindrlhf_msprobe.report.page.data import (
    NO_VALUE,
    Blocks,
    as_little_endian,
    in_both,
    known,
    logarithmic,
    said,
)
from mindrlhf_msprobe.report.page.overview import Place
from mindrlhf_msprobe.report.page.samples import Decode, gaps_of
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.reading.reader import Run

_MOST_CHARACTERS = 4_000_000  # of all steps; those that parted are written first
_MOST_STAGES = 4000
_MOST_LISTED = 500  # weights, and values that could not be compared
_STATES = {
    Agreement.IDENTICAL: "same",
    Agreement.WITHIN_ROUNDING: "close",
    Agreement.PARTED: "different",
}


def write_mismatches(
    blocks: Blocks, side: str, found: Mismatches | Message, run: Run, decode: Decode | None = None
) -> dict[str, Any]:
    """Add what is shown of one run, a block a step and rank; return what the head says of it.

    Args:
        side: A or B, of two runs that are compared.
        found: what is shown, or why there is nothing.
        run: that of the rollout, which has the prompts and responses.
        decode: token ids → text; None shows the ids.
    """
    if isinstance(found, Message):
        return {"side": side, "why": said(found), "places": [], "left_out": 0}
    places, room, left_out = [], _MOST_CHARACTERS, 0
    order = sorted(found.found, key=lambda one: one.status is not Agreement.PARTED)
    for one in order:
        if room <= 0:
            left_out += 1
            continue
        before, name = blocks.size, f"{side}-{one.step}-{one.rank}"
        blocks.json(f"mismatch-{name}", _content(one, run, decode))
        if one.token_map is not None:
            blocks.binary(f"heat-mismatch-{name}", as_little_endian(_codes(one.token_map)))
        room -= blocks.size - before
        places.append([one.step, one.rank, one.status.value])
    metrics = [
        [one.step, one.rank, {name: number_to_json(v) for name, v in one.metrics.items()}]
        for one in found.found
        if one.metrics
    ]
    return {
        **{"side": side, "why": None, "places": sorted(places), "left_out": left_out},
        **{"metrics": metrics, "runs": [*found.runs]},
    }


def not_compared_of(found: Sequence[Mismatches | Message]) -> list[dict[str, Any]]:
    """Return what of training against inference was not compared, in all steps, by reason.

    Args:
        found: of one run, or of A and B.
    """
    rows = []
    for side, one in zip("AB", found):
        texts = [text_of(one)] if isinstance(one, Message) else _not_compared(one.found)
        of = side if len(found) > 1 else None
        rows += [{"text": text, "only_in": of, "records": None} for text in texts]
    return rows


def _not_compared(found: Sequence[Mismatch]) -> list[str]:
    by_reason: dict[str, tuple[Message, dict[str, None]]] = {}
    for one in found:
        for name, why in one.not_compared:
            by_reason.setdefault(repr(why), (why, {}))[1][name] = None
    texts = [
        say("report.mismatch_values_left", names=[*names], why=why)
        for why, names in by_reason.values()
    ]
    if weights := [*dict.fromkeys(name for one in found for name in one.weights_unknown)]:
        texts.append(say("report.mismatch_weights_left", names=weights))
    if left := sum(max(0, one.tokens - one.rows) for one in found):
        tokens = sum(one.tokens for one in found)
        texts.append(say("report.mismatch_rows_left", left=left, tokens=tokens))
    return texts


def states_of(found: Mismatches | Message) -> dict[Place, str]:
    """Return how each place that was compared is marked; without those that were not decided."""
    if isinstance(found, Message):
        return {}
    shown = ((one.step, one.rank, _STATES.get(one.status)) for one in found.found)
    return {(step, rank): state for step, rank, state in shown if state is not None}


def _lines(one: Mismatch, *about: str) -> dict[str, Any]:
    """Return the lines of facts about something, in both languages."""
    return in_both(lambda: [fact.line for fact in facts_of(one) if fact.about in about])


def _content(one: Mismatch, run: Run, decode: Decode | None) -> dict[str, Any]:
    numbers = {stage: number for number, stage in enumerate(one.stages)}
    shown = _shown_stages(one, numbers)
    renumbered = {number: at for at, number in enumerate(shown)}
    token_map, shown_map = one.token_map, None
    if token_map is not None:
        shown_map = {
            "columns": [renumbered[number] for number in token_map.columns],
            "tokens": _tokens(token_map.tokens),
            "others": [[sample, count] for sample, count, _ in token_map.others],
        }
    return {
        **{"rollout": one.rollout, "training": one.training, "status": one.status.value},
        **{"tone": one.status.tone, "cause": one.cause and one.cause.value},
        "headline": in_both(lambda: headline(one, one.status)),
        "sentences": _lines(one, "conclusion", "far"),
        "first": None if one.first is None else renumbered.get(numbers.get(one.first, -1)),
        "births": [renumbered[numbers[stage]] for stage in one.origins],
        "stages": [
            {**stage.to_json(), "name": stage.name, "worst": _tokens(stage.worst)}
            for stage in map(one.stages.__getitem__, shown)
        ],
        "stages_left_out": len(one.stages) - len(shown),
        **known(map=shown_map, texts=gaps_of(run, (one.step, one.rank), one.log_probs, decode)),
        "weights": {
            "compared": one.weights_compared,
            "different": [weight.to_json() for weight in one.weights[:_MOST_LISTED]],
            "left_out": max(0, len(one.weights) - _MOST_LISTED),
            "unknown": [*one.weights_unknown[:_MOST_LISTED]],
            "unknown_count": len(one.weights_unknown),
            "alone": [[*names[:_MOST_LISTED]] for names in one.weights_alone],
            "alone_count": [len(names) for names in one.weights_alone],
        },
        "metrics": [[name, number_to_json(value)] for name, value in one.metrics.items()],
        "sampled": [token.to_json() for token in one.sampled],
        "scope": in_both(lambda: scope(one)),
        "not_compared": [[name, said(why)] for name, why in one.not_compared[:_MOST_LISTED]],
        "not_compared_count": len(one.not_compared),
        "notes": in_both(lambda: [*map(in_words, one.notes)]),
    }


def _shown_stages(one: Mismatch, numbers: dict[Stage, int]) -> list[int]:
    """Return the numbers of the values that are shown: of too many, what cells return."""
    if len(one.stages) <= _MOST_STAGES:
        return [*range(len(one.stages))]
    wanted = {numbers[stage] for stage in one.origins}
    wanted |= {numbers[one.first]} if one.first is not None else set()
    wanted |= {*one.token_map.columns} if one.token_map is not None else set()
    for number, stage in enumerate(one.stages):
        if len(wanted) < _MOST_STAGES and stage.io == "output":
            wanted.add(number)
    return sorted(wanted)


def _tokens(tokens: Sequence[Token]) -> list[list[Any]]:
    names = ("sample", "position", "id", "role", "apart", "text")
    found = [token.to_json() for token in tokens]
    return [[token[name] for name in names] for token in found]


def _codes(found: TokenMap) -> np.ndarray:
    """Return the codes of the tokens' rows, and behind them those of what is left out."""

    def code(value: float) -> int:
        return NO_VALUE if np.isnan(value) else logarithmic(float(value))

    rows: Sequence[np.ndarray] = [found.apart, *(row[None] for _, _, row in found.others)]
    return np.vectorize(code, otypes=[np.int16])(np.concatenate(rows))
