"""Records of another run that take the place of a training's own."""

from __future__ import annotations

import json

import mindspore as ms
import pytest
from helpers.policy_trainer import CONFIG, EPOCHS, STEPS, Policy, train

from mindrlhf_msprobe import ConfigError, Probe, RunError, UsageError, compare_runs, open_run
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.place import StepPlace

DOWN = "Cell.layers.1.down.Dense"
OF_A_CELL = ["output", "input_gradient", "parameters_grad"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run without a fault, with the elements of its tensors."""
    path = tmp_path_factory.mktemp("graft") / "a"
    train({**CONFIG, "dump_path": str(path), "task": "tensor"})
    return path


@pytest.fixture
def grafted(healthy, tmp_path):
    """Train with faults and grafts; return the comparison with the run without, and its notes."""

    def train_with(faults, *grafts, **settings):
        path = tmp_path / "b"
        given = [{"from": str(healthy), **graft} for graft in grafts]
        train({**CONFIG, "dump_path": str(path), "graft": given, **settings}, faults)
        notes = json.loads((path / "run.json").read_text())["grafted"]
        return compare_runs(healthy, path), notes

    return train_with


def cells_of(path, io=""):
    """Return the cells of a run, those that have records of a kind."""
    entries = open_run(path).entries(step=0)
    of_kind = [e for e in entries if not io or any(r.io == io for r in e.records)]
    return sorted({e.name.rpartition(f".{e.direction}.")[0] for e in of_kind})


def test_a_training_with_its_own_tensors_put_in_is_the_same_bit_for_bit(healthy, grafted):
    of_cells = {"entries": cells_of(healthy), "what": ["output", "gradient", "input_gradient"]}
    what = ["parameters", "updated_parameters", "parameters_grad"]
    of_weights = {"entries": cells_of(healthy, "parameters"), "what": what}
    found, notes = grafted((), of_cells, of_weights)
    assert found.verdict.status == "identical"
    assert min(note["put_in"] for note in notes) > 200
    assert not any(note["left_out"] or note["changed"] for note in notes)


def test_inputs_that_are_put_in_leave_gradients_as_they_were(healthy, grafted):
    found, _ = grafted((), {"entries": cells_of(healthy), "what": "input"})
    assert found.verdict.status == "identical"


def test_a_wrong_cell_whose_tensors_are_put_in_leaves_no_difference(grafted):
    found, notes = grafted(["kernel:layers.1.down"], {"entries": [DOWN], "what": OF_A_CELL})
    assert found.verdict.status == "identical"
    assert notes[0]["put_in"]
    assert not notes[0]["left_out"]


def test_the_cells_that_compute_something_else_are_said(grafted):
    heads = [f"Cell.layers.{i}.down.Dense" for i in range(3)]
    found, (note,) = grafted(["kernel:layers.1.down"], {"entries": heads, "what": OF_A_CELL})
    assert found.verdict.status == "identical"
    assert {one["entry"] for one in note["changed"]} == {DOWN}
    outputs = [one for one in note["changed"] if one["what"] == "output"]
    records = {one["phase"]: one["records"] for one in outputs}
    assert records == {"actor_compute_log_prob": STEPS, "actor_update": STEPS * EPOCHS}
    assert all(one["steps"] == [0, 2] for one in outputs)


@pytest.mark.parametrize("fault", ["gelu", "factor:layers"])
def test_what_the_code_between_cells_makes_is_put_in(grafted, fault):
    heads = [f"Cell.layers.{i}.Layer" for i in range(3)]
    found, (note,) = grafted([fault], {"entries": heads, "what": "code"})
    assert found  # a gradient that is told apart from one beside it is rounded
    assert [*dict.fromkeys(one["entry"] for one in note["changed"])] == heads


def test_the_output_alone_lets_gradients_flow_through_the_wrong_cell(grafted):
    found, _ = grafted(["kernel:layers.1.down"], {"entries": [DOWN], "what": "output"})
    first = found.verdict.first_divergence
    assert first.phase == "actor_update"
    assert first.record.startswith(f"{DOWN}.parameters_grad.0")
    phases = {finding.phase for finding in found.findings if not finding.status.agrees}
    assert "actor_compute_log_prob" in phases  # of the next step: the weights went another way


def test_the_tensors_of_the_cell_before_change_nothing(healthy, grafted, tmp_path):
    fault = ["kernel:layers.1.down"]
    graft = {"entries": ["Cell.layers.1.up.Dense"], "what": "output"}
    found, _ = grafted(fault, graft)
    path = tmp_path / "plain"
    train({**CONFIG, "dump_path": str(path)}, fault)
    plain = compare_runs(healthy, path)
    assert found.verdict.first_divergence.record == plain.verdict.first_divergence.record
    of_first_step = [
        [
            finding.record
            for finding in result.findings
            if (finding.step, finding.phase) == (0, "actor_compute_log_prob")
            and not finding.status.agrees
        ]
        for result in (found, plain)
    ]
    assert of_first_step[0] == of_first_step[1]


@pytest.mark.parametrize(
    ("fault", "graft"),
    [
        ("backward:layers.1.up", {"entries": ["Cell.layers.1.up.Dense"], "what": OF_A_CELL}),
        (
            "backward:layers.1.norm",
            {"entries": ["Cell.layers.1.norm.LayerNorm"], "what": OF_A_CELL},
        ),
        ("loss", {"entries": ["Cell.root.Policy"], "what": "gradient", "phases": ["actor_update"]}),
    ],
)
def test_gradients_are_put_in(grafted, fault, graft):
    found, _ = grafted([fault], graft)
    wrong = {f.record for f in found.findings if not f.status.agrees}
    assert wrong <= {"loss"}


@pytest.mark.parametrize(
    ("fault", "what"),
    [("rate", "updated_parameters"), ("sync", "parameters"), ("weights", "parameters")],
)
def test_parameters_are_put_in(healthy, grafted, fault, what):
    cells = cells_of(healthy, "parameters")
    found, _ = grafted([fault], {"entries": cells, "what": what})
    assert found.verdict.status == "identical"


def test_only_the_steps_phases_and_ranks_that_are_named(grafted, monkeypatch):
    monkeypatch.setenv("RANK_SIZE", "4")
    graft = {"entries": [DOWN], "what": OF_A_CELL, "steps": [0], "phases": ["actor_update"]}
    found, notes = grafted(["kernel:layers.1.down"], graft, {**graft, "ranks": [3]})
    differ = {(f.step, f.phase, f.record) for f in found.findings if not f.status.agrees}
    output = f"{DOWN}.forward.0.output.0"
    assert (0, "actor_compute_log_prob", output) in differ
    assert (0, "actor_update", output) not in differ
    assert (1, "actor_update", output) in differ
    of_epoch = 4  # an output, its gradients: none of rank 3
    assert [note["put_in"] for note in notes] == [EPOCHS * of_epoch]


def test_steps_that_the_other_run_has_not_are_recorded_as_they_are(tmp_path):
    network = Policy(1)

    def run(name, steps, **settings):
        path = str(tmp_path / name)
        with Probe.from_config({**CONFIG, "dump_path": path, **settings}) as probe:
            probe.watch(actor=network, reference=network)
            for _ in range(steps):
                with probe.phase("actor_compute_log_prob"):
                    network(ms.ops.ones((2, 3), ms.int32))
                probe.step()
        return path

    graft = {"from": run("a", 1, task="tensor"), "entries": [DOWN]}
    b = open_run(run("b", 2, graft=graft))
    assert b.phases_at(StepPlace(1, 0)) == ["actor_compute_log_prob"]
    assert not b.run_files[0].lost


def test_what_does_not_fit_is_left_out_and_counted(healthy, tmp_path, warnings_of):
    path = tmp_path / "b"
    graft = {"from": str(healthy), "entries": ["Cell.head.Dense"], "what": "output"}
    config = {**CONFIG, "dump_path": str(path), "graft": graft}
    network = Policy(1)
    with Probe.from_config(config) as probe:
        probe.watch(actor=network, reference=network)
        with probe.phase("actor_compute_log_prob"):
            network(ms.ops.ones((2, 3), ms.int32))
        probe.step()
    (note,) = json.loads((path / "run.json").read_text())["grafted"]
    assert note["put_in"] == 0
    assert [left["records"] for left in note["left_out"]] == [1]
    assert any("[2, 3, 11] is computed here" in text for text in warnings_of())


def test_it_is_said_loudly_in_the_log_in_run_json_and_in_every_answer(grafted, warnings_of):
    found, notes = grafted((), {"entries": [DOWN]})
    assert any("THE TRAINING IS CHANGED" in text for text in warnings_of())
    assert (notes[0]["what"], notes[0]["entries"]) == (["output"], [DOWN])
    assert any("was given the output of" in str(note) for note in found.preflight.unknown)


def test_keys_of_msprobe_load_are_taken():
    load = {
        "path": "A",
        "modules": ["Module.layers.1.down.Dense.forward.0"],
        "step": [1],
        "rank": [0],
        "dump_after_load": True,
    }
    (graft,) = ProbeConfig(msprobe=True, graft=load).graft
    assert graft == {
        "from": "A",
        "entries": ("Cell.layers.1.down.Dense.forward.0",),
        "what": ("input",),
        "steps": (1,),
        "phases": (),
        "ranks": (0,),
    }


@pytest.mark.parametrize(
    "graft",
    [
        3,
        [3],
        {"from": "A"},
        {"entries": [DOWN]},
        {"from": "A", "entries": ["down"]},
        {"from": "A", "entries": [DOWN], "what": "outputs"},
        {"from": "A", "entries": [DOWN], "what": []},
        {"from": "A", "entries": [DOWN], "step": [1]},
        {"from": "A", "entries": DOWN},
    ],
)
def test_a_wrong_graft_is_refused_at_the_start(graft):
    with pytest.raises(ConfigError, match="graft"):
        ProbeConfig(msprobe=True, graft=graft)


def test_an_unknown_key_of_a_graft_is_said_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown key 'graft.*entry' .*Did you mean 'entries'"):
        ProbeConfig(msprobe=True, graft={"from": "A", "entry": DOWN})


def test_what_cannot_be_put_in_is_refused_at_the_start(healthy, tmp_path):
    def start(**graft):
        graft = {"from": str(healthy), "entries": [DOWN], **graft}
        Probe.from_config({**CONFIG, "dump_path": str(tmp_path / "b"), "graft": graft})

    with pytest.raises(RunError, match="no_such"):
        start(**{"from": str(tmp_path / "no_such")})
    with pytest.raises(RunError, match=r"Did you mean .*layers\.1\.down"):
        start(entries=["Cell.layers.1.dwn.Dense"])
    with pytest.raises(RunError, match="none of the steps 99"):
        start(steps=[99])
    with pytest.raises(RunError, match="none of the ranks 5 is recorded here: the job has 1 rank,"):
        start(ranks=[5])
    statistics = tmp_path / "statistics"
    train({**CONFIG, "dump_path": str(statistics)})
    with pytest.raises(RunError, match="without its elements"):
        start(**{"from": str(statistics)})


@pytest.fixture
def graph_mode():
    """Networks are compiled."""
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def test_what_a_compiled_network_returns_is_not_put_in(healthy, tmp_path, graph_mode):
    graft = {"from": str(healthy), "entries": [DOWN]}
    config = {**CONFIG, "dump_path": str(tmp_path / "b"), "graft": graft, "strict": True}
    with Probe.from_config(config) as probe:
        probe.watch(actor=Policy(1))
        with pytest.raises(UsageError, match="compiled"), probe.phase("actor_compute_log_prob"):
            pass


def test_parameters_are_put_into_a_compiled_network(healthy, tmp_path, graph_mode):
    tokens = ms.Tensor([[1, 2, 3]], ms.int32)
    right, network = Policy(1)(tokens).asnumpy(), Policy(2)
    assert (Policy(2)(tokens).asnumpy() != right).any()
    graft = {"from": str(healthy), "entries": cells_of(healthy, "parameters"), "what": "parameters"}
    config = {**CONFIG, "dump_path": str(tmp_path / "b"), "graft": graft, "strict": True}
    with Probe.from_config(config) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_compute_log_prob"):
            assert (network(tokens).asnumpy() == right).all()
        probe.step()
    (note,) = json.loads((tmp_path / "b" / "run.json").read_text())["grafted"]
    assert note["put_in"] == 21
    assert not note["left_out"]


def test_parameters_between_updates_of_a_compiled_phase_are_counted_as_left_out(
    healthy, tmp_path, graph_mode
):
    what = ["updated_parameters"]
    graft = {"from": str(healthy), "entries": cells_of(healthy, "parameters"), "what": what}
    config = {**CONFIG, "dump_path": str(tmp_path / "b"), "graft": graft}
    network = Policy(1)
    with Probe.from_config(config) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            network(ms.Tensor([[1, 2, 3]], ms.int32))
        probe.step()
    (note,) = json.loads((tmp_path / "b" / "run.json").read_text())["grafted"]
    (left,) = note["left_out"]
    assert (left["code"], left["records"]) == ("graft.did_not_run", 21)
