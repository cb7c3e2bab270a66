"""What a run holds, as text for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.report.console import printable
from mindrlhf_msprobe.report.wording import spans
from mindrlhf_msprobe.storage.inventory import FoundRecord, Holding

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render_holdings(
    path: Path,
    state: str,
    holdings: Sequence[Holding],
    problems: Sequence[str],
    cost: Mapping[int, Mapping[str, Any]] | None = None,
) -> str:
    """Return the list of a run's phases and keys, and what recording them cost."""
    rows = [("", "steps", "ranks", "saves/entries", "records", "size")]
    rows += [
        (
            printable(holding.name),
            spans(holding.steps),
            spans(holding.ranks),
            str(holding.count),
            str(holding.records),
            size(holding.size),
        )
        for holding in holdings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{path}: {state}, {size(sum(holding.size for holding in holdings))}"]
    for row in rows:
        name, *others = (cell.ljust(width) for cell, width in zip(row, widths))
        lines.append("  ".join([name, *others]).rstrip())
    lines += render_cost(cost or {})
    return "\n".join(lines + [f"Incomplete: {printable(problem)}" for problem in problems])


def render_cost(cost: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return one line on what recording cost the rank that it cost most; none if not known."""
    try:
        rank, worst = max(cost.items(), key=lambda item: item[1]["seconds"])
        accounts = worst["phases"].items()
        steps = max(account["steps"] for _, account in accounts)
        parts = ", ".join(
            f"{name} {account['seconds']['mean']:.3f} s" for name, account in accounts
        )
        return [
            f"Cost of recording, rank {rank}: {worst['seconds']:.2f} s of the training's time in "
            f"{steps} step(s) (each: {printable(parts)}), of which "
            f"{worst['waited_seconds']:.2f} s waiting for room; {size(worst['bytes'])} written in "
            f"{worst['background_seconds']:.2f} s behind it"
        ]
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or not as we write it
        return []


def render_records(records: Sequence[FoundRecord]) -> str:
    """Return each record's place, statistics and first values."""
    lines = []
    for found in records:
        leaf = found.record.leaf
        phase = found.phase or f"micro_step {found.micro_step}"
        lines.append(
            f"{printable(found.record.name)}  step {found.step}, {phase}, rank {found.rank}"
        )
        if leaf.is_tensor:
            known = leaf.nan_count is not None  # msprobe does not count
            counts = f"  NaN {leaf.nan_count}, Inf {leaf.inf_count}" if known else ""
            lines.append(f"  {leaf.dtype} {list(leaf.shape or ())}{counts}")
            lines.append(f"  max {leaf.max}  min {leaf.min}  mean {leaf.mean}  norm {leaf.norm}")
            if leaf.type == "str":
                lines.append(f"  text {leaf.value!r}")
            if leaf.fingerprint is not None:
                lines.append(f"  {leaf.fingerprint}")
        else:
            lines.append(f"  {leaf.type} {leaf.value!r}")
        if found.values is not None:
            lines.append(f"  first values {found.values}")
        if found.unreadable is not None:
            lines.append(f"  cannot be read: {printable(found.unreadable)}")
    return "\n".join(lines)


def size(count: int) -> str:
    """Return a number of bytes in the unit that reads best."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
