"""verdict.json: the schema machines rely on, valid in every case."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.reports import write_report
from helpers.runs import Fault, record_data, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.common.message import read_messages
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.messages import LANGUAGES, paragraph

FIRST = {
    "step": int,
    "rank": int,
    "phase": str,
    "record": str,
    "entry": str,
    "cause": str,
    "max_abs_err": float,
    "max_rel_err": float,
    "explanation": str,
    "reasons": list,
}


def verdict(path):
    def refuse(word):
        raise AssertionError(f"verdict.json holds {word}")

    return json.loads((path / "verdict.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_divergence_has_every_field(tmp_path):
    """Status, counts, the first divergence with its place and measures, and the tables."""
    a = record_training(tmp_path / "a", task="tensor", steps=1)
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    b = record_training(tmp_path / "b", task="tensor", steps=1, faults=[fault])
    result = compare_runs(a, b, output_path=tmp_path / "out")
    content = verdict(tmp_path / "out")
    assert content["schema"] == 1
    assert content["status"] == "diverged"
    assert set(content["counts"]) == {str(status) for status in Status}
    assert sum(content["counts"].values()) == len(result.findings)
    for name, kind in FIRST.items():
        assert isinstance(content["first_divergence"][name], kind), name
    assert content["first_divergence"]["cause"] == "computation"
    assert content["tables"] == list(result.tables)
    assert all((tmp_path / "out" / name).is_file() for name in content["tables"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_explanation_stands_beside_its_codes(tmp_path, lang):
    """The text in the language that was chosen, the codes with parameters in any."""
    a = record_training(tmp_path / "a", steps=1)
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    b = record_training(tmp_path / "b", steps=1, faults=[fault])
    result = compare_runs(a, b, output_path=tmp_path / "out", lang=lang)
    found = verdict(tmp_path / "out")["first_divergence"]
    assert [reason["code"] for reason in found["reasons"][:2]] == [
        "explanation.happened",
        "explanation.cell_computed",
    ]
    assert found["reasons"][0]["params"]["record"] == found["record"]
    assert found["reasons"][1]["params"] == {"given": "inputs_and_parameters", "inside": False}
    assert paragraph(read_messages(found["reasons"]), lang) == found["explanation"]
    assert result.verdict.first_divergence.explanation == found["explanation"]
    said = {"en": "Its inputs and its parameters agree: ", "zh": "其输入和权重均一致：差异由"}
    assert said[lang] in found["explanation"]


def test_a_report_in_another_language_explains_in_that_language(tmp_path):
    """Its verdict.json and its summary."""
    a = record_training(tmp_path / "a", steps=1)
    b = record_training(tmp_path / "b", steps=1, faults=[Fault("prompts")])
    write_report(compare_runs(a, b, lang="en"), tmp_path / "out", csv=True, lang="zh")
    said = "本 step 各阶段的输入已有差异。"
    assert said in verdict(tmp_path / "out")["first_divergence"]["explanation"]
    sheets = [path.read_text("utf-8") for path in (tmp_path / "out").glob("summary*.csv")]
    assert any(said in sheet for sheet in sheets)


def test_equal_runs_have_no_first_divergence(tmp_path):
    """Without a divergence the field is null."""
    a, b = (record_training(tmp_path / n, steps=1) for n in ("a", "b"))
    compare_runs(a, b, output_path=tmp_path / "out")
    content = verdict(tmp_path / "out")
    assert (content["status"], content["first_divergence"]) == ("identical", None)


def test_key_data_have_no_entry(tmp_path):
    """Where key data differ first, entry is null and the record is the key."""
    a = record_training(tmp_path / "a", steps=1)
    b = record_training(tmp_path / "b", steps=1, faults=[Fault("rewards")])
    compare_runs(a, b, output_path=tmp_path / "out")
    first = verdict(tmp_path / "out")["first_divergence"]
    assert (first["record"], first["entry"], first["cause"]) == ("rewards", None, "data")


@pytest.mark.parametrize("values", [[1.7e308, -1.7e308], [np.inf, 1.0], [np.nan, 1.0]])
def test_it_is_valid_json_whatever_the_values(tmp_path, values):
    """Errors beyond every float, NaN and infinities do not make it invalid."""
    for name, value in zip(("a", "b"), values):
        record_data(tmp_path / name, [("loss", np.float64([value, 1]))])
    compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out")
    assert verdict(tmp_path / "out")["status"] == "diverged"


def test_without_an_output_directory_nothing_is_written(tmp_path, monkeypatch):
    """compare_runs(a, b) only returns its result."""
    monkeypatch.chdir(tmp_path)
    a, b = (record_training(tmp_path / n, steps=1) for n in ("a", "b"))
    assert compare_runs(a, b)
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}
