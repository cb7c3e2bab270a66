"""What comes close to its dtype's limit before something overflows."""

from __future__ import annotations

from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.views import EntryView, RecordView
from mindrlhf_msprobe.checks.rules.non_finite.events import Event
from mindrlhf_msprobe.storage.reading.leaf_json import LARGEST, LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.reading.reader import Run

_MOST = 4
_SHARE = 0.5  # of the limit, from which on a value is close to it
_MASK = 1 - 2**-7  # of the limit, from which on it is what masks are filled with


def near_limit(run: Run, event: Event) -> list[tuple[EntryView, RecordView]]:
    """Return the last records of an event's phase before it that come close to a limit.

    Its journal is read once more for it: what is close to a limit matters where it overflows
    alone, and that is rare.
    """
    found: list[tuple[EntryView, RecordView]] = []
    if event.entry is None:
        return found
    own = event.entry
    for entry in Journal(run, own.phase, own.step, own.rank).entries():
        if entry.end <= event.time or entry.name == own.name:
            found += [(entry, record) for record in entry.records if is_near(record[2])]
    return found[-_MOST:]


def is_near(leaf: LeafJson) -> bool:
    """Return whether a finite tensor comes close to its dtype's limit, and not up to it.

    What is filled with the limit itself is a mask.
    """
    limit = LARGEST.get(str(leaf.get("dtype")))
    if limit is None or non_finite(leaf) is not None:
        return False
    values = (statistic(leaf, "Max"), statistic(leaf, "Min"))
    return any(v is not None and limit * _SHARE < abs(v) < limit * _MASK for v in values)
