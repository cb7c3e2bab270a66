"""find_mismatch: where a rollout network and a training network first differ in a token."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.comparison.judging.status import Decode, load_decoder
from mindrlhf_msprobe.comparison.mismatch.conclude import (
    LEAST,
    Parted,
    also_different,
    beyond_rounding,
    blame,
    few_aligned,
    first_parted,
    lower_of,
    other_count,
    other_response,
    other_tokens,
    other_weight,
    rounded_to,
    said_of_merged,
    said_of_weights,
    stage_of,
)
from mindrlhf_msprobe.comparison.mismatch.exact import Evidence, certificate, evidence
from mindrlhf_msprobe.comparison.mismatch.experts import other_experts, said_of_experts
from mindrlhf_msprobe.comparison.mismatch.networks import (
    said_of_modes,
    unlike_weights,
    unused_rules,
)
from mindrlhf_msprobe.comparison.mismatch.reordered import reordered
from mindrlhf_msprobe.comparison.mismatch.sampling import Sampled, not_finite
from mindrlhf_msprobe.comparison.mismatch.sides import Side, read_side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.pairing.mapping import NO_MAPPING, CellMapping, load_cells
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.findings.mismatch import (
    Agreement,
    Cause,
    ExactPlace,
    Mismatch,
    Mismatches,
    Stage,
    TokenMap,
    Weight,
)
from mindrlhf_msprobe.phases import INPUT_KEYS
from mindrlhf_msprobe.phases import PHASES as KNOWN
from mindrlhf_msprobe.sequences.calls import NoTokens
from mindrlhf_msprobe.sequences.matching import without_padding
from mindrlhf_msprobe.sequences.saved import unlike_saved
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

#: The phases that are compared where none are named: rollout, training.
PHASES = ("actor_generate_sequences", "actor_compute_log_prob")
#: The causes that the mode of a network may be behind.
_BY_WHAT_IS_COMPUTED = (None, Cause.COMPUTATION, Cause.INPUT, Cause.GRADUAL)


def find_mismatch(
    rollout: str | os.PathLike[str] | Run,
    training: str | os.PathLike[str] | Run | None = None,
    *,
    steps: Sequence[int] | None = None,
    phases: tuple[str, str] = PHASES,
    mapping: str | Path | None = None,
    tokenizer: str | Path | None = None,
    exact: bool = False,
) -> Mismatches:
    """Find where the same token first gets other values in the rollout than in the training.

    Args:
        rollout: the run that generated.
        training: the run whose phase is held against it; None: the same run.
        steps: of these steps only; None: of all that have both phases.
        phases: of the rollout and of the training.
        mapping: a YAML file; see `mapping.load_cells`.
        tokenizer: a tokenizer.json, to show tokens as text.
        exact: whether a certificate is wanted, of all steps and ranks that any run has.

    Raises:
        RunError: a run cannot be read, or has not the phase.
        UsageError: a step is not there; or a certificate is wanted of phases whose
            log-probabilities are no key data of their own.
    """
    if exact and any(known.name in phases and known.name not in PHASES for known in KNOWN):
        raise UsageError.saying("mismatch.exact_phases", phases=", ".join(phases))
    given = (of for of in (rollout, training) if of is not None)
    opened = [of if isinstance(of, Run) else open_run(Path(of)) for of in given]
    runs = [opened[0], opened[-1]]
    cells = load_cells(mapping) if mapping is not None else NO_MAPPING
    decode = load_decoder(tokenizer) if tokenizer is not None else None
    shown: list[Evidence] = []
    places, lacking = _places(runs, phases, steps, exact=exact)
    found = [
        _one(runs, phases, *place, cells, decode, shown if exact else None) for place in places
    ]
    paths = tuple(dict.fromkeys(str(run.path) for run in runs))
    if not exact:
        return Mismatches(paths, tuple(found))
    return Mismatches(paths, tuple(found), certificate(runs, found, shown, lacking))


def _places(
    runs: Sequence[Run], phases: tuple[str, str], steps: Sequence[int] | None, *, exact: bool
) -> tuple[list[tuple[int, int]], list[ExactPlace]]:
    """Return the steps and ranks that have both phases; for a certificate also those that do not.

    Raises:
        RunError: there is none, or a run has not recorded its phase at all.
        UsageError: one that was requested is not among them.
    """
    found = [_places_of(run, phase) for run, phase in zip(runs, phases)]
    both = sorted(found[0] & found[1])
    lacking = [
        ExactPlace(*place, tuple(p for p, of in zip(phases, found) if place not in of))
        for place in (sorted(set.union(*(run.places for run in runs)) - {*both}) if exact else ())
        if steps is None or place[0] in steps
    ]
    if not both and not lacking:
        code, each = "mismatch.no_step", [{step for step, _ in places} for places in found]
        if each[0] & each[1]:
            code, each = "mismatch.no_rank", [{rank for _, rank in places} for places in found]
        a, b = (spans(sorted(numbers)) for numbers in each)
        raise RunError.saying(code, rollout=phases[0], training=phases[1], a=a, b=b)
    if steps is None:
        return both, lacking
    there = {step for step, _ in both}
    missing = sorted({*steps} - there - {place.step for place in lacking})
    if missing:
        raise UsageError.saying("mismatch.step", step=missing[0], there=spans(sorted(there)))
    return [place for place in both if place[0] in steps], lacking


def _places_of(run: Run, phase: str) -> set[tuple[int, int]]:
    """Return the steps and ranks that have a phase.

    Raises:
        RunError: the run has not recorded it.
    """
    if phase not in run.phases:
        standard = any(phase == known.name for known in KNOWN)  # nobody mistyped that
        hint = "" if standard else nearest_of(phase, run.phases)
        given: dict[str, Any] = {
            "run": run.path,
            "phase": phase,
            "known": ", ".join(run.phases),
            "hint": hint,
        }
        # Which setting of the run left it out, as far as its configuration says it.
        config, of = run.config(), next((known for known in KNOWN if known.name == phase), None)
        if config is not None and of is not None and of.switch is not None:
            if not getattr(config, of.switch):
                given["switch"] = of.switch
            elif of.counts_tokens:
                given["first"] = config.token_range_start
        raise RunError.saying("mismatch.no_phase", **given)
    return {at for at in run.places if phase in run.phases_at(at)}


def _one(
    runs: Sequence[Run],
    phases: tuple[str, str],
    step: int,
    rank: int,
    mapping: CellMapping,
    decode: Decode | None,
    shown: list[Evidence] | None = None,
) -> Mismatch:
    """Return what one step of one rank says; put into `shown` what it proves."""

    def concluded(*pads: int | None, own: Mapping[bytes, int] | None = None) -> _Compared:
        sides = []
        for run, phase, pad in zip(runs, phases, pads):
            try:
                sides.append(read_side(run, phase, step, rank, pad, own or {}))
            except NoTokens as error:
                why = message("mismatch.unaligned", phase=phase, why=error)
                return _Compared(Mismatch(step, rank, *phases, Agreement.UNDECIDED, said=(why,)))
        pads_told = pads_by_each_other(*sides)
        if pads == (None, None) and pads_told != pads:
            return concluded(*pads_told)
        if own is None and (own := own_padding(*sides)):
            return concluded(*pads, own=own)
        return _compared(sides, mapping, decode)

    one = concluded(None, None)
    pad = None if one.walk is None else doubtful_pad(one.walk, one.found)
    if pad is not None:
        one = _with_padding(one, concluded(pad, pad), pad)
    if shown is not None and one.walk is not None and one.sampled is not None:
        shown.append(evidence(one.walk, one.sampled))
    return one.found


class _Compared(NamedTuple):
    """What one step of one rank says, and what it rests on; None where nothing was compared."""

    found: Mismatch
    walk: Walk | None = None
    sampled: Sampled | None = None


def _with_padding(one: _Compared, again: _Compared, pad: int) -> _Compared:
    """Return what a step says, with an id taken for padding where that decides nothing else.

    Args:
        one, again: what it says without, and with the id taken for padding.
    """
    status, was = again.found.status, one.found.status
    if status is Agreement.PARTED or was is Agreement.UNDECIDED:
        if status is Agreement.UNDECIDED:
            return one
        taken = message("tokens.taken_for_padding", pad=pad)
        return again._replace(found=replace(again.found, notes=(*again.found.notes, taken)))
    unknown = message("mismatch.pad_unknown", pad=pad)
    undecided = Agreement.UNDECIDED
    return one._replace(
        found=replace(one.found, status=undecided, cause=None, first=None, said=(unknown,))
    )


def _compared(sides: Sequence[Side], mapping: CellMapping, decode: Decode | None) -> _Compared:
    """Return what two phases of one step of one rank say."""
    step, rank, phases = sides[0].step, sides[0].rank, (sides[0].phase, sides[1].phase)
    ended = [without_padding(a.tokens, b.tokens) for a, b in permutations(sides)]
    for side, tokens in zip(sides, ended):
        side.tokens = tokens
    walk = Walk(sides[0], sides[1], mapping, decode)
    sampled = Sampled([side.run for side in sides], step, rank)
    weights = unlike_weights(walk)
    walk, moved, is_doubtful = _in_their_order(walk, weights, sampled)
    stages = [*walk.stages.values()]
    if moved is not None and is_doubtful:
        status = Agreement.PARTED if sampled.is_apart(walk) else Agreement.UNDECIDED
        conclusion: _Conclusion = status, None, None, (moved,)
        stages = [replace(stage, arising=0) for stage in stages]
    else:
        conclusion = _conclusion(walk, weights, sampled)
    status, cause, first, said = conclusion
    if status is Agreement.PARTED and not is_doubtful:
        said = (*said, *also_different(walk, weights, sampled, cause, first, said))
    experts = other_experts(walk)
    modes = said_of_modes(walk)
    if modes is not None and status is Agreement.PARTED and cause in _BY_WHAT_IS_COMPUTED:
        said = (*said, modes)
    noted = (moved, modes, said_of_experts(experts), said_of_merged([*walk.merged.values()]))
    # Of some that hold adapters only what their cells return says it.
    unproved = [p for p in walk.merged.values() if p.adapters and p.adapters.factor is None]
    unknown = tuple(pair.rollout for pair in (*walk.weights.unknown, *unproved))
    found = Mismatch(
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
        weights_unknown=unknown,
        weights_alone=walk.weights.alone,
        metrics=sampled.metrics,
        sampled=sampled.worst(walk.rollout.samples),
        rows=walk.coverage.rows,
        tokens=walk.coverage.tokens,
        saved_aligned=walk.coverage.saved_aligned,
        saved=walk.coverage.saved,
        sampled_aligned=walk.coverage.sampled_aligned,
        sampled_rows=walk.coverage.sampled,
        not_compared=tuple(
            (str(name), why) for name, why in walk.not_compared if name not in walk.named_by
        ),
        experts=experts,
        notes=_notes(walk, sampled, said, tuple(one for one in noted if one is not None)),
        token_map=token_map(walk),
        log_probs=sampled.log_probs,
    )
    return _Compared(found, walk, sampled)


def _in_their_order(
    walk: Walk, weights: Sequence[Weight], sampled: Sampled
) -> tuple[Walk, Message | None, bool]:
    """Return a walk whose rows stand behind the tokens that they were computed behind.

    Returns:
        What is said of rows that continue other samples than those in whose places they stand, if
        there are any; and whether nothing decides it: a cache whose rows were put in another order
        may be meant so, or be what is wrong.
    """
    parted = first_parted(walk, weights)
    contradicted = other_tokens(walk) is not None
    found = reordered(walk, None if parted is None else parted.name, contradicted=contradicted)
    if found is None:
        return walk, None, False
    rollout = replace(walk.rollout, tokens=found.tokens)
    again = Walk(rollout, walk.training, walk.mapping, walk.decode)
    counts = again.coverage
    if not counts.saved or counts.saved_aligned < counts.saved:
        missing = {"sampled": counts.sampled + found.left} if counts.sampled else {}
        again.coverage = replace(counts, tokens=counts.tokens + found.left, **missing)
    where = {"call": found.call, "row": found.row, "sample": found.sample}
    values = {"count": found.count, "left": found.left, **where}
    if found.contradicted:
        return again, message("mismatch.reordered", **values), False
    then = first_parted(again, weights)
    if then is None:
        is_decided = bool(sampled.tables) and not sampled.is_apart(again)
    else:
        is_decided = blame(then)[0] is Cause.WEIGHTS
    code = "reordered" if is_decided else "reordered_or_wrong"
    return again, message(f"mismatch.{code}", **values), not is_decided


def _notes(walk: Walk, sampled: Sampled, said: Messages, first: Messages = ()) -> Messages:
    """Return what was noticed about the tokens of both sides, but for what was said already."""
    other = other_tokens(walk)
    if other is None:
        other = other_response(walk)
    found = [*first, *(one for one in (other, other_count(walk)) if one is not None)]
    found += unused_rules(walk.mapping, walk.rollout, walk.training)
    start, last = walk.rollout.window
    longest = max((len(s.tokens) - len(s.prompt) for s in walk.rollout.samples), default=0)
    if start > 0 or last < longest - 1:  # some tokens of responses were not to be recorded
        values = {"first": start, "last": int(min(last, longest)), "of": longest}
        found.append(message("mismatch.window", **values))
    if count := walk.rollout.tokens.padding:
        found.append(message("tokens.padding_behind", count=count))
    for side in walk.sides:
        saves = [d for key in INPUT_KEYS for d in side.run.key_data(key, side.step, side.rank)]
        unlike = unlike_saved(saves, side.tokens.sequences)
        found += [*side.tokens.notes, *([] if unlike is None else [unlike])]
    return tuple(note for note in dict.fromkeys((*found, *sampled.notes)) if note not in said)


#: What a step says: the status, and where they part the cause, the first value, and why.
_Conclusion = tuple[Agreement, Cause | None, Stage | None, Messages]


def _conclusion(walk: Walk, weights: Sequence[Weight], sampled: Sampled) -> _Conclusion:
    """Conclude: from values, then weights, then log-probabilities."""
    if not (walk.matched.rows and walk.stages):
        return Agreement.UNDECIDED, None, None, (_nothing_compared(walk),)
    parted = first_parted(walk, weights)
    if parted is not None:
        return _by_value(parted)
    if weights:
        return Agreement.PARTED, Cause.WEIGHTS, None, tuple(said_of_weights(weights))
    is_hardly_aligned = walk.coverage.sampled_share < LEAST
    if (odd := not_finite(sampled.tables)) is not None:
        behind = None if is_hardly_aligned else Cause.SAMPLING
        return Agreement.PARTED, behind, None, (odd,)
    few = few_aligned(walk)
    if sampled.is_apart(walk):
        return _by_log_probs(walk, sampled, few)
    if is_hardly_aligned:
        return Agreement.UNDECIDED, None, None, few
    unlike = other_response(walk)
    # Where the saved samples are all covered, the rollout may have tried others: drafts, beams.
    # Where they are not, or nothing was saved, log-probabilities that agree say that tokens do.
    covered = 0 < walk.coverage.saved == walk.coverage.saved_aligned
    if unlike is None and not (covered or sampled.tables):
        unlike = other_tokens(walk)
    if unlike is not None:
        return Agreement.UNDECIDED, None, None, (unlike, *few)
    same = not any(stage.unequal for stage in walk.stages.values())
    return Agreement.IDENTICAL if same else Agreement.WITHIN_ROUNDING, None, None, few


def _nothing_compared(walk: Walk) -> Message:
    if walk.matched.rows:
        return message("mismatch.nothing_compared")
    # No two sequences begin with the same tokens, or there are none.
    empty = next((side for side in walk.sides if not side.tokens.sequences), None)
    if empty is not None:
        return message("mismatch.no_sequences", phase=empty.phase)
    rollout, training = (str(side.tokens.sequences[0][:8].tolist()) for side in walk.sides)
    return message("mismatch.no_common_tokens", rollout=rollout, training=training)


def _by_value(parted: Parted) -> _Conclusion:
    walk, weights = parted.walk, parted.weights
    cause, said = blame(parted)
    if cause is Cause.DTYPE and weights:  # what the dtypes explain hides what else is wrong
        said, first = [*said_of_weights(weights), *said], stage_of(walk, other_weight(weights))
        return Agreement.PARTED, Cause.WEIGHTS, first, tuple(dict.fromkeys(said))
    # An error that the rounding which both part by would hide.
    dtype = rounded_to(weights) if cause is Cause.WEIGHTS else None
    if cause is Cause.DTYPE:
        dtype = lower_of(parted)
    hidden = None if dtype is None else beyond_rounding(walk, dtype)
    return Agreement.PARTED, cause, parted.stage, (*said, *([] if hidden is None else [hidden]))


def _by_log_probs(walk: Walk, sampled: Sampled, few: Messages) -> _Conclusion:
    """Conclude from log-probabilities that are apart."""
    if (misplaced := sampled.misplaced(walk)) is not None:
        return Agreement.PARTED, Cause.SAMPLING, None, (misplaced,)
    other = other_tokens(walk) or other_response(walk)
    if other is not None and sampled.why(walk).code != "mismatch.temperature":
        return Agreement.PARTED, Cause.INPUT, None, (other,)
    if few and walk.coverage.sampled_share < LEAST:
        apart = message("mismatch.log_probs_apart", mean=sampled.apart)
        return Agreement.PARTED, None, None, (apart, *few)
    if (unknown := sampled.without_logits(walk)) is not None:
        return Agreement.PARTED, None, None, (unknown, *few)
    return Agreement.PARTED, Cause.SAMPLING, None, (sampled.why(walk),)


def pads_by_each_other(rollout: Side, training: Side) -> tuple[int | None, int | None]:
    """Return the id of padding of each side, where it is not known and matters; else None.

    It stands in the padding of the side itself, by a mask, positions, lengths or saved prompts of
    unlike lengths, or in that of the other one.
    """
    told = []
    for side, other in ((rollout, training), (training, rollout)):
        own, theirs = side.tokens.fillers, other.tokens.fillers
        able = own or theirs or {other.tokens.pad}
        begin = {int(side.tokens.sequences[number][0]) for number in side.tokens.unsure}
        matters = side.tokens.pad is None and (side.is_open or begin & able)
        told.append(next(iter(able)) if matters and len(able) == 1 else None)
    return told[0], told[1]


def own_padding(rollout: Side, training: Side) -> dict[bytes, int]:
    """Return with how many ids of padding the prompts of saved samples begin, by their tokens.

    Samples that stand one behind the other need no padding: what either side was given counts. A
    mask may let in padding: else both sides must have been given as much.
    """
    found = {}
    for key in {*rollout.tokens.own, *training.tokens.own}:
        packed, others = zip(*(of.tokens.own.get(key, (None, None)) for of in (rollout, training)))
        said = [count for count in packed if count is not None]
        if not said and None not in others:
            said = [*others]
        if said and (count := min(said)):
            found[key] = count
    return found


def doubtful_pad(walk: Walk, found: Mismatch) -> int | None:
    """Return an id that may be padding and would decide; None where none may, or would.

    Both part, and first in sequences alone that begin with one id of which nothing says whether it
    is padding; or too few rows are aligned, and sequences begin with that id more than once.
    """
    unsure = [walk.rollout.tokens.unsure, walk.training.tokens.unsure]
    if found.status is Agreement.PARTED and found.first is not None:
        first = found.first
        rows = walk.growth.begins_at(Name(first.cell, first.nth, first.io, first.path))
        return _of_rows(walk, rows) if len(rows) else None
    if found.status is not Agreement.UNDECIDED:
        return None
    runs = Counter[int]()
    for side, of in zip(walk.sides, unsure):
        for sequence, size in of.items():
            runs[int(side.tokens.sequences[sequence][0])] += size - 1
    pad, times = runs.most_common(1)[0] if runs else (0, 0)
    return pad if times else None


def _of_rows(walk: Walk, rows: np.ndarray) -> int | None:
    """Return the one id with which the sequences of rows begin, where it may be padding."""
    ids, most = set(), 0
    for sequence in np.unique(walk.tokens.sequence[rows]).tolist():
        partner = int(walk.matched.sequences[sequence])
        sides = ((walk.rollout, sequence), (walk.training, partner))
        size = max(side.tokens.unsure.get(number, 0) for side, number in sides)
        ids.add(int(walk.rollout.tokens.sequences[sequence][0]) if size else -1)
        most = max(most, size)
    (pad, *others) = ids
    firsts = [int(tokens[0]) for tokens in walk.rollout.tokens.sequences if len(tokens)]
    is_one = most == 1 and (firsts.count(pad) == 1 or len({*firsts}) == 1)
    in_prompts = any(walk.role(row) == "prompt" for row in rows.tolist())
    return None if others or pad < 0 or is_one or not in_prompts else pad


_MOST_TOKENS = 2048
_MOST_VALUES = 100_000  # tokens times columns
_MOST_SAMPLES = 256  # of which the tokens that are left out have a row each


def token_map(walk: Walk, most: int = _MOST_TOKENS) -> TokenMap | None:
    """Return how far each token is apart in what layers return; None where nothing was compared.

    Args:
        most: how many tokens are shown one by one. Half of them are all tokens of the samples
            that are furthest apart, the rest the tokens furthest apart of the others.
    """
    names = [
        name
        for name in walk.growth.of_layers
        if not any(other.cell.startswith(f"{name.cell}.") for other in walk.growth.of_layers)
    ]
    if not names:
        return None
    apart = np.stack([walk.growth.of_layers[name] for name in names], axis=1)
    known = ~np.isnan(apart)
    rows = np.flatnonzero(known.any(axis=1) & (walk.tokens.sequence >= 0))
    if not rows.size:
        return None
    apart, sample = apart[rows], walk.samples(rows)
    largest = np.where(known[rows], apart, -1).max(axis=1)
    chosen = _chosen(sample, largest, max(1, min(most, _MOST_VALUES // len(names))))
    order = np.lexsort((walk.tokens.position[rows], sample))
    shown = order[chosen[order]]
    left: list[tuple[int | None, int, np.ndarray]] = []  # by sample; of too many samples as one
    of_left, far = sample[~chosen], apart[~chosen]
    samples = np.unique(of_left)
    for one in samples[:_MOST_SAMPLES].tolist():
        of_one = far[of_left == one]
        left.append((one, len(of_one), np.fmax.reduce(of_one, axis=0)))
    rest = far[np.isin(of_left, samples[_MOST_SAMPLES:])]
    if len(rest):
        left.append((None, len(rest), np.fmax.reduce(rest, axis=0)))
    numbers = {name: number for number, name in enumerate(walk.stages)}
    return TokenMap(
        tuple(numbers[name] for name in names),
        tuple(walk.token(int(rows[at]), float(largest[at])) for at in shown),
        apart[shown],
        tuple(left),
    )


def _chosen(sample: np.ndarray, largest: np.ndarray, most: int) -> np.ndarray:
    """Return which rows are shown one by one, bool [rows]."""
    chosen = np.zeros(len(sample), bool)
    if len(sample) <= most:
        return ~chosen
    worst_first = np.argsort(-largest, kind="stable")
    sizes = np.bincount(sample)
    room = most // 2
    for one in dict.fromkeys(sample[worst_first].tolist()):
        if sizes[one] > room:
            break
        chosen |= sample == one
        room -= int(sizes[one])
    left = worst_first[~chosen[worst_first]]
    chosen[left[: most - int(chosen.sum())]] = True
    return chosen
