"""What dumps from elsewhere claim: sizes, numbers and names beyond what any run holds."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from helpers.runs import record_data, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Outcome, Status
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, npy_header, open_npy
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.reading.reader import open_run

ENTRY = "Cell.net.Dense.forward.0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a run, which no test changes."""
    return record_training(tmp_path_factory.mktemp("run") / "a", steps=1)


@pytest.fixture
def run(recorded, tmp_path):
    """Return a copy of it."""
    return shutil.copytree(recorded, tmp_path / "a")


JOURNAL = "actor_update/step0/rank0/records.jsonl"


def npy(path, header):
    """Write a .npy file with any header, and plenty of zeros behind it."""
    text = header.encode("latin-1").ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4096))
    return path


def dump(root, data, **beside):
    """Write a dump as msprobe does."""
    place = root / "step0" / "rank0"
    place.mkdir(parents=True)
    whole = {"task": "statistics", "level": "L0", "dump_data_dir": "", "data": data}
    files = {"dump": whole, "construct": {}, "stack": {}, **beside}
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return root


def entry(*values):
    return {"input_args": list(values), "input_kwargs": {}, "output": []}


@pytest.mark.parametrize(
    ("descr", "shape", "said"),
    [
        ("'<f4'", "(True,)", "claims the shape"),
        ("'<f4'", "(False, 2)", "claims the shape"),
        ("'<f4'", "(-1,)", "claims the shape"),
        ("'<f4'", f"({2**63},)", "claims the shape"),
        ("'<f4'", "(1.5,)", "header"),
        ("'<f4'", "5", "header"),
        ("'<f4'", f"({1 << 62}, {1 << 62})", "more than the 64 GiB"),
        ("'<f4'", f"({1 << 62}, 0)", "more than|shape"),
        ("'<f4'", f"({20 << 30},)", "more than the 64 GiB"),
        ("'<f4'", "(" + "1, " * 65 + ")", "header|shape"),
        ("'|O'", "(1,)", "pickled Python objects"),
        ("[('a', '<f4'), ('b', '|O')]", "(1,)", "pickled Python objects"),
        ("[('a', '<f4')]", "(1,)", "dtype"),
        ("('<f4', (2,))", "(1,)", "dtype|header"),
        ("'|V0'", f"({1 << 60},)", "dtype"),
        ("'|S0'", f"({1 << 60},)", "dtype"),
        ("'|V4'", "(1,)", "dtype"),
        ("'<M8[ns]'", "(1,)", "dtype"),
    ],
)
def test_an_array_of_which_nothing_can_be_made_is_one_clear_error(tmp_path, descr, shape, said):
    """Whatever its header claims, it is refused before memory is asked for."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    long = npy(tmp_path / "x.npy", header if len(header) < 117 else header.ljust(500))
    with pytest.raises(ArrayFileError, match=said):
        open_npy(long)


def test_a_big_endian_array_is_read(tmp_path):
    """Numbers in another order of bytes are numbers."""
    np.save(tmp_path / "x.npy", np.arange(5, dtype=">f4"))
    assert open_npy(tmp_path / "x.npy").tolist() == [0, 1, 2, 3, 4]


def test_an_array_without_an_end_is_refused_though_its_record_agrees(tmp_path):
    """200 GB of holes, whose header is what was recorded: unreadable, and at once."""
    runs, sizes = [], (50_000_000_000,)
    for name in "ab":
        runs.append(record_data(tmp_path / name, [("loss", np.zeros(4, np.float32))]))
        place = runs[-1] / "data/loss/step0/rank0/micro_step0"
        content = json.loads((place / "loss.json").read_text())
        content["data"]["shape"] = list(sizes)
        del content["data"]["fingerprint"]
        (place / "loss.json").write_text(json.dumps(content))
        (place / "loss.npy").write_bytes(npy_header(np.dtype(np.float32), sizes))
        os.truncate(place / "loss.npy", 200_000_000_000 + 128)
    result = compare_runs(*runs)
    assert [finding.status for finding in result.findings] == [Status.UNREADABLE]
    assert "more than the 64 GiB" in result.findings[0].note


@pytest.mark.parametrize(
    "name",
    [*("run.json", "configurations.json", JOURNAL), "data/loss/step0/rank0/micro_step0/loss.json"],
)
def test_a_file_without_an_end_is_not_read(run, recorded, name, cli):
    """It is named, with its size and how much is read; the rest of the run is read."""
    (run / "configurations.json").write_text("{}")
    os.truncate(run / name, 60_000_000_000)
    shown = cli("show", run, code=2).out
    assert "reference_compute_log_prob" in shown
    result = compare_runs(run, recorded)
    assert not result
    said = [*result.problems, *(finding.note for finding in result.findings)]
    assert any("has 60000000000 bytes, more than the" in text for text in said)


def test_a_dump_json_and_its_neighbours_without_an_end_are_not_read(tmp_path):
    """The same for msprobe's files."""
    for name in ("dump", "construct", "stack"):
        root = dump(tmp_path / name, {ENTRY: entry(None)})
        os.truncate(root / "step0/rank0" / f"{name}.json", 60_000_000_000)
        run = open_run(root)
        run.entries()
        assert "has 60000000000 bytes, more than the 1 GiB" in run.problems[0].message


def test_a_line_without_an_end_is_damaged_and_those_before_it_are_read(run, monkeypatch):
    """What follows it is not looked for, and that is said."""
    journal = run / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(bounds, "LINE", max(map(len, lines)) + 1)
    journal.write_bytes(b"".join([*lines[:3], b'"' + b"x" * bounds.LINE + b'"\n', *lines[3:]]))
    opened = open_run(run)
    assert len(opened.entries("actor_update")) == 3
    assert "damaged line" in opened.problems[0].message


@pytest.mark.parametrize(
    "bad",
    [
        [{"type": "int", "value": 1}] * 100_001,
        eval("[" * 101 + "None" + "]" * 101),
        {"x" * 9000: None},
        {"type": "mindspore.Tensor", "shape": [True], "dtype": "Float32"},
        {"type": "mindspore.Tensor", "shape": [-1], "dtype": "Float32"},
        {"type": "mindspore.Tensor", "shape": [2**63], "dtype": "Float32"},
        {"type": "mindspore.Tensor", "shape": [1] * 65, "dtype": "Float32"},
        {"type": "int", "value": {"a": 1}},
        {"type": "int", "value": [[[[[1]]]]]},
        {"type": "mindspore.Tensor", "shape": [1], "Max": [1]},
        7,
    ],
    ids=lambda bad: str(bad)[:20],
)
def test_an_entry_that_is_none_costs_itself_alone(tmp_path, bad):
    """It is unreadable with its name; the entry beside it is compared."""
    data = {ENTRY: entry(bad), "Cell.head.Dense.forward.0": entry({"type": "int", "value": 3})}
    a, b = (dump(tmp_path / name, data) for name in "ab")
    run = open_run(a)
    assert [e.name for e in run.entries()] == ["Cell.head.Dense.forward.0"]
    assert run.problems[0].message.startswith(f"{ENTRY}: ")
    assert len(run.problems[0].message) < 400
    assert compare_runs(a, b).verdict.counts["identical"] == 1


def test_a_call_number_of_any_length_is_read(tmp_path, cli):
    """Python takes no more than 4300 digits for a number; such a name is a name."""
    for digits in (19, 3000):
        name = f"Cell.net.Dense.forward.{'9' * digits}"
        data = {name: entry(None), ENTRY: entry({"type": "int", "value": 1})}
        runs = [dump(tmp_path / f"{n}{digits}", data) for n in "ab"]
        assert compare_runs(*runs).verdict.status is Outcome.IDENTICAL
        out = str(tmp_path / f"out{digits}")
        cli("compare", *runs, "-o", out)
        cli("show", runs[0], name)


@pytest.mark.parametrize("field", ["seq", "end", "opening", "token"])
@pytest.mark.parametrize("value", [10**4000, True, 1.5, "1"])
def test_a_place_in_time_that_is_none_damages_its_line_alone(run, field, value):
    """The other lines of the journal are read."""
    journal = run / JOURNAL
    lines = journal.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), field: value})
    journal.write_text("\n".join(lines) + "\n")
    opened = open_run(run)
    assert len(opened.entries("actor_update")) == len(lines) - 1
    assert opened.problems[0].message.startswith("1 damaged line in the journal, ")


def test_many_entries_that_cannot_be_read_are_counted(tmp_path):
    """Not one line each: their number, and the first of them."""
    data = {f"Cell.a{i}.Dense.forward.0": entry(7) for i in range(5000)}
    run = open_run(dump(tmp_path / "a", data))
    assert run.entries() == []
    assert len(run.problems) < 50
    assert "4980 more entries" in run.problems[-1].message


def test_a_stack_that_many_entries_share_is_read_once(tmp_path):
    """Frames are not made anew for every name, and there are as many as anybody looks at."""
    names = [f"Cell.a{i}.Dense.forward.0" for i in range(2000)]
    frames = [f"File a.py, line {i}" for i in range(20_000)]
    stack = {"0": [names, frames]}
    run = open_run(dump(tmp_path / "a", dict.fromkeys(names, entry(None)), stack=stack))
    entries = run.entries()
    assert {len(e.stack) for e in entries} == {bounds.FRAMES}
    assert len(entries) == 2000


def test_whole_numbers_beyond_every_float_are_kept_apart():
    """They are compared as texts: none is the same as another."""
    one, other = (leaf_from_json({"type": "int", "value": 10**3000 + n}).value for n in (0, 1))
    assert one != other
    assert leaf_from_json({"type": "int", "value": 2**100}).value == 2**100


def test_directories_whose_numbers_are_none_are_no_steps(run):
    """Only `step` and plain digits, no more than a whole number of 64 bits has, are a step."""
    for name in ("step", "step1a", "Step1", "step" + "9" * 200, "step٣", "step-1"):
        (run / "actor_update" / name / "rank0").mkdir(parents=True)
    assert open_run(run).steps == [0]
