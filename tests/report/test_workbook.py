"""Tables: the columns msprobe's users know, numbers as numbers, names never as formulas."""

from __future__ import annotations

import csv
import math
import re
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest
from helpers.reports import finding
from helpers.runs import Fault, record_data, record_training
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook
from openpyxl.utils import get_column_letter

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.findings import Agreement, Finding, KeptFindings, Metrics, Side, Status
from mindrlhf_msprobe.report import workbook
from mindrlhf_msprobe.report.sheets import Column, Row, Sheet, write_csv_files
from mindrlhf_msprobe.report.workbook import tables_of, write_tables
from mindrlhf_msprobe.report.xlsx import letters, write_xlsx

KEY_DATA_HEADER = [
    *("step", "rank", "micro_step", "id", "shape1", "shape2", "相同元素百分比(%)"),
    *("首个不匹配元素索引", "最大绝对误差", "最大相对误差"),
    *("误差在千分之一内元素占比(%)", "误差在百分之一内元素占比(%)"),
]
PLACE = [
    f"{side} {name}" for name in ("Name", "Dtype", "Tensor Shape") for side in ("NPU", "Bench")
]
TENSOR_COLUMNS = [
    *("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"),
    *("One Thousandth Err Ratio", "Five Thousandths Err Ratio"),
]
DIFFERENCE_COLUMNS = [
    *("Max diff", "Min diff", "Mean diff", "L2norm diff"),
    *("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"),
]
STATISTICS = [
    f"{side} {name}" for side in ("NPU", "Bench") for name in ("max", "min", "mean", "l2norm")
]


def compare(tmp_path, **settings):
    a = record_training(tmp_path / "a", steps=1, **settings)
    fault = Fault("layers.0.mlp", "reference_compute_log_prob")
    b = record_training(tmp_path / "b", steps=1, faults=[fault], **settings)
    return compare_runs(a, b, output_path=tmp_path / "out")


def rows(path):
    """Return the header and the rows of a table as the text or numbers a reader sees."""
    sheet = load_workbook(path).worksheets[0]
    header, *content = sheet.iter_rows(values_only=True)
    return list(header), [dict(zip(header, row)) for row in content]


def sheet_of(tmp_path, *findings):
    """Return the first sheet of the one workbook of these findings."""
    (name,) = write_tables(tables_of(findings), tmp_path)
    return load_workbook(tmp_path / name).worksheets[0]


def rows_of(tmp_path, *findings):
    """Return the rows of the one table of these findings."""
    header, *content = sheet_of(tmp_path, *findings).iter_rows(values_only=True)
    return [dict(zip(header, row)) for row in content]


NAN = message(
    "suspicion.of_many", count=2, record="r", why=[message("suspicion.non_finite", nan=0, inf=0)]
)


def said(text):
    """Return a note of these words."""
    return (Message("text", {"text": text}),)


def test_a_keys_table_has_msprobes_header(tmp_path):
    """Key data: the columns of the msprobe document in their order, on the first sheet, Sheet1.

    Status and suspicion stand among them, where they stay in sight.
    """
    compare(tmp_path)
    path = tmp_path / "out/rewards.xlsx"
    header, content = rows(path)
    assert [name for name in header if name in KEY_DATA_HEADER] == KEY_DATA_HEADER
    assert header[:6] == [*KEY_DATA_HEADER[:4], "status", "suspicion"]
    assert header[len(KEY_DATA_HEADER) + 2] == "note"
    assert load_workbook(path).sheetnames[0] == "Sheet1"
    (row,) = content
    assert (row["step"], row["rank"], row["micro_step"], row["id"]) == (0, 0, 0, 0)
    assert (row["shape1"], row["shape2"]) == ("[2, 4]", "[2, 4]")
    assert row["相同元素百分比(%)"] == 87.5
    assert row["首个不匹配元素索引"] == 0
    assert 0 < row["最大绝对误差"] < 1
    assert row["status"] == "different"


@pytest.mark.parametrize(
    ("task", "columns"), [("tensor", TENSOR_COLUMNS), ("statistics", DIFFERENCE_COLUMNS)]
)
def test_a_phases_table_has_msprobes_columns(tmp_path, task, columns):
    """Cells: the columns of msprobe's compare for tensors and for statistics."""
    compare(tmp_path, task=task)
    header, content = rows(tmp_path / "out/compare_result_reference_compute_log_prob.xlsx")
    expected = [*PLACE, *columns, *STATISTICS, "Result", "Err_message"]
    assert [name for name in header if name in expected] == expected
    assert header[:4] == ["NPU Name", "status", "suspicion", "Bench Name"]
    wrong = [row for row in content if row["Result"] == "error"]
    assert wrong[0]["NPU Name"] == "Cell.layers.0.mlp.Dense.forward.0.output.0"
    assert wrong[0]["Err_message"].startswith("different")
    assert {row["Result"] for row in content} == {"pass", "error"}


def test_rows_are_in_causal_order(tmp_path):
    """The rows follow the computation: the container's input, its children, its output."""
    compare(tmp_path)
    _, content = rows(tmp_path / "out/compare_result_reference_compute_log_prob.xlsx")
    names = [row["NPU Name"] for row in content]
    assert names[0] == "Cell.root.Network.forward.0.input.0"
    assert names[-1] == "Cell.root.Network.forward.0.output.0"


def test_statistics_differ_as_msprobe_writes_them(tmp_path):
    """Differences are numbers, NPU less Bench; relative ones of Bench, shown in percent."""
    b = Side(name="x", dtype="Float32", shape=(2,), max=3.0, min=-1.0, mean=1.0, norm=0.0)
    a = Side(name="x", dtype="Float32", shape=(2,), max=2.0, min=-1.0, mean=math.nan, norm=0.0)
    sheet = sheet_of(tmp_path, finding(a=a, b=b))
    row = dict(zip(*sheet.iter_rows(values_only=True)))
    assert (row["Max diff"], row["MaxRelativeErr"]) == (1, 0.5)
    assert (row["NPU max"], row["Bench max"]) == (3, 2)
    assert (row["Min diff"], row["MinRelativeErr"]) == (0, 0)
    shown = {cell.number_format for cell in sheet[2] if cell.value in (0.5, 0.0)}
    assert "0.0###%" in shown
    assert row["Mean diff"] == "nan"
    assert row["MeanRelativeErr"] is None


def test_numbers_are_numbers(tmp_path):
    """Measures and statistics are numeric cells; what Excel would round is text."""
    metrics = Metrics(50.0, 3, 0.25, 0.5, 50.0, 50.0, 50.0, 0.5, 0.25)
    side = Side(name="x", dtype="Int64", shape=(2,), max=2**63 - 1, min=5, mean=math.inf, norm=1.5)
    header, content = sheet_of(tmp_path, finding(a=side, b=side, metrics=metrics)).iter_rows()
    cells = {name.value: cell for name, cell in zip(header, content)}
    for name in ("Cosine", "EucDist", "MaxAbsErr", "NPU min", "NPU l2norm", "step"):
        assert cells[name].data_type == "n", name
    assert cells["NPU max"].value == str(2**63 - 1)
    assert cells["NPU mean"].value == "inf"


HARMFUL = [
    *("=1+1", "+1", "-1", "@x", "<t>&amp;]]>", " x ", "a\ufffe", "\x01\x1b[31m", "优势"),
    *("a\udc80b", "x" * 40_000, "=HYPERLINK"),
]


@pytest.mark.parametrize("text", HARMFUL, ids=ascii)
def test_no_name_becomes_a_formula(tmp_path, text):
    """Whatever a record, a note or a text is called, its cell holds text and can be opened."""
    side = Side(name=text, dtype=text, value=text)
    found = finding(record=text, a=side, b=side, notes=said(text), stack=(text,))
    _, cells = sheet_of(tmp_path, found).iter_rows()
    assert all(cell.data_type in ("s", "n", "inlineStr") for cell in cells)
    if text.isprintable() and len(text) < 100:
        assert cells[0].value == text


@pytest.mark.parametrize("key", ["=1+1", "优势", "kl loss", "a.b", "x" * 180, "答" * 60])
def test_any_key_has_a_table(tmp_path, key):
    """Keys with signs, spaces or Chinese have a table that opens."""
    for name in ("a", "b"):
        record_data(tmp_path / name, [(key, ["=2+2", "中文"])])
    result = compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out")
    assert result
    summary, name = result.tables
    assert summary == "summary.xlsx"
    assert name.startswith(key[:20])
    _, content = rows(tmp_path / "out" / name)
    assert [row["id"] for row in content] == [0, 1]
    assert content[0]["max1"] is not None


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, (None, 3), 10**400, 1 + 2j, math.nan, True])
def test_any_value_of_a_dump_can_be_shown(tmp_path, value):
    """A value of any kind that a foreign dump may hold does not stop the table."""
    side = Side(name="x", value=value, max=value, shape=None)
    for shape in (None, (1,)):
        found = finding(a=Side(name="x", value=value, max=value, shape=shape), b=side)
        assert len(rows_of(tmp_path, found)) == 1


@pytest.mark.parametrize(
    ("path", "shown"), [("", 0), ("3", 3), ("mask", "mask"), ("007", "007"), ("²", "²"), ("٣", "٣")]
)
def test_an_elements_id_is_its_place(tmp_path, path, shown):
    """The id is the index in a list, the name in a dict, 0 for a single tensor."""
    (row,) = rows_of(tmp_path, finding(key="k", micro_step=0, path=path, io="data"))
    assert row["id"] == shown


def test_more_rows_than_a_sheet_holds_are_split(tmp_path, monkeypatch):
    """No row is lost where a sheet is full: the next file goes on, in order; CSV holds all."""
    monkeypatch.setattr(workbook, "MAX_ROWS", 4)
    tables = tables_of([finding(step=step) for step in range(10)])
    *names, of_all = write_tables(tables, tmp_path, csv=True)
    assert names == [f"compare_result_actor_update_part{n}.xlsx" for n in (1, 2, 3)]
    parts = [rows(tmp_path / name)[1] for name in names]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [row["step"] for part in parts for row in part] == list(range(10))
    assert len((tmp_path / of_all).read_text("utf-8-sig").splitlines()) == 11


def test_two_tables_never_share_a_file(tmp_path):
    """A key that is called like a phase's table does not overwrite it."""
    found = [
        finding(key="compare_result_actor_update", micro_step=0, io="data", phase=None),
        finding(),
    ]
    names = write_tables(tables_of(found), tmp_path)
    assert len(set(names)) == 2
    headers = [rows(tmp_path / name)[0] for name in names]
    assert headers[0][:4] == KEY_DATA_HEADER[:4]
    assert [name for name in headers[1] if name in PLACE] == PLACE


def test_rows_are_coloured_by_what_they_say(tmp_path):
    """Two reds for what differs and what is missing, orange and yellow for what agrees so far."""
    order = (Status.DIFFERENT, Status.UNREADABLE, Status.WITHIN_TOLERANCE, Status.IDENTICAL)
    found = [finding(status) for status in order]
    found += [finding(Status.IDENTICAL, suspicions=said("NaN")), finding(Status.SHAPE_MISMATCH)]
    found += [finding(Status.WITHIN_TOLERANCE, suspicions=said("grows")), finding(Status.ONLY_IN_A)]
    sheet = sheet_of(tmp_path, *found)
    colours = [sheet.cell(row, 1).fill.fgColor.rgb[-6:] for row in range(2, 10)]
    red, missing, orange, yellow, none = "FFC7CE", "FF9999", "FFCC99", "FFEB9C", "000000"
    assert colours == [red, missing, yellow, none, orange, red, orange, missing]
    assert (sheet.title, sheet.freeze_panes) == ("actor_update", "E2")
    assert sheet.auto_filter.ref


def test_status_and_suspicion_stay_in_sight(tmp_path):
    """Beside the names, frozen with them; the tolerance is last, and sentences have room."""
    found = [
        finding(compared_by=said("rtol 0.01"), suspicions=said("2 NaN on both sides")),
        finding(key="k", micro_step=0),
    ]
    write_tables(tables_of(found), tmp_path)
    header, (row,) = rows(tmp_path / "compare_result_actor_update.xlsx")
    assert header[:4] == ["NPU Name", "status", "suspicion", "Bench Name"]
    assert (row["suspicion"], row[header[-1]]) == ("2 NaN on both sides", "rtol 0.01")
    header, (row,) = rows(tmp_path / "k.xlsx")
    assert header[:6] == ["step", "rank", "micro_step", "id", "status", "suspicion"]
    assert (header[-1], row["tolerance"], row["suspicion"]) == ("tolerance", "bitwise", None)
    for table, frozen, sentence in (
        *(("compare_result_actor_update", "E2", "Err_message"), ("k", "G2", "note")),
    ):
        sheet = load_workbook(tmp_path / f"{table}.xlsx").worksheets[0]
        assert sheet.freeze_panes == frozen
        frozen_width = sum(
            sheet.column_dimensions[cell.column_letter].width
            for cell in sheet[1][: sheet[frozen].column - 1]
        )
        assert frozen_width < 140  # the rest of a screen is left for what scrolls
        (cell,) = (cell for cell in sheet[1] if cell.value == sentence)
        assert sheet.column_dimensions[cell.column_letter].width >= 60


def test_a_record_that_only_the_baseline_has_shows_no_call_stack(tmp_path):
    """Beside NPU columns that are empty, its call stack would be read as that of B."""
    stack = ("File a.py, line 1", "File b.py, line 2")
    a = [finding(Status.ONLY_IN_A, stack=stack, b=Side()), finding(Status.DIFFERENT, stack=stack)]
    only, both = rows_of(tmp_path, *a)
    assert (only["NPU Name"], only["NPU_Stack_Info"]) == (None, None)
    assert both["NPU_Stack_Info"] == "\n".join(stack)


def test_numbers_keep_their_last_digit(tmp_path):
    """What is read from a table is the number that was found, to the last bit."""
    values = (0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 1e16)
    found = [finding(b=Side(name="x", shape=(), norm=value)) for value in values]
    assert [row["NPU l2norm"] for row in rows_of(tmp_path, *found)] == list(values)


@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_long_table_is_whole(tmp_path, monkeypatch, limit):
    """Rows written in several pieces are in their places; also beyond what a plain zip holds."""
    if limit:
        monkeypatch.setattr("zipfile.ZIP64_LIMIT", limit)
    found = rows_of(tmp_path, *(finding(step=step) for step in range(1000)))
    assert [row["step"] for row in found] == [*range(1000)]


def test_agreement_is_shown_where_it_is_known(tmp_path):
    """Records that are identical by their fingerprints: 100 %; missing, unreadable: no measure."""
    of_key = {"key": "k", "micro_step": 0, "io": "data"}
    statuses = (Status.IDENTICAL, Status.ONLY_IN_A, Status.UNREADABLE)
    same, *others = rows_of(tmp_path, *(finding(status, **of_key) for status in statuses))
    assert (same["相同元素百分比(%)"], same["最大绝对误差"]) == (100, 0)
    assert same["首个不匹配元素索引"] is None
    assert all(row[name] is None for row in others for name in KEY_DATA_HEADER[6:])


def test_a_workbook_tells_no_time(tmp_path):
    """The same rows are the same bytes: the fingerprints in verdict.json are of the content."""
    rows = [Row(("a", 1.5)), Row(("b",), "differs")]
    write_xlsx(tmp_path / "table.xlsx", [Sheet("s", (Column("x"), Column("y")), rows)])
    with ZipFile(tmp_path / "table.xlsx") as book:
        assert {info.date_time for info in book.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not any("docProps" in name for name in book.namelist())  # which hold times
    assert load_workbook(tmp_path / "table.xlsx")["s"]["A2"].value == "a"


def test_filters_are_as_long_as_their_sheets(tmp_path):
    """In each sheet, and in the names of the workbook."""
    counts = (0, 1, 300, 7)
    sheets = [
        Sheet(
            f"it's & {number}",
            (Column("one", 10), Column("two", 20)),
            [Row((row, "x")) for row in range(count)],
            frozen=number % 2,
        )
        for number, count in enumerate(counts)
    ]
    write_xlsx(tmp_path / "book.xlsx", sheets)
    book = load_workbook(tmp_path / "book.xlsx")
    assert book.sheetnames == [sheet.name for sheet in sheets]
    for number, (sheet, count) in enumerate(zip(book.worksheets, counts)):
        assert sheet.auto_filter.ref == f"A1:B{count + 1}"
        assert sheet.max_row == count + 1
        assert sheet.freeze_panes == ("B2" if number % 2 else "A2")
        assert [sheet.column_dimensions[c].width for c in "AB"] == [10, 20]
    with ZipFile(tmp_path / "book.xlsx") as files:
        names = re.findall(r">([^<]*)</definedName>", files.read("xl/workbook.xml").decode())
    assert names == [f"'it''s &amp; {n}'!$A$1:$B${count + 1}" for n, count in enumerate(counts)]


def test_every_part_of_a_workbook_has_a_type_and_is_found(tmp_path):
    """As the format asks: Excel refuses a package with a part it cannot tell or reach."""
    sheets = [Sheet(name, (Column("x"),), [Row((1,))]) for name in ("one", "two")]
    write_xlsx(tmp_path / "book.xlsx", sheets)
    with ZipFile(tmp_path / "book.xlsx") as book:
        assert book.testzip() is None
        trees = {name: ElementTree.fromstring(book.read(name)) for name in book.namelist()}
    types = {item.get("PartName") or item.get("Extension") for item in trees[book.namelist()[0]]}
    related = {r.get("Target") for n in trees if n.endswith(".rels") for r in trees[n]}
    parts = {f"/{name}" for name in trees if name.startswith("xl/") and not name.endswith(".rels")}
    assert parts == related
    assert types == parts | {"rels"}
    (formats,) = (part for part in trees["xl/styles.xml"] if part.tag.endswith("cellXfs"))
    used = {c.get("s") for n in trees if "sheets/" in n for c in trees[n].iter() if c.get("s")}
    assert max(map(int, used)) < len(formats) == int(formats.get("count"))


def test_columns_are_called_as_openpyxl_calls_them():
    """A to ZZZ."""
    numbers = range(1, 18_279)
    assert [letters(number) for number in numbers] == [get_column_letter(n) for n in numbers]


def test_what_agrees_in_a_large_run_is_one_row(tmp_path):
    """A phase, step and rank of cells that agree; what differs follows below, key data are all."""
    side = Side("x", "Float32", (2,), 1.0, 0.0, 0.5, 1.0)
    cell = {"step": 3, "rank": 1, "phase": "actor_update", "io": "output", "path": "0"}
    differs = Finding("r", Status.DIFFERENT, a=side, b=side, entry="e", notes=said("no"), **cell)
    agreements = [
        Agreement(3, 0, "actor_update", 900),
        Agreement(3, 1, "actor_update", 890, 9, 2, NAN),
        Agreement(3, 1, "critic_update", 1),
    ]
    (update, critic) = tables_of([differs], agreements)
    write_tables([update, critic], tmp_path)
    _, found = rows(tmp_path / "compare_result_actor_update.xlsx")
    names = [row["NPU Name"] for row in found]
    assert names == ["900 records that agree", "899 records that agree", "x"]
    assert [row["status"] for row in found] == ["identical", "within_tolerance", "different"]
    assert [(row["step"], row["rank"]) for row in found] == [(3, 0), (3, 1), (3, 1)]
    assert found[1]["Err_message"] == "within_tolerance: 890 identical, 9 within_tolerance"
    assert found[1]["suspicion"] == "2 of them, first r: NaN or Inf on both sides"
    assert [row["Result"] for row in found] == ["pass", "pass", "error"]
    _, (row,) = rows(tmp_path / "compare_result_critic_update.xlsx")
    assert row["NPU Name"] == "1 record that agrees"


def test_a_table_of_texts_shows_the_texts(tmp_path):
    """Prompts and responses stand beside each other; tables of numbers have no such columns."""
    a, b = (Side(name="x", dtype="UInt8", shape=(2,), value=text) for text in ("好=1", "no"))
    (row,) = rows_of(tmp_path, finding(key="responses", micro_step=0, a=a, b=b))
    assert [*row.items()][-2:] == [("text1", "好=1"), ("text2", "no")]
    (row,) = rows_of(tmp_path, finding(key="loss", micro_step=0))
    assert "text1" not in row


def test_the_code_line_stands_beside_inputs_and_outputs(tmp_path):
    """Whole beside what went in and what is red; beside an output that agrees the line alone."""
    frames = ("File a.py, line 3, in step, \n y = net(x)", "File main.py, line 9, in main")
    found = [
        finding(Status.IDENTICAL, io="input", stack=frames),
        finding(Status.IDENTICAL, io="output", stack=frames),
        finding(Status.DIFFERENT, io="output", stack=frames),
    ]
    whole = "\n".join(frames)
    shown = [row["NPU_Stack_Info"] for row in rows_of(tmp_path, *found)]
    assert shown == [whole, frames[0], whole]


@pytest.mark.parametrize("name", ["x" * 40, "a/b:c*?[d]\\e", "'quoted'", "阶段", "\x07"])
def test_a_sheet_is_called_after_its_phase(tmp_path, name):
    """Whatever a phase is called, Excel opens the workbook and shows as much of it as it can."""
    title = sheet_of(tmp_path, finding(phase=name)).title
    assert len(title) <= 31
    assert title[:2] in (name[:2], name[1:3]) or name in ("a/b:c*?[d]\\e", "\x07")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["p", "q", None]))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["p", "r"]))),
)
def test_each_rank_has_its_rows_packed_or_not(records, agreeing):
    """Tables of ranks hold together what the tables of phases do, in their order, each row once."""
    found = [
        finding(record=f"{n}", step=step, rank=rank, phase=phase, key=None if phase else "key")
        for n, (step, rank, phase) in enumerate(sorted(records, key=lambda r: r[:2]))
    ]
    agreements = [Agreement(step, rank, phase, 3) for step, rank, phase in sorted({*agreeing})]
    places = [
        [f for f in found if (f.step, f.rank) == place]
        for place in sorted({(f.step, f.rank) for f in found})
    ]
    whole = {t.of: [*t.sheets[0].rows()] for t in tables_of(found, agreements)}
    for given_findings in (found, KeptFindings(places)):
        tables = tables_of(
            given_findings, agreements, file_of_a_rank=lambda phase, rank: f"{phase} {rank}"
        )
        together: dict[tuple[str, str], list] = {}
        for table in tables:
            (sheet,) = table.sheets
            rows = [*sheet.rows()]
            assert len(rows) == sheet.count
            together.setdefault(table.of, []).append((table.stem, rows))
        assert {*together} == {*whole}
        for of, parts in together.items():
            assert sorted(map(str, whole[of])) == sorted(str(row) for _, p in parts for row in p)
            if of[0] == "phase":
                several = len(parts) > 1
                assert all((stem == f"{of[1]} None") != several for stem, _ in parts)


@pytest.mark.parametrize("table", ["compare_result_actor_update.csv", "log_prob.csv"])
def test_notes_are_in_the_chosen_language(tmp_path, table):
    """The same codes stand behind both; statuses and headers stay, as they are keywords."""
    of_key = {"entry": None, "phase": None, "key": "log_prob", "io": "data", "micro_step": 0}
    place = of_key if table == "log_prob.csv" else {}
    codes = [
        message("note.fingerprints_differ"),
        message("note.noise", repetitions=2, ratio=7.0, spread=1e-3, margin=5.0),
    ]
    rule = message("tolerance.default", rtol=1e-3, atol=0.0)
    by = (rule, message("tolerance.noise", repetitions=2))
    differs = finding(Status.DIFFERENT, notes=tuple(codes), compared_by=by, **place)
    odd = (message("suspicion.grows", factor=12.0, before=1e-6, error=1.2e-5),)
    close = finding(Status.WITHIN_TOLERANCE, suspicions=odd, **place)
    rows = {}
    for lang in ("en", "zh"):
        (tmp_path / lang).mkdir()
        with speaking(lang):
            write_csv_files(tables_of([differs, close]), tmp_path / lang)
        with open(tmp_path / lang / table, encoding="utf-8-sig", newline="") as file:
            rows[lang] = list(csv.DictReader(file))
    said = "Err_message" if place == {} else "note"
    noise = "7 times the noise of 2 repetitions (0.001; up to 5 times passes)"
    english = f"the fingerprints differ; {noise}"
    assert rows["en"][0][said].endswith(english)
    assert rows["en"][0]["tolerance"] == "rtol 0.001, atol 0; noise (2 repetitions)"
    assert differs.note == english
    assert rows["zh"][0][said].endswith(
        "指纹不同；为 2 次重复采集噪声基线的 7 倍（噪声基线 0.001；5 倍以内视为一致）"
    )
    assert rows["zh"][0]["tolerance"] == "rtol 0.001，atol 0；噪声基线（2 次重复采集）"
    assert rows["en"][1]["suspicion"] == "the error grows ×12 in this cell: 1.0e-06 → 1.2e-05"
    assert rows["zh"][1]["suspicion"] == "误差在该 Cell 中放大 12 倍：1.0e-06 → 1.2e-05"
    assert [row["status"] for row in rows["zh"]] == [row["status"] for row in rows["en"]]
