"""What was generated: that samples differ, are not empty, and end where they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step, place_of
from mindrlhf_msprobe.checks.registry.rule import key, rule
from mindrlhf_msprobe.checks.rules.rl.rows import (
    array_of,
    arrays_of,
    configured,
    generation_of,
    groups_of,
    texts_or_rows,
)
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run

_RESPONSES = ("responses", "response", "completions")
_SHOWN = 120  # characters of a sample


@rule(
    "rl.identical_completions",
    needs=(key(*_RESPONSES),),
    severity=Severity.WARNING,
    causes=("check_rl.cause_greedy", "check_rl.cause_same_seed"),
    follows=("non_finite.*",),
    live=True,
)
def identical_completions(step: Step, check: Check) -> Iterator[Found]:
    """Samples differ: from each other, or at least those of one prompt.

    All samples of one prompt alone may be alike where nothing is sampled, or each with one seed.
    """
    settings = generation_of(check.run)
    greedy = settings.get("do_sample") is False
    seeded = greedy or settings.get("seed") is not None or not settings
    for rank in step.ranks:
        prompts = step.key_data("prompts", "prompt", rank=rank)
        for number, datum in enumerate(step.key_data(*_RESPONSES, rank=rank)):
            samples = texts_or_rows(datum)
            of = texts_or_rows(prompts[number]) if number < len(prompts) else []
            groups = groups_of(of) if len(of) == len(samples) else {}
            alike = len(set(samples)) == 1
            if len(samples) < 2 or not (alike or (not greedy and _alike_within(groups, samples))):
                continue
            few = (len(groups) == 1 and seeded) or (greedy and len(groups) < 4)
            yield check.finding(
                message("check_rl.identical", count=len(samples), all=alike),
                datum,
                severity=Severity.NOTE if few else None,
                shown={"sample": str(samples[0])[:_SHOWN]},
                same="identical",
            )


def _alike_within(groups: Mapping[Any, Sequence[int]], samples: Sequence[Any]) -> bool:
    """Return whether the samples of each of several prompts are identical."""
    several = [group for group in groups.values() if len(group) > 1]
    return len(several) > 1 and all(len({samples[i] for i in group}) == 1 for group in several)


@rule(
    "rl.empty_responses",
    needs=(key(*_RESPONSES),),
    severity=Severity.WARNING,
    follows=("non_finite.*",),
    live=True,
)
def empty_responses(step: Step, check: Check) -> Iterator[Found]:
    """Responses hold something; that some are empty is a note."""
    ends = _ends(check.run)
    for datum in step.saved(*_RESPONSES):
        samples = texts_or_rows(datum)
        empty = [n for n, sample in enumerate(samples) if not _stripped(sample, ends)]
        if empty:
            yield check.finding(
                message("check_rl.empty", empty=len(empty), count=len(samples)),
                datum,
                severity=None if len(empty) == len(samples) > 1 else Severity.NOTE,
                shown={"samples": empty[:16]},
                same=("empty", len(empty) == len(samples)),
            )


def _token_rows(step: Step, check: Check) -> Iterator[tuple[KeyDatum, list[tuple[int, ...]]]]:
    """Yield the responses that were saved as token ids, which are checked then."""
    for datum in step.saved(*_RESPONSES):
        samples = [sample for sample in texts_or_rows(datum) if isinstance(sample, tuple)]
        if samples:
            check.checked()
            yield datum, samples


@rule("rl.length_limit", needs=(key(*_RESPONSES),), severity=Severity.NOTE, live=True)
def length_limit(step: Step, check: Check) -> Iterator[Found]:
    """Responses that end because nothing more may be written were cut."""
    settings = generation_of(check.run)
    limit = settings.get("max_new_tokens") or settings.get("max_length")
    ends = _ends(check.run)
    if not ends.eos:
        check.not_checked(message("check_rl.no_eos"))
        return
    for datum, samples in _token_rows(step, check):
        most = limit if isinstance(limit, int) else max(map(len, samples))
        cut = sum(len(s) >= most and not ends.eos & {*s} and s[-1] != ends.pad for s in samples)
        if cut:
            yield check.finding(
                message("check_rl.cut", cut=cut, count=len(samples), limit=most),
                datum,
                same=("cut", datum.rank),
            )


@rule(
    "rl.pad_inside",
    needs=(key(*_RESPONSES),),
    severity=Severity.WARNING,
    thresholds={"share": 0.25},
    causes=("check_rl.cause_eos_ignored",),
    follows=("non_finite.*",),
    live=True,
)
def pad_inside(step: Step, check: Check) -> Iterator[Found]:
    """Behind the token that ends a response, or behind padding, there is only padding."""
    ends = _ends(check.run)
    if ends.pad is None and not ends.eos:
        check.not_checked(message("check_rl.no_eos"))
        return
    for datum, samples in _token_rows(step, check):
        bad = [n for n, sample in enumerate(samples) if _goes_on(sample, ends)]
        if bad:
            few = len(bad) <= check.threshold("share") * len(samples)
            yield check.finding(
                message("check_rl.pad_inside", bad=len(bad), count=len(samples)),
                datum,
                severity=Severity.NOTE if few else None,
                shown={"sample": bad[0], "tokens": samples[bad[0]][:64]},
                same=("pad", few),
            )


@rule("rl.repeated_prompts", needs=(key("prompts", "prompt"),), severity=Severity.NOTE, live=True)
def repeated_prompts(step: Step, check: Check) -> Iterator[Found]:
    """Prompts that were all there in the step before, or more often than others of this step."""
    for rank in step.ranks:
        for datum in step.key_data("prompts", "prompt", rank=rank)[:1]:
            groups = groups_of(texts_or_rows(datum))
            if not groups:
                continue
            before = check.memory.get(str(rank))
            check.memory[str(rank)] = {*groups}
            sizes = {len(group) for group in groups.values()}
            if before is not None and before == {*groups}:
                said = message("check_rl.same_prompts", count=len(groups))
            elif len(sizes) > 1:
                repeated = sum(len(group) > min(sizes) for group in groups.values())
                said = message("check_rl.repeated_prompts", repeated=repeated, count=len(groups))
            else:
                continue
            yield check.finding(said, place_of(datum), same=(said.code, rank))


@rule(
    "rl.mask",
    needs=(key("loss_inputs", "response_mask", "responses_mask", "completion_mask", "mask"),),
    severity=Severity.ERROR,
    causes=("check_rl.cause_shift", "check_rl.cause_lengths"),
    live=True,
)
def mask(step: Step, check: Check) -> Iterator[Found]:
    """The mask of the loss selects the tokens of the responses, and no others.

    The tokens under it are those of a response, with or without the one that ends it. A mask one
    shorter than the tokens is of the next token each; as long as them, it may be either.
    """
    ends = _ends(check.run)
    for rank in step.ranks:
        found = [*_masks(step, rank)]
        responses = {
            _stripped(sample, ends)
            for datum in step.key_data(*_RESPONSES, rank=rank)
            for sample in texts_or_rows(datum)
            if isinstance(sample, tuple)
        }
        for datum, path, array, tokens in found:
            if not array.any():
                said = message("check_rl.mask_empty")
            elif tokens is None or not responses:
                check.not_checked(message("check_rl.mask_unknown"))
                continue
            else:
                check.checked()
                whole = bool(path == "" and ends.eos)
                wrong = _wrong_row(array, tokens, responses, spare=0 if whole else 1)
                if wrong is None:
                    continue
                said = message("check_rl.mask_wrong", row=wrong[0], tokens=str(list(wrong[1])))
            at = place_of(datum, path)
            yield check.finding(
                said, at, evidence=[Evidence(at, {"selected": int(array.sum())})], same=said.code
            )


def _masks(step: Step, rank: int) -> Iterator[tuple[KeyDatum, str, np.ndarray, np.ndarray | None]]:
    """Yield masks of responses with the tokens of the same rows, where those are known."""
    for datum in step.key_data("loss_inputs", rank=rank):
        inputs = arrays_of(datum)
        for name, array in inputs.items():
            if _is_mask(name, array):
                yield datum, name, array, _tokens_under(array, inputs)
    responses = step.key_data(*_RESPONSES, rank=rank)
    for name in step.keys(rank):
        if not name.endswith("mask"):
            continue
        for number, datum in enumerate(step.key_data(name, rank=rank)):
            alone = array_of(datum)
            if alone is not None and _is_mask(name, alone):
                rows = array_of(responses[number]) if number < len(responses) else None
                fits = rows is not None and rows.shape == alone.shape and rows.dtype.kind in "iu"
                yield datum, "", alone, rows if fits else None


def _tokens_under(mask: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the token ids among what the loss was given: the widest that fit the mask."""
    fitting = [
        array
        for name, array in inputs.items()
        if array.dtype.kind in "iu"
        and array.ndim == 2
        and not {"mask", "index"} & set(name.split("_"))
        and len(array) == len(mask)
        and array.shape[1] - mask.shape[1] in (0, 1)
    ]
    return max(fitting, key=lambda array: array.shape[1], default=None)


def _is_mask(name: str, array: np.ndarray) -> bool:
    """Return whether an array is the mask of responses: it selects some positions, not all."""
    words = name.lower().replace(".", "_").split("_")
    kind = words[-1] == "mask" and not {"attention", "prompt", "prompts", "pad", "causal"} & {
        *words
    }
    return bool(kind and array.ndim == 2 and array.size and not array.astype(bool).all())


def _wrong_row(
    array: np.ndarray, tokens: np.ndarray, responses: set[Any], spare: int
) -> tuple[int, tuple[int, ...]] | None:
    """Return the first row whose mask selects tokens that are no response's, and those tokens.

    Args:
        spare: how many last tokens of a response may be left out.
    """
    shift = tokens.shape[1] - array.shape[1]
    for offset in (1,) if shift else (0, 1):
        wrong = None
        for row, (selects, ids) in enumerate(zip(array.astype(bool), tokens)):
            for start, stop in _runs(selects):
                chosen = tuple(ids[start + offset : stop + offset].tolist())
                if not _is_response(chosen, responses, spare):
                    wrong = wrong or (row, chosen)
        if wrong is None:
            return None
    return wrong


def _runs(selects: np.ndarray) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], selects.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist())


def _is_response(chosen: tuple[int, ...], responses: set[Any], spare: int) -> bool:
    if chosen in responses or chosen[:-1] in responses:  # with the token that ends it
        return True
    short = len(chosen)  # without it, or cut at the longest sequence
    return any(
        response[:short] == chosen and len(response) - short <= spare for response in responses
    )


class _Ends:
    """Which tokens end a response, and which one fills it up."""

    def __init__(self, pad: int | None, eos: frozenset[int]) -> None:
        self.pad, self.eos = pad, eos


def _ends(run: Run) -> _Ends:
    settings: Mapping[str, Any] = generation_of(run)
    pads = [settings.get("pad_token_id"), *configured(run, "pad_token_id")]
    eos = [settings.get("eos_token_id"), *configured(run, "eos_token_id")]
    pad = next((value for value in pads if isinstance(value, int)), None)
    given = next((value for value in eos if isinstance(value, (int, list)) and value != []), [])
    return _Ends(pad, frozenset(given if isinstance(given, list) else [given]))


def _stripped(sample: Any, ends: _Ends) -> Any:
    """Return a response without what ends it and what fills it up."""
    if isinstance(sample, str):
        return sample.strip()
    if not isinstance(sample, tuple):
        return sample
    tokens: Sequence[int] = sample
    length = len(tokens)
    while length and (tokens[length - 1] == ends.pad or tokens[length - 1] in ends.eos):
        length -= 1
    return tuple(tokens[:length])


def _goes_on(sample: tuple[int, ...], ends: _Ends) -> bool:
    """Return whether something follows the end of a response; padding before it is its left."""
    fills = {ends.pad, *ends.eos}
    start = 0
    while start < len(sample) and sample[start] == ends.pad:
        start += 1
    over = False
    for token in sample[start:]:
        if over and token not in fills:
            return True
        over = over or token in fills
    return False
