"""Suspicion: what agrees and deserves a look all the same, and nothing else."""

from __future__ import annotations

import math

import pytest

from mindrlhf_msprobe.comparison.judging.suspicion import relative_error, suspicions
from mindrlhf_msprobe.findings import Finding, Metrics, Side, Status
from mindrlhf_msprobe.report.messages import texts_of

WITHIN = Status.WITHIN_TOLERANCE
ENTRY = "Cell.mlp.Dense.forward.0"


def elements(euclidean=0.0, **counts):
    return Metrics(50.0, 0, 0.1, 0.1, 50.0, 50.0, 50.0, 1.0, euclidean, **counts)


def finding(io="output", status=WITHIN, error=None, entry=ENTRY, **values):
    """Return a finding whose tensors, of norm 1, are `error` apart."""
    side = Side(name="x", dtype="Float32", shape=(4,), max=0.5, min=-0.5, mean=0.0, norm=1.0)
    defaults = {
        "record": f"{entry}.{io}.0",
        "step": 0,
        "rank": 0,
        "phase": "actor_update",
        "path": "0",
        "a": side,
        "b": side,
        "entry": entry,
        "metrics": None if error is None else elements(error),
    }
    return Finding(status=status, io=io, **{**defaults, **values})


def side(**values):
    return Side(**{"name": "x", "dtype": "Float32", "shape": (4,), **values})


def last(*findings):
    return texts_of(suspicions(findings)[-1], "en")


def test_there_is_one_answer_for_each_finding():
    """As many answers as findings, in their order, empty where there is nothing to say."""
    found = [finding("input", Status.IDENTICAL), finding(error=1e-3), finding(status=WITHIN)]
    answers = suspicions(found)
    assert [bool(answer) for answer in answers] == [False, True, False]
    assert suspicions([]) == []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"nan_a": 2, "nan_b": 2}, "2 NaN on both sides"),
        ({"inf_a": 1, "inf_b": 1}, "1 Inf on both sides"),
        ({"nan_a": 2, "nan_b": 2, "inf_a": 1, "inf_b": 1}, "2 NaN and 1 Inf on both sides"),
    ],
)
def test_nan_and_inf_on_both_sides_are_counted(counts, said):
    """With the elements at hand it says how many of which."""
    assert last(finding(status=Status.IDENTICAL, metrics=elements(**counts))) == said


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["max", "min", "mean"])
def test_nan_and_inf_are_seen_in_the_statistics(name, value):
    """Without the elements the statistics tell."""
    both = side(**{name: value})
    said = "NaN or Inf on both sides"
    assert last(finding(status=Status.IDENTICAL, a=both, b=both)) == said


def test_a_norm_too_large_for_a_float_is_no_nan():
    """Finite elements whose norm overflows are nothing to look at."""
    both = side(max=1e300, min=0.0, mean=1e299, norm=math.inf)
    assert last(finding(status=Status.IDENTICAL, a=both, b=both)) == ""


def test_a_scalar_that_is_nan_on_both_sides():
    """A number that is no tensor has a value only."""
    both = Side(name="x", dtype="float", value=math.nan)
    assert last(finding(status=Status.IDENTICAL, a=both, b=both)) == "NaN or Inf on both sides"


@pytest.mark.parametrize(
    "status", [status for status in Status if not status.agrees], ids=lambda status: status.value
)
def test_what_does_not_agree_is_not_suspicious_but_wrong(status):
    """Such records are red already."""
    both = side(max=math.nan)
    found = finding("input", error=1e-9), finding(status=status, error=1.0, a=both, b=both)
    assert last(*found) == ""


def test_an_error_that_grows_in_a_cell():
    """An output's error of ten times the input's or more, and by how much."""
    said = last(finding("input", error=1e-6), finding(error=3.7e-5))
    assert said == "the error grows ×37 in this cell: 1.0e-06 → 3.7e-05"
    assert last(finding("input", error=1e-6), finding(error=9e-6)) == ""


@pytest.mark.parametrize("io", ["input", "parameters"])
def test_the_largest_error_given_counts(io):
    """Another input, or a parameter, that is as far off explains the output."""
    found = finding("input", error=1e-6), finding(io, error=1e-5), finding(error=3.7e-5)
    assert last(*found) == ""


def test_an_error_that_arises_in_a_cell():
    """Inputs and parameters are the same, the output is off within the tolerance."""
    given = finding("input", Status.IDENTICAL), finding("parameters", Status.IDENTICAL)
    said = last(*given, finding(error=2e-7))
    assert said == (
        "the error arises in this cell: its inputs and parameters show none, its output 2.0e-07"
    )
    assert last(*given, finding(status=Status.IDENTICAL)) == ""


def test_only_the_cells_own_inputs_count():
    """Another cell's input, or the same cell's in another phase, says nothing."""
    for other in ({"entry": "Cell.other.Dense.forward.0"}, {"phase": "critic_update"}):
        assert last(finding("input", error=1e-9, **other), finding(error=1e-3)) == ""


def test_without_a_known_input_nothing_is_said():
    """No input recorded, one missing, or one without a number: no claim."""
    assert last(finding("parameters", Status.IDENTICAL), finding(error=1e-3)) == ""
    missing = finding("input", Status.ONLY_IN_A, b=Side())
    assert last(finding("input", error=1e-9), missing, finding(error=1e-3)) == ""
    unlike = [side(max=1.0, min=1.0, norm=2.0, fingerprint=f"xxh3_128:{n}") for n in range(2)]
    by_bytes = finding("input", a=unlike[0], b=unlike[1])
    assert last(by_bytes, finding(error=1e-3)) == ""


def test_only_outputs_of_cells_grow():
    """Parameters, their gradients and key data are given, not computed by the entry."""
    for io in ("parameters", "parameters_grad"):
        assert last(finding("input", error=1e-9), finding(io, error=1e-3)) == ""
    data = finding("data", entry=None, key="loss", phase=None, error=1e-3)
    assert last(data) == ""


def test_statistics_tell_how_far_two_records_are_apart():
    """The largest distance of two statistics, relative to the size of the tensors."""
    a = side(max=2.0, min=-1.0, mean=0.5, norm=4.0)
    b = side(max=2.0, min=-1.5, mean=0.5, norm=4.4)
    assert relative_error(finding(a=a, b=b)) == pytest.approx(0.25)
    assert relative_error(finding(a=a, b=a)) == 0
    assert relative_error(finding(a=side(), b=side())) is None
    scalars = Side(name="x", value=2), Side(name="x", value=3)
    assert relative_error(finding(a=scalars[0], b=scalars[1])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("value", [10**400, "text", None, [1], math.nan, True, 1 + 2j])
def test_any_value_of_a_dump_can_be_looked_at(value):
    """A value of any kind that a dump from elsewhere may hold stops nothing."""
    odd = side(max=value, min=value, mean=value, norm=value), Side(name="x", value=value)
    for one in odd:
        for other in odd:
            suspicions([finding("input", a=one, b=other), finding(a=one, b=other, error=1.0)])
            relative_error(finding(a=one, b=side(max=1.0, norm=2.0)))
