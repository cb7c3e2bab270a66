"""Series: what was recorded over the steps, and what is derived from it, by exact oracles."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.gradients import record_gradients
from helpers.runs import MSPROBE_DATA, record_data, record_training

from mindrlhf_msprobe import RunError, UsageError, open_run
from mindrlhf_msprobe.sequences.step_data import Settings
from mindrlhf_msprobe.storage.reading import reader
from mindrlhf_msprobe.trends import formulas
from mindrlhf_msprobe.trends.reading import DERIVED, Choice, read_trends

RANDOM = np.random.default_rng(0)
SHAPE = (3, 4)


def log_probs(count):
    return [-RANDOM.random(SHAPE).astype(np.float32) for _ in range(count)]


def record_keys(root, *steps, **settings):
    """Record steps of key data alone, and open the run."""
    return open_run(record_data(root, *steps, **settings))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run of three steps and two ranks with full tensors."""
    root = tmp_path_factory.mktemp("trained") / "run"
    return record_training(root, steps=3, ranks=(0, 1), rounds=2, tokens=2, task="tensor")


def test_a_key_over_the_steps_is_what_was_saved(trained):
    """Every statistic of every save: step, micro-step, rank."""
    run = open_run(trained)
    for statistic, of in {"mean": np.mean, "max": np.max, "norm": np.linalg.norm}.items():
        found = run.trend(key="rewards", statistic=statistic)
        assert [series.rank for series in found] == [0, 1]
        for series in found:
            saves = run.key_data("rewards", rank=series.rank)
            assert series.steps.tolist() == [0, 0, 1, 1, 2, 2]
            assert series.micro_steps.tolist() == [0, 1] * 3
            assert series.steps.dtype == np.int64
            np.testing.assert_allclose(series.values, [of(s.value) for s in saves], rtol=1e-6)


def test_a_pattern_chooses_records_keys_and_derived_quantities(trained):
    """`record` records alone; every record of it, by phase and rank, at every step."""
    run = open_run(trained)
    found = run.trend(record=r"head\..*\.output\.0$", rank=1)
    expected = {
        (record.name, entry.phase): record.leaf.norm
        for entry in run.entries(step=2, rank=1)
        for record in entry.records
        if entry.cell == "head" and record.io == "output"
    }
    assert {(s.name, s.phase): s.values[-1] for s in found} == expected
    assert all(series.steps.tolist() == [0, 1, 2] for series in found)
    assert {s.kind for s in run.trend("rewards|head|kl_k")} == {"derived", "key", "record"}


def test_records_of_another_tool_keep_their_names():
    """Also those inside of nested outputs."""
    run = open_run(MSPROBE_DATA / "statistics_8x_a")
    names = {record.name for entry in run.entries() for record in entry.records}
    found = {series.name for series in run.trend(record=r"output\.1\.")}
    assert found
    assert found <= names


def test_journals_are_read_once(trained, monkeypatch):
    """Whatever is asked for; and not at all for key data alone."""
    read = []
    for name in ("journal", "_read_dump"):
        of_run = getattr(reader.Run, name)
        monkeypatch.setattr(
            reader.Run, name, lambda *a, of_run=of_run: read.append(a[1:]) or of_run(*a)
        )
    run = open_run(trained)
    run.trend("loss|head|gradient_norm|update_to_weight")
    assert len(read) == len(set(read)) == sum(len(run.phases_at(p)) for p in run.places)
    read.clear()
    run.trend(key="rewards")
    run.trend(derived="kl_k3")
    assert read == []


def test_policy_quantities_are_their_formulas(tmp_path):
    """ratio, clip fraction and KL of rows that belong together, with a mask where there is one."""
    new, old, ref = log_probs(3)
    old[0, 0] = new[0, 0] - 1  # clipped
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    saves = [("log_prob", new), ("old_log_prob", old), ("ref_log_prob", ref)]
    settings = {"configurations_dump": True}
    run = record_keys(tmp_path / "a", saves, [*saves, ("response_mask", mask)], **settings)
    assert [m.name for m in read_trends(run, Choice()).missing] == list(DERIVED[6:])
    n, o, r = (values.astype(np.float64) for values in (new, old, ref))
    for counted, step in ((np.ones(SHAPE, bool), 0), (mask != 0, 1)):
        expected = {
            "ratio": np.exp(n - o)[counted].mean(),
            "clip_fraction": (np.abs(np.exp(n - o) - 1) > 0.2)[counted].mean(),
            "kl_k1": (n - r)[counted].mean(),
            "kl_k3": (np.exp(r - n) - 1 - (r - n))[counted].mean(),
        }
        for name, value in expected.items():
            (series,) = run.trend(derived=name)
            assert series.values[step] == pytest.approx(value, rel=1e-9), name
    (length,) = run.trend(derived="response_length")
    assert (length.steps.tolist(), length.values.tolist()) == ([1], [7 / 3])
    assert "all tokens count" in str(run.trend(derived="kl_k1")[0].notes[0])


def test_rows_that_may_not_belong_together_are_not_put_together(tmp_path):
    """Two halves of a shuffled batch: unless the loss was given the others."""
    new, old = log_probs(2)
    apart = [("old_log_prob", np.concatenate([old, old])), ("log_prob", new), ("log_prob", new)]
    given = {"old_per_token_logps": old, "responses_mask": np.ones(SHAPE, np.int32)}
    run = record_keys(tmp_path / "a", apart)
    found = read_trends(run, Choice(derived=("ratio",)))
    assert found.series == []
    assert "which rows belong together is not recorded" in str(found.missing[0].why)
    told = [*apart, ("loss_inputs", given), ("loss_inputs", given)]
    (ratio,) = record_keys(tmp_path / "b", told).trend(derived="ratio")
    np.testing.assert_allclose(ratio.values, [formulas.ratio(new, old)] * 2)
    assert ratio.notes == ()


def test_rows_of_a_shuffled_batch_are_found_by_their_values(tmp_path):
    """In the first update, where the policy is the old one; later ones are left out."""
    old = -RANDOM.random((6, 4)).astype(np.float32)
    old[5] = old[4]  # two responses that are equal
    order = [3, 0, 5, 4]
    parts = [("log_prob", old[order]), ("log_prob", old[[1, 2]] * 1.5)]
    run = record_keys(tmp_path / "a", [("old_log_prob", old), *parts])
    (ratio,) = run.trend(derived="ratio")
    assert (ratio.micro_steps.tolist(), ratio.values.tolist()) == ([0], [1.0])
    assert "by their values" in str(ratio.notes[0])
    shuffled = record_keys(tmp_path / "b", [("old_log_prob", old), ("log_prob", old[::-1])])
    assert shuffled.trend(derived="ratio")[0].values.tolist() == [1.0]
    moved = record_keys(tmp_path / "c", [("old_log_prob", old), ("log_prob", old + 1)])
    assert moved.trend(derived="ratio")[0].values == pytest.approx([np.e], rel=1e-6)


def test_log_probabilities_that_are_infinite_give_numbers_and_no_warning():
    """−inf against −inf is NaN, against a number infinite; nothing is raised."""
    infinite = np.array([-np.inf, -1.0])
    assert np.isnan(formulas.ratio(infinite, infinite))
    assert formulas.kl_k3(infinite, np.array([-1.0, -1.0])) == np.inf
    assert np.isnan(formulas.kl_k1(np.zeros(2), np.zeros(2), np.zeros(2)))


@pytest.mark.parametrize(
    ("saved", "length"),
    [
        (("responses", ["ab", "abcd"]), 3),
        (("response_mask", np.array([[1, 0], [1, 1]])), 1.5),
        (("loss_inputs", {"responses_mask": np.array([[1, 0], [0, 0]])}), 0.5),
    ],
)
def test_response_length(tmp_path, saved, length):
    """From a mask, from what the loss was given, or from texts, in characters."""
    (series,) = record_keys(tmp_path / "run", [saved]).trend(derived="response_length")
    assert series.values.tolist() == [length]


def test_the_trainers_own_settings_count(tmp_path):
    """The clip range, also one that is not symmetric, and the token that pads, if there is one."""
    settings = {"rl_config": {"epsilon_low": 0.1, "epsilon_high": 0.5}, "g": [{"pad_token_id": 0}]}
    assert Settings.of(settings) == Settings((0.1, 0.5), 0)
    assert Settings.of({"a": {"clip_range": 0.3}, "b": {"epsilon": 1e-8}}).clip_range == (0.3, 0.3)
    assert Settings.of({"a": {"clip_range": 0.3}, "b": {"clip_eps": 0.2}}) == Settings()
    assert Settings.of({"clip_range": 0.3, "x": {"pad_id": 1, "pad_token_id": 2}}).pad is None
    assert Settings.of(None) == Settings()
    new = np.log(np.array([0.85, 0.95, 1.4, 1.6]))
    assert formulas.clip_fraction(new, np.zeros(4), clip_range=(0.1, 0.5)) == 0.5
    assert formulas.clip_fraction(new, np.zeros(4)) == 0.5


def test_gradient_norms_are_of_the_network_and_of_its_layers(tmp_path):
    """By update; a layer is what stands before a cell's last number."""
    gradients = {f"layers.{n}.{cell}": RANDOM.normal(size=5).astype(np.float32)
                 for n in (0, 1) for cell in ("wq", "wo")}  # fmt: skip
    gradients["head"] = gradients["root"] = np.full(2, 3, np.float32)
    root = record_gradients(tmp_path / "run", {4: [gradients, {"head": gradients["head"]}]})
    found = {series.name: series for series in open_run(root).trend(derived="gradient_norm")}
    everything = np.concatenate([*gradients.values()])
    head = np.sqrt(18)
    assert found["gradient_norm"].micro_steps.tolist() == [0, 1]
    np.testing.assert_allclose(
        found["gradient_norm"].values, [np.linalg.norm(everything), head], rtol=1e-6
    )
    layer = np.concatenate([gradients["layers.1.wq"], gradients["layers.1.wo"]])
    assert found["gradient_norm[layers.1]"].values == pytest.approx([np.linalg.norm(layer)])
    assert set(found) == {
        "gradient_norm",
        *(f"gradient_norm[{n}]" for n in ("layers.0", "layers.1", "head", "root")),
    }


def test_updates_against_weights(trained, tmp_path):
    """‖w' − w‖ / ‖w‖ from step to step of full tensors; of statistics, why not."""
    run = open_run(trained)
    found = run.trend(derived="update_to_weight", phase="actor_update", rank=0)
    weights = [
        {
            entry.cell: record.array().astype(np.float64)
            for entry in run.entries("actor_update", step, 0)
            if entry.call == 0
            for record in entry.records
            if record.io == "parameters"
        }
        for step in range(3)
    ]
    whole = next(series for series in found if series.name == "update_to_weight")
    layers = {s.name for s in found} - {"update_to_weight"}
    assert "update_to_weight[layers.0]" in layers
    first = [np.concatenate([w.ravel() for w in at.values()]) for at in weights]
    # Two updates a step: the parameters are recorded again where they changed.
    for step in (0, 1):
        of_step = whole.values[whole.steps == step]
        assert len(of_step) >= 1
        assert np.linalg.norm(first[step + 1] - first[step]) / np.linalg.norm(first[step]) <= (
            1.0001 * of_step.sum() * 2
        )
    statistics = record_training(tmp_path / "run", steps=2, tokens=1)
    (missing,) = read_trends(open_run(statistics), Choice(derived=("update_to_weight",))).missing
    assert "task: tensor" in str(missing.why)


def test_what_there_is_of_a_run_is_shown(trained, tmp_path):
    """Cut off in the middle, a rank missing, one step, one journal alone."""
    root = shutil.copytree(trained, tmp_path / "run", copy_function=shutil.copyfile)
    (root / "run.rank1.json").unlink()
    for directory in [*root.glob("*/step*/rank1"), *root.glob("data/*/step*/rank1")]:
        shutil.rmtree(directory)
    for directory in [
        *root.glob("*/step2"),
        *root.glob("data/*/step2"),
        *root.glob("data/*/step1"),
    ]:
        shutil.rmtree(directory)
    journal = root / "actor_update/step1/rank0/records.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    run = open_run(root)
    assert run.trend(key="rewards")[0].steps.tolist() == [0, 0]
    found = run.trend(record=r"^Cell\.root\..*\.output")
    assert {s.rank for s in found} == {0}
    assert {step for s in found for step in s.steps.tolist()} == {0, 1}


def test_msprobes_dumps_have_trends():
    """Statistics of its entries; derived quantities say what is not there."""
    run = open_run(MSPROBE_DATA / "statistics_a")
    found = run.trend("output")
    assert found
    assert all(np.isfinite(series.values).all() for series in found)
    assert {m.name for m in read_trends(run, Choice()).missing} > {"ratio", "kl_k3"}


def test_what_msprobe_did_not_count_is_counted(tmp_path):
    """Of key data whose JSON lacks it, from the elements; a text has no number."""
    directory = tmp_path / "data/x/step0/rank0"
    directory.mkdir(parents=True)
    np.save(directory / "x0.npy", np.array([1.0, np.nan, np.inf, 3.0], np.float32))
    np.save(directory / "x1.npy", np.array([True, False]))
    run = open_run(tmp_path)
    found = {s.name: s.values.tolist() for s in run.trend(key="x", statistic="nan_count")}
    assert found == {"x.0": [1.0], "x.1": [0.0]}
    assert run.trend(key="x", statistic="mean")[1].values.tolist() == [0.5]
    texts = record_keys(tmp_path / "run", [("prompts", ["a", "b"])])
    with pytest.raises(RunError, match="has no mean"):
        texts.trend(key="prompts")


def test_what_is_not_there_is_an_error_that_names_the_nearest(trained):
    """Keys, derived quantities, statistics, phases, ranks, patterns."""
    for asked, kind, said in (
        ({"key": "reward"}, UsageError, r"no key 'reward'\. Nearest: .*rewards"),
        ({"derived": "kl_k33"}, UsageError, "kl_k3"),
        ({"key": "rewards", "statistic": "var"}, UsageError, "mean, max, min, norm"),
        ({"record": "head", "phase": "actor_updates"}, UsageError, "actor_update"),
        ({"key": "rewards", "rank": 7}, UsageError, "no rank '7'"),
        ({"pattern": "(?=a)"}, UsageError, r"'\(\?=a\)' cannot be used"),
        ({"record": "(x+x+)+y"}, RunError, "holds no record"),
    ):
        with pytest.raises(kind, match=said):
            open_run(trained).trend(**asked)


def test_names_that_steer_a_terminal_stay_data(tmp_path):
    """A hostile key is a name like others."""
    run = record_keys(tmp_path / "run", [("\u202eesrever<b>", np.float32(1.5))])
    (series,) = run.trend("esrever")
    assert series.name == "\u202eesrever<b>"
    assert series.values.tolist() == [1.5]
