"""What `replay` concludes: all that report knows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings.as_json import by_fields

#: Verdicts, the most suspicious first.
VERDICTS = ("wrong", "undecided", "unjudged", "ordinary")


@dataclass(frozen=True)
class ReplayedOperator:
    """One call of an operator that was computed again.

    Attributes:
        entry, phase, step, rank: where it was recorded.
        verdict: ordinary (rounding explains how far it is from float64), wrong, undecided, or
            unjudged: there is no opinion, and no floating-point tensor to compute with.
        value: the output or gradient that is furthest off; "" where none was compared.
        share: how far it is, as a multiple of what rounding explains; None as before.
        ulp, max_abs, relative: how far it is from what it was compared with.
        dtype: of the value.
        drawn: whether its inputs were drawn in the recorded range, as there were statistics alone:
            then it is judged as it computes here, not as it was recorded.
        notes: what else is to be said, in the language that was spoken.
    """

    entry: str
    phase: str
    step: int
    rank: int
    verdict: str
    value: str = ""
    share: float | None = None
    ulp: float | None = None
    max_abs: float | None = None
    relative: float | None = None
    dtype: str = ""
    drawn: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return by_fields(self)


@dataclass(frozen=True)
class ReplayedOperators:
    """All operators of a run, the most suspicious first.

    Attributes:
        run: its path.
        file: the table that was written.
    """

    run: str
    operators: tuple[ReplayedOperator, ...]
    file: Path

    @property
    def verdicts(self) -> list[str]:
        """Those of all."""
        return [one.verdict for one in self.operators]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = [one.to_json() for one in self.operators]
        return {"run": self.run, "file": str(self.file), "operators": found}
