"""MindSpore's own Dump: files that MindSpore 2.7 wrote on CPU (`mindspore_dump/make.py`).

CPU writes no statistic.csv. Those here have the header of tensor_stat_dump.cc, and the columns that
the documents name for `statistic_category`; no device has written them.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA

from mindrlhf_msprobe import compare_runs, open_run

DATA = MSPROBE_DATA.parent / "mindspore_dump"
DENSE = "Primitive.Default_network-WithLossCell__backbone-SequentialCell_0-Dense_MatMul-op0"
RELU = "Primitive.Default_network-WithLossCell__backbone-SequentialCell_1-ReLU_ReLU-op0"
HEAD = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
CHOSEN = "Max Value,Min Value,Avg Value,NaN Count,MD5,L2Norm Value"
ROWS = (
    'Add,Default/Add-op0,0,0,10,input,0,24,float32,"(2,3)",2,-1,0.5,0,0a1b,3.5',
    'Add,Default/Add-op0,0,0,11,output,0,24,float32,"(2,3)",null,null,null,6,0a1c,nan',
    'Add,Default/Add-op0,0,0,20,input,0,0,int64,"()",7,7,7,0,0a1d,7',
    'Add,Default/Add-op0,0,0,21,output,0,0,bfloat16,"(0)",null,null,null,0,0a1e,0',
)


@pytest.fixture
def dump(tmp_path):
    """A copy of a dump that may be changed."""
    return Path(shutil.copytree(DATA / "a", tmp_path / "dump"))


def iteration(root, step=0):
    return root / "rank_0" / "Tiny" / "0" / str(step)


def file_of(root, start, end, step=0):
    (found,) = iteration(root, step).glob(f"{start}*{end}")
    return found


def with_statistics(root, *rows, head=f"{HEAD},{CHOSEN}"):
    directory = root / "rank_3" / "net" / "1" / "5"
    directory.mkdir(parents=True)
    (directory / "statistic.csv").write_text("\n".join([head, *rows, ""]))
    return root


def test_operators_are_entries_in_the_order_in_which_they_ran():
    run = open_run(DATA / "a")
    assert (run.steps, run.ranks, run.phases) == ([0, 1], [0], ["graph0"])
    assert run.foreign
    entries = run.entries(step=0)
    assert [entry.cell for entry in entries][:3] == [
        f"{DENSE}.MatMul",
        f"{RELU}.ReLU",
        f"{DENSE.replace('0-Dense', '2-Dense')}.MatMul",
    ]
    first = entries[0]
    assert [(r.io, r.path, r.leaf.dtype, r.leaf.shape) for r in first.records] == [
        ("input", "0", "Float32", (2, 4)),
        ("input", "1", "Float32", (3, 4)),
        ("input", "2", "Bool", ()),
        ("input", "3", "Bool", ()),
        ("output", "0", "Float32", (2, 3)),
    ]
    x, weight, *_, output = [record.array() for record in first.records]
    np.testing.assert_allclose(output, x @ weight.T, rtol=1e-6)
    assert run.problems == []


def test_workers_are_handed_it():
    run = pickle.loads(pickle.dumps(open_run(DATA / "a")))
    assert [entry.name for entry in run.entries()] == [
        e.name for e in open_run(DATA / "a").entries()
    ]
    assert run.dialect == open_run(DATA / "a").dialect


def test_two_networks_of_one_rank_are_not_taken_for_one(dump):
    shutil.copytree(dump / "rank_0" / "Tiny", dump / "rank_0" / "Tiny2")
    problems = open_run(dump).problems
    assert [(p.path.parts[-3], p.step) for p in problems] == [("Tiny2", 0), ("Tiny2", 1)]
    assert "another directory is the same step and rank" in str(problems[0])


def test_one_rank_of_it_is_a_run_too():
    assert open_run(DATA / "a" / "rank_0").steps == [0, 1]


def test_compare_names_the_first_operator_that_was_given_something_else():
    verdict = compare_runs(DATA / "a", DATA / "b").verdict
    found = verdict.first_divergence
    assert (found.step, found.phase, found.cause) == (1, "graph0", "input")
    assert found.entry == f"{DENSE}.MatMul.0.forward"


def test_compare_names_the_operator_that_computed_otherwise(dump):
    path = file_of(dump, "ReLU", "output.0.DefaultFormat.Float32.npy", step=1)
    np.save(path, np.load(path) + 1)
    verdict = compare_runs(DATA / "a", dump).verdict
    found = verdict.first_divergence
    assert (found.entry, found.cause) == (f"{RELU}.ReLU.0.forward", "computation")


def test_what_has_no_names_in_common_with_it_is_said_with_what_to_do(dump):
    """In a comparison with a dump of msprobe; not in one of two such dumps."""
    result = compare_runs(DATA / "a", MSPROBE_DATA / "tensor_a", lang="en")
    assert result.verdict.status == "incomparable"
    assert any("A is a dump of MindSpore" in str(note) for note in result.notes)
    result = compare_runs(DATA / "a", dump, lang="en")
    assert not any("dump of MindSpore" in str(note) for note in result.notes)


def test_show_and_trend_compute_what_was_not_recorded(cli):
    (series,) = open_run(DATA / "a").trend(record=f"{RELU}.*output", statistic="max")
    expected = [open_run(DATA / "a").entries(step=s)[1].records[1].array().max() for s in (0, 1)]
    assert series.values.tolist() == expected
    assert "graph0" in cli("show", DATA / "a").out
    assert (
        f"max {expected[0]}  min 0.0  mean 0.7"
        in cli("show", DATA / "a", f"{RELU}.ReLU.0.forward.output.0", "--step", "0").out
    )


def test_rows_of_statistic_csv_are_records(tmp_path):
    run = open_run(with_statistics(tmp_path, *ROWS))
    assert (run.steps, run.ranks, run.phases) == ([5], [3], ["graph1"])
    first, second = run.entries()
    assert [entry.call for entry in (first, second)] == [0, 1]
    given, returned = [record.leaf for record in first.records]
    assert (given.dtype, given.shape, given.nan_count) == ("Float32", (2, 3), 0)
    assert (given.max, given.min, given.mean, given.norm) == (2, -1, 0.5, 3.5)
    assert given.fingerprint == "md5:0a1b"
    assert (returned.max, returned.nan_count) == (None, 6)
    assert [record.leaf.shape for record in second.records] == [(), (0,)]
    assert run.problems == []


def test_a_file_and_its_row_are_one_record(dump):
    kept = file_of(dump, "ReLU", "output.0.DefaultFormat.Float32.npy")
    name = kept.name.split(".")
    row = f'ReLU,{name[1].replace("_", "/", 1)},0,0,{name[4]},output,0,24,float32,"(2,3)",7,0,1,9'
    head = f"{HEAD},Max Value,Min Value,Avg Value,L2 Value"
    (iteration(dump) / "statistic.csv").write_text(f"{head}\n{row}\n")
    record = open_run(dump).entries(step=0)[1].records[-1]
    assert (record.leaf.max, record.leaf.norm) == (7, 9)
    assert record.array().shape == (2, 3)


def test_a_name_that_was_too_long_for_a_file_is_looked_up(dump):
    kept = file_of(dump, "ReLU", "output.0.DefaultFormat.Float32.npy")
    (iteration(dump) / "mapping.csv").write_text(f"0123456789.npy,{kept.name}\n")
    kept.rename(kept.with_name("0123456789.npy"))
    assert open_run(dump).entries(step=0)[1].records[-1].array().shape == (2, 3)
    assert compare_runs(DATA / "a", dump).verdict.status == "identical"


@pytest.mark.parametrize("of", [(",11,", ",-1,"), ("(2,3)", "(2,x)"), ("nan", "abc"), None])
def test_a_row_that_is_damaged_is_said_to_be_lost(tmp_path, of):
    rows = [ROWS[0], ROWS[1].replace(*of) if of else ROWS[1][:30]]
    run = open_run(with_statistics(tmp_path / "a", *rows))
    assert len(run.entries()[0].records) == 1
    assert ["1 damaged row" in str(problem) for problem in run.problems] == [True]
    (tmp_path / "b").mkdir()
    result = compare_runs(tmp_path / "a", with_statistics(tmp_path / "b", *rows))
    assert result.verdict.first_divergence.cause == "unreadable"  # also where it is lost in both


def test_a_table_of_something_else_is_refused_by_its_columns(tmp_path):
    run = open_run(with_statistics(tmp_path, "a,1", head="name,value"))
    assert run.entries() == []
    assert "it has no column Op Type, Op Name" in str(run.problems[0])


def _cut(path, outside):
    path.write_bytes(path.read_bytes()[:-3])


def _linked(path, outside):
    np.save(outside / "x.npy", np.load(path))
    path.unlink()
    path.symlink_to(outside / "x.npy")


def _pickled(path, outside):
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("spoil", [_cut, _linked, _pickled])
def test_a_file_that_cannot_be_used_costs_no_other(dump, tmp_path, spoil):
    spoil(file_of(dump, "ReLU", "output.0.DefaultFormat.Float32.npy"), tmp_path)
    result = compare_runs(DATA / "a", dump)
    assert result.verdict.first_divergence.cause == "unreadable"
    unreadable = [f.record for f in result.findings if f.status == "unreadable"]
    assert unreadable == [f"{RELU}.ReLU.0.forward.output.0"]


def test_files_of_no_known_form_are_named(dump):
    (iteration(dump) / "notes.npy").write_bytes(b"")
    run = open_run(dump)
    run.entries(step=0)
    assert "1 file that MindSpore's Dump does not write: notes.npy" in str(run.problems[0])
