"""Where the first NaN or infinity was born."""

from __future__ import annotations

from collections.abc import Iterator

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.values import NON_FINITE_MARKS, non_finite, numbers_of
from mindrlhf_msprobe.checks.reading.views import EntryView, RecordView, Step
from mindrlhf_msprobe.checks.registry.rule import LAYERS, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Severity


@rule(
    "non_finite.first",
    needs=(LAYERS,),
    severity=Severity.ERROR,
    marks=NON_FINITE_MARKS,
    follows=("non_finite.*",),
    live=True,
)
class FirstNonFinite:
    """The entry whose inputs and parameters are finite and whose output is not."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._births: list[tuple[EntryView, list[RecordView]]] = []

    def entry(self, entry: EntryView) -> None:
        """Keep an entry whose output alone is not finite."""
        bad = [record for record in entry.records if non_finite(record[2])]
        if bad and all(io == "output" for io, *_ in bad):
            self._births.append((entry, bad))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what was born."""
        births, self._births = self._births, []
        for entry, bad in births:
            io, path = bad[0][:2]
            at = entry.place(io, path)
            yield self._check.finding(
                message("check_non_finite.born", direction=entry.direction),
                at,
                evidence=[Evidence(entry.place(io, p), numbers_of(leaf)) for io, p, leaf in bad],
                stack=entry.stack,
                next_step=self._check.next_recording(at, cell=entry.cell, elements=True),
            )
