"""The page of a proof: verdict, causes and chain of rounds stand above the comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli.answering import write_page
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.findings.proof import Conclusion, Proof, ProvenCause, Round, Where
from mindrlhf_msprobe.report.proof import proof_lines

PHASE = "actor_compute_log_prob"


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """Return a proof in one round, of which `rounds` holds a name with markup, and its page."""
    root = tmp_path_factory.mktemp("proof")
    a = record_training(root / "a")
    b = record_training(root / "b", faults=[Fault("layers.1.mlp", PHASE, step=1)])
    compared = compare_runs(a, b)
    first = Where.of(compared.verdict.first_divergence)
    entry = first.entry.partition(".forward")[0]
    parts = ((entry, "Cell.<b>.X"), ("output", "input_gradient"), (PHASE,), (1,))
    cause = ProvenCause(first, *parts, explained=12)
    tensors = Round("tensors", f"{root}/out/tensors1", 1.0, False)
    again = Round("again", f"{root}/out/again1", 1.0, False, 12, first)
    of_graft = {"put_in": 3, "tried": (cause,), "tensors": f"{root}/out/tensors1/run"}
    rounds = (tensors, again, Round("graft", f"{root}/out/graft1", 1.0, True, **of_graft))
    runs = (str(a), str(b))
    made = Proof(*runs, f"{root}/out", Conclusion.PROVEN, (), first, (cause,), rounds)
    file = root / "proof.html"
    shown = {"runs": runs, "comparison": compared, "proof": made}
    write_page(str(file), lambda: shown, runs)
    return made, file


def test_the_proof_stands_on_top_in_both_languages(proof, chromium):
    found, file = proof
    with chromium.open(file, "lang=en") as opened:
        shown = opened.text("#proof")
        assert shown.startswith("PROVEN: with A's tensors at one place of B")
        assert "Cause 1: computation, Cell.layers.1.mlp" in shown
        assert "12 records behind it agree since" in shown
        opened.go("lang=zh")
        assert opened.text("#proof").startswith("已证实")
        assert "原因 1：计算，Cell.layers.1.mlp" in opened.text("#proof")
        assert found.output in opened.text("#proof")


def test_each_round_says_what_it_put_in_and_what_that_explained(proof, chromium):
    found, file = proof
    with chromium.open(file, "lang=en") as opened:
        columns = opened.values("#rounds tbody tr:last-child td", "data-column")
        last = dict(zip(columns, opened.texts("#rounds tbody tr:last-child td")))
        assert last["tried"].startswith("outputs, gradients of the inputs of Cell.layers.1.mlp")
        assert last["tried"].endswith(f"Cell.<b>.X, in {PHASE}, steps 1")
        assert (last["tensors"], last["files"]) == ("tensors1/run", "graft1")
        assert (last["put_in"], last["explained"], last["different"]) == ("3", "12", "0")
        assert last["first"] == "nowhere"
        assert opened.texts("#rounds td[data-column=files]")[:2] == ["comparison", "tensors1"]
        opened.go("view=records").click("#rounds td[data-column=first] a")
        assert f"entry={found.first.entry}" in opened.fragment


@pytest.mark.parametrize(
    ("cause", "english", "chinese"),
    [
        ("computation", "computation", "计算"),
        ("parameter", "weights differ", "权重不同"),
        ("input", "the input of the phase differs", "进入该阶段的输入已经不同"),
        ("data", "key data", "关键数据"),
    ],
)
def test_a_cause_is_said_in_the_language_of_its_reader(proof, cause, english, chinese):
    found, _ = proof
    (own,) = found.causes
    own = replace(own, where=replace(own.where, cause=cause), what=(), entries=("loss",))
    for lang, words in (("en", f"Cause 1: {english}, loss"), ("zh", f"原因 1：{chinese}，loss")):
        with speaking(lang):
            assert proof_lines(replace(found, causes=(own,)))[1] == words
