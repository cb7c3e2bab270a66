"""The log of MindFormers' Trainer in PyNative mode, as MindFormers 2.0 wrote it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Recording

from mindrlhf_msprobe import RunError, check_run, compare_runs, open_run

DATA = MSPROBE_DATA.parent / "mindformers_log" / "a"
PARAMETERS = [f"decoder.layers.0.mlp.linear_fc{n}.weight" for n in (1, 2)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of a copy, which may be changed."""
    return Path(shutil.copytree(DATA, tmp_path / "run")) / "rank_0" / "info.log"


def values(run: Path, key: str, step: int = 1) -> dict[str, float]:
    (datum,) = open_run(run).key_data(key, step=step)
    return {record.path: record.leaf.value for record in datum.records}


def test_numbers_are_key_data_by_step() -> None:
    run = open_run(DATA)
    assert (run.steps, run.ranks, run.problems) == ([1, 2], [0], [])
    keys = ["device_loss", "grad_norm", "local_loss", "local_norm", "loss", "next_lr"]
    assert run.keys == keys
    assert values(DATA, "local_loss") == {"0": 1.7290661334991455, "1": 1.7391130924224854}
    assert values(DATA, "device_loss") == {"": 3.468179225921631}
    assert values(DATA, "loss", 2) == {"": 3.463775}
    assert values(DATA, "next_lr") == {"": 0.01}
    assert values(DATA, "local_norm") == {
        f"{name}.{micro_step}": norm
        for name, norms in zip(PARAMETERS, [(0.002419, 0.002852), (0.002026, 0.002313)])
        for micro_step, norm in enumerate(norms)
    }


def test_commands_take_it(log: Path, tmp_path: Path, cli) -> None:
    log.write_text(log.read_text().replace("0.002925", "0.003925"))
    assert "local_loss.0" in cli("trend", DATA, "--key", "local_loss").out
    assert (
        f"local_norm.{PARAMETERS[0]}.0"
        in cli("compare", DATA, log.parent.parent, "-o", tmp_path / "o", code=1).out
    )


def test_tokens_of_each_expert_are_read(log: Path) -> None:
    """As MoeMonitor's source has them (`pynative/tools/monitor.py`): not run here."""
    lines = [
        '{"iter": 3, "step": 2, "micro_step": 1, "block": "decoder", "layer": 3, "tpe": [[5, 0]]}',
        '{"iter": 4, "step": 2, "micro_step": 2, "block": "decoder", "layer": 3, "tpe": [[2, 3]]}',
        '{"iter": 3, "step": 2, "micro_step": 1, "block": "mtp", "mtp_idx": 0, "layer": 1, '
        '"tpe": [[7]]}',
        '{"iter": 3, "step": 2, "micro_step": 1, "block": "decoder", "layer": 3, "tpe": [5, 0]}',
        '{"iter": 3, "step": 2, "micro_step": 1, "block": 7, "layer": 3, "tpe": [[5]]}',
        '{"iter": 3, "step": "2", "micro_step": 1, "block": "x", "layer": 3, "tpe": [[5]]}',
    ]
    before = "2026-11-29 01:02:03,004 - INFO - "
    log.write_text(log.read_text() + "".join(f"{before}{line}\n" for line in lines))
    assert values(log.parent.parent, "tokens_per_expert", 2) == {
        "decoder.layers.3.mlp.0.0": 5.0,
        "decoder.layers.3.mlp.0.1": 2.0,
        "decoder.layers.3.mlp.1.0": 0.0,
        "decoder.layers.3.mlp.1.1": 3.0,
        "mtp.layers.0.layers.1.mlp.0.0": 7.0,
    }


def test_what_was_moved_aside_is_read_first(log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    half = next(n for n, line in enumerate(lines) if "step:[    1/" in line) + 1
    log.with_name("info.log.1").write_text("".join(lines[:half]))
    again = [line.replace("3.463775", "3.5") for line in lines[half:]]
    log.write_text("".join(again))
    run = log.parent.parent
    assert open_run(run).steps == [1, 2]
    assert values(run, "loss", 2) == {"": 3.5}


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "micro_step": 1, "local_loss": "text"}',
        '{"step": true, "local_loss": 1.0}',
        '{"step": 1, "micro_step": 1, "local_loss": 1.0',
        '{"step": 99999999999999999999999999, "local_loss": 1.0}',
        '{ "local_norm": w: far }',
        "{ step:[ one/ 2], loss: 9.9 }",
        "{ step:[ 1/ 2], grad_norm: NaN, throughput: 9.9T, per_step_time: 9ms }",
        "{" * 5000 + "}",
        '{"step": [' + "[" * 5000 + "}",
        "\x00\xff{}",
    ],
)
def test_other_lines_are_passed_over(log: Path, line: str) -> None:
    before = {key: values(log.parent.parent, key) for key in open_run(log.parent.parent).keys}
    with log.open("ab") as file:
        file.write(b"[INFO] x: " + line.encode("latin-1") + b"\n")
    after = {key: values(log.parent.parent, key) for key in open_run(log.parent.parent).keys}
    assert after == before


def test_a_log_of_something_else_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "info.log").write_text("[INFO] all is well {here}\n")
    with pytest.raises(RunError):
        open_run(tmp_path)


def recorded(root: Path, *losses: float) -> Path:
    """Record a training's losses, by steps from 0 on, and a cell."""
    recording = Recording(root)
    for loss in losses:
        with recording.phase("actor_update"):
            recording.call("head", "Dense", lambda x: x, np.ones(2, np.float32))
        recording.data("loss", np.float32(loss))
        recording.data("lr", np.float32(0.01))
        recording.end_step()
    return recording.close()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_recorded_run_is_compared_with_the_log_of_its_training(tmp_path, swapped) -> None:
    """Its steps count from 0, its loss is a tensor; the log's from 1, and printed."""
    runs = [recorded(tmp_path / "run", 3.4681792, 3.4637749), DATA]
    verdict = compare_runs(*(runs[::-1] if swapped else runs)).verdict
    assert verdict.status == "within_tolerance"
    runs[0] = recorded(tmp_path / "other", 3.4681792, 3.4637)
    first = compare_runs(*(runs[::-1] if swapped else runs)).verdict.first_divergence
    assert first is not None
    assert (first.step, first.key, first.cause) == (1, "loss", "data")


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1e999", '"x"', "[1]", "true"])
def test_a_number_that_is_none_costs_its_line_alone(log: Path, number: str) -> None:
    lines = f'2026 - INFO - {{"step": 2, "micro_step": 1, "local_loss": {number}}}\n'
    log.write_text(log.read_text() + lines)
    assert open_run(log.parent.parent).steps == [1, 2]


def test_a_training_that_begins_again_in_one_log_is_not_mixed_with_the_first(log: Path) -> None:
    """What stood behind the step it went on from is none of it; also one of fewer steps."""
    lines = log.read_text().splitlines(keepends=True)
    half = next(n for n, line in enumerate(lines) if "step:[    1/" in line) + 1
    again = [line.replace("3.468179", "3.25") for line in lines[:half]]
    log.write_text("".join([*lines, *again]))
    run = log.parent.parent
    assert open_run(run).steps == [1]
    assert values(run, "loss") == {"": 3.25}
    log.write_text("".join([*lines, *lines[half:]]))  # it went on from step 1
    assert open_run(run).steps == [1, 2]


def test_no_recording_is_proposed_for_a_log(log: Path) -> None:
    """Its steps count from 1, and the probe did not write it."""
    log.write_text(log.read_text().replace("3.463775", "nan"))
    result = check_run(log.parent.parent)
    (finding,) = [one for one in result.findings if one.rule == "non_finite.first"]
    assert finding.next_step is None
    assert finding.place.key == "loss"
