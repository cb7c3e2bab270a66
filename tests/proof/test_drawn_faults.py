"""`prove` names faults of all kinds, drawn by a seed: 30 alone, and 15 pairs."""

from __future__ import annotations

import pytest
from helpers.proofs import NAMES, drawn, names_of, proven

from mindrlhf_msprobe.findings.proof import Conclusion


def seeds(count, usual):
    """Return the numbers below a count; only the first ones are run by .ci/run."""
    return [
        pytest.param(seed, marks=[pytest.mark.slow, *[pytest.mark.campaign] * (seed >= usual)])
        for seed in range(count)
    ]


@pytest.mark.parametrize("seed", seeds(30, 10))
def test_a_single_fault_is_proven_in_one_round(healthy, tmp_path, command, seed):
    (fault,) = drawn(seed, 1)
    found = proven(healthy, tmp_path, command, [fault])
    assert found.conclusion in (Conclusion.PROVEN, Conclusion.NOT_SEPARATED), (fault, found)
    (names,) = names_of(found)
    assert NAMES[fault] in names, fault
    assert len(found.rounds) <= 1


@pytest.mark.parametrize("seed", seeds(15, 5))
def test_two_faults_are_both_named_in_two_rounds(healthy, tmp_path, command, seed):
    faults = drawn(seed, 2)
    found = proven(healthy, tmp_path, command, faults)
    assert found.conclusion in (Conclusion.PROVEN, Conclusion.NOT_SEPARATED), (faults, found)
    for fault in faults:
        assert any(NAMES[fault] in names for names in names_of(found)), (fault, found.causes)
    assert len(found.causes) <= 2
    assert len(found.rounds) <= 2
