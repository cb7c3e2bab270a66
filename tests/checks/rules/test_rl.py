"""What reinforcement learning must satisfy: planted faults are named, healthy runs are silent."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import HealthRun, steps_of

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.storage.manifest.manifest import CheckpointPath, Generated
from mindrlhf_msprobe.storage.manifest.run_file import Generation

PAD, EOS, GROUP, WIDTH = 0, 2, 4, 6
SEEDS = range(3)


def rows_of(random, prompts=2):
    """Return prompts, responses, mask, as tokens: responses end with EOS or at the width."""
    asked = np.repeat(random.integers(3, 50, (prompts, 5)), GROUP, axis=0).astype(np.int32)
    answers = random.integers(3, 50, (prompts * GROUP, WIDTH)).astype(np.int32)
    mask = np.ones_like(answers)
    for row, length in enumerate(random.integers(2, WIDTH + 1, len(answers))):
        answers[row, length - 1 :] = PAD
        answers[row, length - 1] = EOS
        mask[row, length:] = 0
    return asked, answers, mask


def grpo(
    root, seed, *, steps=3, change=lambda step, data: None, checkpoints=(), configs=None, phase=None
):
    """Record GRPO's key data; `change` may alter a step's before they are saved.

    Args:
        phase: that is opened in each step, before all of them.
    """
    random = np.random.default_rng(seed)
    run = HealthRun(root)
    writer = run.recording.writer
    settings = Generation({"step": 0, "settings": GENERATION})
    writer.note(Generated({"actor_generate_sequences": settings}))
    for role, path in dict(checkpoints).items():
        writer.note(CheckpointPath(role, path))
    if configs is not None:
        writer.save_configurations(lambda: configs)
    for step in range(steps):
        if phase is not None:
            with run.phase(phase):
                pass
        asked, answers, mask = rows_of(random)
        old = -random.uniform(0.5, 3, answers.shape).astype(np.float32)
        far = random.normal(0, 0.1 if step else 0, answers.shape).astype(np.float32)
        rewards = random.normal(0, 1, len(answers)).astype(np.float32)
        grouped = rewards.reshape(-1, GROUP)
        advantages = grouped - grouped.mean(1, keepdims=True)
        advantages = (advantages / (grouped.std(1, keepdims=True) + 1e-4)).reshape(-1)
        order = random.permutation(len(answers))
        logps = [old[rows] + move for rows, move in zip(np.split(order, 2), (0, 0.05))]
        logps = [np.asarray(one, np.float32) for one in logps]
        log_ratios = [(old + far)[rows] - one for rows, one in zip(np.split(order, 2), logps)]
        data = {
            "prompts": asked,
            "responses": answers,
            "response_mask": mask,
            "old_log_prob": old,
            "ref_log_prob": old + far,
            "rewards": rewards,
            "advantages": advantages,
            "log_prob": logps,
            "ratio": [np.exp(one - old[rows]) for rows, one in zip(np.split(order, 2), logps)],
            "kl": [np.exp(by) - 1 - by for by in log_ratios],
        }
        change(step, data)
        for key, value in data.items():
            for one in value if isinstance(value, list) else [value]:
                run.data(key, one)
        run.end_step()
    run.close()
    return root


GENERATION = {"pad_token_id": PAD, "eos_token_id": [EOS], "do_sample": True, "max_new_tokens": 6}


def alarms(root):
    """Return the errors and warnings of a run."""
    return [f for f in check_run(root).all_findings if f.severity is not Severity.NOTE]


def test_healthy_runs_are_silent(tmp_path):
    """No error and no warning, and every rule that can was checked."""
    for seed in range(6):
        result = check_run(grpo(tmp_path / f"run{seed}", seed, steps=6))
        assert not [f for f in result.all_findings if f.severity is not Severity.NOTE], seed
    expected = {"reference", "ratio", "kl_negative", "advantages", "identical_completions", "mask"}
    assert {f"rl.{name}" for name in expected} <= {*result.checked}


def a_reference_of_its_own(step, data):
    data["ref_log_prob"] = data["ref_log_prob"] + np.float32(0.05)


def old_weights(step, data):
    if step == 1:
        data["ratio"] = [one * np.float32(1.1) for one in data["ratio"]]


def old_log_prob_of_one_row(step, data):
    del data["ratio"]
    if step == 1:
        data["log_prob"][0][0] += np.float32(0.4)


def a_wrong_sign(step, data):
    data["kl"] = [-one for one in data["kl"]]


def shifted_advantages(step, data):
    if step == 1:
        data["advantages"] = data["advantages"] + np.float32(0.3)


def one_group_not_centred(step, data):
    if step == 1:
        data["advantages"][:GROUP] += np.float32(0.3)


def identical_completions(step, data):
    if step == 1:
        data["responses"][:] = data["responses"][:1]
        data["response_mask"][:] = data["response_mask"][:1]


def identical_within_groups(step, data):
    if step == 1:
        for key in ("responses", "response_mask"):
            data[key] = np.repeat(data[key][::GROUP], GROUP, axis=0)


def a_shifted_mask(step, data):
    if step == 1:
        data["response_mask"] = np.pad(data["response_mask"], ((0, 0), (1, 0)))[:, :-1]


def a_mask_shifted_to_the_left(step, data):
    """Of a response that was cut it leaves out a token that does not end it."""
    if step == 1:
        data["responses"][3], data["response_mask"][3] = 7, 1
        data["response_mask"] = np.pad(data["response_mask"], ((0, 0), (0, 1)))[:, 1:]


def an_empty_mask(step, data):
    if step == 1:
        data["response_mask"] = data["response_mask"] * 0


def a_mask_into_the_padding(step, data):
    if step == 1:
        data["response_mask"][:, :-1] = 1
        data["responses"][:, 3:] = PAD
        data["responses"][:, 3] = EOS


def generation_that_goes_on(step, data):
    if step == 1:
        data["responses"][:, 1] = EOS
        data["responses"][:, 2:] = 7
        data["response_mask"][:] = 1


@pytest.mark.parametrize(
    ("fault", "rule", "key", "step"),
    [
        (a_reference_of_its_own, "rl.reference", "ref_log_prob", 0),
        (old_weights, "rl.ratio", "ratio", 1),
        (old_log_prob_of_one_row, "rl.ratio", "log_prob", 1),
        (a_wrong_sign, "rl.kl_negative", "kl", 0),
        (shifted_advantages, "rl.advantages", "advantages", 1),
        (one_group_not_centred, "rl.advantages", "advantages", 1),
        (identical_completions, "rl.identical_completions", "responses", 1),
        (identical_within_groups, "rl.identical_completions", "responses", 1),
        (a_shifted_mask, "rl.mask", "response_mask", 1),
        (a_mask_shifted_to_the_left, "rl.mask", "response_mask", 1),
        (an_empty_mask, "rl.mask", "response_mask", 1),
        (a_mask_into_the_padding, "rl.mask", "response_mask", 1),
        (generation_that_goes_on, "rl.pad_inside", "responses", 1),
    ],
)
def test_a_planted_fault_is_named(tmp_path, fault, rule, key, step):
    """Its rule, key and step, and no other alarm."""
    for seed in SEEDS:
        (finding,) = alarms(grpo(tmp_path / f"run{seed}", seed, change=fault))
        assert (finding.rule, finding.place.key, finding.place.step) == (rule, key, step)
        assert finding.causes


@pytest.mark.parametrize("phase", [None, "actor_generate_sequences", "critic_compute_values"])
@pytest.mark.parametrize(
    ("fault", "rule", "of"),
    [
        (shifted_advantages, "rl.advantages", None),
        (identical_completions, "rl.identical_completions", "actor_generate_sequences"),
        (old_log_prob_of_one_row, "rl.ratio", "actor_update"),
        (a_reference_of_its_own, "rl.reference", "reference_compute_log_prob"),
    ],
)
def test_key_data_are_of_the_phase_that_makes_them(tmp_path, fault, rule, of, phase):
    """Whichever phase had begun last when they were saved: no advantages of a generation."""
    (finding,) = alarms(grpo(tmp_path / "run", 0, change=fault, phase=phase))
    assert (finding.rule, finding.place.phase) == (rule, of)


@pytest.mark.parametrize(
    ("phase", "of"), [("actor_update", "actor_update"), ("reference_compute_log_prob", None)]
)
def test_a_kl_is_of_an_update_where_it_was_made_in_one(tmp_path, phase, of):
    """Rewards may be made of it, before any update."""
    (finding,) = alarms(grpo(tmp_path / "run", 0, change=a_wrong_sign, phase=phase))
    assert (finding.rule, finding.place.phase) == ("rl.kl_negative", of)


def test_whitened_advantages_must_be_centred(tmp_path):
    """Numbers a token, 0 in the padding; and what is not whitened need not be centred."""

    def whitened(add, scale=1.0):
        def change(step, data):
            mask = data["response_mask"]
            raw = np.random.default_rng(step).normal(0.2, 2, mask.shape)
            inside = raw[mask == 1]
            white = (raw - inside.mean()) / (inside.std() + 1e-8) * scale + add
            data["advantages"] = (white * mask).astype(np.float32)

        return change

    assert not alarms(grpo(tmp_path / "healthy", 0, change=whitened(0)))
    (finding,) = alarms(grpo(tmp_path / "shifted", 0, change=whitened(0.4)))
    assert finding.rule == "rl.advantages"
    assert not alarms(grpo(tmp_path / "raw", 0, change=whitened(0.4, scale=3)))


def test_rows_that_may_not_belong_together_are_not_compared(tmp_path):
    """Packed log-probabilities of another width, and no ratio: not checked, no finding."""

    def packed(step, data):
        del data["ratio"]
        data["log_prob"] = [np.concatenate([one, one], axis=1) for one in data["log_prob"]]

    result = check_run(grpo(tmp_path / "run", 0, change=packed))
    assert "rl.ratio" in {one.rule for one in result.not_checked}
    assert "rl.ratio" not in result.checked


def test_networks_without_a_checkpoint_need_not_agree(tmp_path):
    """Both random: the difference is a note."""

    def change(step, data):
        a_reference_of_its_own(step, data)

    run = grpo(tmp_path / "run", 0, change=change, checkpoints={"actor": "", "reference": ""})
    assert not alarms(run)
    assert "rl.reference" in {finding.rule for finding in check_run(run).all_findings}


def test_a_collapsed_policy_and_ratios_outside_the_range(tmp_path):
    """Over several steps; ratios that are large once are not named."""

    def collapse(step, data):
        scale = np.float32(1 if step < 3 else 0.01)
        for key in ("log_prob", "old_log_prob", "ref_log_prob"):
            one = data[key]
            data[key] = [x * scale for x in one] if isinstance(one, list) else one * scale
        data["ratio"][0][:] = 1

    def clipped(step, data):
        data["ratio"][1][:] = 1.5 if step != 3 else 1.01

    (finding,) = alarms(grpo(tmp_path / "collapse", 0, steps=7, change=collapse))
    assert (finding.rule, finding.place.step) == ("rl.entropy_collapse", 5)
    (finding,) = alarms(grpo(tmp_path / "clipped", 0, steps=9, change=clipped))
    assert (finding.rule, finding.place.step) == ("rl.clip_fraction", 8)


def test_an_optimizers_epsilon_is_no_clip_range(tmp_path):
    """Every ratio is outside 1 ± 1e-8; the range is the usual one where none is configured."""
    configs = {"optimizer": {"epsilon": 1e-8}}
    assert not alarms(grpo(tmp_path / "run", 0, steps=9, configs=configs))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "key", ["ratio", "log_prob", "old_log_prob", "rewards", "advantages", "kl"]
)
def test_values_that_are_all_nan_cost_no_rule(tmp_path, key):
    def change(step, data):
        if step == 1:
            nan = np.float32(np.nan)
            data[key] = (
                [o * nan for o in data[key]] if isinstance(data[key], list) else data[key] * nan
            )
            if key in ("log_prob", "old_log_prob"):
                del data["ratio"]

    result = check_run(grpo(tmp_path / "run", 0, change=change))
    assert not [one for one in result.not_checked if one.why.code == "checks.failed"]


@pytest.mark.parametrize("masked", [True, False])
def test_responses_of_one_token_again_and_again_are_not_empty(tmp_path, masked):
    """Nothing says what is padding: a token may be sampled repeatedly."""
    for run, *_ in steps_of(tmp_path / "run", 3):
        run.data("responses", np.repeat(np.int32([[5], [6], [7], [8]]), 8, axis=1))
        if masked:
            run.data("response_mask", np.ones((4, 8), np.float32))
    found = check_run(tmp_path / "run")
    assert [one.rule for one in found.all_findings if one.rule.startswith("rl.")] == []
    assert {"rl.empty_responses", "rl.identical_completions"} <= {*found.checked}
