"""Rollout against training over the steps: what belongs together, why nothing does."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import record_data

from mindrlhf_msprobe import UsageError, open_run
from mindrlhf_msprobe.trends.reading import Choice, read_trends
from mindrlhf_msprobe.trends.rollout_correction import METRICS, rollout_gap

RANDOM = np.random.default_rng(7)
PAD = 0
MEAN = "rollout_corr/log_prob_diff_mean"


def record(root, *steps, **settings):
    """Record steps of key data alone, and open the run."""
    return open_run(record_data(root, *steps, **settings))


def a_step(rows=6, width=5, apart=0.01):
    """Return log-probabilities of the rollout, 0 behind the end, and of training, and a mask."""
    lengths = RANDOM.integers(1, width + 1, rows)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int32)
    training = -RANDOM.gamma(1, 2, (rows, width)).astype(np.float32)
    apart = RANDOM.normal(0, apart, training.shape).astype(np.float32)
    return ((training + apart) * mask).astype(np.float32), training, mask


def metrics(run, step=0):
    """Return every metric of a step: (micro-step, name) → value."""
    return {
        (micro_step, series.name): value
        for series in run.trend(derived="rollout_corr")
        for at, micro_step, value in zip(series.steps, series.micro_steps, series.values)
        if at == step
    }


def notes(run, name=MEAN):
    return [note.code for note in run.trend(derived=name)[0].notes]


def test_the_metrics_of_each_step_are_the_formulas(tmp_path):
    """Both saves in equal shapes, in one or several parts, with a mask; every name is a series."""
    whole, parts = a_step(), [a_step(3), a_step(3)]
    in_parts = [
        *[("rollout_log_prob", rollout) for rollout, _, _ in parts],
        *[("old_log_prob", training) for _, training, _ in parts],
        *[("response_mask", mask) for _, _, mask in parts],
    ]
    keys = "rollout_log_prob", "old_log_prob", "response_mask"
    run = record(tmp_path / "run", list(zip(keys, whole)), in_parts)
    for step, of_step in enumerate([[whole], parts]):
        expected = {
            (at, name): value
            for at, one in enumerate(of_step)
            for name, value in rollout_gap(*one).metrics.items()
        }
        assert metrics(run, step) == pytest.approx(expected)
    assert {name for _, name in metrics(run)} == set(METRICS)
    assert notes(run) == []
    assert not [one for one in read_trends(run, Choice()).missing if "rollout" in one.name]


@pytest.mark.parametrize(
    ("rollout", "old"),
    [
        ("rollout_log_probs", "old_log_probs"),  # verl
        ("sampling_per_token_logps", "old_per_token_logps"),  # TRL
        ("rollout_per_token_logps", "old_per_token_logps"),  # ms-swift
    ],
)
def test_the_names_of_other_trainers(tmp_path, rollout, old):
    given = a_step()
    run = record(tmp_path / "run", list(zip((rollout, old, "completion_mask"), given)))
    assert run.trend(derived=MEAN)[0].values[0] == rollout_gap(*given).metrics[MEAN]


def test_the_updated_policy_is_not_what_the_rollout_is_compared_with(tmp_path):
    """log_prob is of the policy that an update changes: without old_log_prob nothing is derived."""
    rollout, training, _ = a_step()
    run = record(tmp_path / "run", [("rollout_log_prob", rollout), ("log_prob", training)])
    (missing,) = read_trends(run, Choice(derived=("rollout_corr",))).missing
    assert (missing.name, missing.why.params) == ("rollout_corr", {"names": ["old_log_prob"]})


def test_without_a_mask_the_end_of_a_row_or_the_responses_say_what_counts(tmp_path):
    """A mask is best; then responses and pad_token_id; then zeros at the end of a row."""
    rollout, training, mask = a_step()
    expected = rollout_gap(rollout, training, mask).metrics
    saves = [("rollout_log_prob", rollout), ("old_log_prob", training)]
    run = record(tmp_path / "zeros", saves)
    assert metrics(run) == {(0, name): value for name, value in expected.items()}
    assert notes(run) == ["trend.mask_of_rollout"]
    responses = np.where(mask, 7, PAD)
    certain = np.where(np.arange(5) == mask.sum(1, keepdims=True) - 1, 0, rollout)  # the last token
    saves = [("rollout_log_prob", certain), saves[1], ("responses", responses.astype(np.int32))]
    settings = {"configurations_dump": True, "configurations": {"pad_token_id": PAD}}
    run = record(tmp_path / "pad", saves, **settings)
    assert metrics(run)[0, MEAN] == rollout_gap(certain, training, mask).metrics[MEAN]
    assert notes(run) == ["trend.pad"]


def test_the_share_of_ratios_is_of_the_trainers_clip_range(tmp_path):
    rollout, training, mask = a_step(rows=40, apart=0.3)
    name = "rollout_corr/ratio_fraction_outside"
    saves = list(
        zip(("rollout_log_prob", "old_log_prob", "response_mask"), (rollout, training, mask))
    )
    config = {"epsilon_low": 0.1, "epsilon_high": 0.4}
    own = record(tmp_path / "own", saves, configurations_dump=True, configurations=config)
    usual = record(tmp_path / "usual", saves)
    for run, clip, code in (
        (own, (0.1, 0.4), "trend.clip_range"),
        (usual, (0.2, 0.2), "trend.usual_clip_range"),
    ):
        expected = rollout_gap(rollout, training, mask, clip).metrics[name]
        assert run.trend(derived=name)[0].values.tolist() == [expected]
        assert notes(run, name) == [code]


def test_a_run_without_says_what_is_missing_once(tmp_path):
    """As one quantity, not as each of its metrics."""
    run = record(tmp_path / "run", [("old_log_prob", a_step()[1])])
    missing = [one for one in read_trends(run, Choice()).missing if "rollout" in one.name]
    assert [(one.name, one.why.code) for one in missing] == [("rollout_corr", "trend.no_key")]
    assert "rollout_log_prob" in str(missing[0].why)
    (one,) = read_trends(run, Choice(derived=(MEAN,))).missing
    assert one.name == MEAN


def test_shapes_that_differ_are_not_put_together(tmp_path):
    """Unless the tokens say which rows they are."""
    rollout, training, _ = a_step()
    saves = [("rollout_log_prob", rollout), ("old_log_prob", training[:, :3])]
    (missing,) = read_trends(
        record(tmp_path / "run", saves), Choice(derived=("rollout_corr",))
    ).missing
    assert missing.why.code == "trend.rows_unknown"
    some = [*saves, ("rollout_log_prob", rollout), ("old_log_prob", training)]
    run = record(tmp_path / "some", some)
    assert {at for at, _ in metrics(run)} == {1}
    assert "trend.saves_left_out" in notes(run)


def packed(prompts, responses, old, *, order, length, per_row=2):
    """Pack samples as MindRLHF does: one token apart, log-probabilities shifted by one."""
    rows = []
    for start in range(0, len(order), per_row):
        ids, mask, values = [], [], []
        for sample in order[start : start + per_row]:
            prompt = prompts[sample][prompts[sample] != PAD]
            response = responses[sample][responses[sample] != PAD]
            ids += [*prompt, *response, PAD]
            mask += [0] * len(prompt) + [1] * len(response) + [0]
            values += [0.0] * len(prompt) + [*old[sample][: len(response)], 0.0]
        fill = length - len(ids)
        rows.append(
            (ids + [PAD] * (fill + 1), mask + [0] * (fill + 1), values + [0.0] * (fill + 1))
        )
    ids, mask, values = (np.array(of) for of in zip(*rows))
    return {
        "prompt_completion_ids": ids.astype(np.int32),
        "responses_mask": mask[:, 1:].astype(np.int32),
        "old_per_token_logps": values[:, 1:].astype(np.float32),
        "sample_index": np.zeros((len(ids), 3), np.int32),
    }


def own_tokens(prompts, responses, mask):
    """Return what vLLM gives: prompts that are filled up behind, responses with the token at their
    end that MindRLHF's filling hides, where there is room for it."""
    tokens = np.where(mask, responses, -1).astype(np.int32)
    for row, length in zip(tokens, mask.sum(axis=1)):
        row[length : length + 1] = PAD
    asked = np.full_like(prompts, -1)
    for row, prompt in zip(asked, prompts):
        row[: np.count_nonzero(prompt)] = prompt[prompt != PAD]
    return [("rollout_tokens", tokens), ("rollout_prompts", asked)]


@pytest.mark.parametrize("own", [False, True], ids=["responses", "rollout_tokens"])
@pytest.mark.parametrize("seed", range(6))
def test_packed_rows_are_found_by_their_tokens(tmp_path, seed, own):
    """In any order, in several updates; also where two prompts have the same answer.

    Responses may be of all ranks; then the rollout's own tokens say which this rank's are.
    """
    random = np.random.default_rng(seed)
    samples, width, asked = 8, 6, 4
    prompts = np.full((samples, asked), PAD, np.int32)
    responses = np.full((samples, width), PAD, np.int32)
    for row in range(samples):
        prompts[row, -random.integers(2, asked + 1) :] = random.integers(3, 9)
        prompts[row, -1] = 20 + row
        count = random.integers(1, width + 1)
        responses[row, :count] = random.integers(3, 9, count)
    responses[1] = responses[0]
    mask = responses != PAD
    old = -random.gamma(1, 2, responses.shape).astype(np.float32)
    rollout = ((old + random.normal(0, 0.1, old.shape)) * mask).astype(np.float32)
    order = random.permutation(samples)
    losses = [packed(prompts, responses, old, order=part, length=24) for part in np.split(order, 2)]
    saves = [
        ("prompts", prompts),
        ("rollout_log_prob", rollout[:5]),
        ("rollout_log_prob", rollout[5:]),
        ("responses", np.concatenate([responses + 1, responses]) if own else responses),
        *(own_tokens(prompts, responses, mask) if own else []),
        ("old_log_prob", np.zeros((4, 24), np.float32)),  # packed: of another shape
        *[("loss_inputs", loss) for loss in (*losses, losses[0])],
    ]
    run = record(tmp_path / "run", saves)
    expected = rollout_gap(rollout, old, mask).metrics
    assert metrics(run) == pytest.approx({(0, name): value for name, value in expected.items()})
    assert "trend.rows_by_tokens" in notes(run)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_found_beside_the_tokens_of_the_training(tmp_path, seed):
    """Padded before and behind, in any order and parts; of the token itself, or of the next one.

    A sample may begin and end with the token that fills up, and samples may be alike: where more
    than one place fits, by trying all, nothing is taken.
    """
    random = np.random.default_rng(seed)
    samples, width, asked, shift = 6, 5, 4, seed % 2
    lengths = random.integers(1, asked + 1, samples), random.integers(0, width + 1, samples)
    ids = random.integers(PAD, 4, (samples, asked + width)).astype(np.int32)
    if seed % 3 == 0:
        ids[1], lengths[0][1], lengths[1][1] = ids[0], lengths[0][0], lengths[1][0]
    prompts, tokens = (np.full((samples, of), -1, np.int32) for of in (asked, width))
    rollout = np.zeros((samples, width), np.float32)
    old = -random.gamma(1, 2, (samples, asked + width + 2)).astype(np.float32)
    given = np.full(old.shape, PAD, np.int32)
    for row, (before, behind) in enumerate(zip(*lengths)):
        prompts[row, :before] = ids[row, :before]
        tokens[row, :behind] = ids[row, before : before + behind]
        begin = random.integers(1, old.shape[1] - before - behind + 1) if shift else 0
        given[row, begin : begin + before + behind] = ids[row, : before + behind]
        rollout[row, :behind] = -random.gamma(1, 2, behind)
    expected, mask = np.zeros((samples, width)), np.zeros((samples, width), bool)
    for row_of_old, values in zip(given, old):
        fits = {
            (tuple(ids[row, : before + behind]), begin, behind): row
            for row, (before, behind) in reversed([*enumerate(zip(*lengths))])
            for begin in range(len(row_of_old) - before - behind + 1)
            if (row_of_old[begin : begin + before + behind] == ids[row, : before + behind]).all()
            and len({*row_of_old[:begin].tolist()}) < 2
            and len({*row_of_old[begin + before + behind :].tolist()}) < 2
        }
        if len(fits) != 1 or len({*row_of_old.tolist()}) == 1:
            continue
        ((_, begin, behind), row) = next(iter(fits.items()))
        if mask[row].any() and 1 - row in (0, 1):  # samples that are alike, in their order
            row = 1 - row
        if (begin := begin + int(lengths[0][row]) - shift) >= 0:
            expected[row, :behind], mask[row, :behind] = values[begin:][:behind], True
    saves = [
        *(("rollout_log_prob", part) for part in np.split(rollout, 2)),
        *(("rollout_tokens", part) for part in np.split(tokens, 2)),
        *(("rollout_prompts", part) for part in np.split(prompts, 2)),
        *(("old_log_prob", part) for part in np.split(old[:, : old.shape[1] - shift], 3)),
        *(("old_log_prob_tokens", part) for part in np.split(given, 3)),
    ]
    run = record(tmp_path / "run", saves)
    if not mask.any():
        assert not metrics(run)
        return
    assert notes(run) == ["trend.rows_by_old_tokens"]
    wanted = rollout_gap(rollout, expected, mask).metrics
    assert metrics(run) == pytest.approx({(0, name): value for name, value in wanted.items()})


def test_responses_that_are_nowhere_are_left_out_and_an_old_policy_of_zeros_is_none(tmp_path):
    """A loss without an old policy is given zeros: no log-probabilities of anything."""
    prompts = np.array([[PAD, 11], [PAD, 12]], np.int32)
    responses = np.array([[3, 4, PAD], [5, 6, 7]], np.int32)
    old = -np.ones((2, 3), np.float32)
    rollout = np.array([[-1.5, -1.5, 0], [-1, -1, -1]], np.float32)
    saves = [("rollout_log_prob", rollout), ("prompts", prompts), ("responses", responses)]
    given = packed(prompts, responses, old, order=[0], length=9)
    run = record(tmp_path / "one", [*saves, ("loss_inputs", given)])
    assert metrics(run)[0, MEAN] == 0.5  # of the first alone
    none = packed(prompts, responses, old * 0, order=[0, 1], length=12)
    run = record(tmp_path / "none", [*saves, ("loss_inputs", none)])
    (missing,) = read_trends(run, Choice(derived=("rollout_corr",))).missing
    assert missing.why.params == {"names": ["old_log_prob"]}


def test_empty_responses_and_what_is_not_finite(tmp_path):
    """Nothing to compare is said as one reason; NaN is counted and noted."""
    rollout, training, mask = a_step()
    broken = training.copy()
    broken[0, 0] = np.nan
    keys = "rollout_log_prob", "old_log_prob", "response_mask"
    run = record(tmp_path / "nan", list(zip(keys, (rollout, broken, mask))))
    assert metrics(run)[0, "rollout_corr/non_finite_tokens"] == 1
    assert "trend.non_finite_left_out" in notes(run)
    run = record(tmp_path / "empty", list(zip(keys, (rollout, training, mask * 0))))
    found = read_trends(run, Choice(derived=("rollout_corr",)))
    assert [(one.name, one.why.code) for one in found.missing] == [
        ("rollout_corr", "trend.no_token")
    ]


def test_a_metric_that_is_undefined_says_so(tmp_path):
    """One token has no correlation."""
    saves = [("rollout_log_prob", np.array([[-1.0]])), ("old_log_prob", np.array([[-1.5]]))]
    run = record(tmp_path / "run", saves)
    asked = [name for name in METRICS if "pearson" in name]
    found = read_trends(run, Choice(derived=(*asked,)))
    assert found.series == []
    assert {one.why.code for one in found.missing} == {"trend.one_token"}
    assert len(found.missing) == 2


def test_patterns_and_names_choose_metrics(tmp_path):
    run = record(tmp_path / "run", list(zip(("rollout_log_prob", "old_log_prob"), a_step())))
    assert {s.name for s in run.trend("rollout_corr/k")} >= {
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
    }
    assert [s.name for s in run.trend(derived="rollout_corr/kl")] == ["rollout_corr/kl"]
    with pytest.raises(UsageError, match="rollout_corr/kl"):
        run.trend(derived="rollout_corr/kl2")
    # A few metrics come first, the others behind key data.
    kinds = [s.kind for s in run.trend()]
    assert kinds[:1] == ["derived"]
    assert kinds.index("key") < len(kinds) - 1
    assert kinds[-1] == "derived"
