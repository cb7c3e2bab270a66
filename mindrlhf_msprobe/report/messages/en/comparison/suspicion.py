"""Why a record that agrees deserves a look all the same, in English."""

from __future__ import annotations


def _non_finite(nan: int, inf: int) -> str:
    parts = [f"{n} {what}" for n, what in ((nan, "NaN"), (inf, "Inf")) if n]
    return f"{' and '.join(parts) or 'NaN or Inf'} on both sides"


def _of_many(count: int, record: str, why: list[str]) -> str:
    return f"{count} of them, first {record}: {'; '.join(why)}"


TEXTS = {
    "non_finite": _non_finite,
    "arises": (
        "error arises in this cell: its inputs and parameters show none, its output {error:.1e}"
    ),
    "grows": "error grows ×{factor:.3g} in this cell: {before:.1e} → {error:.1e}",
    "of_many": _of_many,
}
