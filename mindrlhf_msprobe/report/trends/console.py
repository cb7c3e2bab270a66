"""Series and similarities as a terminal shows them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.report.messages import say, texts_of
from mindrlhf_msprobe.report.trends.plot import MARKS, plot
from mindrlhf_msprobe.storage.reading.series import Missing, Series
from mindrlhf_msprobe.trends.similarity import GradientTrend, OfUpdate, Similarity, Suspicion

_WIDEST = 160
_MOST_STEPS = 8  # that a line names
_MOST_SUSPICIOUS = 12
_SUSPICIONS = {Suspicion.NOT_FINITE: "not_finite_gradient"}


def width() -> int:
    """Return how many columns a plot may take."""
    return min(_WIDEST, shutil.get_terminal_size().columns) - 1


def render_series(
    sides: Sequence[Sequence[Series | None]], missing: Iterable[Missing], most: int
) -> str:
    """Return plots of series, each with both runs where there are two, and what is missing.

    Args:
        most: plots; of the further ones it is said how many there are.
    """
    blocks = ["\n".join(_block(of_runs)) for of_runs in sides[:most]]
    if len(sides) > most:
        blocks.append(say("trend.more_series", count=len(sides) - most))
    if lines := [say("trend.missing", name=m.name, why=m.why) for m in missing]:
        blocks.append("\n".join([say("trend.not_available"), *lines]))
    return "\n\n".join(blocks)


def _block(of_runs: Sequence[Series | None]) -> Iterator[str]:
    some = next(series for series in of_runs if series is not None)
    parts = [some.name, some.statistic, some.phase, say("trend.rank", rank=some.rank)]
    yield "  ".join(filter(None, parts))
    yield from plot([_line(s) for s in of_runs if s is not None], width())
    for name, mark, series in zip("AB", MARKS, of_runs):
        side = f"{mark} {name}: " if len(of_runs) > 1 else ""
        yield f"  {side}{_summary(series)}"
    notes = dict.fromkeys(n for s in of_runs if s is not None for n in s.notes)
    if notes:
        yield f"  {texts_of(notes)}"


def _line(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y: the points of one step stand side by side before the next step."""
    among = series.micro_steps.max(initial=0) + 1
    return series.steps + series.micro_steps / among, series.values


def _summary(series: Series | None) -> str:
    if series is None:
        return say("trend.no_series")
    finite = np.isfinite(series.values)
    bad = list(dict.fromkeys(series.steps[~finite].tolist()))
    said = say("trend.not_finite", **_listed(bad)) if bad else ""
    if not finite.any():
        return say("trend.none_finite", count=len(series)) + said
    values = series.values[finite]
    numbers = {"first": values[0], "last": values[-1], "low": values.min(), "high": values.max()}
    shown = {name: f"{value:.6g}" for name, value in numbers.items()}
    steps = len(np.unique(series.steps))
    return say("trend.summary", count=len(series), steps=steps, **shown) + said


def _listed(steps: Sequence[int]) -> dict[str, Any]:
    return {"steps": ", ".join(map(str, steps[:_MOST_STEPS])), "more": len(steps) - _MOST_STEPS}


def render_similarity(found: GradientTrend) -> str:
    """Return how alike gradients are: a plot for each rank and phase, then what is suspicious."""
    groups: dict[tuple[int, str], list[OfUpdate]] = {}
    for update in found.updates:
        groups.setdefault((update.rank, update.phase), []).append(update)
    blocks = ["\n".join(_similar(*of, updates)) for of, updates in groups.items()]
    blocks.append("\n".join(_suspicious(found)))
    return "\n\n".join(filter(None, blocks))


def _similar(rank: int, phase: str, updates: Sequence[OfUpdate]) -> Iterator[str]:
    yield "  ".join((say("trend.similarity"), phase, say("trend.rank", rank=rank)))
    among = max(update.update for update in updates) + 1
    x = np.array([update.step + update.update / among for update in updates])
    yield from plot([(x, np.array([update.value for update in updates]))], width())
    last = updates[-1]
    values = {"first": f"{updates[0].value:.6f}", "last": f"{last.value:.6f}"}
    size = {"parameters": last.parameters, "size": last.size}
    yield "  " + say("trend.similarity_summary", count=len(updates), **values, **size)


def _suspicious(found: GradientTrend) -> Iterator[str]:
    suspicious = found.suspicious
    if not found.compared:
        yield say("trend.no_gradients_compared")
    elif not suspicious:
        count = len({(s.phase, s.parameter) for s in found.compared})
        yield say("trend.gradients_alike", updates=len(found.updates), parameters=count)
    else:
        yield say("trend.gradients_fall", place=location(suspicious[0]), count=len(suspicious))
        yield from (f"  {location(s)}: {why_of(s)}" for s in suspicious[:_MOST_SUSPICIOUS])
        if len(suspicious) > _MOST_SUSPICIOUS:
            yield "  " + say("trend.more_suspicious", count=len(suspicious) - _MOST_SUSPICIOUS)
    for side in "AB":
        steps = sorted({step for of, step, _ in found.alone if of == side})
        if steps:
            yield say("trend.steps_alone", side=side, **_listed(steps))


def location(found: Similarity) -> str:
    """Return where a similarity is, in words."""
    at = {"step": found.step, "rank": found.rank, "phase": found.phase}
    return say("trend.place", **at, update=found.update, parameter=found.parameter)


def why_of(found: Similarity) -> str:
    """Return why a similarity is suspicious, in words; "" if it is not."""
    if found.suspicion is None:
        return ""
    value = "NaN" if math.isnan(found.value) else f"{found.value:.4f}"
    before = "" if found.before is None else f"{found.before:.4f}"
    why = "" if found.why is None else found.why
    code = _SUSPICIONS.get(found.suspicion, found.suspicion.value)
    return say(f"trend.{code}", value=value, before=before, why=why)
