"""Elements of a record, where the run holds its full tensor."""

from __future__ import annotations

import numpy as np

from mindrlhf_msprobe.checks.reading.entries import EntryView
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Record


def elements_of(
    run: Run, entry: EntryView, io: str, path: str, leaf: LeafJson
) -> np.ndarray | None:
    """Map a record's elements into memory, read-only; None where the run does not hold them."""
    if "data_name" not in leaf:
        return None
    files = run.locator(entry.phase, entry.step, entry.rank)
    located = files.locate(leaf_from_json(dict(leaf)), str(leaf["data_name"]))
    try:
        return Record(entry.name, io, path, *located).array()
    except ArrayFileError:
        return None
