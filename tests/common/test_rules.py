"""Rules in one order: asked only where what they need is there; one may yield to a later one."""

from __future__ import annotations

from mindrlhf_msprobe.common.rules import first_answer, rule


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


def test_a_rule_is_asked_only_where_all_that_it_needs_is_there():
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
