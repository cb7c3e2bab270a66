"""Batches of any layout: healthy ones are silent, wrong rows are named, the unknown is said."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import HealthRun
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run, open_run
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.trends.reading import Choice, read_trends

PAD, EOS = 0, 1
TOKENS = {"tokenizer": {"pad_token_id": PAD, "eos_token_id": EOS}}


def run_of(root, configs=TOKENS, **data):
    """Save key data of one step; a list is saved element by element."""
    run = HealthRun(root)
    if configs is not None:
        run.recording.writer.save_configurations(lambda: configs)
    for name, value in data.items():
        for one in value if isinstance(value, tuple) else (value,):
            run.data(name, one)
    run.end_step()
    return run.close()


def alarms(root):
    """Return the rules of a run's errors and warnings, with the rows they name."""
    return [
        (one.rule, one.said.params.get("row"))
        for one in check_run(root).all_findings
        if one.severity is not Severity.NOTE
    ]


def remarks(root):
    """Return the codes of a run's notes."""
    return [f.said.code for f in check_run(root).all_findings if f.severity is Severity.NOTE]


def unchecked(root):
    """Return the rules that were not checked, or not everywhere, each with the code of why."""
    return {(one.rule, one.why.code) for one in check_run(root).not_checked}


def ids(rows, dtype=np.int32):
    return np.array(rows, dtype)


TURNS = ids([[10, 14, 20, 21, 12, 1], [10, 15, 14, 3, 2, 1]])
HOLES = ids([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_, np.uint8])
def test_turns_are_not_trained(tmp_path, dtype):
    """A mask has holes where a tool or the user speaks."""
    root = run_of(tmp_path / "run", responses=TURNS, response_mask=HOLES.astype(dtype))
    assert alarms(root) == []
    assert "rl.mask" in check_run(root).checked


def test_turns_that_end_in_eos(tmp_path):
    """Each turn has an end of its own; the next one is asked in between."""
    responses = ids([[10, 1, 20, 21, 12, 1, 0], [10, 15, 1, 0, 0, 0, 0]])
    mask = ids([[1, 1, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]])
    assert alarms(run_of(tmp_path / "run", responses=responses, response_mask=mask)) == []
    wrong = mask.copy()
    wrong[0, 2:4] = 1  # what was asked is trained: as if the end had been passed over
    root = run_of(tmp_path / "wrong", responses=responses, response_mask=wrong)
    assert alarms(root) == [("rl.pad_inside", None)] or remarks(root) == ["check_rl.pad_inside"]


@pytest.mark.parametrize("of_next", [False, True])
@pytest.mark.parametrize("shorter", [False, True])
def test_turns_that_a_loss_is_given(tmp_path, of_next, shorter):
    """With masks of prompts and responses, of this token or the next."""
    responses = ids([[10, 1, 20, 21, 12, 1], [10, 15, 14, 3, 2, 1]])
    prompts = ids([[5, 6, 7], [8, 9, 7]])
    whole = np.concatenate([prompts, responses], axis=1)
    mask = np.concatenate([np.zeros_like(prompts), HOLES], axis=1)
    if of_next or shorter:
        mask = np.concatenate([mask[:, 1:], np.zeros((2, 1), np.int32)], axis=1)
    if shorter:
        mask = mask[:, :-1]
    inputs = {"input_ids": whole, "responses_mask": mask}
    root = run_of(tmp_path / "run", responses=responses, prompts=prompts, loss_inputs=inputs)
    assert alarms(root) == []
    assert {"rl.mask", "rl.pad_inside"} <= {*check_run(root).checked}
    mask[1] = np.roll(mask[1], -2)
    root = run_of(tmp_path / "wrong", responses=responses, prompts=prompts, loss_inputs=inputs)
    assert alarms(root) == [("rl.mask", 1)]


def test_a_pad_that_was_sampled_is_one_remark(tmp_path):
    """MindRLHF's mask is `ids != pad`."""
    responses = ids([[417, 0, 147, 186], [12, 13, 1, 0]])
    root = run_of(tmp_path / "run", responses=responses, response_mask=ids(responses != 0))
    assert alarms(root) == []
    assert remarks(root).count("check_rl.pad_sampled") == 1
    assert not {"check_rl.pad_inside", "check_rl.mask_wrong"} & {*remarks(root)}


def test_a_mask_of_ones_over_padding_names_the_row(tmp_path):
    responses = ids([[10, 14, 12, 1], [10, 1, 0, 0], [9, 3, 1, 0]])
    mask = ids([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]])
    assert alarms(run_of(tmp_path / "one", responses=responses, response_mask=mask)) == [
        ("rl.mask", 1)
    ]
    ones = np.ones_like(mask)
    root = run_of(tmp_path / "all", responses=responses, response_mask=ones)
    assert alarms(root) == [("rl.mask", 1)]
    full = ids([[10, 14, 12, 1], [10, 11, 12, 13]])
    root = run_of(tmp_path / "full", responses=full, response_mask=np.ones_like(full))
    assert alarms(root) == []


@pytest.mark.parametrize("configs", [TOKENS, None])
def test_eos_and_pad_may_be_one_id(tmp_path, configs):
    configs = configs and {"generation": {"pad_token_id": 2, "eos_token_id": [2]}}
    responses = ids([[5, 6, 2, 2, 2], [7, 8, 9, 5, 2], [4, 2, 2, 2, 2]])
    for ends in (0, 1):  # with or without the token that ends a response
        mask = ids([[1, 1, ends, 0, 0], [1, 1, 1, 1, ends], [1, ends, 0, 0, 0]])
        root = run_of(tmp_path / f"run{ends}", configs, responses=responses, response_mask=mask)
        assert alarms(root) == []
    ones = np.ones_like(mask)
    root = run_of(tmp_path / "wrong", configs, responses=responses, response_mask=ones)
    if configs is None:
        assert alarms(root) == []
        assert ("rl.mask", "check_rl.no_pad") in unchecked(root)
    else:
        assert alarms(root) == [("rl.mask", 0)]


@pytest.mark.parametrize("name", ["nothing", "pad", "pad_id", "decoder", "key", "lengths"])
def test_padding_that_nobody_configured(tmp_path, name):
    """It is inferred from the mask, from usual names, or from lengths; else that is said."""
    responses = ids([[10, 14, 12, 13], [10, 11, 0, 0], [9, 3, 8, 0]])
    configs = {
        "pad": {"pad": 0},
        "pad_id": {"model": {"pad_id": 0}},
        "decoder": {
            "tokenizer": {
                "pad_token": "<pad>",
                "added_tokens_decoder": {"0": {"content": "<pad>"}, "1": {"content": "<eos>"}},
            }
        },
    }.get(name)
    more = {"key": {"pad_token_id": 0}, "lengths": {"response_lengths": ids([4, 2, 3])}}
    data = {"responses": responses, **more.get(name, {})}
    root = run_of(tmp_path / "run", configs, **data, response_mask=ids(responses != 0))
    assert alarms(root) == []
    assert "rl.mask" in check_run(root).checked
    ones = np.ones_like(responses)
    root = run_of(tmp_path / "ones", configs, **data, response_mask=ones)
    if name == "nothing":
        assert alarms(root) == []
        assert ("rl.mask", "check_rl.no_pad") in unchecked(root)
    else:
        assert alarms(root) == [("rl.mask", 1)]


def test_padding_by_attention_masks(tmp_path):
    """What they hide in prompts and responses is one id."""
    responses, prompts = ids([[10, 14, 12], [10, 9, 9]]), ids([[9, 5], [6, 7]])
    seen = ids([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    data = {"prompts": prompts, "responses": responses, "attention_mask": seen}
    root = run_of(tmp_path / "run", None, **data, response_mask=seen[:, 2:])
    assert alarms(root) == []
    root = run_of(tmp_path / "ones", None, **data, response_mask=np.ones_like(responses))
    assert alarms(root) == [("rl.mask", 1)]


def test_lists_of_other_lengths_masks_of_other_shapes_and_empty_answers(tmp_path):
    ragged = [np.array([5, 6, 1]), np.array([7]), np.array([], np.int64)]
    mask = [np.ones(3), np.ones(1), np.ones(0)]
    assert alarms(run_of(tmp_path / "ragged", responses=ragged, response_mask=mask)) == []
    one = run_of(tmp_path / "one", responses=ids([5, 6, 1, 0]), response_mask=ids([1, 1, 1, 0]))
    assert alarms(one) == []
    assert "rl.mask" in check_run(one).checked
    rows = ids([[5, 6, 1, 0], [0, 0, 0, 0]])
    for wrong in (np.ones((2, 3)), np.ones(4), np.ones((3, 4)), np.full((2, 4), np.nan)[:, :0]):
        root = run_of(tmp_path / f"odd{wrong.shape}", responses=rows, response_mask=wrong)
        assert alarms(root) == []
    lengths = run_of(tmp_path / "long", None, responses=rows, response_lengths=ids([9, 9]))
    assert alarms(lengths) == []


def test_masked_places_count_nowhere(tmp_path):
    """Behind the ends one side has zeros, and the other what its network made of padding."""
    random = np.random.default_rng(3)
    responses = ids([[10, 14, 12, 1], [10, 1, 0, 0], [9, 3, 1, 0]])
    mask = ids(responses != 0)
    old = -random.uniform(0.5, 2, mask.shape).astype(np.float32)
    saves = {"responses": responses, "old_log_prob": old, "ref_log_prob": old * mask}
    for name, more in {
        "mask": {"response_mask": mask},
        "pad": {},
        "float": {"response_mask": mask.astype(np.float32)},
    }.items():
        root = run_of(tmp_path / name, **saves, **more, log_prob=np.where(mask, old, 7))
        assert alarms(root) == []
        assert {"rl.reference", "rl.ratio"} <= {*check_run(root).checked}
    no_ids = {name: saves[name] for name in ("old_log_prob", "ref_log_prob")}
    assert alarms(run_of(tmp_path / "zeros", None, **no_ids)) == []
    apart = {**saves, "ref_log_prob": (old - np.float32(0.3)) * mask, "response_mask": mask}
    assert alarms(run_of(tmp_path / "apart", **apart)) == [("rl.reference", None)]
    ratio = np.where(mask, 1, 5).astype(np.float32)
    assert alarms(run_of(tmp_path / "ratio", **saves, response_mask=mask, ratio=ratio)) == []


def test_retokenized_answers_are_paired_by_token(tmp_path):
    """Log-probabilities of different tokens are not subtracted, and nothing else is blamed."""
    random = np.random.default_rng(5)
    sampled = random.integers(3, 90, (4, 8)).astype(np.int32)
    trained = sampled.copy()
    trained[1, 5:] = random.integers(100, 200, 3)
    trained[2, 0] = 200
    rollout = -random.uniform(0.1, 3, sampled.shape).astype(np.float32)
    old = np.where(trained == sampled, rollout, rollout - 2).astype(np.float32)
    old[1, 5:] -= 2
    old[2] -= 1  # other tokens before them
    data = {"rollout_tokens": sampled, "responses": trained, "rollout_log_prob": rollout}
    root = run_of(tmp_path / "run", **data, old_log_prob=old)
    assert alarms(root) == []
    assert "check_rl.other_tokens" in remarks(root)
    (gap,) = open_run(root).trend(derived="rollout_corr/log_prob_diff_max")
    assert gap.values.tolist() == [0.0]
    assert "trend.other_tokens" in {note.code for note in gap.notes}
    root = run_of(tmp_path / "apart", **data, old_log_prob=old - np.float32(0.5))
    assert alarms(root) == [("rl.rollout_gap", None)]
    narrow = trained[:, :7]
    root = run_of(tmp_path / "narrow", **{**data, "responses": narrow}, old_log_prob=old[:, :7])
    assert alarms(root) == []
    assert "rl.rollout_gap" in check_run(root).checked


@pytest.mark.parametrize("with_loss", [False, True])
def test_every_update_of_a_step_counts(tmp_path, with_loss):
    """Ratio, clip fraction and KL of each, under the mask, from ratios or log-probabilities."""
    random = np.random.default_rng(8)
    mask = ids([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    old = -random.uniform(0.5, 2, mask.shape).astype(np.float32)
    order = [2, 0, 3, 1]
    moves = [0.0, 0.3, -0.4, 0.1]
    updates = [old[order[n % 2 * 2 :][:2]] + np.float32(by) for n, by in enumerate(moves)]
    masks = [mask[order[n % 2 * 2 :][:2]] for n in range(4)]
    ratios = [
        np.where(m, np.exp(new - (new - np.float32(by))), 1).astype(np.float32)
        for new, m, by in zip(updates, masks, moves)
    ]
    data = {"old_log_prob": old, "response_mask": mask, "ratio": tuple(ratios)}
    if with_loss:
        data["loss_inputs"] = tuple(
            {"responses_mask": m, "old_log_prob": new - np.float32(by)}
            for m, new, by in zip(masks, updates, moves)
        )
        data["log_prob"] = tuple(updates)
        del data["ratio"]
    run = open_run(run_of(tmp_path / "run", None, **data))
    for name, formula in {
        "ratio": lambda r: r.mean(),
        "clip_fraction": lambda r: np.mean(np.abs(r - 1) > 0.2),
        "approx_kl": lambda r: np.mean(r - 1 - np.log(r)),
    }.items():
        if not with_loss:  # nobody says which rows of the mask these are
            (missing,) = read_trends(run, Choice(derived=(name,))).missing
            assert missing.why.code == "trend.mask_of_other_rows"
            continue
        (series,) = run.trend(derived=name)
        expected = [formula(r[m != 0].astype(float)) for r, m in zip(ratios, masks)]
        assert series.values == pytest.approx(expected, abs=1e-6)
        assert "trend.without_mask" not in {note.code for note in series.notes}


@pytest.mark.parametrize("is_saved", ["log_prob", "ratio"])
def test_updates_of_the_whole_batch_keep_its_mask(tmp_path, is_saved):
    """Several epochs over one batch: its mask, old and reference log-probabilities stand once."""
    random = np.random.default_rng(4)
    mask = ids([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    old, ref = (-random.uniform(0.5, 2, mask.shape).astype(np.float32) for _ in range(2))
    updates = [
        (old + 0.2 * n * random.normal(0, 1, old.shape)).astype(np.float32) for n in range(3)
    ]
    data = {"old_log_prob": old, "ref_log_prob": ref, "response_mask": mask}
    ratios = [np.exp(new.astype(float) - old) for new in updates]
    data[is_saved] = tuple(
        updates if is_saved == "log_prob" else [one.astype(np.float32) for one in ratios]
    )
    run = open_run(run_of(tmp_path / "run", **data))
    (series,) = run.trend(derived="ratio")
    assert series.values == pytest.approx([one[mask != 0].mean() for one in ratios], rel=1e-5)
    if is_saved == "log_prob":
        (series,) = run.trend(derived="kl_k1")
        kl = [(new.astype(float) - ref)[mask != 0].mean() for new in updates]
        assert series.values == pytest.approx(kl, rel=1e-5)


@st.composite
def batches(draw):
    """Draw responses, their ends, and a mask that fits them; an id of padding may be sampled."""
    width, count = draw(st.integers(2, 12)), draw(st.integers(1, 6))
    eos = draw(st.sampled_from([None, 1, PAD]))
    sizes = draw(st.lists(st.integers(1, width), min_size=count, max_size=count))
    turns = draw(st.booleans())
    rows, mask = np.full((count, width), PAD), np.zeros((count, width), int)
    for row, size in enumerate(sizes):
        rows[row, :size] = draw(st.lists(st.integers(3, 50), min_size=size, max_size=size))
        mask[row, :size] = 1
        ends = size < width or draw(st.booleans())
        if eos is not None and ends:
            rows[row, size - 1] = eos
        if turns and size > 3:
            mask[row, 1 : draw(st.integers(2, size - 2))] = 0
    return rows, mask, sizes, eos


@settings(max_examples=60, deadline=None)
@given(batch=batches(), dtype=st.sampled_from([np.int32, np.int64, np.float32, np.bool_]))
def test_generated_batches_are_silent_and_padding_in_a_mask_is_named(
    tmp_path_factory, batch, dtype
):
    """Against the oracle that made them."""
    rows, mask, sizes, eos = batch
    configs = {"pad_token_id": PAD} | ({} if eos is None else {"eos_token_id": eos})
    root = tmp_path_factory.mktemp("batch")
    healthy = run_of(root / "a", configs, responses=ids(rows), response_mask=mask.astype(dtype))
    about_masks = ("rl.mask", "rl.pad_inside")
    assert not [one for one in alarms(healthy) if one[0] in about_masks]
    # One id of padding behind the end of a response may have been sampled, unless its end is known.
    least = rows.shape[1] - (1 if eos == 1 else 2)
    padded = [row for row, size in enumerate(sizes) if size <= least]
    if padded:
        wrong = mask.copy()
        wrong[padded[-1]] = 1
        root = run_of(root / "b", configs, responses=ids(rows), response_mask=wrong.astype(dtype))
        assert ("rl.mask", padded[-1]) in alarms(root)


WIDTH, ENDS = 7, (7, 4, 6, 3)


def ragged(seed=4, pad=PAD, eos=EOS):
    """Return prompts, responses that end with eos, and which of their tokens are real."""
    random = np.random.default_rng(seed)
    real = np.arange(WIDTH) < np.array(ENDS)[:, None]
    rows = np.where(real, random.integers(20, 90, real.shape), pad)
    rows[np.arange(len(ENDS)), np.array(ENDS) - 1] = eos
    return ids(random.integers(20, 90, (len(ENDS), 3))), ids(rows), real


def given_to_loss(layout, prompts, responses, mask, old=None):
    """Return what a loss is given: a mask of the responses, and what says which rows it is of."""
    whole = np.concatenate([prompts, responses], axis=1)
    wide = np.concatenate([np.zeros_like(prompts), mask], axis=1)
    if layout == "packed":
        kept = [np.concatenate([p, r[:n]]) for p, r, n in zip(prompts, responses, ENDS)]
        masks = [np.concatenate([0 * p, m[:n]]) for p, m, n in zip(prompts, mask, ENDS)]
        return {"input_ids": np.concatenate(kept)[None], "loss_mask": np.concatenate(masks)[None]}
    return {
        "narrow": {"responses": responses, "response_mask": ids(mask)},
        "wide": {"input_ids": whole, "responses_mask": ids(wide)},
        "next": {"input_ids": whole, "loss_mask": ids(wide[:, 1:])},
        "shifted": {"input_ids": whole[::-1], "loss_mask": np.roll(ids(wide), -1, axis=1)[::-1]},
        "values": {"old_log_prob": old, "response_mask": ids(mask)},
    }[layout]


LAYOUTS = ["narrow", "wide", "next", "shifted", "packed", "values"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_mask_that_a_loss_is_given_is_of_all_keys_of_its_rows(tmp_path, layout, parts, dtype):
    """What tools wrote has no log-probability of the rollout, and counts nowhere."""
    prompts, responses, real = ragged()
    if layout == "packed" and parts > 1:
        pytest.skip("one row")
    mask = real.copy()
    mask[[0, 2], 2:4] = False
    random = np.random.default_rng(1)
    log_prob = -random.uniform(0.1, 2, mask.shape).astype(dtype)
    tools = -random.uniform(2, 6, mask.shape).astype(dtype)
    old = np.where(real, np.where(mask, log_prob, tools), 0)
    given = given_to_loss(layout, prompts, responses, mask, old)
    losses = tuple({k: np.array_split(v, parts)[n] for k, v in given.items()} for n in range(parts))
    root = run_of(
        tmp_path / "run",
        prompts=prompts,
        responses=responses,
        rollout_log_prob=np.where(mask, log_prob, 0),
        old_log_prob=old,
        ref_log_prob=np.where(mask, log_prob, tools - 1),
        loss_inputs=losses,
    )
    assert alarms(root) == []
    assert {"rl.rollout_gap", "rl.reference"} <= {*check_run(root).checked}
    (gap,) = open_run(root).trend(derived="rollout_corr/log_prob_diff_max")
    assert gap.values.tolist() == [0.0]


@pytest.mark.parametrize("layout", ["narrow", "wide", "next", "shifted"])
@pytest.mark.parametrize("pad", [0, 9, 151643])
def test_padding_that_the_mask_of_a_loss_leaves_out(tmp_path, layout, pad):
    """It is inferred as from a mask saved beside the responses; a row of ones is named."""
    prompts, responses, real = ragged(pad=pad)
    random = np.random.default_rng(2)
    old = -random.uniform(0.1, 2, real.shape).astype(np.float32)
    more = {
        "rollout_log_prob": np.where(real, old, np.float32(-1)),
        "old_log_prob": np.where(real, old, np.float32(-5)),
        "ref_log_prob": np.where(real, old, np.float32(-3)),
    }
    saves = {"prompts": prompts, "responses": responses}
    given = given_to_loss(layout, prompts, responses, real)
    assert alarms(run_of(tmp_path / "run", None, **saves, **more, loss_inputs=given)) == []
    wrong = real.copy()
    wrong[1] = True
    given = given_to_loss(layout, prompts, responses, wrong)
    root = run_of(tmp_path / "wrong", None, **saves, loss_inputs=given)
    row = len(ENDS) - 1 - 1 if layout == "shifted" else 1
    assert alarms(root) == [("rl.mask", row)]


@pytest.mark.parametrize("layout", ["key", "narrow", "wide", "next", "packed"])
@pytest.mark.parametrize("configs", [{"pad_token_id": 9}, {"pad_token_id": 9, "eos_token_id": 9}])
def test_masks_say_that_the_first_padding_ends_a_response(tmp_path, layout, configs):
    """Where it is that is not configured; an answer may be that token alone."""
    prompts, responses, real = ragged(pad=9, eos=9)
    if "eos_token_id" in configs:
        responses[3], real[3] = 9, np.arange(WIDTH) < 1
    given = (
        {"loss_inputs": given_to_loss(layout, prompts, responses, real)} if layout != "key" else {}
    )
    own = {} if given else {"response_mask": real}
    saves = {"prompts": prompts, "responses": responses, **own, **given}
    assert alarms(run_of(tmp_path / "run", configs, **saves)) == []


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("source", ["mask", "pad", "zeros", "loss"])
@pytest.mark.parametrize("size", [2, 4])
def test_micro_batches_are_held_against_their_rows(tmp_path, shuffled, source, size):
    """The batch is saved once; behind the ends each network has what it made of padding."""
    prompts, responses, real = ragged()
    random = np.random.default_rng(3)
    log_prob = -random.uniform(0.1, 3, real.shape)
    old = np.where(real, log_prob, 0).astype(np.float32)
    order = random.permutation(len(ENDS)) if shuffled else np.arange(len(ENDS))
    parts = np.split(order, len(ENDS) // size)
    filled = [np.where(real[p], log_prob[p], -random.uniform(2, 6, (size, WIDTH))) for p in parts]
    saves = {"old_log_prob": old, "ref_log_prob": old}
    if source != "zeros":
        saves |= {"prompts": prompts, "responses": responses}
    if source == "mask":
        saves["response_mask"] = real
    if source == "loss":
        saves["loss_inputs"] = given_to_loss("wide", prompts, responses, real)
    configs = TOKENS if source == "pad" else None
    new = tuple(one.astype(np.float32) for one in filled)
    root = run_of(tmp_path / "run", configs, **saves, log_prob=new)
    assert alarms(root) == []
    assert "rl.ratio" in check_run(root).checked
    (series,) = open_run(root).trend(derived="ratio")
    assert series.values == pytest.approx([1] * len(parts))
    ratios = tuple(np.where(real[part], 1, 0.05).astype(np.float32) for part in parts)
    root = run_of(tmp_path / "ratio", configs, **saves, log_prob=new, ratio=ratios)
    assert alarms(root) == []
    apart = tuple(one + np.float32(0.3) for one in ratios)
    root = run_of(tmp_path / "apart", configs, **saves, log_prob=new, ratio=apart)
    assert alarms(root) == [("rl.ratio", None)]


def test_ratios_of_unknown_rows(tmp_path):
    """As many of them as may be padding decide nothing, and give no number."""
    _, responses, real = ragged()
    ratios = tuple(np.where(real[p], 1, 9).astype(np.float32) for p in ([3, 1], [0, 2]))
    saves = {
        "responses": responses,
        "response_mask": real,
        "old_log_prob": -real.astype(np.float32),
    }
    root = run_of(tmp_path / "run", **saves, ratio=ratios)
    assert alarms(root) == []
    (missing,) = read_trends(open_run(root), Choice(derived=("ratio",))).missing
    assert missing.why.code == "trend.mask_of_other_rows"
    root = run_of(tmp_path / "apart", **saves, ratio=tuple(one * np.float32(1.2) for one in ratios))
    assert alarms(root) == [("rl.ratio", None)]


def test_a_filtered_sample_is_no_error(tmp_path):
    """Alone in its batch, or in its part of one."""
    one = {"responses": ids([[0, 0, 0, 0]]), "response_mask": ids([[0, 0, 0, 0]])}
    assert alarms(run_of(tmp_path / "one", **one)) == []
    rows, mask = ids([[5, 6, 1, 0], [7, 1, 0, 0]]), ids([[1, 1, 1, 0], [0, 0, 0, 0]])
    losses = tuple({"responses": r[None], "response_mask": m[None]} for r, m in zip(rows, mask))
    assert alarms(run_of(tmp_path / "parts", responses=rows, loss_inputs=losses)) == []
    nothing = run_of(tmp_path / "all", responses=rows, response_mask=mask * 0)
    assert alarms(nothing) == [("rl.mask", None)]
