"""What recording costs stands in run.json, and what a step takes is said before a disk fills."""

import re

import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json
from helpers.small_networks import Scale, tensor

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.recording import messages as room
from mindrlhf_msprobe.cli import main


def train(probe: Probe, steps: int) -> None:
    network = Scale()
    probe.watch(actor=network)
    for _ in range(steps):
        with probe.phase("actor_update"):
            out = network(tensor(1000))
        probe.save_data(out=out)
        probe.step()


def test_run_json_says_what_each_phase_and_step_cost(layer_probe, tmp_path):
    """Seconds of the training, bytes on disk and records, by phase, in sum and by step."""
    probe = layer_probe(task="tensor", key_data_dump=True)
    train(probe, 3)
    probe.close()
    cost = read_json(tmp_path / "run" / "run.json")["recording"]
    assert set(cost["phases"]) == {"actor_update", "key data", "step()"}
    assert list(cost["last_steps"]) == ["0", "1", "2"]
    for phase in ("actor_update", "key data"):
        folder = tmp_path / "run" / ("data" if phase == "key data" else phase)
        files = {p.stat().st_ino: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
        assert cost["phases"][phase]["bytes"]["total"] == sum(files.values())
        assert cost["phases"][phase]["seconds"]["total"] > 0
        assert cost["last_steps"]["1"][phase]["records"] >= 1
    assert cost["background_seconds"] > 0
    assert cost["waited_seconds"] == 0


@pytest.mark.parametrize(("free", "level"), [(10**12, "INFO"), (10**4, "WARNING")])
def test_the_first_step_tells_what_the_rest_will_take(
    layer_probe, caplog, monkeypatch, free, level
):
    """Once, after the first recorded step; a warning where the window will not fit."""

    monkeypatch.setattr(room, "free_bytes", lambda _: free)
    caplog.set_level("INFO", logger="mindrlhf_msprobe")
    probe = layer_probe(task="tensor", step_start=1)
    train(probe, 3)
    told = [r for r in caplog.records if "took" in r.getMessage()]
    assert [r.levelname for r in told] == [level]
    message = told[0].getMessage()
    assert re.search(r"step 1 took (\d+\.\d KiB) of this rank \(actor_update \1\)", message)
    assert "up to step_end 9 of 1 rank" in told[0].getMessage()


def test_what_compiled_graphs_cost_is_said(run_phase, capsys):
    """Graphs compiled with probes, the second ones without, calls of host functions and bytes."""
    network = Scale()
    given = {"mode": ms.GRAPH_MODE, "steps": 3, "step_end": 0}
    run = run_phase(network, lambda: network(tensor(1000)), **given)
    cost = run.manifests[0]["recording"]["graphs"]
    assert cost["with_probes"]["compiled"] == cost["without_probes"]["compiled"] == 1
    assert cost["with_probes"]["seconds"] > 0 < cost["without_probes"]["seconds"]
    host = cost["host_functions"]
    assert host["calls"] == 2  # one for the input and the parameter, one for the output
    assert host["bytes"] >= 2 * 4000
    assert main(["show", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "compiling 1 graph with probes: " in said
    assert "host functions of graphs: 2 calls, " in said
