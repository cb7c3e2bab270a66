"""Operators that were computed again → the answer on the console."""

from __future__ import annotations

from mindrlhf_msprobe.common.text.printable import printable, shortened
from mindrlhf_msprobe.findings.replayed import ReplayedOperators
from mindrlhf_msprobe.report.messages import say

_MOST_SHOWN = 20
_LONGEST = 110


def render(table: ReplayedOperators) -> str:
    """Return the most suspicious operators, a line each, and how many there are of each verdict."""
    verdicts = table.verdicts
    lines = [say("replay.table_title", calls=len(verdicts), path=table.run)]
    for one in table.operators[:_MOST_SHOWN]:
        place = {"entry": one.entry, "phase": one.phase, "step": one.step, "rank": one.rank}
        lines.append("  " + say("replay.row", verdict=say(f"replay.{one.verdict}"), **place))
        if one.share is not None:
            apart = {"value": one.value, "share": one.share, "ulp": one.ulp}
            drawn = say("replay.drawn_row") if one.drawn else ""
            relative = one.relative
            lines.append("    " + say("replay.apart", relative=relative, drawn=drawn, **apart))
        lines += ["    " + shortened(note, _LONGEST) for note in one.notes[:2]]
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
