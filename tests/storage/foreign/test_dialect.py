"""A run knows which tool wrote it, whatever is left of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Recording

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.foreign.dialect import MSPROBE, OWN
from mindrlhf_msprobe.storage.layout import JOURNAL_FILE

PHASE = "actor_update"


@pytest.fixture
def run(tmp_path):
    """Return the directory of a run with a cell and a loss."""
    recording = Recording(tmp_path / "run")
    with recording.phase(PHASE):
        recording.call("a", "Dense", lambda x: x, np.float32(1))
    recording.data("loss", np.float32(1))
    recording.end_step()
    return recording.close()


def test_a_run_keeps_its_dialect_on_its_way_to_a_worker(run):
    for path, foreign in ((run, False), (MSPROBE_DATA / "statistics_a", True)):
        opened = open_run(path)
        assert opened.foreign is foreign
        assert pickle.loads(pickle.dumps(opened)).foreign is foreign


@pytest.mark.parametrize("journal", [True, False])
def test_a_run_has_the_dialect_of_the_tool_that_wrote_it(run, journal):
    """A run of ours that lost its journals is one of ours, and no dump of another tool's."""
    for path in [] if journal else run.rglob(JOURNAL_FILE):
        path.unlink()
    ours, theirs = open_run(run), open_run(MSPROBE_DATA / "statistics_a")
    assert (ours.dialect, ours.foreign) == (OWN, False)
    assert (theirs.dialect, theirs.foreign) == (MSPROBE, True)


def test_statistics_are_of_the_dialect_that_their_reader_says(run):
    """Also where a leaf counts nothing itself, and where dump.json is all that is left of a run."""
    for journal in run.rglob(JOURNAL_FILE):
        text = journal.read_text()
        journal.write_text(text.replace('"nan_count": 0, "inf_count": 0, ', ""))
        assert journal.read_text() != text
    assert dialects(run) == {""}
    for gone in [*run.rglob(JOURNAL_FILE), run / "run.json"]:
        gone.unlink()
    assert dialects(run) == {""}
    for name in ("statistics_a", "statistics_8x_a", "key_data_a"):
        assert dialects(MSPROBE_DATA / name) == {"msprobe"}


def dialects(path):
    """Return whose the tensors of a run are, as each leaf says."""
    run = open_run(path)
    found = [record for of in (*run.entries(), *run.key_data()) for record in of.records]
    return {record.leaf.dialect for record in found if record.leaf.is_tensor}
