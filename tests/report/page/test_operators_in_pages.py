"""Pages of runs with operators: they stand in their cells, each beside its own partner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.operators import LAYERS, Extra, Plant, record_operators
from helpers.pages import page_of

from mindrlhf_msprobe import check_run, compare_runs
from mindrlhf_msprobe.storage.operators import is_operator

pytest.importorskip("bokeh")
pytest.importorskip("jinja2")

EXTRA = Extra(LAYERS[0], 2, "Mint.matmul")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    record_operators(root / "a")
    record_operators(root / "b", extras=[EXTRA], plants=[Plant(LAYERS[1], "Functional.softmax")])
    return root / "a", root / "b"


@pytest.mark.parametrize("folded", [False, True])
def test_each_operator_stands_beside_its_own_partner(tmp_path, runs, folded):
    """Numbers shift behind the operator that B alone has: no value stands beside another one's."""
    comparison = compare_runs(*runs)
    if folded:  # as of a comparison of very many records, which keeps what differs
        findings = [f for f in comparison.findings if not f.status.agrees]
        comparison = replace(comparison, findings=findings)
    entries = page_of(tmp_path, *runs, comparison=comparison).json("place-0-0")["phases"][0][
        "entries"
    ]
    shifted = [e for e in entries if e["n"] == "Mint.matmul.3.forward"]
    assert shifted
    for entry in entries:
        for record in entry["r"]:
            if "a" in record and "b" in record and record.get("s") == "identical":
                assert record["a"].get("fp") == record["b"].get("fp"), record["n"]
    alone = [e for e in entries if all("a" not in r for r in e["r"])]
    assert {e["n"] for e in alone} == {"Mint.matmul.1.forward", "Mint.matmul.1.backward"}
    assert all(record["s"] == "only_in_b" for entry in alone for record in entry["r"])
    names = [e["n"] for e in entries if is_operator(e["n"])]
    assert len(names) == len(set(names)) + len(alone)


@pytest.mark.parametrize("pair", [True, False])
def test_operators_stand_in_their_cells(tmp_path, runs, pair):
    """In the tree of the map, under the cell that called them."""
    comparison = compare_runs(*runs) if pair else None
    checks = () if pair else [check_run(runs[0])]
    shown = runs if pair else runs[:1]
    page = page_of(tmp_path, *shown, comparison=comparison, checks=checks)
    forward = page.json("cells")["0-forward"]
    paths = dict(zip(forward["entries"], forward["cells"]))
    assert paths["Mint.matmul.0.forward"] == f"{LAYERS[0]}.Mint.matmul"
    assert paths["Mint.log.0.forward"] == "Mint.log"
    assert paths["Tensor.__add__.0.forward"] == "Tensor.__add__"
    calls = dict(zip(forward["entries"], forward["calls"]))
    assert calls["Mint.tanh.4.forward"] == 4


def test_the_answer_names_the_operator(tmp_path, runs):
    comparison = compare_runs(runs[0], runs[1])
    page = page_of(tmp_path, *runs, comparison=comparison)
    texts = str(page.head["answer"]["lines"])
    assert f"Mint.matmul inside {LAYERS[0]}" in texts
