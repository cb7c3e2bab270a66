"""Training against inference → its answer, mismatch.xlsx and mismatch.json."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause, Mismatch, Mismatches
from mindrlhf_msprobe.phases import ROLLOUT_CORR
from mindrlhf_msprobe.report.answer import Answer, Code, Fact, Head, Lines, capped, listed
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import CLOSE, DIFFERS, PLAIN, SUSPICIOUS, Column, Row, Sheet
from mindrlhf_msprobe.report.trends import metric_files
from mindrlhf_msprobe.report.xlsx import AnswerFiles
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.outputs import Output

_MOST_BEGINNINGS = 8
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


def lines_of(found: Mismatches) -> Lines:
    """Return what is said of all steps: the first that part, and how many agree."""
    lines: list[Any] = []
    if (proof := found.certificate) is not None:
        # Whether it is proved that both phases are one computation, and what counts for it.
        lines.append(say("mismatch.headline_exact" if proof else "mismatch.headline_not_exact"))
        lines.append([say("mismatch.exact_counts", **proof.counts)])
        lacking = [place for place in proof.places if not place]
        if len(proof.places) > 1 or any(place.missing for place in lacking):
            exact = partial(say, "mismatch.exact_place")
            lines.append(capped(lacking, _MOST_RANKS, show=exact))
        lines.append(capped(map(in_words, proof.reasons), _MOST_NOTES))
    if not found.found:
        return lines
    undecided = (one for one in found.found if one.status is Agreement.UNDECIDED)
    of_status = next(undecided, None) if found.status is Agreement.UNDECIDED else None
    shown = found.first or of_status or max(found.found, key=_apart)
    head, *more = _one(shown, found.status)
    lines.append(head)
    if found and len(found.found) > 1 and _apart(shown):
        lines.append(say("mismatch.shown_step", shown))
    lines += more
    of_step = [one for one in found.found if one.step == shown.step]
    if len(of_step) > 1:
        lines.append(say("mismatch.ranks", step=shown.step))
        ranks = (
            say("mismatch.of_rank", one, name="" if one.first is None else one.first.name)
            for one in of_step
        )
        lines.append(capped(ranks, _MOST_RANKS))
    if len(found.found) > 1:
        statuses = [one.status for one in found.found]
        parted = statuses.count(Agreement.PARTED)
        left = statuses.count(Agreement.UNDECIDED)
        agree = len(statuses) - parted - left
        lines.append(say("mismatch.steps", agree=agree, parted=parted, undecided=left))
    return lines


def _apart(one: Mismatch) -> float:
    """Return how far the values of a step that agrees within rounding are apart at most."""
    return max((stage.apart for stage in one.stages), default=0.0)


def facts_of(one: Mismatch) -> list[Fact]:
    """Return what is found at one step and rank: what console, page and table show of it, once.

    The lines are: which value is the first (`first`), of which kind the `cause` is, each
    `conclusion`, how `far` the values are apart, and each `note`.
    """
    facts, status = [], one.status.value
    if one.first is not None:
        facts.append(Fact("first", shortened(one.first.name, _LONGEST)))
    if one.cause is not None:
        facts.append(Fact("cause", say("mismatch.cause", one)))
    for said in map(in_words, one.said):
        facts.append(Fact("conclusion", said, ("conclusion", status, said)))
    if one.first is not None:
        facts.append(Fact("far", say("mismatch.apart", one.first)))
        facts += [Fact("far", say("mismatch.worst", token)) for token in one.first.worst[:1]]
    for name, why in one.not_compared:
        facts.append(Fact("not compared", row=("not compared", name, in_words(why))))
    for note in map(in_words, one.notes):
        facts.append(Fact("note", say("console.note", line=note), ("note", "", note)))
    return facts


def headline(one: Mismatch, status: Agreement) -> str:
    """Return whether both phases agree, in one line."""
    return say(f"mismatch.headline_{status.value}", one)


def head_of(found: Mismatches) -> Head:
    """Return what is said first of all steps."""
    one = found.first or found.found[0]
    counts = Counter(each.status for each in found.found)
    return Head(
        tone=found.status.tone,
        headline=headline(one, found.status),
        sentence=None if one.first is None else one.first.name,
        cause=one.cause and f"mismatch_{one.cause.value}",
        place={"view": "mismatch", "step": one.step, "rank": one.rank},
        facts=[fact for fact in facts_of(one) if fact.about == "conclusion"],
        counts=[(status.value, n, status.tone) for status, n in counts.items()],
    )


def _one(one: Mismatch, status: Agreement) -> Iterator[Any]:
    facts = facts_of(one)
    yield headline(one, status)
    under = [fact.line for fact in facts if fact.line and fact.about != "note"]
    if one.cause is Cause.SAMPLING:
        under += [say("mismatch.worst_sampled", token) for token in one.sampled[:1]]
    yield under
    origins = (stage for stage in one.origins if stage is not one.first)
    shown = capped(origins, _MOST_BEGINNINGS, show=partial(say, "mismatch.origin"))
    yield from listed(say("mismatch.origins"), shown)
    yield from _growth(one)
    if one.experts:
        apart = [of for of in one.experts if of.others]
        yield say("mismatch.routers", routers=len(one.experts), apart=len(apart))
        yield capped(apart, _MOST_LAYERS, show=partial(say, "mismatch.of_router"))
    yield from _weights(one)
    metrics = [
        f"rollout_corr/{name:<24} {one.metrics[f'rollout_corr/{name}']:.4g}"
        for name in _METRICS
        if f"rollout_corr/{name}" in one.metrics
    ]
    yield from listed(say("mismatch.metrics"), metrics)
    yield from capped((fact.line for fact in facts if fact.about == "note"), _MOST_NOTES)
    if one.tokens:
        yield scope(one)


def scope(one: Mismatch) -> str:
    """Return how many rows were aligned, and how many values compared."""
    return say("mismatch.scope", one, values=len(one.stages), left=len(one.not_compared))


def _growth(one: Mismatch) -> Iterator[Any]:
    """Yield how far what each layer returns is apart, as bars over powers of ten."""
    layers = [s for s in one.stages if s.io == "output" and _LAYER.fullmatch(s.cell)]
    outer = [
        s for s in layers if not _LAYER.fullmatch(s.cell.rpartition(".")[0].rpartition(".")[0])
    ]
    if len(outer) > _MOST_LAYERS:  # some of them, the first and the last among these
        last = len(outer) - 1
        outer = [outer[round(n * last / (_MOST_LAYERS - 1))] for n in range(_MOST_LAYERS)]
    if len(outer) < 2:
        return
    yield say("mismatch.grows")
    width = max(len(stage.cell) for stage in outer)
    bars = []
    for stage in outer:
        power = math.log10(stage.apart) if 0 < stage.apart < math.inf else -8.0
        bar = "█" * max(0, min(32, round(4 * (power + 8))))
        bars.append(Code(f"{stage.cell:<{width}}  {stage.apart:8.2g}  {bar}"))
    yield bars


def _weights(one: Mismatch) -> Iterator[str]:
    if one.weights:
        yield say("mismatch.weights_differ", one)
    elif one.weights_compared > len(one.weights_unknown):
        agreeing = one.weights_compared - len(one.weights_unknown)
        of = one.weights_compared + len(one.weights_alone[0])
        code = "weights_agree" if agreeing == of else "weights_some_agree"
        yield say(f"mismatch.{code}", compared=agreeing, of=of)
    if one.weights_unknown:
        more = ["…"] if len(one.weights_unknown) > 2 else []
        yield say("mismatch.weights_unknown", one, names=[*one.weights_unknown[:2], *more])
    if any(one.weights_alone):
        rollout, training = one.weights_alone
        yield say("mismatch.weights_alone", rollout=rollout, training=training)


class _Of(NamedTuple):
    """What a row shows, and of which step and rank it is."""

    place: Mismatch
    shown: Any


def _worst(name: str) -> Callable[[_Of], Any]:
    """Show of a value what the token is that is furthest apart, if there is one."""
    return lambda one: getattr(one.shown.worst[0], name) if one.shown.worst else None


_PLACE = (Column("step", 7, "place.step"), Column("rank", 7, "place.rank"))
_VALUES = (
    *_PLACE,
    Column("cell", 50, "shown.cell"),
    Column("io", 8, "shown.io"),
    Column("path", 10, "shown.path"),
    Column("apart", 12, "shown.apart"),
    Column("largest row", 12, "shown.most"),
    Column("entered", 12, "shown.entered"),
    Column("rounding explains", 16, "shown.allowed"),
    Column("rows", 8, "shown.rows"),
    Column("rows not equal", 14, "shown.unequal"),
    Column("rows where it arises", 16, "shown.arising"),
    Column("dtype of rollout", 16, lambda one: one.shown.dtypes[0]),
    Column("dtype of training", 16, lambda one: one.shown.dtypes[1]),
    Column("worst sample", 12, _worst("sample")),
    Column("worst position", 12, _worst("position")),
    Column("worst token", 12, _worst("id")),
    Column("text", 40, _worst("text")),
)
FILES = AnswerFiles(
    "mismatch.xlsx", _VALUES, "mismatch.json", ("schema", "runs", "status", "steps")
)
_WEIGHTS = (
    *_PLACE,
    Column("rollout", 50, "shown.rollout"),
    Column("training", 60, lambda one: ", ".join(one.shown.training)),
    Column("relative distance", 16, "shown.relative"),
    Column("since step", 10, "shown.since"),
    Column("values of step", 12, "shown.stale"),
)
_METRIC = (
    *_PLACE,
    Column("metric", 44, lambda one: one.shown[0]),
    Column("value", 16, lambda one: one.shown[1]),
)
_SAMPLED = (
    *_PLACE,
    Column("row of responses", 14, "shown.row"),
    Column("place in response", 14, "shown.place"),
    Column("id of token", 12, "shown.id"),
    Column("log-prob of rollout", 20, "shown.rollout"),
    Column("log-prob of training", 20, "shown.training"),
)
_EXPERTS = (
    *_PLACE,
    Column("cell", 50, "shown.cell"),
    Column("call", 7, "shown.nth"),
    Column("experts of a token", 16, "shown.chosen"),
    Column("tokens", 10, "shown.tokens"),
    Column("other experts", 14, "shown.others"),
    Column("other before the router", 18, "shown.before"),
    Column("other by the router", 18, "shown.by"),
)
_REST = (*_PLACE, Column("what", 16), Column("value", 60), Column("why", 90))


def answer_of(found: Mismatches) -> Answer:
    """Return what a command answers; beside its workbook stand the metrics, as key data."""

    def metrics(directory: Path) -> tuple[Path, list[Output]]:
        files: list[Output] = []
        for one in found.found:
            if one.metrics:
                files += metric_files(directory, (one.step, one.rank, 0), one.metrics)
        return directory / layout.KEY_DATA_DIR / ROLLOUT_CORR, files

    lines, sheets = partial(lines_of, found), partial(_sheets, found)
    return Answer(found.exit_code, lines, found.to_json, sheets, beside=metrics)


def _sheets(found: Mismatches) -> list[Sheet]:
    def each(name: str) -> list[_Of]:
        """Return what all steps and ranks hold under a name."""
        held = ((one, getattr(one, name)) for one in found.found)
        pairs = ((one, of.items() if isinstance(of, Mapping) else of) for one, of in held)
        return [_Of(one, shown) for one, of in pairs for shown in of]

    experts = each("experts")
    remarks = [(one, fact.row) for one in found.found for fact in facts_of(one) if fact.row]
    return [
        Sheet("values", _VALUES, each("stages"), _colour),
        Sheet("weights", _WEIGHTS, each("weights"), lambda one: DIFFERS),
        Sheet("metrics", _METRIC, each("metrics")),
        Sheet("worst sampled tokens", _SAMPLED, each("sampled")),
        *([Sheet("experts", _EXPERTS, experts, _colour_of_experts)] if experts else []),
        Sheet("remarks", _REST, [Row((one.step, one.rank, *row)) for one, row in remarks]),
    ]


def _colour_of_experts(one: _Of) -> str:
    return DIFFERS if one.shown.others else PLAIN


def _colour(one: _Of) -> str:
    stage = one.shown
    if stage == one.place.first:
        return DIFFERS
    if stage.arising and stage.lasting:
        return SUSPICIOUS
    return CLOSE if stage.unequal else PLAIN
