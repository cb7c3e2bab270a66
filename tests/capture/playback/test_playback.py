"""Rollouts and other values that a run recorded, given to another training."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import shutil
from collections import namedtuple

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mindrlhf_msprobe import ConfigError, Probe, RunError, UsageError, compare_runs, open_run
from mindrlhf_msprobe.capture.playback.forms import put_together, take_apart
from mindrlhf_msprobe.capture.playback.generators import (
    put_back,
    put_own_back,
    states_of_generators,
)
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.storage.leaves import Leaf

Generated = namedtuple("Generated", "tokens mask")


@dataclasses.dataclass
class Sampled:
    tokens: np.ndarray
    text: str

    def __post_init__(self):
        assert self.text != "never made again"


def recording(path, **options):
    on = {"msprobe": True, "key_data_dump": True, "dump_path": str(path)}
    return Probe.from_config({**on, **options})


def played_by(path):
    """Return what run.json says of what was played."""
    return json.loads((path / "run.json").read_text())["played"]


class Training:
    """A trainer that samples, with random numbers that no other one has."""

    def __init__(self, path, steps=3, calls=2, data=0, turn=99, generate=None, **options):
        self.generated = 0
        self.seen = []
        with recording(path, **options) as probe:
            for step in range(steps):
                for call in range(calls):
                    batch = {"ids": np.arange(6).reshape(2, 3) + data + 10 * (step % turn) + call}
                    self.seen.append(probe.rollout(generate or self.generate, batch))
                drawn = ms.Tensor(np.random.default_rng().random(4), ms.float32)
                self.seen.append(probe.replace("advantages", drawn))
                probe.save_data(responses=step)
                probe.step()

    def generate(self, batch):
        self.generated += 1
        rng = np.random.default_rng()
        tokens = rng.integers(99, size=(2, 5)).astype(np.int32)
        return Generated(ms.Tensor(tokens), ms.Tensor(rng.random((2, 5)), ms.bfloat16)), "ended"


def same(a, b):
    """Whether two values are the same in kind, structure, dtype and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, ms.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and to_host(a).array.tobytes() == to_host(
            b
        ).array.tobytes()
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype == object:
            return a.shape == b.shape and all(map(same, a.reshape(-1), b.reshape(-1)))
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    return repr(a) == repr(b)


def test_a_played_training_goes_on_with_what_was_recorded(tmp_path):
    """Structure, dtypes and bits come back; nothing is generated; the runs are the same."""
    first = Training(tmp_path / "a")
    played = {"rollout_from": str(tmp_path / "a"), "replace": {"advantages": str(tmp_path / "a")}}
    second = Training(tmp_path / "b", **played)
    assert (first.generated, second.generated) == (6, 0)
    assert same(first.seen, second.seen)
    result = compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out")
    assert result.verdict.status.value == "identical"
    third = Training(tmp_path / "c", rollout_from=str(tmp_path / "b"))
    assert same(first.seen[0], third.seen[0])
    assert not same(first.seen[2], third.seen[2])


def test_what_is_drawn_behind_a_played_rollout_is_what_was_drawn(tmp_path, caplog):
    """By Python, numpy and MindSpore's default generator, whatever the seeds; else it is said."""
    seeds = iter(range(9))

    def drawn(name, **options):
        seed = next(seeds)
        random.seed(seed)
        np.random.seed(seed)
        ms.manual_seed(seed)
        found = []

        def generate(batch):
            return [random.gauss(0, 1), np.random.normal()]

        with recording(tmp_path / name, **options) as probe:
            for _ in range(2):
                for call in range(2):
                    probe.rollout(generate, {"ids": np.arange(3) + call})
                    found += [random.gauss(0, 1), np.random.normal()]
                    found.append(ms.get_rng_state().asnumpy())
                probe.step()
        return found

    def played(name):
        return played_by(tmp_path / name)["probe_rollout"].get("generators")

    first = drawn("a")
    assert same(first, drawn("b", rollout_from=str(tmp_path / "a")))
    assert same(first, drawn("c", rollout_from=str(tmp_path / "b")))
    assert played("b") is True
    drawn("d", rollout_from=str(tmp_path / "a"), rollout_order="cycle")
    assert played("d") is None
    (tmp_path / "a/generators.rank0.jsonl").unlink()
    assert not same(first, drawn("e", rollout_from=str(tmp_path / "a")))
    assert played("e") is False
    assert caplog.text.count("differs from that run") == 1


def test_what_operators_and_own_generators_draw_behind_a_played_rollout(tmp_path):
    """`ops.rand` and its like draw by the global seed and counters; own generators are named."""
    seeds = iter(range(1, 9))
    ones = ms.Tensor(np.ones((4, 32), np.float32))

    def drawn(name, named=True, **options):
        seed = next(seeds)
        ms.set_seed(seed)
        own = [
            random.Random(seed),
            np.random.default_rng(seed),
            np.random.Generator(np.random.MT19937(seed)),
            np.random.Generator(np.random.Philox(seed)),
            np.random.RandomState(seed),
            ms.Generator().manual_seed(seed) or ms.Generator(),
        ]
        rand, numbers, twister, philox, old, _ = own

        def draw():
            return [
                *(rand.gauss(0, 1), numbers.normal(), numbers.integers(9, dtype=np.int32)),
                *(twister.random(), philox.integers(9, size=3, dtype=np.uint32), old.normal()),
                *(ms.ops.rand(3), ms.ops.randn(3), ms.ops.dropout(ones, 0.5, True)),
                ms.ops.randint(0, 99, (4,)),
            ]

        found = []
        with recording(tmp_path / name, **options) as probe:
            for _ in range(2):
                named_ones = {"generators": own} if named else {}
                probe.rollout(lambda _: draw(), {"ids": np.arange(3)}, **named_ones)
                found += [*draw(), own[-1].get_state()]
                probe.step()
        return found

    first = drawn("a")
    assert same(first, drawn("b", rollout_from=str(tmp_path / "a")))
    drawn("c", named=False)
    drawn("d", rollout_from=str(tmp_path / "c"))
    assert played_by(tmp_path / "d")["probe_rollout"]["generators"] is False


def test_the_global_seed_stays_where_the_other_run_had_none():
    """Without one MindSpore draws anything: a training that has one would not be repeatable."""
    ms.set_seed(5)
    states = states_of_generators()
    assert states["operators"]["seed"] == 5
    put_back({"operators": {**states["operators"], "seed": None}})
    assert ms.get_seed() == 5


def test_states_of_own_generators_that_are_none_are_never_set():
    """All are put back, or none."""
    own = [random.Random(1), np.random.default_rng(2), np.random.Generator(np.random.MT19937(3))]
    before = json.dumps(states_of_generators(own)["own"])
    for number, at, odd in (
        (0, ("words",), {"dtype": "<u4", "bytes": "AAAA"}),
        (0, ("gauss",), {"text": "x"}),
        (1, (), 3),
        (1, ("state", "state"), {"int": "-0x5"}),
        (1, ("state", "inc"), {"text": None}),
        (1, ("bit_generator",), {"text": "MT19937"}),
        (2, ("state", "pos"), {"int": "0x271"}),
        (2, ("state", "pos"), {"float": "0x1p0"}),
    ):
        changed = json.loads(before)
        inside = [changed[number], *[changed[number]["state"]] * bool(at)]
        for name in at[:-1]:
            inside.append(inside[-1][name])
        inside[-1][at[-1] if at else "state"] = odd
        with pytest.raises((KeyError, TypeError, ValueError)):
            put_own_back(own, changed)
    assert json.dumps(states_of_generators(own)["own"]) == before
    put_own_back(own, json.loads(before))


def test_generators_that_are_none_or_other_ones_are_refused(tmp_path):
    with recording(tmp_path / "a") as probe:
        for odd in ([3], 3, [random.SystemRandom()], random.Random(1), {"a": random.Random(1)}):
            with pytest.raises(UsageError, match="generators of rollout"):
                probe.rollout(lambda _: 1, 2, generators=odd)
        probe.rollout(lambda _: 1, 2, generators=[random.Random(1), np.random.RandomState(3)])
    played = {"rollout_from": str(tmp_path / "a")}
    with recording(tmp_path / "b", **played) as probe:
        probe.step()
    own = np.random.default_rng(2)
    before = own.bit_generator.state
    refused = pytest.raises(UsageError, match=r"given \[random.Random, numpy.random.RandomState\]")
    with recording(tmp_path / "b", existing="overwrite", **played) as probe, refused:
        probe.rollout(lambda _: 1, 2, generators=[own])
    assert own.bit_generator.state == before
    assert Probe().rollout(lambda batch: batch, 2, generators=3) == 2


def test_states_of_generators_that_are_none_are_never_set():
    """numpy and MindSpore would take them, and draw from what lies behind them."""
    before = states_of_generators()
    odd = base64.b64encode(bytes(12)).decode()
    for name, change in (
        ("python", {"words": odd}),
        ("numpy", {"words": odd}),
        ("numpy", {"place": 625}),
        ("numpy", {"place": -1}),
        ("mindspore", {"bytes": odd}),
        ("operators", {"seed": -1}),
        ("operators", {"counters": [["rand", 0, "1"]]}),
    ):
        with pytest.raises(ValueError, match=r"size|numpy|mindspore|operators"):
            put_back({name: {**before[name], **change}})
    assert states_of_generators() == before
    assert set(put_back(before)) >= {"python", "numpy", "mindspore"}


def test_it_is_said_that_a_training_was_played(tmp_path, caplog):
    """In the log, in run.json, and by a comparison."""
    Training(tmp_path / "a")
    Training(tmp_path / "b", rollout_from=str(tmp_path / "a"))
    assert "THE TRAINING IS CHANGED: it is given probe_rollout of" in caplog.text
    expected = {"from": str(tmp_path / "a"), "order": "same", "steps": [0, 2], "generators": True}
    assert played_by(tmp_path / "b") == {"probe_rollout": expected}
    result = compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out")
    notes = result.preflight.unknown
    assert any(f"run B was given probe_rollout of {tmp_path / 'a'}" in note for note in notes)


def test_a_rollout_is_no_second_save_of_the_trainers_own_keys(tmp_path):
    Training(tmp_path / "a", steps=1)
    run = open_run(tmp_path / "a")
    assert run.keys == [
        *("probe_replace.advantages", "probe_rollout", "probe_rollout.batch", "responses")
    ]
    assert [datum.micro_step for datum in run.key_data("responses")] == [0]
    assert [datum.micro_step for datum in run.key_data("probe_rollout")] == [0, 1]


@pytest.mark.parametrize(
    ("order", "window", "expected"),
    [
        ("same", [], [0, 1, 2]),
        ("same", [1, 1], [None, 1, None, None, None]),
        ("cycle", [], [0, 1, 2, 0, 1, 2, 0]),
        ("cycle", [1, 2], [1, 2, 1, 2, 1]),
    ],
)
def test_which_step_is_played(tmp_path, order, window, expected):
    first = Training(tmp_path / "a", calls=1)
    options = {"rollout_from": str(tmp_path / "a"), "rollout_order": order, "rollout_steps": window}
    second = Training(tmp_path / "b", calls=1, steps=len(expected), **options)
    recorded, seen = first.seen[::2], second.seen[::2]
    found = [
        next((n for n, one in enumerate(recorded) if same(one, value)), None) for value in seen
    ]
    assert found == expected
    assert second.generated == expected.count(None)


def test_a_shuffle_plays_every_step_in_each_turn_and_follows_its_seed(tmp_path):
    first = Training(tmp_path / "a", calls=1, steps=5)

    def orders(name, seed):
        played = {"rollout_from": str(tmp_path / "a"), "rollout_order": "shuffle"}
        seen = Training(tmp_path / name, calls=1, steps=10, rollout_seed=seed, **played).seen[::2]
        recorded = first.seen[::2]
        return [next(n for n, r in enumerate(recorded) if same(r, value)) for value in seen]

    found = [orders(f"b{i}", seed) for i, seed in enumerate((1, 1, 2))]
    assert found[0] == found[1] != found[2]
    for turns in found:
        assert sorted(turns[:5]) == sorted(turns[5:]) == [0, 1, 2, 3, 4]


def test_another_batch_is_an_error_that_shows_both(tmp_path):
    Training(tmp_path / "a")
    with pytest.raises(UsageError) as error:
        Training(tmp_path / "b", data=1, rollout_from=str(tmp_path / "a"))
    said = str(error.value)
    assert "step 0, call 0: ['ids']: recorded Int64 [2, 3] [0, 1, 2, 3, 4, 5], given" in said
    assert "[1, 2, 3, 4, 5, 6]" in said
    shuffled = {"rollout_from": str(tmp_path / "a"), "rollout_order": "cycle"}
    assert Training(tmp_path / "c", data=1, **shuffled).generated == 0


def test_what_answers_another_batch_is_said_once(tmp_path, caplog):
    """Where the recorded steps are played in turn, the data may be, too; then nothing is said."""
    Training(tmp_path / "a", steps=2)
    in_turn = {"rollout_from": str(tmp_path / "a"), "rollout_order": "cycle", "steps": 3}

    def played(name, **options):
        caplog.clear()
        Training(tmp_path / name, **in_turn, **options)
        said = [text for text in caplog.messages if "another batch" in text]
        return said, played_by(tmp_path / name)["probe_rollout"].get("other_batch_in_step")

    assert played("b", turn=2) == ([], None)
    (said,), step = played("c")
    assert "step 0, call 0, is played in step 2" in said
    assert "['ids']: recorded Int64 [2, 3] [0, 1, 2, 3, 4, 5], given" in said
    assert step == 2


def test_a_value_of_another_shape_is_no_replacement(tmp_path):
    with recording(tmp_path / "a") as first:
        first.replace("advantages", np.zeros(3, np.float32))
        first.step()
    with (
        recording(tmp_path / "b", replace={"advantages": str(tmp_path / "a")}) as second,
        pytest.raises(UsageError, match=r"recorded Float32 \[3\] .* given Float32 \[4\]"),
    ):
        second.replace("advantages", np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rollout_from": "none"}, "none"),
        ({"rollout_from": "b"}, "own dump_path"),
        ({"rollout_from": "a", "rollout_steps": [7, 9]}, "has no rollout of these steps"),
        ({"rollout_from": "a", "rollout_order": "backwards"}, "same, cycle, shuffle"),
        ({"rollout_from": "a", "rollout_steps": [3, 1]}, "the first and the last step"),
        ({"replace": ["advantages"]}, "a mapping of a value's name"),
        ({"replace": {"values": "a"}}, "no probe_replace.values of rank 0"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    Training("a", steps=1)
    with pytest.raises((ConfigError, RunError), match=said):
        Training("b", **options)
    assert not (tmp_path / "b").exists()


def test_a_training_that_is_longer_than_the_recorded_one_says_how_to_go_on(tmp_path):
    Training(tmp_path / "a", steps=2)
    with pytest.raises(UsageError, match=r"step 2 needs call 0.*steps 0 to 1.*cycle"):
        Training(tmp_path / "b", steps=3, rollout_from=str(tmp_path / "a"))
    with pytest.raises(UsageError, match=r"call 2 of probe_rollout in step 0.* has 2 of"):
        Training(tmp_path / "c", calls=3, rollout_from=str(tmp_path / "a"))


def test_a_recorded_run_that_is_removed_meanwhile_says_which_file_is_missing(tmp_path):
    Training(tmp_path / "a", steps=2)
    with recording(tmp_path / "b", rollout_from=str(tmp_path / "a")) as probe:
        batch = {"ids": np.arange(6).reshape(2, 3)}
        probe.rollout(None, batch)
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(RunError, match=r"call 1, cannot be played: probe_rollout.json is miss"):
            probe.rollout(None, batch)


def test_a_rank_that_is_not_recorded_plays_its_own(tmp_path, monkeypatch):
    seen = []
    for path, options in (("a", {}), ("b", {"rollout_from": str(tmp_path / "a"), "ranks": [0]})):
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK_ID", rank)
            monkeypatch.setenv("RANK_SIZE", "2")
            seen.append(Training(tmp_path / path, **options).seen)
    assert same(seen[1][:2], seen[3][:2])
    assert not same(seen[0][:2], seen[1][:2])
    assert open_run(tmp_path / "b").ranks == [0]


def test_a_value_that_does_not_come_back_stops_nothing_until_it_is_played(tmp_path):
    """Recording counts it as lost; the training gets what it generated."""
    lock = object()
    first = Training(tmp_path / "a", steps=1, generate=lambda batch: lock)
    assert first.seen[0] is lock
    lost = json.loads((tmp_path / "a/run.json").read_text())["lost"]
    assert lost == {"key data probe_rollout: TypeError": 2}
    with pytest.raises(RunError, match="holds no probe_rollout of rank 0"):
        Training(tmp_path / "b", rollout_from=str(tmp_path / "a"))


def test_without_a_probe_it_is_the_trainers_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probe = Probe.from_config({"msprobe": False, "rollout_from": "nowhere"})
    batch = object()
    assert probe.rollout(lambda given: given, batch) is batch
    assert probe.replace("anything", batch) is batch
    assert not list(tmp_path.iterdir())


numbers = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text()),
    arrays.arrays(
        st.sampled_from(["?", "i1", "u2", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=3),
    ),
    st.sampled_from(
        [
            *(np.float16(1.5), np.int8(-3), np.bool_(True), ms.Tensor([1, 2], ms.float16)),
            *(ms.Tensor(3.25, ms.bfloat16), np.array(["a", "bc"]), np.array([{"x": 1}, None])),
            *(Generated(1, "x"), Sampled(np.arange(2), "text")),
        ]
    ),
)
values = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.booleans()), inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(values)
def test_every_value_comes_back_as_it_was(value):
    """Through JSON, for tensors, arrays, texts and numbers in what may hold them."""
    form, leaves = take_apart(value)
    described = [
        (Leaf("str"), leaf)
        if isinstance(leaf, str)
        else (Leaf((host := to_host(leaf)).type, dtype=host.dtype), host.values())
        for leaf in leaves
    ]
    back = put_together(json.loads(json.dumps(form)), described)
    assert same(value, back)
