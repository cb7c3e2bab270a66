"""find_mismatch: where a rollout network and a training network first compute a token otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.text.numbers import spans
from mindrlhf_msprobe.comparison.judging.texts import Decode, load_decoder
from mindrlhf_msprobe.comparison.mismatch.conclusion.also import also_different
from mindrlhf_msprobe.comparison.mismatch.conclusion.beyond_rounding import (
    beyond_rounding,
    rounded_to,
)
from mindrlhf_msprobe.comparison.mismatch.conclusion.conclude import (
    LEAST,
    blame,
    few_aligned,
    first_parted,
    lower_of,
    other_response,
    other_tokens,
    other_weight,
    said_of_weights,
    stage_of,
)
from mindrlhf_msprobe.comparison.mismatch.conclusion.log_probs import not_finite
from mindrlhf_msprobe.comparison.mismatch.conclusion.positions import other_count
from mindrlhf_msprobe.comparison.mismatch.conclusion.reordered import reordered
from mindrlhf_msprobe.comparison.mismatch.conclusion.sampling import Sampled
from mindrlhf_msprobe.comparison.mismatch.conclusion.token_map import token_map
from mindrlhf_msprobe.comparison.mismatch.names import Name
from mindrlhf_msprobe.comparison.mismatch.sides import read_side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import NO_MAPPING, CellMapping, load_cells
from mindrlhf_msprobe.comparison.mismatch.weights.since import unlike_weights
from mindrlhf_msprobe.comparison.mismatch.weights.unused import unused_rules
from mindrlhf_msprobe.comparison.tokens.ended import without_padding
from mindrlhf_msprobe.comparison.tokens.saved_samples.ids import unlike_saved
from mindrlhf_msprobe.comparison.tokens.sequences import NoTokens
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause, Mismatch, Mismatches, Stage, Weight
from mindrlhf_msprobe.phases import INPUT_KEYS
from mindrlhf_msprobe.phases import PHASES as KNOWN
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

#: The phases that are compared where none are named: rollout, training.
PHASES = ("actor_generate_sequences", "actor_compute_log_prob")


def find_mismatch(
    rollout: str | os.PathLike[str] | Run,
    training: str | os.PathLike[str] | Run | None = None,
    *,
    steps: Sequence[int] | None = None,
    phases: tuple[str, str] = PHASES,
    mapping: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> Mismatches:
    """Find where the same token first gets other values in the rollout than in the training.

    Args:
        rollout: the run that generated.
        training: the run whose phase is held against it; None: the same run.
        steps: of these steps only; None: of all that have both phases.
        phases: of the rollout and of the training.
        mapping: a YAML file; see `mapping.load_cells`.
        tokenizer: a tokenizer.json, to show tokens as text.

    Raises:
        RunError: a run cannot be read, or has not the phase.
        UsageError: a step is not there.
    """
    runs = [_opened(rollout)]
    runs.append(runs[0] if training is None else _opened(training))
    cells = load_cells(mapping) if mapping is not None else NO_MAPPING
    decode = load_decoder(tokenizer) if tokenizer is not None else None
    found = []
    for step, rank in _places(runs, phases, steps):
        found.append(_one(runs, phases, step, rank, cells, decode))
    paths = dict.fromkeys(str(run.path) for run in runs)
    return Mismatches(tuple(paths), tuple(found))


def _opened(run: str | os.PathLike[str] | Run) -> Run:
    return run if isinstance(run, Run) else open_run(Path(run))


def _places(
    runs: Sequence[Run], phases: tuple[str, str], steps: Sequence[int] | None
) -> list[tuple[int, int]]:
    """Return the steps and ranks that have both phases.

    Raises:
        RunError: there is none.
        UsageError: one that was asked for is not among them.
    """
    found = [_places_of(run, phase) for run, phase in zip(runs, phases)]
    both = sorted(found[0] & found[1])
    if not both:
        raise _none_common(found, phases)
    if steps is None:
        return both
    missing = sorted({*steps} - {step for step, _ in both})
    if missing:
        there = spans(sorted({step for step, _ in both}))
        raise UsageError.saying("mismatch.step", step=missing[0], there=there)
    return [place for place in both if place[0] in steps]


def _places_of(run: Run, phase: str) -> set[tuple[int, int]]:
    """Return the steps and ranks that have a phase.

    Raises:
        RunError: the run has not recorded it.
    """
    if phase not in run.phases:
        hint = nearest_of(phase, run.phases)
        known, switch = ", ".join(run.phases), _switch_of(run, phase)
        given = {"run": run.path, "phase": phase, "known": known, "hint": hint, **switch}
        raise RunError.saying("mismatch.no_phase", **given)
    return {(s, r) for s, r in run.places if phase in run.phases_at(s, r)}


def _none_common(found: Sequence[set[tuple[int, int]]], phases: tuple[str, str]) -> RunError:
    """Return the error that says that no step, or no rank of one, has both phases."""
    steps = [{step for step, _ in places} for places in found]
    code, each = "mismatch.no_step", steps
    if steps[0] & steps[1]:
        code, each = "mismatch.no_rank", [{rank for _, rank in places} for places in found]
    a, b = (spans(sorted(numbers)) for numbers in each)
    return RunError.saying(code, rollout=phases[0], training=phases[1], a=a, b=b)


def _switch_of(run: Run, phase: str) -> dict[str, Any]:
    """Return which setting of a run left a phase out, as far as its configuration says it."""
    config, of = run.config(), next((known for known in KNOWN if known.name == phase), None)
    if config is None or of is None or of.switch is None:
        return {}
    if not getattr(config, of.switch):
        return {"switch": of.switch}
    return {"first": config.token_range_start} if of.counts_tokens else {}


def _one(
    runs: Sequence[Run],
    phases: tuple[str, str],
    step: int,
    rank: int,
    mapping: CellMapping,
    decode: Decode | None,
) -> Mismatch:
    """Return what one step of one rank says."""
    sides = []
    for run, phase in zip(runs, phases):
        try:
            sides.append(read_side(run, phase, step, rank))
        except NoTokens as error:
            why = message("mismatch.unaligned", phase=phase, why=error)
            return Mismatch(step, rank, *phases, Agreement.UNDECIDED, said=(why,))
    ended = [without_padding(a.tokens, b.tokens) for a, b in permutations(sides)]
    for side, tokens in zip(sides, ended):
        side.tokens = tokens
    walk = Walk(sides[0], sides[1], mapping, decode)
    sampled = Sampled(runs, step, rank)
    weights = unlike_weights(walk, runs, phases)
    walk, moved, is_doubtful = _in_their_order(walk, weights, sampled, decode)
    stages = [*walk.stages.values()]
    conclusion: _Conclusion
    if moved is not None and is_doubtful:
        status = Agreement.PARTED if sampled.is_apart(walk) else Agreement.UNDECIDED
        conclusion = status, None, None, (moved,)
        stages = [replace(stage, born=0) for stage in stages]
    else:
        conclusion = _conclusion(walk, weights, sampled)
    status, cause, first, said = conclusion
    return Mismatch(
        step,
        rank,
        *phases,
        status,
        cause,
        first,
        said,
        stages=tuple(stages),
        weights=tuple(weights),
        weights_compared=len(walk.weights.pairs),
        weights_unknown=tuple(pair.rollout for pair in walk.weights.unknown),
        weights_alone=walk.weights.alone,
        metrics=sampled.metrics,
        sampled=sampled.worst(walk.rollout.samples),
        rows=walk.coverage.rows,
        tokens=walk.coverage.tokens,
        saved_aligned=walk.coverage.saved_aligned,
        saved=walk.coverage.saved,
        not_compared=tuple((str(name), why) for name, why in walk.not_compared),
        notes=_notes(walk, sampled, said, () if moved is None else (moved,)),
        token_map=token_map(walk),
        log_probs=sampled.log_probs,
    )


def _in_their_order(
    walk: Walk, weights: Sequence[Weight], sampled: Sampled, decode: Decode | None
) -> tuple[Walk, Message | None, bool]:
    """Return a walk whose rows stand behind the tokens that they were computed behind.

    Returns:
        What is said of rows that continue other samples than those in whose places they stand, if
        there are any; and whether nothing decides it: a cache whose rows were put in another order
        may be meant so, or be what is wrong.
    """
    parted = first_parted(walk, weights)
    contradicted = other_tokens(walk) is not None
    found = reordered(walk, None if parted is None else parted[0], contradicted=contradicted)
    if found is None:
        return walk, None, False
    again = Walk(replace(walk.rollout, tokens=found.tokens), walk.training, walk.mapping, decode)
    counts = again.coverage
    if not counts.saved or counts.saved_aligned < counts.saved:
        again.coverage = replace(counts, tokens=counts.tokens + found.left)
    where = {"call": found.call, "row": found.row, "sample": found.sample}
    values = {"count": found.count, "left": found.left, **where}
    if found.contradicted:
        return again, message("mismatch.reordered", **values), False
    then = first_parted(again, weights)
    if then is None:
        is_decided = bool(sampled.tables) and not sampled.is_apart(again)
    else:
        is_decided = blame(again, *then, weights)[0] is Cause.WEIGHTS
    code = "reordered" if is_decided else "reordered_or_wrong"
    return again, message(f"mismatch.{code}", **values), not is_decided


def _notes(walk: Walk, sampled: Sampled, said: Messages, first: Messages = ()) -> Messages:
    """Return what was noticed about the tokens of both sides, but for what was said already."""
    other = other_tokens(walk)
    if other is None:
        other = other_response(walk)
    found = [*first, *(one for one in (other, other_count(walk)) if one is not None)]
    found += unused_rules(walk.mapping, walk.rollout, walk.training)
    if count := walk.rollout.tokens.padding:
        found.append(message("tokens.padding_behind", count=count))
    for side in (walk.rollout, walk.training):
        saves = [d for key in INPUT_KEYS for d in side.run.key_data(key, side.step, side.rank)]
        unlike = unlike_saved(saves, side.tokens.sequences)
        found += [*side.tokens.notes, *([] if unlike is None else [unlike])]
    return tuple(note for note in dict.fromkeys((*found, *sampled.notes)) if note not in said)


#: What a step says: the status, and where they part the cause, the first value, and why.
_Conclusion = tuple[Agreement, Cause | None, Stage | None, Messages]


def _conclusion(walk: Walk, weights: Sequence[Weight], sampled: Sampled) -> _Conclusion:
    status, cause, first, said = _first_of_all(walk, weights, sampled)
    if status is Agreement.PARTED:
        said = (*said, *also_different(walk, weights, sampled, cause, first, said))
    return status, cause, first, said


def _first_of_all(walk: Walk, weights: Sequence[Weight], sampled: Sampled) -> _Conclusion:
    """Return what a step says of what differs first."""
    if not walk.matched.rows:
        return Agreement.UNDECIDED, None, None, (_no_rows(walk),)
    if not walk.stages:
        return Agreement.UNDECIDED, None, None, (message("mismatch.nothing_compared"),)
    parted = first_parted(walk, weights)
    if parted is not None:
        cause, said = blame(walk, *parted, weights)
        if cause is Cause.DTYPE and weights:  # what the dtypes explain hides what else is wrong
            said, first = [*said_of_weights(weights), *said], stage_of(walk, other_weight(weights))
            return Agreement.PARTED, Cause.WEIGHTS, first, tuple(dict.fromkeys(said))
        return Agreement.PARTED, cause, parted[1], (*said, *_hidden(walk, parted, cause, weights))
    if weights:
        return Agreement.PARTED, Cause.WEIGHTS, None, tuple(said_of_weights(weights))
    return _by_log_probs(walk, sampled, few_aligned(walk))


def _hidden(
    walk: Walk, parted: tuple[Name, Stage], cause: Cause | None, weights: Sequence[Weight]
) -> Messages:
    """Return what is said of an error that the rounding which both part by would hide."""
    dtype = rounded_to(weights) if cause is Cause.WEIGHTS else None
    if cause is Cause.DTYPE:
        dtype = lower_of(walk, *parted)
    found = None if dtype is None else beyond_rounding(walk, dtype)
    return () if found is None else (found,)


def _by_log_probs(walk: Walk, sampled: Sampled, few: Message | None) -> _Conclusion:
    """Return what a step says whose values and weights do not part.

    Args:
        few: what is said of tokens that were not aligned.
    """
    if (odd := not_finite(sampled.tables)) is not None:
        behind = None if walk.coverage.share < LEAST else Cause.SAMPLING
        return Agreement.PARTED, behind, None, (odd,)
    if sampled.is_apart(walk):
        if (misplaced := sampled.misplaced(walk)) is not None:
            return Agreement.PARTED, Cause.SAMPLING, None, (misplaced,)
        why, other = sampled.why(walk), other_tokens(walk) or other_response(walk)
        if other is not None and why.code != "mismatch.temperature":
            return Agreement.PARTED, Cause.INPUT, None, (other,)
        if few is not None and walk.coverage.share < LEAST:
            apart = message("mismatch.log_probs_apart", mean=sampled.apart)
            return Agreement.PARTED, None, None, (apart, few)
        return Agreement.PARTED, Cause.SAMPLING, None, (why,)
    return _without_difference(walk, sampled, () if few is None else (few,))


def _without_difference(walk: Walk, sampled: Sampled, few: Messages) -> _Conclusion:
    """Return what a step says in which nothing differs, as far as it is known."""
    if walk.coverage.share < LEAST:
        return Agreement.UNDECIDED, None, None, few
    if (unlike := _unlike_ids(walk, sampled)) is not None:
        return Agreement.UNDECIDED, None, None, (unlike, *few)
    same = not any(stage.unequal for stage in walk.stages.values())
    return Agreement.IDENTICAL if same else Agreement.WITHIN_ROUNDING, None, None, few


def _unlike_ids(walk: Walk, sampled: Sampled) -> Message | None:
    """Say which tokens of the rollout, the saved responses and the training are not the same.

    Where the saved samples are all covered, the rollout may have tried others: drafts, beams. Where
    they are not, or nothing was saved, log-probabilities that agree say that the tokens do.
    """
    if (unlike := other_response(walk)) is not None:
        return unlike
    covered = 0 < walk.coverage.saved == walk.coverage.saved_aligned
    return None if covered or sampled.tables else other_tokens(walk)


def _no_rows(walk: Walk) -> Message:
    """Say with what the sequences of both begin, as none begin alike; or that there are none."""
    for side in (walk.rollout, walk.training):
        if not side.tokens.sequences:
            return message("mismatch.no_sequences", phase=side.phase)
    rollout, training = (
        str(side.tokens.sequences[0][:8].tolist()) for side in (walk.rollout, walk.training)
    )
    return message("mismatch.no_common_tokens", rollout=rollout, training=training)
