"""The probe as a trainer meets it: switches, windows, phases and misuse."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.programs import ALL_LAYERS, read_json, tree

from mindrlhf_msprobe import Probe, UsageError, open_run

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Echo, Policy, Scale, Twice, hook_count, tensor

PHASES = {
    "actor_generate_sequences": "actor",
    "actor_compute_log_prob": "actor",
    "reference_compute_log_prob": "reference",
    "critic_compute_values": "critic",
    "actor_update": "actor",
    "critic_update": "critic",
}


def train(probe: Probe, networks: dict[str, Any], steps: int, passes: int = 1) -> None:
    """Run `steps` steps of all six phases, each network `passes` times in each of its phases."""
    x = tensor(2, 3)
    for _ in range(steps):
        for phase, role in PHASES.items():
            with probe.phase(phase):
                for _ in range(passes):
                    networks[role](x)
            probe.save_data({"values": x})
        probe.step()


@pytest.fixture
def networks() -> dict[str, Any]:
    """Return a small network for each role."""
    return {"actor": Policy(), "reference": Policy(), "critic": Twice()}


SWITCHES = {
    "actor_infer_dump": ["actor_generate_sequences"],
    "actor_train_dump": ["actor_compute_log_prob", "actor_update"],
    "reference_dump": ["reference_compute_log_prob"],
    "critic_train_dump": ["critic_compute_values", "critic_update"],
}


@pytest.mark.parametrize(
    ("settings", "phases", "steps", "keys"),
    [
        ({}, [], [], []),
        ({"key_data_dump": True}, [], [], ["values"]),
        ({"reference_dump": True, "step_start": 2, "step_end": 2}, *(["reference_dump"], [2], [])),
        *(({switch: True}, [switch], [0], []) for switch in ALL_LAYERS),
    ],
)
def test_a_run_holds_what_is_switched_on(
    make_probe, networks, tmp_path, settings, phases, steps, keys
):
    """Each switch writes its phases' directories, in the step window, and nothing else."""
    probe = make_probe(**settings)
    probe.watch(**networks)
    train(probe, networks, steps=4)
    probe.save_configs({"actor": 1})
    probe.close()
    run = tmp_path / "run"
    phases = [phase for switch in phases for phase in SWITCHES[switch]]
    places = [f"{phase}/step{step}/rank0" for phase in phases for step in steps]
    assert tree(run) == {*places, *(f"data/{key}/step{n}" for key in keys for n in range(4))}
    made = {*phases, *(["data"] * bool(keys))}
    expected = {"run.json", *made, *(["timeline.rank0.jsonl"] * bool(made))}
    assert {path.name for path in run.glob("[!.]*" if made else "*")} == expected
    assert len(tree(run, 5)) == 6 * 4 * len(keys)
    for place in places:
        files = {path.name for path in (run / place).iterdir()}
        assert files == {"records.jsonl", "dump.json", "stack.json", "construct.json"}


@pytest.mark.parametrize("window", [(0, 0), (2, 2), (1, 3)])
def test_hooks_exist_only_while_a_recorded_phase_is_open(make_probe, networks, window):
    """Hooks lie on the role's network alone, in its open, switched-on phase, inside the window."""
    probe = make_probe(reference_dump=True, step_start=window[0], step_end=window[1])
    probe.watch(**networks)
    counts = []
    for step in range(5):
        for phase in PHASES:
            inside = window[0] <= step <= window[1] and phase == "reference_compute_log_prob"
            with probe.phase(phase):
                for role, network in networks.items():
                    counts.append(hook_count(network))
                    assert bool(counts[-1]) == (inside and role == "reference"), (phase, role)
            assert not any(hook_count(network) for network in networks.values())
        probe.step()
    assert sum(map(bool, counts)) == window[1] - window[0] + 1


@pytest.mark.parametrize(
    "settings", [{"msprobe": False, **ALL_LAYERS}, {"msprobe": True}, {"key_data_dump": True}]
)
def test_switched_off_registers_no_hook(make_probe, networks, settings):
    """With every layer switch off no cell ever gets a hook, during a phase or after."""
    probe = make_probe(**settings)
    probe.watch(**networks)
    for phase, role in PHASES.items():
        with probe.phase(phase):
            networks[role](tensor(2))
            assert not any(hook_count(network) for network in networks.values())
        assert not any(hook_count(network) for network in networks.values())


def test_a_rank_that_is_not_listed_records_nothing(make_probe, tmp_path, monkeypatch):
    """A process whose rank is not in `ranks` has a probe that does nothing."""
    monkeypatch.setenv("RANK_ID", "1")
    probe = make_probe(ranks=[0, 2], key_data_dump=True)
    probe.save_data(loss=1.0)
    probe.step()
    assert not probe.enabled
    assert not (tmp_path / "run").exists()


def test_the_rank_names_the_directories(make_probe, tmp_path, monkeypatch):
    """Rank 3 of a job writes rank3 directories and its own manifest."""
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "4")
    probe = make_probe(key_data_dump=True, actor_train_dump=True)
    network = Scale()
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(2))
    probe.save_data(loss=1.0)
    probe.close()
    assert tree(tmp_path / "run") == {"actor_update/step0/rank3", "data/loss/step0"}
    assert (tmp_path / "run" / "run.rank3.json").is_file()


def test_an_exception_passes_through_unchanged_and_closes_the_phase(layer_probe, networks):
    """An exception inside a phase arrives as the same object, and the phase is closed."""
    probe = layer_probe()
    probe.watch(**networks)
    error = LookupError("mine")

    def fail() -> None:
        networks["actor"](tensor(2))
        raise error

    with pytest.raises(LookupError) as caught, probe.phase("actor_update"):
        fail()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert hook_count(networks["actor"]) == 0
    with probe.phase("actor_update"):
        assert hook_count(networks["actor"]) > 0
    probe.step()


def test_a_control_exception_closes_the_phase_too(layer_probe, networks):
    """KeyboardInterrupt inside a phase passes, and no hook stays."""
    probe = layer_probe()
    probe.watch(**networks)
    with pytest.raises(KeyboardInterrupt), probe.phase("actor_update"):
        raise KeyboardInterrupt
    assert hook_count(networks["actor"]) == 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("actor_updat", "Did you mean 'actor_update'?"),
        ("reward_comput", "Did you mean 'reward_compute'?"),
        ("xyz", "Phases: actor_generate_sequences"),
        ("", "Phases:"),
        (None, "phase(None)"),
        (["actor_update"], "phase(['actor_update'])"),
        (["actor_update", 3], "phase(3)"),
    ],
)
def test_an_unknown_phase_names_the_nearest(make_probe, name, hint):
    """A phase name that does not exist is refused with the nearest one, whatever is switched on."""
    probe = make_probe(phases={"reward_compute": "reward"})
    with pytest.raises(UsageError) as refusal:
        probe.phase(name)
    assert hint in str(refusal.value)


def test_a_phase_before_watch_is_refused(layer_probe):
    """A recorded phase without a network says which watch() call is missing; then it works."""
    probe = layer_probe()
    probe.watch(critic=Scale())
    with pytest.raises(UsageError, match=r"watch\(actor=cell\)"), probe.phase("actor_update"):
        raise AssertionError("the body must not run")
    probe.watch(actor=Scale())
    with probe.phase("actor_update"):
        pass


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Scale, "class Scale"),
        ("network", "str"),
        (5, "int"),
        (SimpleNamespace(model=1), "SimpleNamespace"),
        ([Scale()], "list"),
        (ms.Parameter(ms.Tensor(1.0), name="p"), "Parameter"),
        (ms.Tensor(1.0), "Tensor"),
        (lambda x: x, "function"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_watching_what_is_not_a_cell_is_refused(make_probe, given, named):
    """Whatever is not a cell is refused with its role, its kind and what was expected."""
    probe = make_probe()
    calls = {
        "watch(actor=": lambda: probe.watch(actor=given),
        "phase('actor_update', model=": lambda: probe.phase("actor_update", given),
    }
    for name, call in calls.items():
        with pytest.raises(UsageError) as refusal:
            call()
        for part in (name, named, "not a cell", "mindspore.nn.Cell"):
            assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("role", "hint"), [("actr", "Did you mean 'actor'?"), ("self", "role 'self'"), ("reward", "")]
)
def test_an_unknown_role_is_refused(make_probe, role, hint):
    """A role that is neither standard nor declared is refused with those there are."""
    probe = make_probe()
    with pytest.raises(UsageError) as refusal:
        probe.watch(**{role: Scale()})
    assert hint in str(refusal.value)
    assert "actor, reference, critic" in str(refusal.value)
    with pytest.raises(UsageError):
        probe.watch(optimizers={role: object()})


def test_a_refused_watch_changes_nothing(layer_probe):
    """When one of several networks is refused, none of them is taken."""
    probe = layer_probe()
    with pytest.raises(UsageError):
        probe.watch(actor=Scale(), critic="no cell")
    with pytest.raises(UsageError, match="before a network was watched"):
        probe.phase("actor_update").__enter__()


def test_watch_again_replaces_the_network(layer_probe, recorded):
    """A role watched again means its new network; the other roles stay."""
    probe = layer_probe()
    old, new = Scale(), Twice()
    probe.watch(actor=old, critic=old)
    probe.watch(actor=new)
    with probe.phase("actor_update"):
        old(tensor(2))
        new(tensor(2))
    with probe.phase("critic_update"):
        old(tensor(2))
    run = recorded(probe)
    assert {e.class_name for e in run.entries("actor_update")} == {"Twice", "Scale"}
    assert run.entries("actor_update")[0].name == "Cell.root.Twice.forward.0"
    assert [e.name for e in run.entries("critic_update")] == ["Cell.root.Scale.forward.0"]


def test_a_phase_with_a_model_records_that_model(layer_probe, recorded):
    """phase(model=cell) needs no watch() and leaves the watched network alone."""
    probe = layer_probe()
    watched, other = Policy(), Scale()
    with probe.phase("actor_update", model=other):
        other(tensor(2))
    probe.watch(actor=watched)
    with probe.phase("actor_update", other):
        assert hook_count(watched) == 0
        other(tensor(2))
        watched(tensor(2))
    assert [e.name for e in recorded(probe).entries()] == [
        "Cell.root.Scale.forward.0",
        "Cell.root.Scale.forward.1",
    ]


def test_nested_phases_are_refused_and_the_outer_one_goes_on(layer_probe, recorded):
    """A phase inside a phase is refused, by whatever name; the outer one still records."""
    probe = layer_probe(critic_train_dump=False)
    network = Scale()
    probe.watch(actor=network, critic=network, reference=network)
    with probe.phase("actor_update") as outer:
        for inner in ("actor_update", "reference_compute_log_prob", "critic_update"):
            with (
                pytest.raises(UsageError, match="while the phase 'actor_update' is still open"),
                probe.phase(inner),
            ):
                raise AssertionError("the body must not run")
        with pytest.raises(UsageError, match="do not nest"):
            outer.__enter__()
        network(tensor(2))
    assert [e.name for e in recorded(probe).entries()] == ["Cell.root.Scale.forward.0"]


def test_one_context_can_be_entered_again(watched, recorded):
    """The object phase() returns can be kept and used once a step."""
    probe, network = watched(Scale())
    context = probe.phase("actor_update")
    for _ in range(2):
        with context:
            network(tensor(2))
        probe.step()
    assert [(e.step, e.call) for e in recorded(probe).entries()] == [(0, 0), (1, 0)]


def test_a_phase_open_in_another_thread_is_still_open(layer_probe):
    """A process has one phase at a time, whichever thread opened it."""
    probe = layer_probe()
    probe.watch(actor=Scale())
    errors: list[BaseException] = []

    def other() -> None:
        try:
            probe.phase("actor_update").__enter__()
        except UsageError as error:
            errors.append(error)

    with probe.phase("actor_update"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_step_inside_a_phase_is_refused(make_probe, networks):
    """step() inside a phase says so, even where the phase is not switched on."""
    probe = make_probe(key_data_dump=True)
    with probe.phase("actor_update"):
        with pytest.raises(UsageError, match=r"step\(\) inside the phase 'actor_update'"):
            probe.step()
        assert probe.current_step == 0
    probe.step()
    assert probe.current_step == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.step(),
        lambda p: p.save_data(loss=1.0),
        lambda p: p.save_configs({"a": 1}),
        lambda p: p.watch(actor=Scale()),
        lambda p: p.phase("actor_update").__enter__(),
    ],
)
def test_calls_after_close_are_refused(make_probe, call):
    """After close() every call is refused, except close() itself."""
    probe = make_probe(key_data_dump=True, configurations_dump=True, actor_train_dump=True)
    probe.close()
    probe.close()
    with pytest.raises(UsageError, match=r"after close\(\)"):
        call(probe)


def test_close_inside_a_phase_ends_it_and_loses_nothing(watched):
    """close() inside a phase removes the hooks; what ran before it stays on disk."""
    probe, network = watched(Scale())
    with probe.phase("actor_update"):
        network(tensor(2))
        probe.close()
        assert hook_count(network) == 0
        network(tensor(2))
    run = open_run(probe.config.dump_path)
    assert [e.name for e in run.entries()] == ["Cell.root.Scale.forward.0"]


def test_the_probe_as_context_manager_ends_the_run(tmp_path):
    """Leaving the block ends the run; leaving it by an exception marks it as failed."""
    for name, error in (("good", None), ("bad", ArithmeticError("boom"))):
        settings = {"msprobe": True, "dump_path": str(tmp_path / name), "key_data_dump": True}
        with (
            pytest.raises(ArithmeticError, match="boom") if error else nullcontext(),
            Probe.from_config(settings) as probe,
        ):
            probe.save_data(loss=1.0)
            probe.step()
            if error:
                raise error
        assert open_run(tmp_path / name).finished is (error is None)


def test_a_role_without_network_records_nothing(layer_probe, recorded):
    """watch(critic=None) says that there is no critic: its phases run and record nothing."""
    probe = layer_probe()
    actor = Scale()
    probe.watch(actor=actor, critic=None)
    with probe.phase("critic_compute_values"):
        pass
    with probe.phase("critic_update"):
        actor(tensor(2))
    with probe.phase("actor_update"):
        actor(tensor(2))
    assert recorded(probe).phases == ["actor_update"]


def test_a_phase_of_the_trainers_own(make_probe, recorded):
    """A declared phase needs its role's network and is recorded under its own name."""
    probe = make_probe(phases={"reward_compute": "reward"})
    network = Scale()
    with pytest.raises(UsageError, match=r"watch\(reward=cell\)"):
        probe.phase("reward_compute").__enter__()
    probe.watch(reward=network)
    with probe.phase("reward_compute"):
        network(tensor(2))
    assert [e.phase for e in recorded(probe).entries()] == ["reward_compute"]


def test_a_phase_in_which_nothing_ran_warns_once(layer_probe, warnings_of, recorded):
    """A phase whose network never runs is named in one warning, however often it is opened."""
    probe = layer_probe()
    watched, ran = Scale(), Scale()
    probe.watch(actor=watched)
    for _ in range(3):
        with probe.phase("actor_update"):
            ran(tensor(2))
        probe.step()
    warnings = warnings_of()
    assert len(warnings) == 1
    assert "phase actor_update, step 0: no cell of the watched actor network" in warnings[0]
    assert recorded(probe).phases == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"step_start": 7, "step_end": 7}, "step_start 7 … step_end 7 matches none of them"),
        ({"token_range_start": 5, "token_range_end": 6}, "token_range_start 5"),
        ({"directions": ["backward"]}, "directions leaves out forward"),
    ],
)
def test_a_phase_of_which_nothing_was_recorded_is_said_at_the_end(
    watched, warnings_of, recorded, settings, reason
):
    """A switched-on phase that ran, but never where it is recorded, gets one warning with why."""
    probe, network = watched(Scale(), **settings)
    for _ in range(2):
        with probe.phase("actor_generate_sequences"):
            network(tensor(2))
        probe.step()
    assert recorded(probe).phases == []
    probe.close()
    said = [w for w in warnings_of() if "nothing of it was recorded" in w]
    assert len(said) == 1
    assert "ran in steps 0 to 1" in said[0]
    assert reason in said[0]


def test_the_model_of_a_phase_must_be_a_cell(layer_probe):
    """The message names the call that got the wrong thing."""
    with pytest.raises(UsageError, match=r"phase\('actor_update', model=…\) got int"):
        layer_probe().phase("actor_update", model=3)


@pytest.mark.parametrize("phase", ["actor_generate_sequences", "actor_update"])
def test_patterns_that_leave_no_cell_warn(watched, warnings_of, phase):
    """An include pattern that matches no cell is named as a possible cause, not passed over."""
    probe, network = watched(Scale(), include=["no_such_cell"])
    with probe.phase(phase):
        network(tensor(2))
    assert len(warnings_of()) == 1
    assert "include and exclude" in warnings_of()[0]


class Trainer:
    """A trainer whose methods are decorated."""

    probe: Probe

    def __init__(self, probe: Probe, network: Any) -> None:
        self.probe = probe
        self.network = network
        self.update = probe.phase("actor_update")(self.update)  # type: ignore[method-assign]

    def update(self, x: Any, *, times: int = 1) -> Any:
        """Run the network `times` times."""
        for _ in range(times):
            x = self.network(x)
        return x


def test_a_decorated_function_is_its_phase(layer_probe, recorded):
    """A decorated method keeps its name, arguments and result, and each call opens the phase."""
    probe = layer_probe()
    network = Scale(2.0)
    trainer = Trainer(probe, network)  # decorated before watch()
    probe.watch(actor=network)
    out = trainer.update(tensor(2), times=2)
    assert np.array_equal(out.asnumpy(), tensor(2).asnumpy() * 4)
    assert trainer.update.__name__ == "update"
    trainer.update(tensor(2))
    assert [(e.opening, e.call) for e in recorded(probe).entries()] == [(0, 0), (0, 1), (1, 2)]


def test_a_decorated_function_that_raises_closes_its_phase(watched):
    """An exception in a decorated function passes, and the next call works."""
    probe, network = watched(Scale())

    @probe.phase("actor_update")
    def update(fail: bool) -> str:
        if fail:
            raise LookupError("mine")
        network(tensor(2))
        return "done"

    with pytest.raises(LookupError, match="mine"):
        update(True)
    assert update(False) == "done"


def test_a_decorated_function_that_calls_itself_is_refused(layer_probe):
    """Recursion would open the phase inside itself, so it is refused clearly."""
    probe = layer_probe()
    probe.watch(actor=Scale())

    @probe.phase("actor_update")
    def update(depth: int) -> None:
        if depth:
            update(depth - 1)

    with pytest.raises(UsageError, match="does not call itself"):
        update(1)


def _generator() -> Any:
    yield 1


async def _coroutine() -> None:
    pass


async def _async_generator() -> Any:
    yield 1


@pytest.mark.parametrize("function", [_generator, _coroutine, _async_generator, 3, None])
def test_what_runs_later_cannot_be_decorated(make_probe, function):
    """A generator or coroutine runs after its call returned; it is refused when decorated."""
    probe = make_probe()
    with pytest.raises(UsageError, match="cannot decorate"):
        probe.phase("actor_update")(function)


def test_a_decorated_cell_runs_as_its_phase(watched, recorded):
    """Any callable can be decorated, a train cell too."""
    probe, network = watched(Echo())
    probe.phase("actor_update")(network)(tensor(2))
    assert len(recorded(probe).entries()) == 1


def test_steps_start_where_the_configuration_says(layer_probe, recorded):
    """initial_step is the number of the first step."""
    probe = layer_probe(initial_step=7, key_data_dump=True)
    probe.save_data(loss=1.0)
    probe.step()
    probe.save_data(loss=2.0)
    assert recorded(probe).steps == [7, 8]


def test_a_trainer_that_resumes_tells_its_step_before_anything_is_recorded(
    layer_probe, recorded, tmp_path
):
    """start_at numbers the steps; run.json then says where the run began."""
    probe = layer_probe(key_data_dump=True)
    probe.start_at(7)
    probe.save_data(loss=1.0)
    with pytest.raises(UsageError, match="after something was recorded in step 7"):
        probe.start_at(9)
    probe.step()
    with pytest.raises(UsageError, match="after something was recorded"):
        probe.start_at(9)
    assert recorded(probe).steps == [7]
    assert read_json(tmp_path / "run" / "run.json")["config"]["initial_step"] == 7
    again = layer_probe(key_data_dump=True, existing="resume")
    assert again.current_step == 8
    again.start_at(6)  # its checkpoint is older than what was recorded
    again.save_data(loss=1.0)
    again.step()
    assert recorded(again).steps == [6]
    assert read_json(tmp_path / "run" / "run.json")["config"]["initial_step"] == 6


@pytest.mark.parametrize("step", [-1, 1.0, True, None])
def test_only_a_step_can_be_started_at(layer_probe, step):
    """What is no number of a step is refused by name."""
    with pytest.raises(UsageError, match="expected the number of a step"):
        layer_probe().start_at(step)


def test_an_initial_step_of_the_configuration_counts_more(layer_probe):
    """Who writes initial_step knows better than the trainer; a probe that is off takes the call."""
    probe = layer_probe(initial_step=3)
    probe.start_at(7)
    assert probe.current_step == 3
    Probe.from_config({"msprobe": False}).start_at(7)


def test_the_scheduler_of_msrun_records_nothing(layer_probe, monkeypatch, tmp_path):
    """It runs the script as well, without a rank: it would take the place of rank 0."""
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    assert not layer_probe().enabled
    assert not (tmp_path / "run").exists()


def test_a_phase_that_cannot_be_recorded_is_said_and_noted(layer_probe, tmp_path, warnings_of):
    """leave_out says why a phase that is switched on is missing, once; others are not said."""
    probe = layer_probe(reference_dump=False)
    for _ in range(2):
        probe.leave_out("actor_generate_sequences", "vLLM generates")
        probe.leave_out("reference_compute_log_prob", "it runs in another job")
    with pytest.raises(UsageError, match=r"leave_out\('actor_updat'\) is not known"):
        probe.leave_out("actor_updat", "-")
    probe.close()
    (said,) = warnings_of()
    assert "the layers of actor_generate_sequences are not recorded: vLLM generates" in said
    noted = read_json(tmp_path / "run" / "run.json")["coverage"]["phases"]
    assert noted == {"actor_generate_sequences": "vLLM generates"}


def test_each_reason_of_a_phase_is_kept(tmp_path, layer_probe):
    """A later reason why a phase is not recorded stands beside the earlier one."""
    probe = layer_probe()
    for why in ("vLLM generates", "it runs in another job", "vLLM generates"):
        probe.leave_out("actor_generate_sequences", why)
    probe.close()
    noted = read_json(tmp_path / "run" / "run.json")["coverage"]["phases"]
    assert noted == {"actor_generate_sequences": ["vLLM generates", "it runs in another job"]}
    kept = open_run(tmp_path / "run").coverage()["phases"]["actor_generate_sequences"]
    assert [str(why) for why in kept] == ["vLLM generates", "it runs in another job"]


def test_a_step_is_readable_when_step_returns(layer_probe, networks, tmp_path):
    """When step() returns, its files are whole, and run.json calls that step completed."""
    probe = layer_probe()
    probe.watch(**networks)
    train(probe, networks, steps=2)
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    assert run.completed(0)
    assert run.completed(1)
    assert not run.finished
    for phase in PHASES:
        dump = read_json(tmp_path / "run" / phase / "step1" / "rank0" / "dump.json")
        assert len(dump["data"]) == len(run.entries(phase, step=1))


def test_a_second_run_on_the_same_path_is_refused_untouched(make_probe, tmp_path):
    """A dump_path that holds a run is refused, and the run in it stays as it was."""
    probe = make_probe(key_data_dump=True)
    probe.save_data(loss=1.0)
    probe.step()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    with pytest.raises(Exception, match="already holds a run"):
        make_probe(key_data_dump=True)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


@pytest.mark.parametrize("config", [{"msprobe": True}, "grpo.yaml", {}])
def test_what_is_no_probe_config_is_refused(config):
    with pytest.raises(UsageError, match=r"takes a ProbeConfig.*Probe\.from_config"):
        Probe(config)
