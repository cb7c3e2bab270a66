"""Weights that begin with 0 grow by large shares; one that leaps later is still named."""

from __future__ import annotations

import pytest
from helpers.health_runs import HealthRun, tensor

from mindrlhf_msprobe import check_run

RULE = "weights.large_update"


def run_of(root, norms, name="lora_b", dtype="Float32"):
    run = HealthRun(root)
    for number, norm in enumerate(norms):
        leaf = tensor(shape=(4, 4), norm=norm, dtype=dtype, fingerprint=f"xxh3_128:{number}")
        with run.phase("actor_update"):
            run.call("adapter", parameters={name: leaf})
        run.end_step()
    return run.close()


def found(root):
    return [one for one in check_run(root).all_findings if one.rule == RULE]


@pytest.mark.parametrize("name", ["lora_b", "mindpet_delta_lora_b", "weight", "lora_B"])
@pytest.mark.parametrize(
    "norms",
    [(0, 0.1, 0.16, 0.2), (0, 0.01, 0.02, 0.03, 0.039), (0, 0, 1e-3, 3e-3, 6e-3), (0, 0.1, 0.3)],
)
def test_a_weight_that_begins_with_zero_may_grow(tmp_path, name, norms):
    """The second update of LoRA's B is as large as the first: +60 % is no fault."""
    assert not found(run_of(tmp_path / "run", norms, name))


@pytest.mark.parametrize("name", ["lora_B", "tk_delta_lora_b", "lora_embedding_B"])
def test_nor_is_it_one_where_the_run_begins_later(tmp_path, name):
    """Recorded from the second step on, B is no longer 0; its name says what it is."""
    assert not found(run_of(tmp_path / "run", (0.1, 0.16, 0.2), name))


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("weight", (0.1, 0.16, 0.2)),
        ("lora_a", (1.0, 1.6)),
        ("lora_b", (0, 0.1, 0.15, 0.2, 0.25, 0.27, 0.5)),
        ("lora_b", (0, 0.1, 10.0)),
        ("weight", (0, 0.1, 0.11, 0.9)),
        ("slab", (0.1, 0.3)),
    ],
)
def test_a_leap_is_named_all_the_same(tmp_path, name, norms):
    """Of what has its size by then, or grows many times over in one update."""
    (one,) = found(run_of(tmp_path / "run", norms, name))
    assert one.severity.value == "warning"
