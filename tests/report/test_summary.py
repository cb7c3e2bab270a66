"""summary.xlsx: the verdict, what may explain it, and how to read the tables."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest
import yaml
from helpers.divergences import first_divergence
from helpers.reports import finding as some_finding
from helpers.reports import write_report
from openpyxl import load_workbook

from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.message import Message, as_messages, message
from mindrlhf_msprobe.findings import (
    Agreement,
    Cause,
    Comparison,
    CoverageGap,
    Culprit,
    CulpritCode,
    Difference,
    Finding,
    Outcome,
    Preflight,
    RuleUse,
    Side,
    Spread,
    Status,
    Verdict,
    Weights,
)
from mindrlhf_msprobe.report.sheets import FILLS
from mindrlhf_msprobe.report.summary import _MAIN_COLUMNS
from mindrlhf_msprobe.report.workbook import KEY_DATA_COLUMNS, TEXT_COLUMNS, cell_columns

NEXT_STEP = {"msprobe": True, "include": [r"^model\.layers\.1(\.|$)"]}


SHEETS = ("verdict", "overview", "preflight", "coverage", "tolerance", "legend")


def finding(status=Status.DIFFERENT, **values):
    a = Side(name="x", shape=(2,), max=0.1 + 0.2, min=-math.inf, norm=2**63)
    b = Side(name="x", shape=(2,), max=1.0, min=1.0)
    return some_finding(status, **{"step": 1, "a": a, "b": b, **values})


def comparison(*findings: Finding) -> Comparison:
    first = first_divergence(step=1, agreed_steps=1, max_rel_err=math.inf, next_step=NEXT_STEP)
    spread = (
        Spread("actor_update", 9, 20, 1e-3, 1e-2, 44.0, (Spread("layers.1", 1, 2, None, None),)),
        Spread("loss", 1, 1, 1e-4, None, 12.5),
    )
    verdict = Verdict(
        Outcome.DIVERGED,
        {str(status): 5 if status is Status.DIFFERENT else 0 for status in Status},
        first,
        coverage=(CoverageGap("reference_compute_log_prob not recorded", "A", 48),),
        spread=spread,
        steps=2,
        ranks=1,
        phases=("actor_update",),
    )
    return Comparison(
        "run_a",
        "=run_b",
        verdict,
        findings,
        preflight=Preflight(
            (Difference("seeds", "seed", "1", None), Difference("versions", "x", "1", "2")),
            (Weights("actor", 120, ("w1",), only_in_a=("w2",)), Weights("critic", 10)),
            (Message("text", {"text": "the initial weights of reference: not recorded in B"}),),
        ),
        rules=(RuleUse((Message("text", {"text": "rtol 0.001"}),), 100, 20),),
        remarks=(Message("text", {"text": "a prefix was taken off"}),),
        incomplete=as_messages("B: rank 0 lost 3"),
    )


@pytest.fixture
def book(tmp_path):
    found = (
        finding(),
        finding(Status.IDENTICAL, suspicions=(message("suspicion.non_finite", nan=2, inf=0),)),
    )
    write_report(comparison(*found), tmp_path)
    return load_workbook(tmp_path / "summary.xlsx")


def rows(sheet):
    _, *content = sheet.iter_rows(values_only=True)
    return content


def test_it_is_the_first_table_and_holds_six_sheets(tmp_path, book):
    """The verdict is what a reader sees first; each sheet can be scrolled and filtered."""
    assert book.sheetnames == list(SHEETS)
    assert write_report(comparison(finding()), tmp_path)[0] == "summary.xlsx"
    for sheet in book:
        assert sheet.freeze_panes == ("B2" if sheet.title == "overview" else "A2")
        assert sheet.auto_filter.ref.endswith(str(sheet.max_row))
        assert all(cell.font.bold for cell in sheet[1])


def test_the_verdict_says_where_why_and_what_agreed(book):
    """Place, origin, cause, explanation, what agreed before and the next step as YAML."""
    said = {row[1]: row[2] for row in rows(book["verdict"]) if row[0] == "verdict"}
    assert (said["A (baseline)"], said["B (under test)"], said["status"]) == (
        "run_a",
        "=run_b",
        "diverged",
    )
    assert said["where"] == "step 1, actor_update, rank 0"
    assert said["origin"] == "Cell.head.Dense.forward.0"
    assert said["cause"] == "computation"
    assert said["explanation"] == "It differs."
    assert (said["max abs error"], said["max rel error"]) == (1e-3, "inf")
    assert said["agreed before"] == ("3 phases and 214 records of step 1 agree, and all of step 0.")
    assert said["last that agreed"] == "Cell.head.Dense.forward.0.input.0"
    assert yaml.safe_load(said["next step"]) == {"msprobe_config": NEXT_STEP}


@pytest.mark.parametrize(
    ("outcome", "fill"),
    [
        (Outcome.DIVERGED, FILLS["differs"]),
        (Outcome.INCOMPARABLE, FILLS["missing"]),
        (Outcome.WITHIN_TOLERANCE, FILLS["close"]),
        (Outcome.IDENTICAL, "000000"),
    ],
)
def test_the_outcome_is_coloured(tmp_path, outcome, fill):
    """As a record that ended like it: it is seen at once."""
    whole = comparison(finding())
    found = replace(whole, verdict=replace(whole.verdict, status=outcome))
    write_report(found, tmp_path)
    row = load_workbook(tmp_path / "summary.xlsx")["verdict"][2]
    assert row[2].value == outcome.value
    assert {cell.fill.fgColor.rgb[-6:] for cell in row} == {fill}


def test_what_the_sheets_say_is_in_the_language_too(tmp_path):
    """Sentences as well as labels."""
    write_report(comparison(finding()), tmp_path, lang="zh")
    book = load_workbook(tmp_path / "summary.xlsx")
    said = {row[1]: row[2] for row in rows(book["结论"]) if row[0] == "结论"}
    assert said["此前一致"] == "step 1 的 3 个阶段及 214 条记录一致，step 0 全部也一致。"
    assert said["位置"] == "step 1，actor_update，rank 0"
    header = [cell.value for cell in book["说明"][1]]
    assert header[1:3] == ["名称", "含义"]


def test_the_explanation_is_wrapped(book):
    """Long texts are wrapped in their column."""
    cells = {row[1].value: row[2] for row in book["verdict"].iter_rows(min_row=2)}
    assert cells["explanation"].alignment.wrap_text


def test_the_verdict_counts_and_follows_the_difference(book):
    """Counts per status and the spread with its layers, as numbers."""
    content = rows(book["verdict"])
    counts = {row[1]: row[2] for row in content if row[0] == "counts"}
    assert counts["different"] == 5
    assert counts["of those that agree, suspicious"] == 1
    assert {str(status) for status in Status if status is not Status.DIFFERENT}.isdisjoint(counts)
    assert [row[1:] for row in content if row[0] == "spread"] == [
        ("actor_update", None, 9, 20, 1e-3, 1e-2, 44),
        ("layers.1", "layer of actor_update", 1, 2, None, None, None),
        ("loss", None, 1, 1, 1e-4, None, 12.5),
    ]


def test_the_verdict_has_no_names_of_the_program_and_no_row_without_a_value(tmp_path):
    """Labels are words, numbers are rounded; every digit, and what it is made of, is in JSON."""
    whole = comparison(finding())
    first = replace(
        whole.verdict.first_divergence,
        **{"max_abs_err": 0.0009133815765380859, "max_rel_err": 0.0004954578183495927},
        **{"culprit": Culprit(CulpritCode.OPTIMIZER), "next_step_bytes": 670_800},
    )
    spread = (Spread("loss", 1, 1, 1 / 3, None, 22.880531662214505),)
    verdict = replace(whole.verdict, first_divergence=first, spread=spread)
    write_report(replace(whole, verdict=verdict), tmp_path, csv=True)
    content = rows(load_workbook(tmp_path / "summary.xlsx")["verdict"])
    statuses = {str(status) for status in Status}
    labels = [row[1] for row in content if row[0] != "spread"]
    assert not [label for label in labels if "_" in label and label not in statuses]
    assert all(row[2] not in (None, "") for row in content if row[0] != "spread")
    said = {row[1]: row[2] for row in content}
    assert (said["max abs error"], said["max rel error"]) == (0.0009134, 0.0004955)
    assert said["size of the next step, of one rank"] == "655.1 KiB"
    assert content[-1] == ("spread", "loss", None, 1, 1, 0.3333, None, 22.88)
    header, *_, last = read_csv(tmp_path / "summary_verdict.csv")
    assert header[-3:] == ["max abs error", "max rel error", "factor"]
    assert last[-1] == "22.88"


def test_numbers_of_tables_are_shown_rounded_and_held_whole(tmp_path):
    """A cell shows six digits or so; what computes with it has all of them."""
    whole = [0.1 + 0.2, 1.2345678901e-7, 123456.789012, 2.0, 1.2345678901e9]
    found = [finding(step=n, a=Side(name="x", shape=(2,), max=v)) for n, v in enumerate(whole)]
    write_report(comparison(*found), tmp_path)
    sheet = load_workbook(tmp_path / "compare_result_actor_update.xlsx").worksheets[0]
    column = [cell.value for cell in sheet[1]].index("Bench max")
    cells = [row[column] for row in sheet.iter_rows(min_row=2)]
    assert [cell.value for cell in cells] == whole
    fixed, scientific = "0.0#####", "0.00###E+00"
    formats = [fixed, scientific, fixed, "General", scientific]
    assert [cell.number_format for cell in cells] == formats
    assert {cell.fill.fgColor.rgb[-6:] for cell in cells} == {FILLS["differs"]}


def test_the_preflight_names_settings_and_parameters(book):
    """Each differing setting and each differing parameter has a row."""
    assert rows(book["preflight"]) == [
        ("initial_weights", "actor", None, None, "1 of 120 parameters differs, 1 only in A"),
        ("initial_weights", "actor: w1", None, None, "differs"),
        ("initial_weights", "actor: w2", None, None, "only in A"),
        ("initial_weights", "critic", None, None, "all 10 parameters agree bit for bit"),
        ("seeds", "seed", "1", None, None),
        ("versions", "x", "1", "2", None),
        ("unknown", None, None, None, "the initial weights of reference: not recorded in B"),
    ]


def test_coverage_and_tolerance_are_whole(book):
    """Gaps, notes and problems; each rule and how often it decided."""
    assert rows(book["coverage"]) == [
        ("not compared", "reference_compute_log_prob not recorded", "A", 48),
        ("note", "a prefix was taken off", None, None),
        ("problem", "B: rank 0 lost 3", None, None),
    ]
    assert rows(book["tolerance"]) == [("rtol 0.001", 100, 20), ("bitwise", 2, None)]


def test_the_legend_explains_every_status_and_colour(book):
    """Each status with the fill its rows have, each colour, and columns that exist."""
    fills = {}
    for kind, name, chinese, meaning in book["legend"].iter_rows(min_row=2):
        assert meaning.value
        assert chinese.value
        fills[kind.value, name.value] = name.fill.fgColor.rgb[-6:]
    assert {name for kind, name in fills if kind == "status"} == {str(s) for s in Status}
    assert {name for kind, name in fills if kind == "cause"} == {str(c) for c in Cause}
    colours = {fill for (kind, _), fill in fills.items() if kind == "colour"}
    assert colours == {*FILLS.values(), "000000"}
    assert fills["status", "only_in_a"] == FILLS["missing"]
    assert fills["status", "different"] == FILLS["differs"]


def test_the_legend_says_what_is_text(book):
    """Settings, relative errors of statistics, and the apostrophes in CSV."""
    said = {(row[0], row[1]): row[3] for row in rows(book["legend"])}
    assert "texts" in said["table", "preflight"]
    assert "formula" in said["table", "CSV"]
    assert "%" in said["column", "MinRelativeErr, MeanRelativeErr, NormRelativeErr"]
    assert {("column", name) for name in ("Err_message", "note", "status")} <= set(said)


def test_long_settings_are_whole(tmp_path):
    """The console cuts them, the summary does not."""
    values = ["x" * 30_000 + side for side in "ab"]
    found = Preflight((Difference("configurations", "path", *values),))
    write_report(replace(comparison(finding()), preflight=found), tmp_path)
    (row,) = rows(load_workbook(tmp_path / "summary.xlsx")["preflight"])
    assert list(row[2:4]) == values


def test_nothing_before_the_first_divergence_is_said(tmp_path):
    """Where no record was compared before it, the cell says so."""
    whole = comparison(finding())
    first = replace(whole.verdict.first_divergence, agreed_before=0, agreed_steps=0)
    whole = replace(whole, verdict=replace(whole.verdict, first_divergence=first))
    write_report(whole, tmp_path)
    said = {row[1]: row[2] for row in rows(load_workbook(tmp_path / "summary.xlsx")["verdict"])}
    assert said["agreed before"] == "nothing: no record was compared before it"


def test_the_legend_names_columns_as_they_are():
    """What the legend explains stands in a table, or in the verdict's sheet."""
    elements, statistics = cell_columns([finding()]), cell_columns([])
    known = {c.header for c in (*elements, *statistics, *KEY_DATA_COLUMNS, *TEXT_COLUMNS)}
    # With the elements at hand.
    known |= {"Cosine", "EucDist", "MaxAbsErr", "One Thousandth Err Ratio", "factor"}
    for names in _MAIN_COLUMNS:
        for name in names.split(", "):
            parts = [part for part in name.split("…") if part]
            assert any(all(part.strip() in header for part in parts) for header in known), name


def test_an_agreeing_comparison_has_a_summary_too(tmp_path):
    """Without a divergence, and with nothing to list, every sheet says so."""
    counts = {str(status): 0 for status in Status}
    equal = Comparison("a", "b", Verdict(Outcome.IDENTICAL, counts, None), ())
    assert write_report(equal, tmp_path) == ["summary.xlsx"]
    book = load_workbook(tmp_path / "summary.xlsx")
    assert rows(book["verdict"])[0][:3] == ("verdict", "status", "identical")
    assert all(len(rows(sheet)) >= 1 for sheet in book if sheet.title != "overview")


def test_keys_that_are_called_like_it_do_not_collide(tmp_path):
    """Keys called summary and summary_verdict have tables of their own."""
    found = [finding(key=key, micro_step=0) for key in ("summary", "summary_verdict")]
    names = write_report(comparison(*found), tmp_path, csv=True)
    assert len(set(names)) == len(names)
    assert {"summary.xlsx", "summary~.xlsx", "summary~.csv", "summary_verdict~.csv"} <= set(names)
    assert load_workbook(tmp_path / "summary.xlsx").sheetnames[0] == "verdict"
    assert load_workbook(tmp_path / "summary~.xlsx").sheetnames[0] == "Sheet1"


def read_csv(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_every_table_is_a_csv_file_as_well(tmp_path):
    """The same header and rows in the same order, one file for each sheet of the summary."""
    found = [
        *(finding(step=step) for step in range(3)),
        finding(key="答", micro_step=0, a=Side(name="答", shape=(2,), max=1.5)),
    ]
    names = write_report(comparison(*found), tmp_path, csv=True)
    xlsx = [name for name in names if name.endswith(".xlsx")]
    assert names[: len(xlsx)] == xlsx
    assert names[len(xlsx) :] == [
        *(f"summary_{sheet}.csv" for sheet in SHEETS),
        "答.csv",
        "compare_result_actor_update.csv",
    ]
    for name in ("答", "compare_result_actor_update"):
        sheet = load_workbook(tmp_path / f"{name}.xlsx").worksheets[0]
        header, *content = read_csv(tmp_path / f"{name}.csv")
        assert header == [cell.value for cell in sheet[1]]
        assert len(content) == sheet.max_row - 1
    steps = [row[header.index("step")] for row in content]
    assert steps == ["0", "1", "2"]
    assert (tmp_path / "答.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    widths = {len(row) for sheet in SHEETS for row in read_csv(tmp_path / f"summary_{sheet}.csv")}
    assert widths == {8, 5, 4, 3}


def test_numbers_in_csv_are_whole_and_bare(tmp_path):
    """Every digit of a number stands there, unquoted; what is not finite is still a number."""
    write_report(comparison(finding()), tmp_path, csv=True)
    header, row = read_csv(tmp_path / "compare_result_actor_update.csv")
    said = dict(zip(header, row))
    assert said["Bench max"] == repr(0.1 + 0.2)
    assert said["Bench min"] == "-inf"
    assert said["Bench l2norm"] == str(2**63)
    assert '"' not in (tmp_path / "compare_result_actor_update.csv").read_text("utf-8-sig")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "＝1+1"])
def test_no_text_in_csv_is_computed(tmp_path, text):
    """What a spreadsheet would take for a formula begins with an apostrophe."""
    side = Side(name=text)
    write_report(
        comparison(finding(a=side, b=side, notes=(Message("text", {"text": text}),))),
        tmp_path,
        csv=True,
    )
    header, row = read_csv(tmp_path / "compare_result_actor_update.csv")
    # A carriage return is an escape, behind which nothing is computed.
    assert row[header.index("NPU Name")] == (r"\r=1" if text == "\r=1" else "'" + text)


def test_the_overview_counts_by_phase_and_step_and_leads_to_the_tables(tmp_path):
    """A cell has the colour of its worst record of any rank; names and what differs are links."""
    found = [
        finding(step=0, status=Status.IDENTICAL),
        finding(step=0, rank=1, status=Status.WITHIN_TOLERANCE),
        finding(step=1, status=Status.IDENTICAL),
        finding(step=1, rank=1),
        finding(step=1, key='a&"b', micro_step=0, status=Status.ONLY_IN_A),
    ]
    names = write_report(comparison(*found), tmp_path)
    computed = load_workbook(tmp_path / "summary.xlsx", data_only=True)["overview"]
    assert [[cell.value for cell in row] for row in computed.iter_rows()] == [
        ["phase or key", "step 0", "step 1"],
        ["actor_update", 2, "1 / 2"],
        ['a&"b', None, "1 / 1"],
    ]
    sheet = load_workbook(tmp_path / "summary.xlsx")["overview"]
    colours = [[cell.fill.fgColor.rgb[-6:] for cell in row[1:]] for row in sheet.iter_rows(2)]
    assert colours == [["FFEB9C", "FFC7CE"], ["000000", "FF9999"]]
    assert sheet["A2"].value == '=HYPERLINK("compare_result_actor_update.xlsx","actor_update")'
    assert sheet["A3"].value == '=HYPERLINK("a&""b.xlsx","a&""b")'
    assert 'a&"b.xlsx' in names


def test_the_overview_of_very_many_steps_shows_those_that_differ(tmp_path):
    """A sheet stays one that can be read: of 1 000 steps the two in which something differs."""
    found = [
        finding(step=step, status=Status.DIFFERENT if step in (7, 900) else Status.IDENTICAL)
        for step in range(1000)
    ]
    write_report(comparison(*found), tmp_path)
    header, row, more = load_workbook(tmp_path / "summary.xlsx", data_only=True)["overview"].values
    assert header == ("phase or key", "step 7", "step 900")
    assert row == ("actor_update", "1 / 1", "1 / 1")
    assert more[0] == "998 further steps are in the tables"


def test_what_was_folded_is_in_the_overview(tmp_path):
    """Records that have no row of their own are counted where they belong."""
    whole = comparison(finding(step=1))
    folded = Agreement(0, 0, "actor_update", 40, within_tolerance=2)
    write_report(replace(whole, agreements=(folded,)), tmp_path)
    _, row = load_workbook(tmp_path / "summary.xlsx", data_only=True)["overview"].values
    assert row == ("actor_update", 42, "1 / 1")


def test_our_own_sheets_speak_the_chosen_language(tmp_path):
    """Names, headers and labels in Chinese; keywords, file names and msprobe's headers stay."""
    found = comparison(finding(), finding(key="loss", micro_step=0))
    every = replace(found.verdict, counts=dict.fromkeys((status.value for status in Status), 1))
    found, names = replace(found, verdict=every), {}
    for lang in ("en", "zh"):
        names[lang] = write_report(found, tmp_path / lang, csv=True, lang=lang)
    assert names["en"] == names["zh"]
    book = load_workbook(tmp_path / "zh" / "summary.xlsx")
    assert book.sheetnames == ["结论", "总览", "比对前检查", "未比对范围", "容差", "说明"]
    sheet = rows(book["结论"])
    assert sheet[0][:3] == ("结论", "状态", "diverged")
    # A status is a keyword, also where its word heads a column; every other label is translated.
    statuses = [status.value for status in Status]
    assert [item for _, item, *_ in sheet if item in statuses] == statuses
    labels = {item for section, item, *_ in sheet if section in ("结论", "计数")} - {*statuses}
    assert not [label for label in labels if label.isascii()]
    assert {"A（标杆）", "B（待比对）"} <= labels
    for table in ("loss", "compare_result_actor_update"):
        both = [(tmp_path / lang / f"{table}.csv").read_bytes() for lang in ("en", "zh")]
        assert both[0] == both[1]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_MESSAGES": "zh_CN", "LANG": "de_DE"}, "zh"),
        ({"LC_ALL": "", "LANG": "en_US"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_is_the_locales(variables, expected, monkeypatch):
    """The first of LC_ALL, LC_MESSAGES, LANG that is set decides, as in a shell."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(name, variables.get(name, ""))
    assert language() == expected
