"""A parameter that a container uses before the cell that holds it is called, or recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, to_host
from mindrlhf_msprobe.findings import Cause, CulpritCode
from mindrlhf_msprobe.storage.manifest.manifest import FirstEntry
from tests.helpers.runs import Recording, slightly_more

PHASE = "actor_compute_log_prob"
ROOT = "Cell.root.Network.forward.0"
TABLE = "Cell.bias.Bias.forward.0.parameters.table"
X = np.ones(6, np.float32)
WEIGHT = np.full(6, 0.5, np.float32)


@dataclass
class Job:
    """Two steps of a root that uses the table of `bias`, which it calls later, or never.

    Attributes:
        altered: the step from which on the table is another one.
        code: the step from which on the root computes otherwise.
        handed: the root hands the table itself to the cell before; else what it makes of it.
        called: `bias` is called after it.
        counts: the root itself adds to the table what it made of its input.
        initial: the initial weights are known.
    """

    altered: int | None = None
    code: int | None = None
    dtype: type = np.int32
    handed: bool = False
    called: bool = True
    counts: bool = False
    initial: bool = True

    def record(self, path, rank=0):
        recording = Recording(path, rank=rank)
        self.table = np.arange(6).astype(self.dtype)
        for step in range(2):
            if step == self.altered:
                self.table = self.table[::-1].copy()
            if not step and self.initial:
                weights = {"bias.table": self.table, "first.weight": WEIGHT}
                prints = {name: fingerprint_of(to_host(value)) for name, value in weights.items()}
                recording.writer.note(FirstEntry("actor", prints, None, PHASE))
            with recording.phase(PHASE):
                recording.call("root", "Network", partial(self._root, recording), X)
            recording.end_step()
        recording.close()

    def _root(self, recording, given):
        mixed = given + (self.table if not self.counts else 0)
        if self.code is not None and recording.step >= self.code:
            mixed = slightly_more(mixed)
        if self.counts:
            self.table = self.table + np.round(mixed * 100).astype(self.dtype)
        inputs = (given, self.table) if self.handed else (mixed.astype(np.float32),)
        made = recording.call(
            "first", "Dense", lambda x, *_: x, *inputs, parameters={"weight": WEIGHT}
        )
        if self.called:
            table = {"table": self.table}
            recording.call("bias", "Bias", lambda x: x, made, parameters=table)
        return made


def verdict(tmp_path, a, b, ranks=(0,), **options):
    for side, job in (("a", a), ("b", b)):
        for rank in ranks:
            job.record(tmp_path / side, rank)
    return compare_runs(tmp_path / "a", tmp_path / "b", **options).verdict


@pytest.mark.parametrize("handed", [True, False])
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("altered", [0, 1])
def test_the_table_stands_before_what_is_made_of_it(tmp_path, altered, handed, initial):
    """Its cell is called later, so it was recorded behind what the container made of it."""
    known = {"handed": handed, "initial": initial}
    found = verdict(tmp_path, Job(**known), Job(**known, altered=altered))
    first = found.first_divergence
    if not altered and not initial and not handed:
        assert first.entry == ROOT  # nothing tells since when it differs
        return
    assert (first.step, first.record, first.cause) == (altered, TABLE, Cause.PARAMETER)
    assert "Cell.first.Dense.forward.0.input." in first.explanation
    assert first.agreed_before == (2 if handed else 1)
    assert [one.record for one in found.parted] == [TABLE]
    assert sum(one.different for one in found.spread) >= 2


@pytest.mark.parametrize("handed", [True, False])
def test_weights_stand_where_their_cell_uses_them(tmp_path, handed):
    """That the container uses them is known where it hands them on."""
    known = {"handed": handed, "dtype": np.float32}
    first = verdict(tmp_path, Job(**known), Job(**known, altered=0)).first_divergence
    assert (first.record == TABLE) is handed


def test_each_rank_names_the_table(tmp_path):
    """Ranks that diverge alike are said to do so."""
    found = verdict(tmp_path, Job(), Job(altered=1), ranks=(0, 1))
    assert [(one.rank, one.record) for one in found.parted] == [(0, TABLE), (1, TABLE)]


def test_a_container_that_computes_otherwise_is_the_origin(tmp_path):
    """The table agrees: nothing else is to blame."""
    first = verdict(tmp_path, Job(), Job(code=1)).first_divergence
    assert (first.cause, first.entry) == (Cause.COMPUTATION, ROOT)


def test_a_table_that_both_runs_write_is_a_consequence(tmp_path):
    """The container counts in it what it made: it differs, and comes of the computation."""
    found = verdict(tmp_path, Job(counts=True), Job(counts=True, code=1))
    first = found.first_divergence
    assert (first.cause, first.entry) == (Cause.COMPUTATION, ROOT)


@pytest.mark.parametrize("altered", [0, 1])
def test_a_table_whose_cell_is_never_called_is_to_be_looked_at_first(tmp_path, altered):
    """No record holds it: what is known of it is that it was another one from the start."""
    found = verdict(tmp_path, Job(called=False), Job(called=False, altered=altered))
    first = found.first_divergence
    assert (first.cause, first.entry) == (Cause.COMPUTATION, ROOT)
    assert "a parameter that this code uses directly" in first.explanation
    names = [name for check in first.check_first for name in check.what.different]
    assert names == (["bias.table"] if not altered else [])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
@pytest.mark.parametrize("initial", [True, False])
def test_integers_have_no_gradients(tmp_path, dtype, initial):
    """No update moves a table of integers: what writes into it is to blame, and in which run."""
    known = {"dtype": dtype, "initial": initial}
    first = verdict(tmp_path, Job(**known), Job(**known, altered=1)).first_divergence
    assert first.record == TABLE
    assert first.culprit.code is CulpritCode.WRITTEN
    assert first.culprit.details["run"] == "B"
    assert "gradients" not in first.explanation
