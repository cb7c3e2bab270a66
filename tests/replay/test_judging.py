"""What is said of a value by how far it is from the exact one: as recorded, and computed here."""

from types import SimpleNamespace

import numpy as np
import pytest

from mindrlhf_msprobe.replay.offline.judging import DISTURBED, _by_allowance

EXACT = np.linspace(1, 2, 8)
NODE = {"dtype": "Float32", "shape": [8], "name": "output.0"}


@pytest.mark.parametrize(
    ("recorded_off", "here_off", "said", "verdict"),
    [
        (0.0, 0.0, "", "ordinary"),
        (0.1, 0.1, "wrong_here", "wrong"),
        (0.1, 0.0, "", "wrong"),
        (0.0, 0.1, "other_here", "ordinary"),
    ],
)
def test_what_is_computed_here_is_only_called_alike_where_it_is(
    recorded_off, here_off, said, verdict
):
    """Under the healthy one of two runs nothing says that it is computed in the wrong way, too."""
    here = (EXACT + here_off).astype(np.float32)
    arrays = {"again": here, "repeated": here, "reference": EXACT}
    arrays |= {f"again{n}": here for n in range(DISTURBED)}
    arrays |= {f"reference{n}": EXACT * (1 + 1e-9 * (n + 1)) for n in range(DISTURBED)}
    runs = {name: SimpleNamespace(arrays={"output.0": array}) for name, array in arrays.items()}
    recorded = (EXACT + recorded_off).astype(np.float32)
    side = SimpleNamespace(
        **{"recorded": {"output.0": NODE}, "array": lambda node: recorded, "lowest": "Float32"},
        **{"inputs": [NODE], "weights": [], "outputs": [NODE], "entry": {}},
    )
    value = {"dtype": "Float32", "verdict": "undecided"}
    assert _by_allowance(side, "output.0", runs, value) == said
    assert value["verdict"] == verdict
