"""How much room a recording would take, as text for the console."""

from __future__ import annotations

from mindrlhf_msprobe.common.text.numbers import size
from mindrlhf_msprobe.common.text.printable import printable
from mindrlhf_msprobe.report.console.viewing.listing import header, in_columns
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.reading.holdings.estimate import KEY_DATA, Estimate


def render_estimate(found: Estimate) -> str:
    """Return a line a phase and rank, then what all steps and ranks take and what is free."""
    rows = [header("estimate")]
    rows += [
        (_name(p.phase), str(p.rank), str(p.tensors), str(p.distinct), size(p.size))
        for p in found.phases
    ]
    lines = in_columns(rows)
    lines.append(
        say(
            "listing.estimated",
            step_size=size(found.step_size),
            steps=found.steps,
            ranks=found.ranks,
            total=size(found.total),
            free=size(found.free),
            path=str(found.path),
        )
    )
    if not found.fits:
        lines.append(say("listing.does_not_fit"))
    lines += [say("listing.not_certain", remark=remark) for remark in found.remarks]
    return "\n".join(map(printable, lines))


def _name(phase: str) -> str:
    return say("listing.key_data") if phase == KEY_DATA else printable(phase)
