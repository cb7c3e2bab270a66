"""What is to blame where a rollout and a training part, and what is to be said of it.

And what is wrong beside what parts first: below the rounding of a lower dtype, and further faults.
Of these only what can be told from the first: parameters, positions, dtypes, masks and whole
numbers that a cell is given are compared by themselves, temperature by each side's logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.rules import Rules, rule
from mindrlhf_msprobe.comparison.mismatch.growth import GROWTH, kind_of
from mindrlhf_msprobe.comparison.mismatch.keyed import LetsIn
from mindrlhf_msprobe.comparison.mismatch.networks import ran_alone
from mindrlhf_msprobe.comparison.mismatch.rows import explained, numbers_that_explain
from mindrlhf_msprobe.comparison.mismatch.sampling import Sampled
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.mismatch.weights import WeightPair
from mindrlhf_msprobe.comparison.pairing.names import Name, around
from mindrlhf_msprobe.findings.mismatch import Cause, Stage, Weight
from mindrlhf_msprobe.sequences.beginnings import holds, longest_common
from mindrlhf_msprobe.sequences.calls import PhaseTokens
from mindrlhf_msprobe.storage.arrays.npy import roundoff
from mindrlhf_msprobe.storage.records import cell_of_parameter, is_around

_LEAST_INSIDE = 4  # tokens of a sequence that is looked for inside others
_GRADUAL = 4.0  # times what independent roundings of all cells explain
OF_ROUNDING = 8.0  # times a roundoff: a distance may be as large by rounding alone


#: The share of rows whose next token was sampled without which nothing is said to agree.
LEAST = 0.5
_MOST = 0.95  # of them: where less is aligned, that is said


def few_aligned(walk: Walk) -> Messages:
    """Say how few of the tokens were aligned; nothing where most of them were."""
    counts = walk.coverage
    if counts.sampled_share < LEAST <= counts.share:
        few = {"rows": counts.sampled_aligned, "tokens": counts.sampled}
        return (message("mismatch.few_sampled", **few),)
    if counts.share >= _MOST:
        return ()
    if counts.rows < counts.share * counts.tokens + 1:
        return (message("mismatch.few_aligned", rows=counts.rows, tokens=counts.tokens),)
    return (message("mismatch.few_saved", rows=counts.saved_aligned, tokens=counts.saved),)


class Parted(NamedTuple):
    """The value at which both sides part, and the parameters that differ."""

    walk: Walk
    name: Name
    stage: Stage
    weights: Sequence[Weight] = ()

    def is_given(self) -> bool:
        """Return whether it is what a cell is given."""
        return self.name.io == "input"

    def is_returned(self) -> bool:
        """Return whether it is what a cell returns."""
        return self.name.io == "output"

    def is_mask(self) -> bool:
        """Return whether it says which tokens may be seen."""
        return self.name in self.walk.masks

    @property
    def around(self) -> str:
        """The cell whose code or inner cells made it."""
        return self.name.cell if self.is_returned() else _around(self.walk, self.name)


def first_parted(walk: Walk, weights: Sequence[Weight] = ()) -> Parted | None:
    """Return the value at which both part, in causal order; None where they do not.

    Args:
        weights: those that differ. What rounding them explains comes behind all else.
    """
    every = [Parted(walk, name, stage, weights) for name, stage in walk.stages.items()]
    lasting = [at for at in every if at.stage.arising and at.stage.lasting]
    others = (at for at in lasting if not _rounded_weights_of(at))
    if (first := next(others, None)) is not None:
        return first
    if lasting and (other := other_weight(weights)).rounded is None:
        shown = stage_of(walk, other)
        lasting = [at for at in every if at.stage is shown] or lasting
    if lasting:
        return lasting[0]
    # Further apart than the roundings of all cells before: only where the last value is, too, as
    # what is apart before may have come together again.
    outputs = [at for at in every if at.is_returned()]
    beyond = [
        at
        for cells, at in enumerate(outputs)
        if at.stage.apart > gradual_limit(at.stage, cells) and at.stage.lasting
    ]
    return beyond[0] if beyond and beyond[-1] is outputs[-1] else None


def _rounded_weights_of(at: Parted) -> list[Weight]:
    """Return the weights that are only rounded, and explain by this how far a value is apart.

    What is 16 times as far apart as what entered is so by rounding only up to a few roundoffs.
    """
    return [
        weight
        for weight in at.weights
        if weight.rounded is not None
        and _may_make(at.walk, weight, at.name)
        and at.stage.apart <= max(OF_ROUNDING * roundoff(weight.rounded), GROWTH * at.stage.entered)
    ]


def gradual_limit(stage: Stage, before: int) -> float:
    """Return up to where the roundings of its cell, and of so many before, explain a distance."""
    return _GRADUAL * stage.allowed * math.sqrt(before + 1)


class Blame(NamedTuple):
    """What is to blame, and why; the cause is None where nothing that was recorded decides it."""

    cause: Cause | None
    said: list[Message]


def blame(at: Parted) -> Blame:
    """Return what is to blame for the value at which both part, and why."""
    found, failed = BLAME.answer(at)
    assert found is not None
    cause, said = found.cause, [*found.said, *failed]
    rounded = said_of_weights([weight for weight in at.weights if weight.rounded is not None])
    said += (one for one in rounded if one not in said)
    if not math.isfinite(at.stage.apart) and (sides := at.walk.non_finite(at.name)):
        said.append(message("mismatch.non_finite", cell=at.name.cell, sides=sides))
    return Blame(cause, said)


def _by_weights(at: Parted) -> Blame | None:
    """Blame other weights, else those that are only rounded and explain how far it is apart."""
    other = [w for w in at.weights if w.rounded is None and _may_make(at.walk, w, at.name)]
    if other:
        return Blame(Cause.WEIGHTS, said_of_weights(other))
    return Blame(Cause.WEIGHTS, said_of_weights(at.weights)) if _rounded_weights_of(at) else None


def _by_positions(at: Parted) -> Blame | None:
    drift = position_drift(at.walk)
    return None if drift is None else Blame(Cause.INPUT, [drift])


@rule(Parted.is_returned)
def _by_numbers(at: Parted) -> Blame | None:
    numbers = other_numbers(at.walk, at.name)
    return None if numbers is None else Blame(Cause.INPUT, [numbers, _of_rows(at)])


@rule(Parted.is_mask)
def _by_mask(at: Parted) -> Blame:
    cause = Cause.INPUT if at.is_given() else Cause.COMPUTATION
    return Blame(cause, [*said_of_mask(at.name, at.walk.masks[at.name]), _of_rows(at)])


def _by_dtype(at: Parted) -> Blame | None:
    dtypes = unlike_dtypes(at.walk, at.name, at.stage)
    if dtypes is None or lower_of(at) is None:
        return None
    return Blame(Cause.DTYPE, [message("mismatch.lower_dtype", cell=at.name.cell, **dtypes)])


def _by_many_roundings(at: Parted) -> Blame | None:
    """Blame no cell where no error begins there, but roundings alone add up."""
    if at.stage.arising:
        return None
    return Blame(Cause.GRADUAL, [message("mismatch.gradual", cell=at.name.cell)])


def _by_other_samples(at: Parted) -> Blame | None:
    """Blame a mask, where only rows part that see other samples of their row by it."""
    walk = at.walk
    mine = walk.growth.begins_at(at.name)
    for side, rows in (("rollout", mine), ("training", walk.matched.partners[mine])):
        calls = getattr(walk, side).tokens.calls
        no_leaks = (np.zeros(call.sequence.size, bool) for call in calls)
        leaks = [no if call.leaks is None else call.leaks for call, no in zip(calls, no_leaks)]
        every = np.concatenate(leaks)
        if len(rows) and every[rows].all():
            leak = message("mismatch.leak", side=side, rows=int(every.sum()))
            return Blame(Cause.INPUT, [leak, _of_rows(at)])
    return None


def _by_cells_alone(at: Parted) -> Blame | None:
    names = _undecided_weights(at.walk, at.name)
    if {cell_of_parameter(of) for of in names}.difference(*at.walk.cells_alone):
        return None
    alone = ran_alone(at.walk, at.name, at.around)
    if alone is None:
        return None
    cause = Cause.INPUT if at.is_given() else Cause.COMPUTATION
    looked_at = _looked_at(at)
    return Blame(cause, [alone, *(looked_at[:1] if alone.params["skipped"] else looked_at)])


def _by_unknown_weights(at: Parted) -> Blame | None:
    names = _undecided_weights(at.walk, at.name)
    values = {"cell": at.name.cell, "io": at.name.io, "names": names}
    said = message("mismatch.weights_undecided", **values)
    return Blame(None, [said, *_looked_at(at)]) if names else None


@rule(Parted.is_given)
def _by_what_is_handed_on(at: Parted) -> Blame:
    rounded = at.stage.entered > at.stage.allowed
    left = sum(other.io == "output" for other, _ in at.walk.not_compared)
    left += len(_unseen(at.walk, at.around))
    cells = {"cell": at.name.cell, "around": at.around}
    made = message("mismatch.handed_on", **cells, rounded=rounded, left=left)
    return Blame(Cause.INPUT, [made, *_looked_at(at)])


def _by_computation(at: Parted) -> Blame:
    """Blame what a cell computes; of what it was given only what was compared is said.

    The cause is None where something else that it was given was not.
    """
    walk, cell = at.walk, at.name.cell
    given = [str(other) for other in walk.stages if _is_given(other, cell)]
    cause: Cause | None = Cause.COMPUTATION
    said = message("mismatch.computation", cell=cell)
    merged = (
        pair
        for pair in walk.merged.values()
        if cell in {cell_of_parameter(of) for of in (pair.rollout, *pair.training)}
    )
    if not given:
        said = message("mismatch.returned", cell=cell)
    elif (pair := next(merged, None)) is not None:
        cause, said = None, message("mismatch.merged_otherwise", cell=cell, **_merged(pair))
    elif _unseen(walk, cell):
        cause, said = None, message("mismatch.computation_or_given", cell=cell, values=given)
    return Blame(cause, [said, *_looked_at(at)])


#: What explains a value; from `_by_many_roundings` on nothing recorded does. The group is that of
#: the entry points of other packages.
BLAME: Rules[Parted, Blame] = Rules(
    "mindrlhf_msprobe.mismatch",
    Blame,
    *(_by_weights, _by_positions, _by_numbers, _by_mask, _by_dtype),
    *(_by_many_roundings, _by_other_samples, _by_cells_alone, _by_unknown_weights),
    *(_by_what_is_handed_on, _by_computation),
)


def said_of_merged(merged: Sequence[WeightPair]) -> Message | None:
    """Say which parameters hold the adapters of the other network; None if none does."""
    if not merged:
        return None
    return message("mismatch.merged", **_merged(merged[0]), count=len(merged))


def _merged(pair: WeightPair) -> dict[str, Any]:
    """Return what is said of a parameter that holds adapters."""
    adapters = pair.adapters
    assert adapters is not None
    values = {"names": [*adapters.names[:2]], "factor": adapters.factor}
    return {"name": pair.rollout, "of_training": adapters.of_training, **values}


def other_numbers(walk: Walk, name: Name) -> Message | None:
    """Say which other whole numbers a cell is given for the very tokens whose rows part."""
    for given, sources in walk.unmeasured.items():
        if not _is_given(given, name.cell):
            continue
        found = numbers_that_explain(*sources, walk.matched, walk.growth.begins_at(name))
        if found is not None:
            token = walk.token(found[0])
            where = {"sample": token.sample, "position": token.position}
            numbers = dict(zip(("rollout", "training"), found[1:]))
            return message("mismatch.numbers", cell=name.cell, value=str(given), **numbers, **where)
    return None


def said_of_mask(name: Name, lets_in: LetsIn) -> list[Message]:
    """Say what a mask lets in, or hides, on one side only."""
    return [
        message("mismatch.lets_in", name=name.cell, rows=rows, side=side, kind=kind)
        for kind, of_both in lets_in.items()
        for side, rows in zip(("rollout", "training"), of_both)
        if rows
    ]


def _looked_at(at: Parted) -> list[Message]:
    """Return which rows part, whether they are those of other positions, and what was not seen."""
    walk, name, around = at.walk, at.name, at.around
    said = [_of_rows(at)]
    size, rows = walk.rollout.tokens.block, walk.growth.begins_at(name)
    if size is not None and all(walk.role(row) != "prompt" for row in rows.tolist()):
        # Whether rows part from the first token of a cache's block on: in each sequence that parts,
        # in decode, and not of the first token alone.
        first: dict[int, int] = {}
        for row in rows[np.argsort(walk.tokens.position[rows], kind="stable")].tolist():
            first.setdefault(int(walk.tokens.sequence[row]), row)
        borders = all(walk.is_at_border(row) for row in first.values())
        if borders and any(walk.role(row) != "first" for row in first.values()):
            said.append(message("mismatch.from_borders_on", size=size))
    if (by := walk.shift(name)) is not None:
        said.append(message("mismatch.shifted", by=by))
    if unseen := _unseen(walk, around):
        said.append(message("mismatch.unseen", cell=around, values=unseen))
    unread = [
        str(other)
        for other, _ in walk.not_compared
        if other.io == "output" and (other.cell.rpartition(".")[0] or "root") == around
    ]
    if at.is_given() and unread:
        said.append(message("mismatch.unread", values=unread))
    return said


def said_of_weights(weights: Sequence[Weight]) -> list[Message]:
    """Say which parameters differ: those that are other ones, and those that are only rounded."""
    said = []
    others = [weight for weight in weights if weight.rounded is None]
    if others:
        first = others[0]
        parts = [*first.training] if first.training != (first.rollout,) else []
        values: dict[str, Any] = {"parts": parts, "count": len(others)}
        values |= {"relative": first.relative, "since": first.since, "stale": first.stale}
        if (when := first.in_flight) is not None:
            values |= {"call": when.call, "token": when.token, "brought": when.brought}
        if first.lacks:
            values["lacks"] = [*first.lacks]
        if first.moved is not None:
            values["moved"] = first.moved
        said.append(message("mismatch.weights", name=first.rollout, **values))
    rounded = [weight for weight in weights if weight.rounded is not None]
    if rounded:
        dtypes = sorted({str(weight.rounded).lower() for weight in rounded})
        name, count = rounded[0].rollout, len(rounded)
        said.append(message("mismatch.rounded_weights", name=name, count=count, dtypes=dtypes))
    return said


def other_weight(weights: Sequence[Weight]) -> Weight:
    """Return the first parameter that differs by more than rounding; the first if none does."""
    return next((weight for weight in weights if weight.rounded is None), weights[0])


def _undecided_weights(walk: Walk, name: Name) -> list[str]:
    """Return the parameters that may make a value apart, and of which nothing says if they agree.

    They are of the cell that returns it, or of one inside; or of one beside the cell that is given
    it, of which no output was compared.
    """
    found = {pair.rollout: cell_of_parameter(pair.rollout) for pair in walk.weights.unknown}
    for names, common in zip(walk.weights.alone, walk.names_of):
        cells = {own: cell_of_parameter(own) for own in names}
        found |= {own: common(cell) or cell for own, cell in cells.items()}
    if name.io == "output":
        return [n for n, of in found.items() if of == name.cell or is_around(name.cell, of)]
    around = _around(walk, name)
    seen = {other.cell for other in walk.stages if other.io == "output"}
    beside = {n: of for n, of in found.items() if (of.rpartition(".")[0] or "root") == around}
    return [n for n, of in beside.items() if of not in seen]


def stage_of(walk: Walk, weight: Weight) -> Stage | None:
    """Return the first value that is apart in a parameter's cell; None where none was compared."""
    found = (
        stage
        for name, stage in walk.stages.items()
        if name.io == "output" and stage.unequal and _is_in(weight, name.cell)
    )
    return next(found, None)


def _may_make(walk: Walk, weight: Weight, name: Name) -> bool:
    """Return whether a parameter may be why a value is apart.

    It is inside the cell that returns it; or what is handed to a cell may be made of what the
    parameter's cell returned beside it, which was not compared.
    """
    if name.io == "output":
        return _is_in(weight, name.cell)
    cells = {cell_of_parameter(of) for of in (weight.rollout, *weight.training)}
    around = _around(walk, name)
    unseen = not any(n.cell in cells and n.io == "output" for n in walk.stages)
    return unseen and any(cell.rpartition(".")[0] in (around, "") for cell in cells)


def _is_in(weight: Weight, cell: str) -> bool:
    """Return whether a cell, or one inside it, has a parameter."""
    cells = {cell_of_parameter(name) for name in (weight.rollout, *weight.training)}
    return any(cell == of or is_around(cell, of) for of in cells)


def unlike_dtypes(walk: Walk, name: Name, stage: Stage) -> dict[str, str] | None:
    """Return both dtypes that a cell computes in, if one is lower: of rollout and training."""
    a, b = stage.dtypes
    own = [side.lowest(name.cell) for side in walk.sides]
    shown = walk.shown_dtypes(name)
    sides = [max(x, y or x, z, key=roundoff) for x, y, z in zip((a, b), shown, own)]
    if roundoff(sides[0]) == roundoff(sides[1]):
        return None
    return {"rollout": sides[0].lower(), "training": sides[1].lower()}


def lower_of(at: Parted) -> str | None:
    """Return the lower of both dtypes of a cell, if its rounding explains how far it is apart."""
    dtypes, stage = unlike_dtypes(at.walk, at.name, at.stage), at.stage
    if dtypes is None or not math.isfinite(stage.apart):
        return None
    low = max(dtypes.values(), key=roundoff)
    return None if stage.apart > OF_ROUNDING * roundoff(low) + GROWTH * stage.entered else low


def _of_rows(at: Parted) -> Message:
    """Say of which tokens the rows are that part."""
    walk, stage = at.walk, at.stage
    rows = walk.growth.begins_at(at.name)
    roles = {walk.role(row) == "prompt" for row in rows.tolist()}
    where = "some" if len(roles) > 1 else "prompt" if True in roles else "decode"
    where = "all" if len(rows) == stage.rows else where
    samples = len({*walk.samples(rows).tolist()})
    counts = {"born": len(rows), "rows": stage.rows, "samples": samples}
    of_samples = len(np.unique(walk.samples(walk.matched.aligned)))
    parted = {*walk.tokens.sequence[rows].tolist()}
    padded = parted == walk.behind_padding and samples < of_samples
    return message("mismatch.rows", where=where, of_samples=of_samples, padded=padded, **counts)


def _unseen(walk: Walk, cell: str) -> list[str]:
    """Return what a cell was given and that was not compared."""
    return [str(other) for other, _ in walk.not_compared if _is_given(other, cell)]


def _is_given(name: Name, cell: str) -> bool:
    return name.io == "input" and name.cell == cell


def other_tokens(walk: Walk) -> Message | None:
    """Say which sequence goes on with other tokens in the training than in the rollout; or None."""
    matched, tokens = walk.matched, walk.rollout.tokens
    mine, theirs = tokens.sequences, walk.training.tokens.sequences
    unlike = [
        (sequence, at)
        for sequence, at in _first_unlike(mine, theirs, matched.sequences, matched.common)
        if at < tokens.last[sequence] and not bool((mine[sequence][at:] == tokens.pad).all())
    ]
    if not unlike:
        return None
    sequence, at = unlike[0]
    # Whether sequences of the rollout stand inside others of the training.
    wholes = [one.astype(np.int64).tobytes() for one in theirs]
    packed = any(
        len(one) >= _LEAST_INSIDE
        and any(holds(whole[one.itemsize :], one.astype(np.int64)) for whole in wholes)
        for one in mine
    )
    ids = {
        "rollout": int(mine[sequence][at]),
        "training": int(theirs[matched.sequences[sequence]][at]),
    }
    where = {"sample": walk.sample(sequence), "position": at}
    counts = {"count": len(unlike), "of": len(mine)}
    return message("mismatch.other_tokens", **where, **ids, packed=packed, **counts)


def other_response(walk: Walk) -> Message | None:
    """Say which saved response goes on with other tokens in the training; None if none does.

    The last token of a response is given to the training network alone, so no row shows it.
    """
    samples = walk.rollout.samples or walk.training.samples
    theirs, pad = walk.training.tokens.sequences, walk.training.tokens.pad
    whole = [sample.tokens for sample in samples]
    partners, common = longest_common(whole, theirs)
    unlike = [
        (number, at)
        for number, at in _first_unlike(whole, theirs, partners, common)
        if 0 < len(samples[number].prompt) <= at
        and not bool((theirs[partners[number]][at:] == pad).all())
    ]
    if not unlike:
        return None
    sample, at = unlike[0]
    ids = {"saved": int(whole[sample][at]), "training": int(theirs[partners[sample]][at])}
    counts = {"count": len(unlike), "of": len(samples)}
    return message("mismatch.other_response", sample=sample, position=at, **ids, **counts)


def _first_unlike(
    mine: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    partners: np.ndarray,
    common: np.ndarray,
) -> Iterator[tuple[int, int]]:
    """Yield each sequence that goes on with other tokens than its partner, and from where on.

    Args:
        partners: of each of `mine` the one of `theirs`; below 0 where there is none.
        common: with how many tokens both begin.
    """
    for number, (partner, at) in enumerate(zip(partners.tolist(), common.tolist())):
        if partner >= 0 and at < min(len(mine[number]), len(theirs[partner])):
            yield number, at


def _around(walk: Walk, name: Name) -> str:
    """Return the nearest cell around one that both networks have; root is the network."""
    outer = {n.cell for n in walk.stages if name.cell.startswith(f"{n.cell}.")}
    return max(outer, key=len, default="root")


def position_drift(walk: Walk) -> Message | None:
    """Say that the positions the rollout was given jump inside a sequence; None if they do not.

    Padding may count: then all positions of a sequence are shifted by one number, which rotary
    embeddings do not see. Behind the end of a sample positions may stand still.
    """
    tokens = walk.rollout.tokens
    shifts: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(tokens.calls):
        if call.given is None:
            continue
        for row in tokens.within(call).tolist():
            sequence, position = int(call.sequence[row]), int(call.position[row])
            shift = int(call.given[row]) - position
            before, at = shifts.setdefault(sequence, (shift, position))
            if shift != before and position > at:
                given, right = int(call.given[row]), position + before
                where = {"sample": walk.sample(sequence), "position": position, "call": number}
                return message("mismatch.positions", given=given, right=right, **where)
    return None


def other_count(walk: Walk) -> Message | None:
    """Say that both networks were given positions that are apart by a constant; None if not.

    Rotary embeddings do not see it; where one network is given none, it counts for itself.
    """
    mine, theirs = _shifts(walk.rollout.tokens), _shifts(walk.training.tokens)
    apart = []
    for sequence, partner in enumerate(walk.matched.sequences.tolist()):
        rollout, training = mine.get(sequence), theirs.get(partner)
        if rollout is None or partner < 0:
            continue
        if rollout != (training or 0):
            apart.append((sequence, rollout, training))
    if not apart:
        return None
    sequence, rollout, training = apart[0]
    counts = {"count": len(apart), "of": len(walk.matched.sequences)}
    values = {"rollout": rollout, "training": training, "sample": walk.sample(sequence)}
    return message("mismatch.other_count", **values, **counts)


def _shifts(tokens: PhaseTokens) -> Mapping[int, int]:
    """Return by how much all positions of a sequence are above its tokens' places."""
    found: dict[int, set[int]] = {}
    for call in tokens.calls:
        if call.given is None:
            continue
        known = tokens.within(call)
        shifts = call.given[known] - call.position[known]
        pairs = np.unique(np.stack([call.sequence[known], shifts]), axis=1)
        for sequence, shift in pairs.T.tolist():
            found.setdefault(sequence, set()).add(shift)
    return {sequence: shifts.pop() for sequence, shifts in found.items() if len(shifts) == 1}


_UNUSUAL = 4.0  # times what the others of its kind make of what enters them
_PASSED_ON = 4.0  # times what entered: what a cell of any kind may make of it


def beyond_rounding(walk: Walk, dtype: str) -> Message | None:
    """Say of which value rounding to a dtype does not explain how far apart it is.

    It is further apart than one operation's rounding and what entered explain, and grew more than
    in all other layers, and so did the cell around it: what does not last is nobody's fault.

    Returns:
        None where there is none.
    """
    stages = walk.stages
    unusual = {name: of for name in stages if (of := _usual(stages, name, dtype)) is not None}
    for name, usual in unusual.items():
        # The nearest cell around it that returned something must have returned that, too.
        cells = [cell for cell in around(name.cell) if cell != "root"]
        each = ([n for n in stages if n.cell == cell and n.io == "output"] for cell in cells)
        returned = next(filter(None, each), [name])
        if unusual.keys().isdisjoint(returned):
            continue
        values = {"name": str(name), "cell": name.cell, "io": name.io}
        values["around"] = _around(walk, name)
        times = {"growth": stages[name].growth, "usual": usual, "dtype": dtype.lower()}
        return message("mismatch.beyond_rounding", **values, **times)
    return None


def _usual(stages: Mapping[Name, Stage], name: Name, dtype: str) -> float | None:
    """Return how much values of its kind grow at most, of one that grew unusually; None of others.

    Args:
        dtype: whose rounding explains a distance, beside what entered.
    """
    stage = stages[name]
    if stage.apart <= explained(dtype, 1) + _PASSED_ON * stage.entered:
        return None
    kind = kind_of(name)
    others = [of.growth for n, of in stages.items() if n != name and kind_of(n) == kind]
    return max(others) if others and stage.growth > _UNUSUAL * max(others) else None


def rounded_to(weights: Sequence[Weight]) -> str | None:
    """Return the lowest dtype to which weights are rounded; None where one differs by more."""
    dtypes = [weight.rounded for weight in weights]
    if not dtypes or None in dtypes:
        return None
    return max((str(dtype) for dtype in dtypes), key=roundoff)


def also_different(
    walk: Walk,
    weights: Sequence[Weight],
    sampled: Sampled,
    cause: Cause | None,
    first: Stage | None,
    said: Messages,
) -> Messages:
    """Return what differs beside what is named first, one sentence each.

    Args:
        cause, first, said: what is named first, where, and what is said of it.
    """
    found = [] if cause is Cause.WEIGHTS else said_of_weights(weights)
    if (drift := position_drift(walk)) is not None:
        found.append(drift)
    found += _given(walk, first)
    if cause is Cause.DTYPE and first is not None:
        found += _beyond(walk, first)
    elif not any(weight.rounded for weight in weights):
        # The first cell that one side computes in a lower precision.
        outputs = (n for n in walk.stages if n.io == "output" and n not in walk.masks)
        unlike = ((name.cell, unlike_dtypes(walk, name, walk.stages[name])) for name in outputs)
        cell, dtypes = next((of for of in unlike if of[1] is not None), ("", None))
        found += [] if dtypes is None else [message("mismatch.also_dtype", cell=cell, **dtypes)]
    if cause is not Cause.SAMPLING and (temperature := sampled.temperatures(walk)) is not None:
        found.append(temperature)
    known = {one.code for one in said} | {"mismatch.rounded_weights"}
    return tuple(
        message("mismatch.also", what=one)
        for one in dict.fromkeys(found)
        if one not in said and one.code not in known
    )


def _given(walk: Walk, first: Stage | None) -> Iterator[Message]:
    """Yield what masks let in, and whole numbers that cells are given, where an error begins."""
    for name, stage in walk.stages.items():
        if stage is first or not (stage.arising and stage.lasting):
            continue
        if name in walk.masks:
            yield from said_of_mask(name, walk.masks[name])
        elif name.io == "output" and (numbers := other_numbers(walk, name)) is not None:
            yield numbers


def _beyond(walk: Walk, first: Stage) -> Iterator[Message]:
    """Yield the first value, behind that named for its dtype, that no such rounding explains."""
    at = next(name for name, stage in walk.stages.items() if stage is first)
    dtype = lower_of(Parted(walk, at, first))
    for name, stage in walk.stages.items() if dtype is not None else ():
        limit = max(OF_ROUNDING * roundoff(str(dtype)), GROWTH * stage.entered)
        begins = stage.arising and stage.lasting and name not in walk.masks
        if begins and stage is not first and stage.apart > limit:
            values = {"apart": stage.apart, "entered": stage.entered, "dtype": dtype}
            yield message("mismatch.also_beyond", name=str(name), **values)
            return
