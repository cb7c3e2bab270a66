"""Training against inference, in English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, listed, some

_WHERE = {
    "all": "all {rows} aligned rows",
    "prompt": "{born} of {rows} aligned rows, all of prompts",
    "decode": "{born} of {rows} aligned rows, all of tokens that were generated",
    "some": "{born} of {rows} aligned rows",
}


def _weights(
    name: str,
    parts: Sequence[str],
    count: int,
    relative: float | None,
    since: int | None,
    stale: int | None,
    call: int | None = None,
    token: int | None = None,
    brought: bool = False,
    lacks: Sequence[str] = (),
) -> str:
    of = f", which is {listed(parts)} in the training network," if parts else ""
    far = "" if relative is None else f" by {relative:.2g} of its norm"
    more = f", and {count - 1} more" if count > 1 else ""
    when = "" if since is None else f", from step {since} on"
    old = "" if stale is None else f"; it still has the values of step {stale}"
    look = "look at how the weights are brought over after an update"
    if lacks:
        old = f"; it is the training network's without its adapters ({listed(lacks)}){old}"
        look = "look at how adapters are merged into the rollout's weights"
    if call is not None:
        place = "" if token is None else f" (given token {token} of the responses)"
        begin = f"from call {call} of the rollout{place} on"
        old = old and f"{old} until then"
        old = f"; {begin} it has the training network's{old}" if brought else f", {begin}{old}"
        when = ""
        look = "it was changed while the rollout generated: look at when weights are brought over"
    return (
        f"the rollout network's {name}{of} differs from the training network's{far}{when}{more}"
        f"{old}: {look}"
    )


def _other_count(rollout: int, training: int | None, sample: int, count: int, of: int) -> str:
    other = "the training none" if training is None else f"the training {training:+d}"
    return (
        f"as positions the rollout network was given the places of its tokens {rollout:+d} in "
        f"sample {sample}, {other}; so in {count} of {counted(of, 'sequence')}. Rotary embeddings "
        "do not see a constant, e.g. padding that is counted; position embeddings do"
    )


def _also_temperature(rollout: float, training: float | None) -> str:
    other = "whether the training divides its own by it, too, is not known"
    if training is not None:
        other = f"the training's of its own at {training:g}"
    mine = f"the rollout's log-probabilities are those of its logits at temperature {rollout:g}"
    return f"{mine}, {other}"


def _of_router(cell: str, tokens: int, others: int, before: int, by: int) -> str:
    given = [
        f"{count} part {where}"
        for count, where in (
            (before, "before it (its input already differs)"),
            (by, "by it (its input agrees within rounding)"),
        )
        if count
    ]
    if unknown := others - before - by:
        given.append(f"of {unknown} its input was not compared")
    return f"{cell}: {others} of {tokens} tokens to other experts; {', '.join(given)}"


def _rows(
    where: str, born: int, rows: int, samples: int, of_samples: int, padded: bool = False
) -> str:
    head = _WHERE[where].format(born=born, rows=rows)
    only = ": those behind padding, and no others" if padded else ""
    return f"it is so in {head}, of {samples} of {counted(of_samples, 'sequence')}{only}"


def _shifted(by: int) -> str:
    steps = f"{abs(by)} {'later' if by > 0 else 'earlier'}"
    return (
        f"the rollout's rows are those that the training network has at positions {steps}: look at "
        f"how positions are counted in decode"
    )


def _no_phase(run: str, phase: str, known: str, hint: str, switch: str = "", first: int = 0) -> str:
    why = ""
    if switch:
        why = f" It was not asked for: {switch} was off."
    elif first:
        why = f" Only its tokens from {first} on were asked for (token_range_start); none ran."
    if not known:
        return (
            f"{run} has no layers, but key data alone: mismatch compares the layers of two phases."
        )
    return f"{run} has no phase {phase}.{hint}{why} Its phases: {known}."


_LETS_IN = {
    "padding": "lets {rows} see padding that the {other}'s hides",
    "later": "lets {rows} see later tokens that the {other}'s hides",
    "others": "lets {rows} see tokens of other samples that the {other}'s hides",
    "hidden": "hides from {rows} tokens before them that the {other}'s lets in",
}


def _lets_in(name: str, rows: int, side: str, kind: str) -> str:
    other = "training" if side == "rollout" else "rollout"
    what = _LETS_IN[kind].format(rows=counted(rows, "row"), other=other)
    return f"the {side}'s mask at {name} {what}"


_STATUSES = {
    "identical": "agrees bit for bit",
    "within_rounding": "agrees within rounding",
    "parted": "parted",
    "undecided": "undecided",
}


def _of_rank(rank: int, status: str, name: str, cause: str) -> str:
    what = ", ".join(part for part in (name, cause) if part)
    return f"rank {rank} {_STATUSES[status]}" + (f": {what}" if what else "")


def _more(count: int) -> str:
    return f"; {count} tokens are so" if count > 1 else ""


def _rounded_weights(name: str, count: int, dtypes: Sequence[str]) -> str:
    more = f", and so {'are' if count > 2 else 'is'} {count - 1} more" if count > 1 else ""
    return (
        f"the rollout network's {name} is the training's rounded to {listed(dtypes)}{more}: no "
        f"update is missing there. Look at the dtype in which the weights are brought over"
    )


def _weights_undecided(cell: str, names: Sequence[str], io: str = "output") -> str:
    shown = some(names[:4], len(names) - 4)
    which = f"{cell} may part by its weights or by what it computes"
    if io == "input":
        which = f"what {cell} is given may part by weights of cells before it or by what these do"
    return (
        f"{which}: whether the other network holds the same was not to be compared of {shown}. "
        f"Name the cells in a mapping (--mapping)"
    )


def _ran_alone(
    cell: str, io: str, cells: Sequence[str], first: str, side: str, skipped: bool
) -> str:
    other = "training" if side == "rollout" else "rollout"
    shown = some(cells[:4], len(cells) - 4)
    where = f"before {cell}" if io == "input" else f"inside {cell}"
    head = f"{shown} ran {where} in the {side} alone: the {other} recorded no such cell"
    if skipped:
        return f"{head}, and goes on with what {first} is given"
    return (
        f"{head}. Look at what the {other} has in its place; if it is called otherwise there, "
        f"name it in a mapping (--mapping)"
    )


def _modes(rollout: str, training: str, cells: Sequence[str], dropping: Sequence[str]) -> str:
    active = f"; dropout was active in {some(dropping[:3], len(dropping) - 3)}" if dropping else ""
    look = "set_train(False) before the phase takes dropout and the like out of it"
    if rollout == training:
        what = f"both networks ran in {rollout} mode"
        if cells:
            what += f", but for {some(cells[:3], len(cells) - 3)}, which did in one of them alone"
        return f"{what}{active}: {look}"
    return (
        f"the rollout's network ran in {rollout} mode and the training's in {training} mode"
        f"{active}: {look}"
    )


def _weights_alone(rollout: Sequence[str], training: Sequence[str]) -> str:
    sides = [
        f"{len(names)} of the {side}'s ({some(names[:3], len(names) - 3)})"
        for side, names in (("rollout", rollout), ("training", training))
        if names
    ]
    return (
        f"weights: not compared, as the other network has none of that name and shape: "
        f"{listed(sides)}"
    )


def _merged(
    name: str, names: Sequence[str], of_training: bool, factor: float | None, count: int = 1
) -> str:
    merged, other = ("rollout", "training")[:: 1 if of_training else -1]
    more = f", and so {'are' if count > 2 else 'is'} {count - 1} more" if count > 1 else ""
    product = f"the product of {listed(names)}"
    if factor is None:
        return (
            f"{name} is another one in both networks, and the {other} has adapters beside it "
            f"({listed(names)}): what its cell returns agrees, so the {merged} has them merged "
            f"into it{more}. Elements would prove it (task: tensor)"
        )
    return (
        f"the {merged} network's {name} is the {other}'s with its adapters merged into it: "
        f"{factor:.3g} times {product} was added{more}"
    )


def _mapping_shapes(source: str, cell: str, shape: object, parts: Sequence[str]) -> str:
    return (
        f"mapping: {source}: the weight of {cell} is {shape}, those of its parts are "
        f"{listed(parts)}. Expected as many rows as all parts have together (or columns, where "
        f"weights are [inputs, outputs]), each in as many groups as the mapping says"
    )


def _reordered(count: int, call: int, row: int, sample: int, left: int) -> str:
    which = "another sample" if sample < 0 else f"sample {sample}"
    more = f"; {counted(left, 'more row')} of no sequence of the training" if left else ""
    return (
        f"by what was computed, {counted(count, 'row')} of the rollout continue other samples than "
        f"those in whose places they stand, the first in call {call}: row {row} of its batch goes "
        f"on with {which}{more}"
    )


def _reordered_or_wrong(count: int, call: int, row: int, sample: int, left: int) -> str:
    return (
        f"{_reordered(count, call, row, sample, left)}. The cache may have been put in another "
        f"order, as beam search does, or its rows may be mixed up: the tokens fit both, and "
        f"nothing decides it. Save rollout_log_prob and old_log_prob, or look at how rows of the "
        f"cache are brought into order"
    )


TEXTS: Mapping[str, Any] = {
    "reordered": lambda **values: f"{_reordered(**values)}: they are aligned by that",
    "reordered_or_wrong": _reordered_or_wrong,
    "weights": _weights,
    "rounded_weights": _rounded_weights,
    "weights_undecided": _weights_undecided,
    "ran_alone": _ran_alone,
    "modes": _modes,
    "merged": _merged,
    "merged_otherwise": lambda cell, **merged: (
        f"what {cell} was given agrees, and what it returns does not: {_merged(**merged)}. Look "
        f"at the factor with which either network adds them (alpha / r), and at their dropout"
    ),
    "mapping_shapes": _mapping_shapes,
    "non_finite": lambda cell, sides: (
        f"what {cell} computes has NaN or Inf in the {' and in the '.join(sides)}"
    ),
    "computation_or_given": lambda cell, values: (
        f"what {cell} returns does not agree, and {some(values[:4], len(values) - 4)} does: it is "
        f"what the cell computes, or what else it was given"
    ),
    "beyond_rounding": lambda name, cell, io, around, growth, usual, dtype: (
        f"rounding to {dtype} does not explain {name}: it is {growth:.2g} times as far apart as "
        f"what entered, in other layers at most {usual:.2g} times. Look also at "
        + (f"the code of {around}, which makes it" if io == "input" else f"what {cell} computes")
    ),
    "handed_on": lambda cell, around, rounded=False, left=0: (
        f"every cell before {cell}{' that could be compared' if left else ''} agrees"
        f"{' but for small errors' if rounded else ''}, and what it is given does not: it is made "
        f"by the code of {around}, between its cells"
        + (", or of what was not compared" if left else "")
    ),
    "rows": _rows,
    "shifted": _shifted,
    "unseen": lambda cell, values: (
        f"not compared of what {cell} was given: {some(values[:4], len(values) - 4)}. A mask, or "
        f"what else it is, may differ"
    ),
    "unread": lambda values: (
        f"not compared of what its cells returned: {some(values[:4], len(values) - 4)}. It may be "
        f"there"
    ),
    "other_tokens": lambda sample, position, rollout, training, count, of, packed=False: (
        f"{count} of {of} sequences of the rollout go on otherwise in the training: that of sample "
        f"{sample} has token {rollout} at position {position}, the nearest one of the training "
        f"{training}; from there on no rows of them can be compared. "
        + (
            "Several samples stand in one row of the training: give its network positions that "
            "begin again, or say where they stand by `phase.tokens(ids, positions=...)`"
            if packed
            else "Another tokenizer, or ids shifted by padding, may be the reason"
        )
    ),
    "log_prob_not_finite": lambda row, place, rollout, training, count: (
        f"the log-probability of token {place} of response {row} is {rollout:.4g} in the rollout "
        f"and {training:.4g} in the training{_more(count)}"
    ),
    "log_probs_shifted": lambda by: (
        f"the rollout's log-probabilities are those that the training has of the token "
        f"{'behind' if by > 0 else 'before'}: one side is shifted by one"
    ),
    "worst_sampled": lambda row, place, id, rollout, training: (
        f"worst sampled token: response {row}, token {place}{'' if id is None else f', id {id}'}: "
        f"{rollout:.4g} in the rollout, {training:.4g} in the training"
    ),
    "leak": lambda side, rows: (
        f"samples leak into each other: the {side}'s mask lets {counted(rows, 'row')} see tokens "
        f"of other samples that stand before them in the same row"
    ),
    "other_count": _other_count,
    "also_temperature": _also_temperature,
    "lets_in": _lets_in,
    "no_phase": _no_phase,
    "of_rank": _of_rank,
    "experts": lambda routers, apart, **first: (
        f"{apart} of {routers} routers chose otherwise, first {_of_router(**first)}"
    ),
    "routers": lambda routers, apart: (
        f"experts: {apart} of {routers} routers chose otherwise"
        if apart
        else f"experts: all {routers} routers chose the same"
    ),
    "of_router": _of_router,
    "weights_alone": _weights_alone,
    "steps": lambda agree, parted, undecided: ", ".join(
        f"{count} {word}"
        for count, word in ((agree, "agree"), (parted, "parted"), (undecided, "undecided"))
        if count
    ),
}
