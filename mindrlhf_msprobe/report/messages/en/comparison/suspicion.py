"""Why a record that agrees deserves a look all the same, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.en.words import non_finite
from mindrlhf_msprobe.report.messages.lists import Joined


def _non_finite(nan: int, inf: int) -> str:
    return f"{non_finite(nan, inf) or 'NaN or Inf'} on both sides"


TEXTS = {
    "non_finite": _non_finite,
    "arises": (
        "error arises in this cell: its inputs and parameters show none, its output {error:.1e}"
    ),
    "grows": "error grows ×{factor:.3g} in this cell: {before:.1e} → {error:.1e}",
    "of_many": Joined("{count} of them, first {record}: {why}", "; "),
}
