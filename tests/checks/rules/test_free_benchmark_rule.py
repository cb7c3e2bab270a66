"""What the check says of calls that ran again on disturbed inputs."""

import csv
import itertools
import json
from pathlib import Path

from mindspore import Tensor, nn

from mindrlhf_msprobe import check_run, check_runs
from mindrlhf_msprobe.storage.step_lines import RowsOfSteps, benchmark_lines
from tests.helpers.small_networks import Scale, tensor

RULE = "free_benchmark.changes"


class Drifts(nn.Cell):
    """Another result each time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.scale = itertools.count(), Scale()

    def construct(self, x: Tensor) -> Tensor:
        return self.scale(x) * (1 + next(self.calls) * 1e-3)


def record(layer_probe, network, steps=2, **settings):
    """Return the directory of a run in which a network was called once a step."""
    probe = layer_probe(task="free_benchmark", **settings)
    probe.watch(actor=network)
    for _ in range(steps):
        with probe.phase("actor_update"):
            network(tensor(3, 4, start=1.0))
        probe.step()
    probe.close()
    return Path(probe.config.dump_path)


def test_what_changed_too_much_is_a_finding(layer_probe, tmp_path):
    """Once for all steps, with the numbers; and ranked in the tables."""
    run = record(layer_probe, Drifts(), pert_mode="no_change")
    results = check_runs([run], output_path=tmp_path / "out")
    found = [one for one in results.runs[0].all_findings if one.rule == RULE]
    assert [(one.place.entry, one.times, one.last_step) for one in found] == [
        ("Cell.root.Drifts.forward.0", 2, 1)
    ]
    assert found[0].said.code == "check_benchmark.not_deterministic"
    assert RULE in results.runs[0].checked
    with open(tmp_path / "out/free_benchmark.csv", encoding="utf-8-sig") as file:
        header, *rows = csv.reader(file)
    assert header[:9] == [
        *("rank", "pert_mode", "stage", "step", "api_name"),
        *("max_rel", "dtype", "shape", "output_index"),
    ]
    assert [row[4] for row in rows] == ["Cell.root.Drifts.forward.0", "Cell.scale.Scale.forward.0"]
    ranked = json.loads((tmp_path / "out/free_benchmark.json").read_text())
    assert [(row["consistent"], row["calls"], row["inconsistent"]) for row in ranked] == [
        (False, 2, 2),
        (True, 2, 0),
    ]
    assert (tmp_path / "out/free_benchmark.xlsx").is_file()


def test_healthy_and_other_runs(layer_probe):
    """Nothing is found of a healthy network; of another task it is said that nothing ran again."""
    result = check_run(record(layer_probe, Scale(), pert_mode="bit_noise"))
    assert RULE in result.checked
    assert not [one for one in result.all_findings if one.rule == RULE]
    probe = layer_probe(dump_path=str(Path(result.path).parent / "other"))
    probe.watch(actor=Scale())
    probe.step()
    probe.close()
    why = [one.why for one in check_run(probe.config.dump_path).not_checked if one.rule == RULE]
    assert [said.code for said in why] in ([], ["check_benchmark.not_recorded"])


def test_calls_that_did_not_run_again_are_named(layer_probe):
    """With the reason."""

    class Whole(nn.Cell):
        def construct(self, x):
            return self.count(x)

        def count(self, x):
            return x.shape[0]

    result = check_run(record(layer_probe, Whole(), pert_mode="bit_noise"))
    why = [one.why for one in result.not_checked if one.rule == RULE]
    assert [(one.code, one.params["why"].code) for one in why] == [
        ("check_benchmark.not_run", "benchmark.no_output")
    ]


def test_rows_of_steps_are_read_once(tmp_path):
    """Those of steps that are not asked for are passed over."""
    rows = [
        {"step": n, "phase": "p", "entry": f"{n}", "pert_mode": "m", "stage": "s", "why": []}
        for n in (0, 0, 1, 3, 3)
    ]
    benchmark_lines(tmp_path, 0).append(rows)
    of = RowsOfSteps(benchmark_lines(tmp_path, 0).read(), (0, 2, 3, 4))
    assert [len([*of.take(step)]) for step in (0, 2, 3, 4)] == [2, 0, 2, 0]
    assert [*RowsOfSteps(benchmark_lines(tmp_path, 1).read(), (0,)).take(0)] == []
