"""Training against inference → the answer on the console."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.printable import printable, shortened
from mindrlhf_msprobe.findings.mismatch import (
    Agreement,
    Cause,
    Certificate,
    ExactPlace,
    Mismatch,
    Mismatches,
    SampledToken,
    Stage,
    Token,
)
from mindrlhf_msprobe.report.answer import capped, indented
from mindrlhf_msprobe.report.messages import say

_MOST_BIRTHS = 8
_MOST_LAYERS = 16
_MOST_NOTES = 6
_MOST_RANKS = 16
_LONGEST = 200
_LAYER = re.compile(r"(?:[^.]+\.)*[0-9]+")
#: The metrics that are shown, of all that verl has.
_METRICS = (
    *("log_prob_diff_mean", "log_prob_diff_p99", "log_prob_diff_max", "kl", "k3_kl"),
    *("ppl_ratio", "chi2_token", "chi2_seq", "ratio_fraction_outside", "log_prob_pearson_corr"),
)


def render(found: Mismatches, *, lang: str | None = None) -> str:
    """Return what is said of all steps, as plain text; names cannot move the cursor or hide lines.

    Args:
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
    """
    with speaking(lang):
        proof = [*_certificate(found.certificate)] if found.certificate is not None else []
        if not found.found:
            return "\n".join(map(printable, proof))
        shown = found.first or _undecided(found) or max(found.found, key=_apart)
        lines = [*_one(shown, found.status)]
        if found and len(found.found) > 1 and _apart(shown):
            lines.insert(1, say("mismatch.shown_step", step=shown.step, rank=shown.rank))
        lines += _ranks(found, shown)
        if len(found.found) > 1:
            statuses = [one.status for one in found.found]
            parted = statuses.count(Agreement.PARTED)
            undecided = statuses.count(Agreement.UNDECIDED)
            agree = len(statuses) - parted - undecided
            lines.append(say("mismatch.steps", agree=agree, parted=parted, undecided=undecided))
        return "\n".join(map(printable, [*proof, *lines]))


def _certificate(proof: Certificate) -> Iterator[str]:
    """Yield whether it is proved that both phases are one computation, and what counts for it."""
    yield say("mismatch.headline_exact" if proof else "mismatch.headline_not_exact")
    yield "  " + say("mismatch.exact_counts", **proof.counts)
    lacking = [place for place in proof.places if not place]
    if len(proof.places) > 1 or any(place.missing for place in lacking):
        yield from _some("  ", map(_place, lacking), _MOST_RANKS)
    yield from _some("  ", map(in_words, proof.reasons), _MOST_NOTES)


def _place(place: ExactPlace) -> str:
    at = {"step": place.step, "rank": place.rank}
    if place.missing:
        return say("mismatch.exact_lacks", phases=", ".join(place.missing), **at)
    counts = say("mismatch.exact_counts", **place.counts)
    return say("mismatch.exact_place", counts=counts, **at)


def _ranks(found: Mismatches, shown: Mismatch) -> Iterator[str]:
    """Yield what each rank of a step says, if there are several."""
    of_step = [one for one in found.found if one.step == shown.step]
    if len(of_step) > 1:
        yield say("mismatch.ranks", step=shown.step)
        yield from _some("  ", [_rank(one) for one in of_step], _MOST_RANKS)


def _rank(one: Mismatch) -> str:
    name = "" if one.first is None else shortened(one.first.name, _LONGEST)
    cause = "" if one.cause is None else one.cause.value
    values = {"status": one.status.value, "name": name, "cause": cause}
    return say("mismatch.of_rank", rank=one.rank, **values)


def _apart(one: Mismatch) -> float:
    """Return how far the values of a step that agrees within rounding are apart at most."""
    return max((stage.apart for stage in one.stages), default=0.0)


def _undecided(found: Mismatches) -> Mismatch | None:
    if found.status is not Agreement.UNDECIDED:
        return None
    return next((one for one in found.found if one.status is Agreement.UNDECIDED), None)


def headline(one: Mismatch, status: Agreement) -> str:
    """Return whether both phases agree, in one line."""
    place = {"step": one.step, "rank": one.rank}
    phases = {"rollout": one.rollout, "training": one.training}
    return say(f"mismatch.headline_{status.value}", **phases, **place)


def _one(one: Mismatch, status: Agreement) -> Iterator[str]:
    yield headline(one, status)
    if one.first is not None:
        yield "  " + shortened(one.first.name, _LONGEST)
    if one.cause is not None:
        yield "  " + say("mismatch.cause", cause=one.cause.value)
    yield from indented(map(in_words, one.said))
    if one.first is not None:
        yield from indented(how_far(one.first))
    if one.cause is Cause.SAMPLING:
        yield from ("  " + _sampled_in_words(token) for token in one.sampled[:1])
    yield from _births(one)
    yield from _growth(one)
    yield from _experts(one)
    yield from _weights(one)
    yield from _metrics(one)
    notes = [say("mismatch.note", note=in_words(note)) for note in one.notes]
    yield from _some("", notes, _MOST_NOTES)
    if one.tokens:
        counts = {"rows": one.rows, "tokens": one.tokens}
        compared, left = len(one.stages), len(one.not_compared)
        yield say("mismatch.scope", values=compared, left=left, **counts)


def how_far(stage: Stage) -> Iterator[str]:
    """Yield how far a value is apart in both phases, and the token where it is furthest."""
    values = {"apart": stage.apart, "most": stage.most}
    values |= {"entered": stage.entered, "allowed": stage.allowed}
    yield say("mismatch.apart", **values)
    yield from map(_token, stage.worst[:1])


def _token(token: Token) -> str:
    """Return which token it is."""
    text = say("mismatch.text", text=token.text) if token.text else ""
    place = {"sample": token.sample, "position": token.position, "id": token.id}
    return say("mismatch.worst", role=say(f"mismatch.role_{token.role}"), text=text, **place)


def _sampled_in_words(token: SampledToken) -> str:
    values = {"rollout": token.rollout, "training": token.training, "id": token.id}
    return say("mismatch.worst_sampled", row=token.row, place=token.place, **values)


def _births(one: Mismatch) -> Iterator[str]:
    births = [stage for stage in one.births if stage is not one.first]
    if births:
        yield say("mismatch.births")
        yield from _some("  ", [_birth(stage) for stage in births], _MOST_BIRTHS)


def _birth(stage: Stage) -> str:
    name = shortened(stage.name, _LONGEST)
    return say("mismatch.birth", name=name, apart=stage.apart, entered=stage.entered)


def _growth(one: Mismatch) -> Iterator[str]:
    """Yield how far what each layer returns is apart, as bars over powers of ten."""
    layers = [s for s in one.stages if s.io == "output" and _LAYER.fullmatch(s.cell)]
    shown = _spread([stage for stage in layers if not _LAYER.fullmatch(_above(stage.cell))])
    if len(shown) < 2:
        return
    yield say("mismatch.grows")
    width = max(len(stage.cell) for stage in shown)
    for stage in shown:
        power = math.log10(stage.apart) if 0 < stage.apart < math.inf else -8.0
        bar = "█" * max(0, min(32, round(4 * (power + 8))))
        yield f"  {stage.cell:<{width}}  {stage.apart:8.2g}  {bar}"


def _experts(one: Mismatch) -> Iterator[str]:
    """Yield how many tokens went to other experts in each layer."""
    apart = [
        say("mismatch.of_router", **{**of.counts, "cell": shortened(of.cell, _LONGEST)})
        for of in one.experts
        if of.others
    ]
    if one.experts:
        yield say("mismatch.routers", routers=len(one.experts), apart=len(apart))
    yield from _some("  ", apart, _MOST_LAYERS)


def _above(cell: str) -> str:
    return cell.rpartition(".")[0].rpartition(".")[0]


def _spread(stages: Sequence[Stage]) -> Sequence[Stage]:
    """Return some of many, the first and the last among them."""
    if len(stages) <= _MOST_LAYERS:
        return stages
    last = len(stages) - 1
    return [stages[round(n * last / (_MOST_LAYERS - 1))] for n in range(_MOST_LAYERS)]


def _weights(one: Mismatch) -> Iterator[str]:
    if one.weights:
        counts = {"different": len(one.weights), "compared": one.weights_compared}
        yield say("mismatch.weights_differ", **counts)
    elif one.weights_compared > len(one.weights_unknown):
        agreeing = one.weights_compared - len(one.weights_unknown)
        of = one.weights_compared + len(one.weights_alone[0])
        code = "weights_agree" if agreeing == of else "weights_some_agree"
        yield say(f"mismatch.{code}", compared=agreeing, of=of)
    if one.weights_unknown:
        more = ["…"] if len(one.weights_unknown) > 2 else []
        names = ", ".join([*one.weights_unknown[:2], *more])
        yield say("mismatch.weights_unknown", count=len(one.weights_unknown), names=names)
    if any(one.weights_alone):
        rollout, training = one.weights_alone
        yield say("mismatch.weights_alone", rollout=rollout, training=training)


def _metrics(one: Mismatch) -> Iterator[str]:
    known = [
        (n, one.metrics[f"rollout_corr/{n}"])
        for n in _METRICS
        if f"rollout_corr/{n}" in one.metrics
    ]
    if known:
        yield say("mismatch.metrics")
        for name, value in known:
            yield f"  rollout_corr/{name:<24} {value:.4g}"


def _some(indent: str, lines: Iterable[str], most: int) -> list[str]:
    return indented(capped(lines, most, "mismatch.more"), indent)
