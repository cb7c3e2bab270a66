"""Rules in one order: called only where what they need is there; one may yield to a later one."""

from __future__ import annotations

from importlib import metadata

import pytest
from helpers.distributions import install, run_beside
from helpers.runs import Fault, record_training

from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.rules import Rules, first_answer, rule
from mindrlhf_msprobe.comparison.mismatch.conclude import BLAME
from mindrlhf_msprobe.comparison.verdict.culprits import EXPLANATIONS


def is_even(number: int) -> bool:
    return number % 2 == 0


@rule(is_even, lambda number: 100 // number > 1)
def half(number: int) -> str:
    """Halve a number."""
    return f"half of {number}"


@rule(yields=lambda said: said.endswith("perhaps"))
def guess(number: int) -> str | None:
    return {1: "one, perhaps", 3: "three"}.get(number)


def small(number: int) -> str | None:
    return "small" if number < 2 else None


def test_a_rule_is_called_only_where_all_that_it_needs_is_there():
    assert half(8) == "half of 8"
    assert half(60) is None
    assert half(7) is None
    assert (half.__name__, half.__doc__) == ("half", "Halve a number.")


def test_the_first_answer_goes_before_later_ones():
    assert first_answer((half, small), 2) == "half of 2"
    assert first_answer((half, small), 1) == "small"
    assert first_answer((half, small), 5) is None


def test_an_answer_that_yields_stands_where_no_other_rule_has_one():
    assert first_answer((guess, small), 1) == "small"
    assert first_answer((guess, half), 1) == "one, perhaps"
    assert first_answer((guess, small), 3) == "three"


@rule(is_even)
def theirs(number: int) -> str:
    return "theirs"


@rule(yields=lambda said: True)
def humble(number: int) -> str:
    return "humble"


def odd_kind(number: int) -> float:
    return 0.5


def answer(monkeypatch, number, **names):
    """Answer with installed rules of this module, by name, before `small`."""
    points = [metadata.EntryPoint(name, f"{__name__}:{of}", "test") for name, of in names.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    found, failed = Rules("test", str, small).answer(number)
    return found, [in_words(one, "en") for one in failed]


def test_an_installed_rule_goes_first_but_where_it_yields(monkeypatch):
    assert answer(monkeypatch, 0, a="theirs") == ("theirs", [])
    assert answer(monkeypatch, 1, a="theirs") == ("small", [])
    assert answer(monkeypatch, 1, a="humble") == ("small", [])
    assert answer(monkeypatch, 3, a="humble") == ("humble", [])
    assert answer(monkeypatch, 2, b="theirs", a="humble") == ("theirs", [])


def test_an_installed_rule_that_fails_is_said_and_costs_nothing(monkeypatch):
    found, failed = answer(monkeypatch, 0, a="half", b="odd_kind", c="nowhere")
    assert found == "small"
    assert failed == [
        f"The rule {__name__}:nowhere cannot be loaded: AttributeError: module '{__name__}' has "
        "no attribute 'nowhere'.",
        "The rule a failed: ZeroDivisionError: integer division or modulo by zero.",
        "The rule b gave a float; expected str, or None.",
    ]


@pytest.mark.parametrize(
    ("rules", "group"),
    [(EXPLANATIONS, "mindrlhf_msprobe.explanations"), (BLAME, "mindrlhf_msprobe.mismatch")],
)
def test_what_may_be_added_to(rules, group, monkeypatch):
    found = rules._kind("mine", [])
    point = type("Point", (), {"name": "x", "load": lambda self: lambda case: found})()
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [point] * (group == wanted))
    wanted = group
    assert Rules(rules._group, rules._kind, *rules._own).answer(object()) == (found, ())


EXPLANATION = """
from mindrlhf_msprobe.common.message import text
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.verdict.first_difference import event
from mindrlhf_msprobe.findings import Culprit

@rule(event("end"), lambda first: "mlp" in first.entry.name)
def mlp(first):
    said = text("Our kernel of the MLP was replaced.", "MLP kernel 已替换。")
    return Culprit("mine.mlp", {"cell": first.entry.cell}, said)
"""


def test_a_package_that_is_installed_adds_an_explanation(tmp_path):
    """A distribution with an entry point: what it says stands in the answer, in both languages."""
    install(
        tmp_path / "site", EXPLANATION, explanations="mlp = mine:mlp\nlost = no_such_module:mlp"
    )
    a = record_training(tmp_path / "a", steps=1, tokens=1)
    fault = Fault("layers.0.mlp", "actor_update", change=lambda value: value + 1)
    b = record_training(tmp_path / "b", steps=1, tokens=1, faults=[fault])
    for lang, said in (
        ("en", "Our kernel of the MLP was replaced."),
        ("zh", "MLP kernel 已替换。"),
    ):
        out = tmp_path / lang
        done = run_beside(tmp_path / "site", "compare", a, b, "-o", out, "--lang", lang)
        assert done.returncode == 1, done.stderr
        assert said in done.stdout
        assert "no_such_module" in done.stdout
        assert '"code": "mine.mlp"' in (out / "verdict.json").read_text("utf-8")
