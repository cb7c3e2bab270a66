"""How much room a recording would take, as text for the console."""

from __future__ import annotations

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.common.units import size
from mindrlhf_msprobe.report.console.listing import in_columns
from mindrlhf_msprobe.storage.reading.estimate import Estimate


def render_estimate(found: Estimate) -> str:
    """Return a line a phase and rank, then what all steps and ranks take and what is free."""
    rows = [("", "rank", "tensors", "distinct", "a step")]
    rows += [
        (printable(p.phase), str(p.rank), str(p.tensors), str(p.distinct), size(p.size))
        for p in found.phases
    ]
    lines = in_columns(rows)
    steps = "1 step" if found.steps == 1 else f"{found.steps} steps"
    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks} ranks"
    lines.append(f"A step of a rank: {size(found.step_size)}. {steps} of {ranks}: ")
    lines[-1] += f"{size(found.total)}; {size(found.free)} are free at {found.path}."
    if not found.fits:
        lines.append(
            "This does not fit. Record fewer steps (step_start, step_end), phases, ranks or cells "
            "(include, exclude), or choose a dump_path with more room."
        )
    lines += [f"Not certain: {remark}" for remark in found.remarks]
    return "\n".join(map(printable, lines))
