"""Training against inference, in English."""

from __future__ import annotations

from collections.abc import Sequence

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
) -> str:
    of = f", which is {listed(parts)} in the training network," if parts else ""
    far = "" if relative is None else f" by {relative:.2g} of its norm"
    more = f", and {count - 1} more" if count > 1 else ""
    when = "" if since is None else f", from step {since} on"
    old = "" if stale is None else f"; it still has the values of step {stale}"
    return (
        f"the rollout network's {name}{of} differs from the training network's{far}{when}{more}"
        f"{old}: look at how the weights are brought over after an update"
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
    return f"{run} has no phase {phase}{hint}.{why} Its phases: {known}."


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


def _weights_undecided(cell: str, names: Sequence[str]) -> str:
    shown = some(names[:4], len(names) - 4)
    return (
        f"{cell} may part by its weights or by what it computes: whether the other network holds "
        f"the same was not to be compared of {shown}. Name the cells in a mapping (--mapping)"
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


TEXTS = {
    "reordered": lambda **values: f"{_reordered(**values)}: they are aligned by that",
    "reordered_or_wrong": _reordered_or_wrong,
    "weights": _weights,
    "rounded_weights": _rounded_weights,
    "weights_undecided": _weights_undecided,
    "mapping_no_cell": (
        "mapping: {source} fits no cell of the rollout network, so it says nothing. Expected the "
        "name of one on the left, e.g. {example}{hint}"
    ),
    "mapping_no_part": (
        "mapping: {source}: the training network has no {what} {part}{hint}, so it says nothing"
    ),
    "mapping_shapes": _mapping_shapes,
    "positions": (
        "the rollout network was given position {given} for token {position} of sample {sample} "
        "(call {call}), where its earlier tokens were counted so that {right} would follow"
    ),
    "non_finite": lambda cell, sides: (
        f"what {cell} computes has NaN or Inf in the {' and in the '.join(sides)}"
    ),
    "numbers": (
        "{cell} is given other whole numbers for exactly the tokens whose rows part: {value} is "
        "{rollout} in the rollout and {training} in the training for token {position} of sample "
        "{sample}. If these are positions, look at how they are counted"
    ),
    "lower_dtype": (
        "the rollout computes {cell} in {rollout}, the training in {training}; the distance is "
        "what the lower of both rounds"
    ),
    "gradual": (
        "no single cell makes more than rounding explains, but at {cell} all of them together do"
    ),
    "returned": "{cell} returns something else; nothing of what it was given could be compared",
    "no_sequences": (
        "{phase}: of no token it is known which ones stand before it. Record its first call, "
        "which is given the prompts (token_range_start: 0), or save prompts and responses as token "
        "ids (key_data_dump)"
    ),
    "computation": "what {cell} was given agrees, and what it returns does not",
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
    "from_borders_on": (
        "in each of these sequences it begins with the first token of a cache block (of {size} "
        "tokens): look at block_tables and slot_mapping"
    ),
    "unseen": lambda cell, values: (
        f"not compared of what {cell} was given: {some(values[:4], len(values) - 4)}. A mask, or "
        f"what else it is, may differ"
    ),
    "unread": lambda values: (
        f"not compared of what its cells returned: {some(values[:4], len(values) - 4)}. It may be "
        f"there"
    ),
    "other_tokens": (
        "{count} of {of} sequences of the rollout go on otherwise in the training: that of sample "
        "{sample} has token {rollout} at position {position}, the nearest one of the training "
        "{training}; from there on no rows of them can be compared. Another tokenizer, or ids "
        "shifted by padding, may be the reason"
    ),
    "log_prob_not_finite": lambda row, place, rollout, training, count: (
        f"the log-probability of token {place} of response {row} is {rollout:.4g} in the rollout "
        f"and {training:.4g} in the training{_more(count)}"
    ),
    "rows_exchanged": (
        "rows of the rollout's log-probabilities are those of other responses in the training: row "
        "{row} is row {other} ({count} rows in all). Look at the order in which they are put "
        "together"
    ),
    "log_probs_shifted": lambda by: (
        f"the rollout's log-probabilities are those that the training has of the token "
        f"{'behind' if by > 0 else 'before'}: one side is shifted by one"
    ),
    "other_response": (
        "{count} of {of} saved responses go on otherwise in the training: that of sample {sample} "
        "has token {saved} at position {position}, the training network was given {training}. "
        "Another tokenizer, or ids shifted by padding, may be the reason"
    ),
    "worst_sampled": lambda row, place, id, rollout, training: (
        f"worst sampled token: response {row}, token {place}{'' if id is None else f', id {id}'}: "
        f"{rollout:.4g} in the rollout, {training:.4g} in the training"
    ),
    "few_aligned": (
        "only {rows} of {tokens} tokens of the rollout could be aligned: nothing is known of the "
        "others"
    ),
    "few_saved": (
        "only {rows} of {tokens} tokens of the saved prompts and responses could be aligned: "
        "nothing is known of the others"
    ),
    "log_probs_apart": (
        "the log-probabilities of the sampled tokens differ by {mean:.2g} nats in the mean, and "
        "too few tokens are aligned to say where that begins"
    ),
    "other_count": _other_count,
    "also": "also different: {what}",
    "also_beyond": (
        "{name} is {apart:.2g} apart where {entered:.2g} entered, which rounding to {dtype} does "
        "not explain"
    ),
    "also_dtype": "the rollout computes {cell} in {rollout}, the training in {training}",
    "also_temperature": _also_temperature,
    "temperature": (
        "the logits agree; the rollout's log-probabilities are those of temperature {rollout:g}, "
        "the training's of {training:g} (mean difference {mean:.2g} nats)"
    ),
    "sampling": (
        "the logits agree, and the log-probabilities of the sampled tokens differ by {mean:.2g} "
        "nats in the mean: look at what is done to logits behind the networks (temperature, "
        "penalties, masked tokens, the log-softmax of the sampler)"
    ),
    "fused_form": (
        "{path}: {source}: {target} is no mapping of cells. Expected a name, a list of at least "
        "two names, or {{parts: [names], groups: number}}."
    ),
    "lets_in": _lets_in,
    "mask_or_scores": "it is a mask on one side, and on the other it is not",
    "packed_mask": (
        "it lets samples of one row see each other: whether something else hides them, as the ends "
        "of the samples that attention is given, is not known"
    ),
    "shared_mask": (
        "it is the same for all samples and lets in their padding: whether something else hides "
        "that, is not known"
    ),
    "mask_convention": (
        "nothing decides which of its two values lets a token in: it is not one and the same for "
        "each token and itself"
    ),
    "keys_not_stored": (
        "its columns are tokens, which can be told apart by elements only; record task: tensor"
    ),
    "keys_or_features": (
        "its last axis is as long as the sequence, and nothing decides whether it has features or "
        "tokens"
    ),
    "heads": "it has {rollout} heads in the rollout and {training} in the training",
    "no_layout": "its shapes do not say which axis has the tokens",
    "no_rows": "no row of it has a partner",
    "no_sums": "there are fingerprints of its rows, but no sums",
    "fused_sketch": "its parts are interleaved, which sketches cannot tell; record task: tensor",
    "columns": "a row has {rollout} values in the rollout and {training} in the training",
    "kind": "its elements are {dtype}, which are no numbers",
    "unaligned": "{phase}: {why}",
    "nothing_compared": (
        "the tokens are known, but no value of both networks could be compared: record both phases "
        "with task: tensor or task: sketch"
    ),
    "no_common_tokens": (
        "no sequence of the rollout begins with the tokens of one of the training's: the first "
        "begin with {rollout} and {training}. The reason may be other prompts, another tokenizer, "
        "or ids shifted by padding. If one side is padded on the left, its network must be given "
        "positions, lengths or a mask that say so"
    ),
    "no_metrics": "no metrics of log-probabilities: {why}",
    "no_phase": _no_phase,
    "no_rank": (
        "no rank has both phases: {rollout} was recorded on ranks {a}, {training} on ranks {b}. "
        "Record both on the same ranks."
    ),
    "ranks": "ranks of step {step}",
    "of_rank": _of_rank,
    "no_step": (
        "no step has both phases: {rollout} was recorded in steps {a}, {training} in steps {b}. "
        "Record both in one step: rows of one are held against rows of the other."
    ),
    "step": "step {step} has not both phases; these have: {there}.",
    "headline_identical": "AGREE bit for bit: {rollout} and {training}",
    "headline_within_rounding": "AGREE within rounding: {rollout} and {training}",
    "headline_parted": "PARTED at step {step}, rank {rank}: {rollout} against {training}",
    "headline_undecided": "UNDECIDED: {rollout} against {training}",
    "cause": "cause: {cause}",
    "apart": (
        "apart by {apart:.2g} of the row's norm (root mean square; at most {most:.2g}), entered "
        "{entered:.2g}, rounding explains {allowed:.2g}"
    ),
    "worst": "worst token: sample {sample}, position {position} ({role}), id {id}{text}",
    "role_prompt": "prompt",
    "role_padding": "prompt, behind padding",
    "role_first": "first of the response",
    "role_block": "response, first in a cache block",
    "role_response": "response",
    "text": ", …{text!r}",
    "births": "error is born in",
    "birth": "{name}: {apart:.2g}, entered {entered:.2g}",
    "grows": "how it grows",
    "shown_step": "of step {step}, rank {rank}, which is the furthest apart:",
    "weights_differ": "weights: {different} of {compared} differ",
    "weights_agree": "weights: all {compared} agree",
    "weights_some_agree": "weights: {compared} of {of} of the rollout's compared, and these agree",
    "weights_alone": _weights_alone,
    "weights_unknown": "weights: {count} could not be compared ({names})",
    "metrics": "log-probabilities of the sampled tokens",
    "steps": lambda agree, parted, undecided: ", ".join(
        f"{count} {word}"
        for count, word in ((agree, "agree"), (parted, "parted"), (undecided, "undecided"))
        if count
    ),
    "scope": (
        "{rows} of {tokens} rows of the rollout aligned, {values} values compared, {left} not"
    ),
    "note": "note: {note}",
    "written": "written: {files}",
    "one_or_two_runs": "one run, or two: the rollout's and the training's; given were {runs}.",
    "a_step": "the number of a step, e.g. 3",
    "more": "… {count} more",
}
