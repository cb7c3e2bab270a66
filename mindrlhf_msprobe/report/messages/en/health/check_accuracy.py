"""What the checks of accuracy say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "no_opinion": "there is no opinion on {name}",
    "wrong": lambda call, cell, tensor, precision, error, explained, reason: (
        f"{call} computes {tensor} wrongly"
        + (f" (in {cell})" if cell and not call.startswith("Cell.") else "")
        + (
            f": relative error {error:.2g} to float64, rounding of {precision} explains "
            f"{explained:.2g}"
            if not reason
            else ": not finite, while the exact result is"
            if reason == "not_finite"
            else ": not what the exact computation gives"
        )
    ),
}
