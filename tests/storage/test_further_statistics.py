"""A statistic is added in one place: it is recorded, read, compared and followed over the steps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.comparison.judging.by_statistics import compare_statistics
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.storage.leaves import FURTHER, Leaf, leaf_from_json
from mindrlhf_msprobe.storage.reading.series import number_of


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    monkeypatch.setitem(FURTHER, "size", lambda values: np.abs(values).mean())
    monkeypatch.setitem(FURTHER, "odd", lambda values: np.inf)


def leaf(**further):
    return Leaf("numpy.ndarray", "Float32", (2,), 3.0, -1.0, 1.0, 3.2, 0, 0, further=further)


def test_it_is_recorded_and_read(tmp_path):
    config = {"msprobe": True, "key_data_dump": True, "dump_path": str(tmp_path)}
    with Probe.from_config(config) as probe:
        probe.save_data(loss=np.array([-1, 3], np.float32), ids=np.array([1, 2]))
        probe.step()
    run = open_run(tmp_path)
    (loss,), (ids,) = (run.key_data(key)[0].records for key in ("loss", "ids"))
    assert {"size": 2.0, "odd": np.inf}.items() <= loss.leaf.further.items()
    assert number_of(loss.leaf, "size") == 2.0
    assert ids.leaf.further is None
    assert number_of(ids.leaf, "size") is None


def test_those_that_both_have_are_compared():
    def status(a, b):
        return compare_statistics(a, b, Tolerance())[0]

    assert status(leaf(size=2.0), leaf(size=2.0)) is Status.WITHIN_TOLERANCE
    assert status(leaf(size=2.0), leaf(size=2.5)) is Status.DIFFERENT
    assert status(leaf(size=2.0), leaf(other=2.5)) is Status.WITHIN_TOLERANCE


def test_one_that_differs_is_named_for_no_table_has_it():
    pair = leaf(size=2.0, odd=1.0), leaf(size=2.5, odd=1.0)
    _, _, notes = compare_statistics(*pair, Tolerance())
    assert [text_of(one) for one in notes] == ["by statistics only", "size 2.0 in A, 2.5 in B"]


@pytest.mark.parametrize("found", [3, [1.0], {str(n): 1.0 for n in range(100)}])
def test_what_a_file_says_is_none_of_it(found):
    content = json.loads(json.dumps({**leaf().to_json(), "further": found}))
    assert leaf_from_json(content).further is None
