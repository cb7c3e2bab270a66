"""Operators that the real msprobe has just recorded (L1, mix), compared here."""

from __future__ import annotations

import pytest
from reference_tool import interpreter, record_operators

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Cause, Outcome

pytestmark = pytest.mark.slow

VERSIONS = {"26": "MSPROBE_REFERENCE_PYTHON", "8": "MSPROBE_REFERENCE_8_PYTHON"}


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """Return a function that returns a version's dump at a level."""
    made = {}

    def dump(version, level, variant):
        at = version, level, variant
        if at not in made:
            path = tmp_path_factory.mktemp(f"operators{version}") / f"{level}-{variant}"
            task = {"level": level, "task": "statistics", "variant": variant}
            record_operators(
                interpreter(VERSIONS[version]), path.parent, {"dump_path": str(path), **task}
            )
            made[at] = path
        return made[at]

    return dump


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_operator_is_named_and_one_more_shifts_nothing(dumped, version, level):
    plain = dumped(version, level, "plain")
    first = compare_runs(plain, dumped(version, level, "rounded")).verdict.first_divergence
    assert (first.entry, first.cause) == ("Mint.matmul.0.forward", Cause.COMPUTATION)
    assert first.cell == ("layers.0" if level == "mix" else None)
    result = compare_runs(plain, dumped(version, level, "more"))
    assert result.verdict.first_divergence.cause is Cause.MISSING
    apart = {f.entry for f in result.findings if not f.status.agrees}
    assert apart == {"Mint.add.1.forward", "Mint.add.1.backward"}


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_versions_line_up(dumped, level):
    result = compare_runs(dumped("8", level, "plain"), dumped("26", level, "plain"))
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert not result.verdict.coverage
