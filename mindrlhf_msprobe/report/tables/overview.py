"""The first look: phases and keys × steps, coloured by the worst record, linked to their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.findings import Agreement, Comparison
from mindrlhf_msprobe.report.formats.colours import (
    CLOSE,
    DIFFERS,
    MISSING,
    PLAIN,
    SUSPICIOUS,
    colour_of_finding,
)
from mindrlhf_msprobe.report.formats.sheets import Cell, Row, Sheet
from mindrlhf_msprobe.report.messages import say

#: What the tables of a comparison are called: ("key", name) or ("phase", name) → a file's name.
Links = Mapping[tuple[str, str], str]

_WORST_FIRST = (MISSING, DIFFERS, SUSPICIOUS, CLOSE, PLAIN)
_AGREE = (SUSPICIOUS, CLOSE, PLAIN)
_MOST_STEPS = 256  # columns; of more steps, those in which something does not agree


def overview_sheet(comparison: Comparison, links: Links) -> Sheet:
    """Return one row a phase or key, in causal order, and one column a step.

    A cell says how many records of all ranks were compared, or `different / compared`.
    """
    counts = _counts(comparison)
    steps = sorted({step for cells in counts.values() for step in cells})
    shown = steps
    if len(steps) > _MOST_STEPS:
        apart = {s for cells in counts.values() for s, found in cells.items() if _different(found)}
        shown = [step for step in steps if step in apart][:_MOST_STEPS] or steps[:_MOST_STEPS]
    rows: list[Row] = [
        (
            PLAIN,
            (
                Cell(what[1], link=links.get(what, "")),
                *(_cell(cells.get(step), links.get(what, "")) for step in shown),
            ),
        )
        for what, cells in counts.items()
    ]
    if len(shown) < len(steps):
        left = say("tables.further_steps", number=len(steps) - len(shown))
        rows.append((PLAIN, (left, *[None] * len(shown))))
    return Sheet(
        name="overview",
        header=("phase or key", *(f"step {step}" for step in shown)),
        rows=lambda: rows,
        count=len(rows),
        widths=(44, *[11] * len(shown)),
        frozen=1,
    )


def _counts(comparison: Comparison) -> dict[tuple[str, str], dict[int, Counter[str]]]:
    """Return how many records have which colour, by phase or key and step."""
    found: dict[tuple[str, str], dict[int, Counter[str]]] = {}
    both: list[Any] = [*comparison.agreements, *comparison.findings]  # of a step, the whole first
    for one in sorted(both, key=lambda item: item.step):
        folded = isinstance(one, Agreement)
        what = ("phase", one.phase or "") if folded or one.key is None else ("key", one.key)
        cell = found.setdefault(what, {}).setdefault(one.step, Counter())
        if isinstance(one, Agreement):
            cell[SUSPICIOUS] += one.suspicious
            cell[CLOSE] += one.within_tolerance
            cell[PLAIN] += one.records - one.within_tolerance - one.suspicious
        else:
            cell[colour_of_finding(one)] += 1
    return found


def _different(found: Counter[str]) -> int:
    return sum(number for colour, number in found.items() if colour not in _AGREE)


def _cell(found: Counter[str] | None, link: str) -> Cell | None:
    if found is None:
        return None
    worst = next(colour for colour in _WORST_FIRST if found[colour] > 0 or colour == PLAIN)
    different, total = _different(found), found.total()
    return Cell(f"{different} / {total}" if different else total, worst, link if worst else "")
