"""Token ids of a network are held against the prompts and responses that were saved."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.sequences.saved import unlike_saved

SEQUENCES = [np.array([5, 6, 7, 8, 9]), np.array([4, 3, 2, 1])]


def saves(path, **data):
    with Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": str(path)}) as p:
        p.save_data(data)
        p.step()
    return open_run(path).key_data()


@pytest.mark.parametrize(
    "data",
    [
        {"responses": np.array([[7, 8, 9, 0, 0], [2, 1, 0, 0, 0]])},
        {"prompts": np.array([[0, 0, 5, 6], [0, 4, 3, 2]])},
        {"prompts": [np.array([5, 6, 7]), np.array([4, 3])], "responses": [np.array([8, 9])]},
        {"responses": ["a text", "another"]},
        {"responses": np.array([0.5, 1.5])},
        {"responses": []},
    ],
)
def test_saved_ids_that_stand_in_the_sequences_and_texts_say_nothing(tmp_path, data):
    """With padding on either side, as one array or a list of them."""
    assert unlike_saved(saves(tmp_path / "run", **data), SEQUENCES) is None


def test_ids_that_stand_nowhere_are_said(tmp_path):
    """What was taken for token ids is something else."""
    found = unlike_saved(saves(tmp_path / "run", responses=np.array([[7, 9, 8, 3]])), SEQUENCES)
    assert "responses" in str(found)
    assert "phase.tokens" in str(found)
    assert "another tokenizer" in str(found)
