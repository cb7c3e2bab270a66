"""The copy of a journal as columns says what the journal says, and is used only where it may be."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.runs import Fault, Recording, leave_as_killed, record_training
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.engine.executor import Folding
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage.columns import copies, export
from mindrlhf_msprobe.storage.columns.copies import CopiedColumns, copied_columns
from mindrlhf_msprobe.storage.columns.export import copy_of_rank, export_run
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.columns.leaf_json import NON_FINITE_MARKS, STATISTICS
from mindrlhf_msprobe.storage.columns.page_sizes import decompressed_size
from mindrlhf_msprobe.storage.columns.reading import columns_of, columns_of_journal
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace

FIELDS = ("type", "dtype", "shape", *STATISTICS, "nan_count", "inf_count", "fingerprint", "md5")
MORE = ("value", "data_name", "whole", "error")
AT = LayerPlace("actor_update", 0, 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two trainings of two steps on two ranks; the second with a fault late in it."""
    root = tmp_path_factory.mktemp("recorded")
    how = {"steps": 2, "ranks": (0, 1), "rounds": 2, "tokens": 2}
    fault = Fault("layers.1.mlp", "actor_update", step=1)
    record_training(root / "A", **how)
    record_training(root / "B", faults=[fault], **how)
    return root


@pytest.fixture
def runs(recorded, tmp_path):
    """Copies of both, each with its columns."""
    for name in "AB":
        shutil.copytree(recorded / name, tmp_path / name)
        export_run(open_run(tmp_path / name), tmp_path / name)
    return tmp_path / "A", tmp_path / "B"


@pytest.fixture
def warnings(caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)
    return caplog


def told(path: Path) -> list[object]:
    """Return all that is told of a run through its columns."""
    run = open_run(path)
    found: list[object] = [check_run(path).findings]
    for step, rank in sorted(run.places):
        for phase in run.phases_at(StepPlace(step, rank)):
            columns = columns_of(run, LayerPlace(phase, step, rank))
            found += [entry.values for entry in columns.entries()]
    return [*found, sorted(problem.said.code for problem in run.problems)]


@pytest.fixture
def folded(monkeypatch):
    """Count on columns whatever can be, however few records there are."""
    monkeypatch.setattr("mindrlhf_msprobe.comparison.compare.FOLD_ABOVE", 0)
    monkeypatch.setattr(Folding, "is_likely", True)


NUMBER = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([None, True, "NaN", "Infinity", "-Infinity", -0.0, 5]),
)
SHAPE = st.lists(st.integers(0, 1 << 40), max_size=3)
TENSOR = st.fixed_dictionaries(
    {"type": st.sampled_from(["mindspore.Tensor", "mindspore.Parameter", "str"]), "shape": SHAPE},
    optional={
        "dtype": st.sampled_from(["Float32", "Int32", None]),
        **dict.fromkeys(STATISTICS, NUMBER),
        **dict.fromkeys(("nan_count", "inf_count"), st.integers(0, 1 << 60)),
        "fingerprint": st.sampled_from(["xxh3_128:00ff", "crc32:1", "a:b:c", "plain", "", None]),
        "md5": st.sampled_from(["", "0a"]),
        "data_name": st.just("x.npy"),
        "whole": st.just(True),
        "sketch": st.just({"algorithm": "a", "block": 64, "offset": 0}),
    },
)
USUAL = st.builds(
    lambda numbers, digest: {
        **{"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 3]},
        **dict(zip(STATISTICS, numbers)),
        **{"nan_count": 0, "inf_count": 0, "fingerprint": f"xxh3_128:{digest:032x}"},
    },
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
    st.integers(0, 3),
)
SCALAR = st.fixed_dictionaries(
    {"type": st.sampled_from(["int", "float", "str", "NoneType"])},
    optional={"value": st.one_of(NUMBER, st.text(max_size=3)), "opaque": st.just(True)},
)
VALUES = st.lists(st.one_of(USUAL, USUAL, TENSOR, SCALAR, st.none()), max_size=3)
LINE = st.fixed_dictionaries(
    {
        "seq": st.integers(0, 1 << 61),
        "end": st.one_of(st.none(), st.integers(0, 1 << 61)),
        "parent": st.sampled_from([None, "Cell.root.Net.forward.0"]),
        "opening": st.integers(0, 1 << 40),
        "input_args": VALUES,
        "output": VALUES,
    },
    optional={
        "token": st.integers(0, 9),
        "input_names": st.just(["x", "mask"]),
        "parameters": st.fixed_dictionaries({"weight": USUAL, "a.b": TENSOR}),
        "cell": st.just("root"),
    },
)


def write_run(root: Path, journals: list[bytes]) -> Path:
    """Make a run of one rank with a journal for each step."""
    recording = Recording(root)
    for step, content in enumerate(journals):
        directory = root / "actor_update" / f"step{step}" / "rank0"
        directory.mkdir(parents=True)
        (directory / "records.jsonl").write_bytes(content)
    recording.close()
    return root


def as_journal(lines) -> bytes:
    named = ({"entry": f"Cell.layers.{n}.Dense.forward.0", **line} for n, line in enumerate(lines))
    return b"".join(json.dumps(line).encode() + b"\n" for line in named)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(LINE, max_size=4), min_size=1, max_size=3))
def test_the_copy_says_what_the_journal_says(tmp_path_factory, steps):
    """Whatever values a journal holds: names, places, JSON of each value, fields and numbers."""
    journals = [as_journal(lines) for lines in steps]
    root = write_run(tmp_path_factory.mktemp("run") / "run", journals)
    run = open_run(root)
    left_out = {step for _, step, _ in export_run(run, root).left_out}
    run = open_run(root)
    for step, content in enumerate(journals):
        at = LayerPlace("actor_update", step, 0)
        own = columns_of_journal(content, root, at, Layouts())
        copied = copied_columns(run, at, Layouts(), lambda own=own: own)
        assert (copied is None) == (own is None or step in left_out or not content)
        if copied is None or own is None:
            continue
        assert copied.layout.names == own.layout.names
        assert copied.layout.structures == own.layout.structures
        assert copied.heads == own.heads
        rows = range(len(own.values))
        assert [*map(copied.values.leaf, rows)] == [*map(own.values.leaf, rows)]
        for name in (*FIELDS, *MORE):
            assert copied.values.field(name) == own.values.field(name), name
        assert copied.values.fingerprints == own.values.fingerprints
        for name in STATISTICS:
            np.testing.assert_array_equal(copied.values.numbers(name), own.values.numbers(name))
        every = np.arange(len(own.values))
        for one, other in ((own, own), (own, copied), (copied, own), (copied, copied)):
            same = one.values.are_identical(every, other.values, every)
            expected = own.values.are_identical(every, own.values, every)
            assert (same == expected).all()
        for marks in (NON_FINITE_MARKS, (b'"data_name"',)):
            assert {*own.marked(marks)} <= {*copied.marked(marks)}
        for number, structure in enumerate(own.layout.structures):
            for part, path in structure.places:
                io = part.partition("_")[0]
                assert copied.argument(number, io, path) == own.argument(number, io, path)


def test_comparisons_are_those_of_the_journals(recorded, runs, folded):
    """Of two runs with columns, and of one with and one without."""
    a, b = recorded / "A", recorded / "B"
    expected = compare_runs(a, b, workers=1)
    assert expected.agreements
    for pair in (runs, (runs[0], b), (a, runs[1])):
        found = compare_runs(*pair, workers=1)
        assert [*map(repr, found.findings)] == [*map(repr, expected.findings)]
        assert found.agreements == expected.agreements
        assert repr(found.verdict) == repr(expected.verdict)


def test_columns_are_read_and_no_journal(runs, monkeypatch):
    """Of a place that has a copy, the journal is asked for its size and time alone."""
    from mindrlhf_msprobe.storage.reading.reader import Run

    read = []
    monkeypatch.setattr(Run, "journal", lambda self, *at: read.append(at))
    run = open_run(runs[0])
    for phase in run.phases_at(StepPlace(0, 0)):
        columns = columns_of(run, LayerPlace(phase, 0, 0))
        assert isinstance(columns, CopiedColumns)
        assert sum(len(entry.values) for entry in columns.entries()) == len(columns.values)
    assert not read


def test_a_call_stack_is_that_of_the_journal(tmp_path):
    frames = {"stack": 3, "frames": ["File train.py, line 7, in step"]}
    line = {"seq": 0, "end": 1, "parent": None, "opening": 0, **frames, "output": []}
    run = open_run(write_run(tmp_path / "run", [as_journal([line])]))
    export_run(run, run.path)
    (entry,) = columns_of(open_run(run.path), AT).entries()
    assert entry.stack == ("File train.py, line 7, in step",)


def edit_journal(run: Path, change) -> None:
    journal = run / "actor_update/step0/rank0/records.jsonl"
    journal.write_bytes(change(journal.read_bytes()))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda raw: raw.replace(b'"Max": ', b'"Max": 1'), id="longer"),
        pytest.param(lambda raw: raw[: raw.rindex(b"\n", 0, -1) + 1], id="shorter"),
        pytest.param(lambda raw: raw.replace(b"xxh3_128:", b"xxh3_129:"), id="of the same size"),
        pytest.param(lambda raw: raw[:-7], id="cut off"),
    ],
)
def test_the_journal_wins_over_an_older_copy(recorded, runs, tmp_path, warnings, change):
    """What changed since is compared, and it is said once."""
    journals = shutil.copytree(recorded / "A", tmp_path / "journals")
    for run in (runs[0], journals):
        edit_journal(run, change)
    columns_of(open_run(runs[0]), AT)
    said = [one for one in warnings.messages if "is older than the run's journals" in one]
    assert len(said) == 1
    assert told(runs[0]) == told(journals)


def test_a_journal_that_was_touched_or_copied_is_still_the_same(runs, warnings):
    for journal in runs[0].rglob("records.jsonl"):
        os.utime(journal, ns=(1, 1))
    run = open_run(runs[0])
    assert isinstance(columns_of(run, AT), CopiedColumns)
    assert not warnings.messages


def rewrite(path: Path, change) -> None:
    """Write a copy anew with other content under the same metadata."""
    file = pq.ParquetFile(path)
    about = file.metadata.metadata
    table = change(file.read())
    writer = pq.ParquetWriter(path, table.schema)
    writer.write_table(table)
    writer.add_key_value_metadata({k: v for k, v in about.items() if k != b"ARROW:schema"})
    writer.close()


def with_another_norm(table: pa.Table) -> pa.Table:
    index = table.column_names.index("norm")
    norms = pa.array([7.0] * len(table), pa.float64())
    return table.set_column(index, "norm", norms)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b"PAR1" + bytes(200) + b"PAR1"),
        lambda path: path.write_bytes(b""),
        lambda path: rewrite(path, with_another_norm),
        lambda path: rewrite(path, lambda table: table.slice(1)),
        lambda path: rewrite(path, lambda table: table.drop(["fingerprint"])),
        lambda path: pq.write_table(pa.table({"step": [0]}), path),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_a_file_that_contradicts_or_is_damaged_is_not_used(recorded, runs, warnings, damage):
    """The answer is that of the journals, and it is said why once a file."""
    damage(runs[0] / "columns.rank0.parquet")
    columns_of(open_run(runs[0]), AT)
    said = [one for one in warnings.messages if "columns.rank0.parquet" in one]
    assert len(said) == 1
    assert told(runs[0]) == told(recorded / "A")


def with_metadata(path: Path, change) -> None:
    file = pq.ParquetFile(path)
    content = json.loads(file.metadata.metadata[b"mindrlhf_msprobe"])
    change(content)
    tables = [file.read_row_group(n) for n in range(file.num_row_groups)]
    writer = pq.ParquetWriter(path, file.schema_arrow.remove_metadata())
    for table in tables:
        writer.write_table(table.replace_schema_metadata(None))
    writer.add_key_value_metadata({"mindrlhf_msprobe": json.dumps(content)})
    writer.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(schema=2),
        lambda content: content.update(places="all"),
        lambda content: content["places"][0].pop(),
        lambda content: content["places"].append(["x", 0, 99, 0, 1, 1, 1, ""]),
        lambda content: [place.__setitem__(3, 1 << 40) for place in content["places"]],
        lambda content: [place.__setitem__(4, -1) for place in content["places"]],
        lambda content: content.update(digests=[]),
        lambda content: content.update(digests=[None]),
    ],
)
def test_metadata_are_data(recorded, runs, change):
    with_metadata(runs[0] / "columns.rank0.parquet", change)
    assert told(runs[0]) == told(recorded / "A")


def test_a_killed_run_is_exported_as_far_as_it_is_whole(tmp_path):
    recording = Recording(tmp_path / "run")
    recording.writer.manifest.begin(0)
    with recording.phase("actor_update"):
        recording.call("a", "Dense", lambda x: x + 1, np.ones(4))
    recording.writer.wait()
    leave_as_killed(recording.writer)
    journal = next((tmp_path / "run").rglob("records.jsonl"))
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:20])
    run = open_run(tmp_path / "run")
    assert export_run(run, tmp_path / "out").left_out == [AT]
    journal.write_bytes(whole)
    found = export_run(open_run(tmp_path / "run"), tmp_path / "out")
    assert (found.left_out, found.records) == ([], 2)


def test_a_large_run_is_copied_when_it_ends(tmp_path, monkeypatch):
    """Not a small one, nor where it is switched off."""
    monkeypatch.setattr(export, "_WORTH", 1000)
    for name, columns in (("on", True), ("off", False)):
        recording = Recording(tmp_path / name, columns=columns)
        with recording.phase("actor_update"):
            for _ in range(9):
                recording.call("a", "Dense", lambda x: x + 1, np.ones(4))
        recording.end_step()
        recording.close()
    assert (tmp_path / "on/columns.rank0.parquet").is_file()
    assert isinstance(columns_of(open_run(tmp_path / "on"), AT), CopiedColumns)
    assert not (tmp_path / "off/columns.rank0.parquet").exists()
    assert not [*tmp_path.glob("*/.columns*")]


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_a_resumed_or_overwritten_run_has_no_old_columns(tmp_path, existing):
    root = tmp_path / "run"
    record_training(root, steps=2)
    export_run(open_run(root), root)
    recording = Recording(root, existing=existing, step=2)
    recording.writer.manifest.begin(2)
    recording.close()
    assert not [*root.glob("*.parquet")]


def test_a_copy_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(export, "_WORTH", 0)
    root = tmp_path / "run"
    record_training(root, steps=1)
    (root / "columns.rank0.parquet").unlink(missing_ok=True)
    (root / "columns.rank0.parquet").mkdir()
    copy_of_rank(root, 0)
    assert len(warnings.messages) == 1
    assert open_run(root).finished


WITHOUT = """
import sys
sys.modules["pyarrow"] = None
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_pyarrow_journals_are_read(runs):
    def run(*arguments):
        line = [sys.executable, "-c", WITHOUT, *arguments]
        return subprocess.run(line, capture_output=True, text=True)

    compared = run("compare", str(runs[0]), str(runs[1]), "-o", str(runs[0].parent / "out"))
    assert (compared.returncode, compared.stderr) == (1, "")
    exported = run("export", str(runs[0]))
    assert exported.returncode == 2
    assert "pip install 'mindrlhf_msprobe[columns]'" in exported.stderr


def test_recording_does_not_import_pyarrow(tmp_path):
    code = (
        "import sys, mindrlhf_msprobe as m\n"
        f"p = m.Probe.from_config({{'msprobe': True, 'dump_path': {str(tmp_path / 'r')!r},"
        " 'key_data_dump': True})\n"
        "p.save_data(loss=1.0); p.step(); p.close()\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_command_says_what_it_wrote(recorded, tmp_path, capsys):
    assert main(["export", str(recorded / "A"), "-o", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in said["files"]] == [
        "columns.rank0.parquet",
        "columns.rank1.parquet",
    ]
    rows = sum(pq.read_metadata(file).num_rows for file in said["files"])
    assert rows == said["records"] > 100
    assert not said["left_out"]
    assert main(["export", str(recorded / "A"), "-o", str(tmp_path / "out")]) == 0
    assert "2 files" in capsys.readouterr().out


def test_the_size_of_pages_is_what_their_headers_say(recorded, tmp_path, monkeypatch, warnings):
    """Whatever the footer claims: a group that would need too much memory is not decompressed."""
    run = shutil.copytree(recorded / "A", tmp_path / "run")
    export_run(open_run(run), run)
    path = run / "columns.rank0.parquet"
    about = pq.read_metadata(path).row_group(0)
    with open(path, "rb") as file:
        for index in range(about.num_columns):
            chunk = about.column(index)
            headers = chunk.total_uncompressed_size - decompressed_size(file, chunk)
            assert 0 < headers < 400, chunk.path_in_schema
    before = check_run(run).to_json()
    monkeypatch.setattr(copies, "_MOST_BYTES", 1000)
    reads = []
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *_, **__: reads.append(1))
    assert check_run(run).to_json() == before
    assert not reads
    assert "journals are read" in warnings.messages[0]


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_pages_with_any_header_are_refused_or_measured(data):
    chunk = SimpleNamespace(
        data_page_offset=0, has_dictionary_page=False, total_compressed_size=len(data)
    )
    with suppress(ValueError, IndexError):
        assert decompressed_size(io.BytesIO(data), chunk) >= 0


def test_a_count_below_zero_is_no_count(recorded, tmp_path):
    """With a copy as without."""
    run = shutil.copytree(recorded / "A", tmp_path / "run")
    journal = run / "actor_update/step0/rank0/records.jsonl"
    journal.write_text(journal.read_text().replace('"nan_count": 0', '"nan_count": -1', 3))
    found = check_run(run)
    assert "-1 NaN" not in str(found.to_json())
    export_run(open_run(run), run)
    assert check_run(run).to_json() == found.to_json()


@pytest.mark.parametrize("kind", ["whole", "damaged", "copied"])
def test_an_entry_of_columns_is_the_one_that_is_read(recorded, tmp_path, kind):
    """Whether of a whole journal, of what is left of a damaged one, or of a copy."""
    run = shutil.copytree(recorded / "A", tmp_path / "run")
    journal = run / "actor_update/step0/rank0/records.jsonl"
    first, *rest = journal.read_bytes().splitlines(keepends=True)
    line = json.loads(first)
    value = {"type": "int", "value": 3}
    line["input_kwargs"] = {"masks": [{"left.0": value}, None, value], "mask": value}
    end = b"{}\n" * (kind == "damaged")
    journal.write_bytes(json.dumps(line).encode() + b"\n" + b"".join(rest) + end)
    if kind == "copied":
        export_run(open_run(run), run)
    opened = open_run(run)
    columns = columns_of(opened, LayerPlace("actor_update", 0, 0))
    assert (columns.objects is not None) == (kind == "damaged")
    assert isinstance(columns, CopiedColumns) == (kind == "copied")
    of_columns = {entry.name: entry for entry in columns.entries()}
    for entry in opened.entries("actor_update", 0, 0):
        own = of_columns[entry.name]
        values = [{value[:2]: dict(value[2]) for value in one.values} for one in (own, entry)]
        for found in values:  # of null nothing is read of a whole journal
            found.pop(("input", "masks.1"), None)
        assert values[0] == values[1]
        assert all(own.argument(one.io, one.path) == one.argument for one in entry.records)
        assert all(getattr(own, of.name) == getattr(entry, of.name) for of in fields(entry))
        assert not replace(own, records=()).values
