"""The second opinion on a run, and operators computed again → the answer on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.printable import printable, shortened
from mindrlhf_msprobe.findings.accuracy import (
    Accuracy,
    AccuracyResult,
    NotComputed,
    RankedTensor,
    ReplayedOperator,
    ReplayedOperators,
)
from mindrlhf_msprobe.report.answer import capped, indented
from mindrlhf_msprobe.report.console.terminal import padded
from mindrlhf_msprobe.report.messages import say

_MOST_ROWS = 12
_MOST_REASONS = 6
_MOST_NAMES = 3
_LONGEST = 160


def render(found: AccuracyResult, *, lang: str | None = None) -> str:
    """Return what is thought of a run, as plain text.

    Args:
        lang: `en` or `zh`; None: the one that was chosen, else the locale's.
    """
    with speaking(lang):
        return "\n".join(map(printable, _lines(found)))


def _lines(found: AccuracyResult) -> Iterator[str]:
    yield _headline(found)
    for one in found.origins[:1]:
        yield "  " + shortened(named(one), _LONGEST)
        yield "  " + in_one_line(one)
    counts = Counter(one.opinion for one in found.ranked)
    yield say(
        "accuracy.counts",
        calls=found.calls,
        seconds=found.seconds,
        **{one.value: counts[one] for one in Accuracy},
    )
    if found.gaps and found.status is Accuracy.WRONG:
        yield _gaps("accuracy.unchecked", found)
    yield say("accuracy.ranked")
    yield from indented(capped(found.ranked, _MOST_ROWS, "accuracy.more", show=_row))
    missing = sorted(found.not_computed, key=lambda one: not one.needed)
    yield from capped(missing, _MOST_REASONS, "accuracy.more", show=_not_computed)
    if found.problems:
        yield say("checks.not_read", count=len(found.problems))
        yield from indented(map(in_words, found.problems[:_MOST_REASONS]))


def _row(one: RankedTensor) -> str:
    opinion = say(f"accuracy.is_{one.opinion.value}")
    numbers = f"{one.worst.ratio:>10.3g} {one.worst.error:>10.2g}  {one.precision:<9}"
    return f"{padded(opinion, 10)}{numbers}{shortened(named(one), _LONGEST)}"


def _not_computed(none: NotComputed) -> str:
    cell = none.cell or say("accuracy.outside")
    why = in_words(none.why)
    return say("accuracy.not_computed", call=none.call, cell=cell, count=none.calls, why=why)


def _headline(found: AccuracyResult) -> str:
    status = found.status
    if status is Accuracy.UNDECIDED and any(o.opinion is Accuracy.ORDINARY for o in found.ranked):
        return _gaps("accuracy.headline_gaps", found)
    return say(f"accuracy.headline_{status.value}", path=found.path)


def _gaps(code: str, found: AccuracyResult) -> str:
    names = found.without_opinion
    shown = ", ".join(capped(names, _MOST_NAMES, "accuracy.more"))
    judged = found.calls - found.gaps
    return say(code, path=found.path, judged=judged, count=found.gaps, names=shown)


def named(one: RankedTensor) -> str:
    """Return the name of a tensor, with the cell around an operator."""
    name = f"{one.call} {one.tensor}"
    is_cell = one.call.startswith("Cell.")
    return name if is_cell or not one.cell else say("accuracy.in_cell", name=name, cell=one.cell)


def in_one_line(one: RankedTensor) -> str:
    """Return how far a tensor is from the exact one, and where that was."""
    worst = one.worst
    if worst.reason in ("shape", "not_finite", "not_equal"):
        return say(
            f"accuracy.by_{worst.reason}",
            **{"record": worst.record, "step": one.step, "rank": one.rank},
            **{"index": str([*worst.at]), "actual": worst.actual, "exact": worst.exact},
        )
    return say(
        "accuracy.apart",
        **{"record": worst.record, "step": one.step, "rank": one.rank},
        **{"error": worst.error, "explained": worst.explained, "precision": one.precision},
        **{"index": str([*worst.at]), "actual": worst.actual, "exact": worst.exact},
    )


_MOST_SHOWN = 20
_LONGEST_NOTE = 110


def render_replayed(table: ReplayedOperators) -> str:
    """Return the most suspicious operators, a line each, and how many there are of each verdict."""
    verdicts = table.verdicts
    lines = [say("replay.table_title", calls=len(verdicts), path=table.run)]
    lines += [line for one in table.operators[:_MOST_SHOWN] for line in _operator(one)]
    if len(verdicts) > _MOST_SHOWN:
        lines.append(say("replay.more", count=len(verdicts) - _MOST_SHOWN))
    counts = {name: verdicts.count(name) for name in ("wrong", "ordinary", "undecided")}
    drawn_count = sum(one.drawn for one in table.operators)
    lines.append(say("replay.table_summary", **counts))
    if unjudged := verdicts.count("unjudged"):
        lines.append(say("replay.table_unjudged", count=unjudged))
    if drawn_count:
        lines.append(say("replay.table_drawn", drawn=drawn_count))
    lines.append(say("replay.table_file", file=str(table.file)))
    return "\n".join(map(printable, lines))


def _operator(one: ReplayedOperator) -> Iterator[str]:
    place = {"entry": one.entry, "phase": one.phase, "step": one.step, "rank": one.rank}
    yield "  " + say("replay.row", verdict=say(f"replay.{one.verdict}"), **place)
    if one.share is not None:
        apart = {"value": one.value, "share": one.share, "ulp": one.ulp}
        drawn = say("replay.drawn_row") if one.drawn else ""
        yield "    " + say("replay.apart", relative=one.relative, drawn=drawn, **apart)
    yield from indented((shortened(note, _LONGEST_NOTE) for note in one.notes[:2]), "    ")
