"""What `generate` is given stands in run.json, and the states in which a step's generators are."""

import functools
import inspect
import json
import random
from contextlib import contextmanager

import mindspore
import numpy as np
import pytest
from helpers.small_networks import Assembled, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe, compare_runs
from mindrlhf_msprobe.capture.settings.environment import RandomStates, states_now
from mindrlhf_msprobe.storage.manifest import random_states

KEY_DATA = {"msprobe": True, "key_data_dump": True}
GENERATE = "actor_generate_sequences"


class GenerationConfig:
    """Has the names of MindFormers' class."""

    def __init__(self):
        self.temperature, self.top_k, self.do_sample = 1.0, 3, False
        self.eos_token_id = [7, 8]
        self._private = 1
        self.of_no_use = object()

    def update(self, **kwargs):
        known = {key: value for key, value in kwargs.items() if hasattr(self, key)}
        vars(self).update(known)
        return {key: value for key, value in kwargs.items() if key not in known}


class Policy(Assembled, head=lambda: nn.Dense(3, 5, weight_init="ones")):
    """Draws tokens, as MindFormers' networks do: what its method is given goes into a config."""

    def construct(self, x):
        return self.head(x)

    def generate(self, input_ids, seed=None, streamer=None, **kwargs):
        config = GenerationConfig()
        config.update(**kwargs)
        if seed is not None:
            np.random.seed(seed)
        self(tensor(1, 3))
        return (np.random.rand(4) * 10 * config.temperature).astype(np.int32)


class Own(nn.Cell):
    """Takes its own arguments; one that is None follows the network's configuration."""

    class Config:
        top_p = None

        def __init__(self):
            self.top_p = 0.5

    def __init__(self):
        super().__init__()
        self.inner = Policy()
        self.config = self.Config()

    def construct(self, x):
        return self.inner(x)

    def generate(self, prompts, max_length=6, top_p=None, mask=(1, 1), stop=("a",)):
        return prompts


@contextmanager
def watching(path, network, **settings):
    """Record key data alone of a training with a network."""
    with Probe.from_config({**KEY_DATA, "dump_path": str(path), **settings}) as probe:
        probe.watch(actor=network)
        yield probe


def train(path, network, calls, **settings):
    """Record steps of key data alone; `calls`: what generate is given in each."""
    with watching(path, network, **settings) as probe:
        for of_step in calls:
            with probe.phase(GENERATE):
                for arguments in of_step if isinstance(of_step, list) else [of_step]:
                    responses = network.generate(np.ones((1, 2)), **arguments)
            probe.save_data(responses=responses)
            probe.step()
    return path


def manifest(path):
    return json.loads((path / "run.json").read_text())


def test_what_the_configuration_holds_is_noted_once_and_changes_with_their_step(tmp_path):
    calls = [{"temperature": 0.5, "seed": 1}] * 2 + [{"temperature": 0.25, "seed": 1}]
    found = manifest(train(tmp_path / "a", Policy(), calls))["generation"][GENERATE]
    assert found["step"] == 0
    assert found["settings"] == {
        **{"seed": 1, "temperature": 0.5, "top_k": 3, "do_sample": False},
        "eos_token_id": [7, 8],
    }
    assert found["changes"] == [{"step": 2, "name": "temperature", "value": 0.25}]


def test_a_temperature_that_is_put_in_by_a_method_around_it_is_noted(tmp_path, monkeypatch):
    """As a script may do that changes MindFormers' method, without a trace of the original."""
    before = Policy.generate
    monkeypatch.setattr(Policy, "generate", lambda self, x, **k: before(self, x, temperature=0.1))
    found = manifest(train(tmp_path / "a", Policy(), [{}]))["generation"][GENERATE]
    assert found["settings"]["temperature"] == 0.1


def test_arguments_of_a_method_without_a_configuration_are_noted(tmp_path):
    found = manifest(train(tmp_path / "a", Own(), [{"max_length": 9}]))["generation"][GENERATE]
    assert found["settings"] == {"max_length": 9, "top_p": 0.5, "stop": ["a"]}


HELD = {
    "the method": lambda network: network.generate,
    "with an argument": lambda network: functools.partial(network.generate, top_k=5),
    "the class's function": lambda network: functools.partial(type(network).generate, network),
    "its base's": lambda network: super(type(network), network).generate,
}


class Greedy(Policy):
    """Has a method of its own, which calls that of its base."""

    def generate(self, input_ids, *, top_k=2, **kwargs):
        return super().generate(input_ids, top_k=top_k, **kwargs)


@pytest.mark.parametrize("holds", HELD.values(), ids=HELD)
def test_calls_of_a_method_that_was_held_before_are_noted_as_all_others(tmp_path, holds):
    network = Greedy()
    found = []
    held = holds(network)
    for name in "ab":
        np.random.seed(1)
        with watching(tmp_path / name, network) as probe:
            for temperature in (0.5, 0.5, 0.25):
                with probe.phase(GENERATE):
                    call = held if name == "a" else holds(network)
                    responses = call(np.ones((1, 2)), temperature=temperature, seed=4)
                probe.save_data(responses=responses)
                probe.step()
        found.append(manifest(tmp_path / name))
    held, given = (json.dumps(run["generation"]) for run in found)
    assert held == given
    assert found[0]["lost"] == {}
    noted = found[0]["generation"][GENERATE]
    assert (noted["settings"]["temperature"], noted["settings"]["seed"]) == (0.5, 4)
    assert noted["changes"] == [{"step": 2, "name": "temperature", "value": 0.25}]


def test_a_method_looks_as_it_did_while_it_is_listened_to(tmp_path):
    """A trainer may ask what a method takes, and gives the rest to something else."""
    methods = (Policy.generate, Greedy.generate, GenerationConfig.update)

    def looks():
        return [(inspect.signature(m), inspect.getsource(m), m.__qualname__) for m in methods]

    before, codes = looks(), [m.__code__ for m in methods]
    network = Greedy()
    with watching(tmp_path / "a", network) as probe:
        with probe.phase(GENERATE):
            network.generate(np.ones((1, 2)))
            assert looks() == before
            assert (Policy.generate, Greedy.generate, GenerationConfig.update) == methods
        probe.step()
    assert [m.__code__ for m in methods] == codes
    assert [vars(m) for m in methods] == [{}, {}, {}]


@pytest.mark.parametrize("outside", [False, True])
def test_only_calls_in_the_phase_are_noted_and_none_is_needed(tmp_path, outside):
    """A network that has the method may be run by a loop of the trainer's own."""
    network = Policy()
    with watching(tmp_path / "a", network) as probe:
        for _ in range(2):
            with probe.phase(GENERATE):
                network(tensor(1, 3))
            if outside:
                network.generate(np.ones((1, 2)), temperature=0.5)
            probe.step()
    found = manifest(tmp_path / "a")
    assert "generation" not in found
    assert found["lost"] == {}


def test_a_call_that_is_wrong_raises_as_it_would(tmp_path):
    network = Own()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        train(tmp_path / "a", network, [{"nothing": 1}])


def test_a_temperature_changed_in_code_is_named_with_step_and_phase(tmp_path):
    """In a round of key data alone, and where the responses part."""
    calls = [{"temperature": 0.5, "seed": 1}] * 3
    a = train(tmp_path / "a", Policy(), calls)
    b = train(tmp_path / "b", Policy(), [*calls[:2], {"temperature": 0.25, "seed": 1}])
    result = compare_runs(a, b)
    first = result.verdict.first_divergence
    assert (first.step, first.phase, first.record) == (2, GENERATE, "responses")
    check = first.check_first[0]
    assert (check.what.section, check.what.step, check.what.phase) == ("generation", 2, GENERATE)
    assert check.what.name == f"{GENERATE}.temperature from step 2 on"
    assert (check.what.a, check.what.b) == ("0.5", "0.25")


def test_what_was_given_in_turn_in_one_step_is_compared_in_turn(tmp_path):
    two = [{"temperature": 0.5, "seed": 1}, {"temperature": 0.25, "seed": 1}]
    a = train(tmp_path / "a", Policy(), [two, two])
    same = train(tmp_path / "b", Policy(), [two, two])
    swapped = train(tmp_path / "c", Policy(), [two, two[::-1]])
    assert not [d for d in compare_runs(a, same).preflight.differences if d.section == "generation"]
    found = [d for d in compare_runs(a, swapped).preflight.differences if d.section == "generation"]
    assert [(d.name, d.step) for d in found] == [(f"{GENERATE}.temperature from step 1 on", 1)]


def test_a_trainer_says_what_its_own_loop_generates_with(make_probe, recorded):
    make_probe(msprobe=False).note_generation({"temperature": 1.0})
    probe = make_probe(msprobe=True)
    given = {"temperature": 0.5, "tokens": np.ones((2, 2)), "api_key": "x" * 40}
    lists = {"mask": Tensor([1, 2]), "ids": [1, 2], "eos_token_id": (1,)}
    probe.note_generation({**given, **lists})
    probe.step()
    assert recorded(probe).manifests[0]["generation"] == {
        GENERATE: {"step": 0, "settings": {"temperature": 0.5, "eos_token_id": [1]}}
    }


# Random generators.


def test_reading_states_changes_none():
    def draw():
        return np.random.rand(2).tolist(), random.random(), str(mindspore.get_rng_state())

    np.random.seed(1)
    random.seed(1)
    undisturbed = draw()
    np.random.seed(1)
    random.seed(1)
    for _ in range(3):
        states_now(pytest.fail)
    assert draw() == undisturbed


def test_each_step_has_the_states_in_which_it_began(tmp_path):
    np.random.seed(1)
    found = manifest(train(tmp_path / "a", Policy(), [{}, {}, {}]))["random_states"]
    states = random_states.by_step(found)
    assert sorted(states) == ["mindspore_state", "numpy_state", "random_state"]
    assert sorted(states["numpy_state"]) == [0, 1, 2]
    assert len(set(states["numpy_state"].values())) == 3
    assert len(set(states["random_state"].values())) == 1


def test_mindspores_generator_counts_once_it_was_seeded_or_used():
    before = states_now(pytest.fail)["mindspore_state"]
    mindspore.manual_seed(70_003)
    one = states_now(pytest.fail)["mindspore_state"]
    mindspore.manual_seed(70_004)
    other = states_now(pytest.fail)["mindspore_state"]
    assert len({one, other, random_states.UNKNOWN}) == 3
    assert before == random_states.UNKNOWN or before not in (one, other)


def drawing(path, draws, generate):
    """Record a training that draws numbers in each step; `generate`: before that, too."""
    np.random.seed(1)
    random.seed(1)
    network = Policy()
    with watching(path, network) as probe:
        for more in draws:
            with probe.phase(GENERATE):
                if generate:
                    probe.save_data(responses=network.generate(np.ones((1, 2))))
            np.random.rand(more)
            if not generate:
                probe.save_data(responses=np.array([more]))
            probe.step()
    return path


def test_a_state_that_parts_later_is_named_before_what_generation_drew(tmp_path):
    """The first responses that differ are those of step 2; something drew once more in step 1."""
    runs = [drawing(tmp_path / str(n), [0, n, 0, 0], True) for n in (0, 1)]
    first = compare_runs(*runs).verdict.first_divergence
    assert (first.step, first.phase) == (2, GENERATE)
    assert [c.what.name for c in first.check_first] == ["numpy_state from step 2 on"]
    assert first.check_first[0].what.step == 2


def test_states_that_part_because_the_runs_have_parted_are_not_listed(tmp_path):
    """After other responses other numbers are drawn: that explains nothing."""
    runs = [drawing(tmp_path / str(n), [1, n, 1], False) for n in (1, 2)]
    result = compare_runs(*runs)
    assert result.verdict.first_divergence.step == 1
    assert not [d for d in result.preflight.differences if d.section == "seeds"]
    assert "generator" not in result.verdict.first_divergence.explanation


def started(path, start, temperature):
    """Record three steps that seed numpy's generator, from a state in which it was before."""
    np.random.seed(start)
    calls = [{"seed": 1}, {"seed": 1}, {"seed": 1, "temperature": temperature}]
    return train(path, Policy(), calls)


def test_states_alone_are_no_divergence(tmp_path):
    runs = [started(tmp_path / name, start, 1.0) for name, start in (("a", 1), ("b", 2))]
    assert compare_runs(*runs).verdict.status == "identical"


def test_a_state_that_differed_before_and_agrees_now_is_not_to_be_checked(tmp_path):
    """The generator is seeded in each step, so that what it was at the start explains nothing."""
    runs = [started(tmp_path / name, start, start / 4) for name, start in (("a", 1), ("b", 2))]
    first = compare_runs(*runs).verdict.first_divergence
    assert first.step == 2
    assert [c.what.section for c in first.check_first] == ["generation"]


def test_a_resumed_run_keeps_the_states_of_the_steps_before(tmp_path):
    train(tmp_path / "a", Policy(), [{"seed": 1}] * 3)
    first = random_states.by_step(manifest(tmp_path / "a")["random_states"])
    np.random.seed(9)
    train(tmp_path / "a", Policy(), [{"seed": 2}] * 3, existing="resume", initial_step=2)
    found = manifest(tmp_path / "a")
    states = random_states.by_step(found["random_states"])["numpy_state"]
    assert sorted(states) == [0, 1, 2, 3, 4]
    assert [states[step] for step in (0, 1)] == [first["numpy_state"][step] for step in (0, 1)]
    assert states[2] != first["numpy_state"][2]
    assert found["generation"][GENERATE]["settings"]["seed"] == 1
    assert found["attempts"][1]["generation"][GENERATE]["settings"]["seed"] == 2


def test_states_are_kept_of_so_many_steps(monkeypatch):
    monkeypatch.setattr(random_states, "MAX_STEPS", 3)
    noted = RandomStates(pytest.fail)
    for step in (0, 1, 5, 6):
        noted.note(step)
    assert sorted(random_states.by_step(noted.content)["numpy_state"]) == [0, 1, 5]


@pytest.mark.parametrize(
    "content", [None, [], {"numpy_state": 1}, {"numpy_state": [[0], [1, 2], ["0", "x"], [0, "zz"]]}]
)
def test_states_of_another_hand_are_read_as_none(content):
    assert random_states.by_step(content) == {}
