"""seed_all: two programs that call it alike draw alike, and dropout drops nothing if it says so."""

from pathlib import Path

import pytest
from helpers.programs import run_python

from mindrlhf_msprobe import UsageError, seed_all

pytestmark = pytest.mark.slow

DRAWS = """
import random, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, nn, ops
from mindrlhf_msprobe import seed_all
ms.set_device("CPU")
ms.set_context(mode=int(sys.argv[1]))
seed_all(seed=7, mode=True, rm_dropout=sys.argv[2] == "True")
seed_all(7, True, sys.argv[2] == "True")  # again: nothing is replaced twice
print(random.random(), np.random.rand(), ops.standard_normal((2,)), ms.get_seed())
print(ms.get_context("deterministic"))
x = Tensor(np.ones((8, 8), np.float32))
images = Tensor(np.ones((2, 3, 4, 4), np.float32))
cells = [nn.Dropout(p=0.9), nn.Dropout(keep_prob=0.1), nn.Dropout2d(p=0.9)]
for cell in cells:
    cell.set_train()
out = [cells[0](x), cells[1](x), cells[2](images), ops.dropout(x, 0.9), ops.dropout2d(images, 0.9)]
if sys.argv[2] == "True":  # on CPU MindSpore has no kernel for these
    cell = mint.nn.Dropout(p=0.9)
    cell.set_train()
    out += [cell(x), mint.nn.functional.dropout(x, p=0.9)]
print([bool((o.asnumpy() == 1).all()) for o in out])
"""


@pytest.mark.parametrize("mode", ["0", "1"])
def test_programs_that_are_seeded_alike_draw_alike(tmp_path: Path, mode: str) -> None:
    """The seeds of Python, numpy and MindSpore are set, and every dropout keeps everything."""
    results = [run_python(DRAWS, tmp_path, mode, "True") for _ in range(2)]
    first, second = (result.stdout.splitlines()[-3:] for result in results)
    assert first == second, results[0].stderr
    assert first[0].endswith(" 7")
    assert first[1:] == ["ON", str([True] * 7)]


def test_dropout_stays_where_it_is_asked_to(tmp_path: Path) -> None:
    """With rm_dropout=False the dropouts drop."""
    result = run_python(DRAWS, tmp_path, "1", "False")
    assert result.stdout.splitlines()[-1] == str([False] * 5), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [{"seed": -1}, {"seed": 2**32}, {"seed": "1"}, {"seed": True}, {"mode": 1}, {"rm_dropout": 0}],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object]) -> None:
    """The message names the argument and its value."""
    (name, value), *_ = arguments.items()
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        seed_all(**arguments)  # type: ignore[arg-type]
