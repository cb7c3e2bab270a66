"""Prompts, responses and recordings of any kind: a clear answer, or a clear reason for none."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import shutil

import numpy as np
import openpyxl
import pytest

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.rollouts import recorded, sequences
from mindspore import ops

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.comparison.mismatch.rows import Rows
from mindrlhf_msprobe.comparison.mismatch.sides import read_side
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.demo import task
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.findings.mismatch import Agreement
from mindrlhf_msprobe.trends.rollout_correction import rollout_gap

CASES = {
    "prompts of one token": ([[1], [2], [3]], [[4, 5, 6], [1, 2, 0], [3, 3, 3]], 9),
    "unlike lengths": ([[1], [2, 5, 7], [3, 3, 3, 3]], [[4, 5, 6], [1, 2], []], 14),
    "one sample": ([[5]], [[1, 2, 3, 4]], 4),
    "no responses": ([[1, 2], [2, 3, 4]], [[], []], 5),
    "the same sample four times": ([[1, 2, 3]] * 4, [[4, 5, 6]] * 4, 20),
    "samples of one prompt": ([[1, 2, 3]] * 3, [[4, 5, 6], [4, 5, 7], [9, 9, 9]], 15),
}


@pytest.mark.parametrize(("prompts", "responses", "rows"), CASES.values(), ids=CASES)
def test_any_sequences_are_aligned(tmp_path, prompts, responses, rows):
    """Every row of a token finds its partner, and they agree."""
    one = find_mismatch(sequences(tmp_path / "run", prompts, responses)).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows >= rows
    assert one.rows == one.tokens
    assert not one.origins


def test_a_cache_that_is_filled_again_agrees(tmp_path):
    """After preemption all tokens so far are computed once more: rows of the same tokens."""
    prompts, responses = [[1, 2, 3], [4, 5]], [[4, 5, 6, 7, 8], [9, 9, 9, 8, 8]]
    one = find_mismatch(sequences(tmp_path / "run", prompts, responses, refill_at=3)).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens > 5 + 2 * 4


def test_what_is_wrong_in_decode_is_found_behind_prompts_of_one_token(tmp_path):
    """And only tokens that were generated are named."""
    plant = wrong_rollouts.keys_not_rotated(1)
    prompts, responses = CASES["prompts of one token"][:2]
    one = find_mismatch(sequences(tmp_path / "run", prompts, responses, change=plant)).found[0]
    assert one.first.name == "model.layers.1.attention.apply_rotary_emb output.1"
    assert {token.role for token in one.first.worst} <= {"first", "response"}
    assert {token.position for token in one.first.worst} == {1, 2}


def test_rows_of_the_sequences_behind_padding_alone_are_said_to_be_these(tmp_path):
    """What lets padding in, where nothing that is recorded says so."""
    prompts, responses = [[5, 6, 7], [8], [9, 3]], [[4, 5], [6, 7], [5, 6]]

    def plant(trainer):
        masks = trainer.rollout.model.casual_mask
        right = masks.construct

        def construct(tokens, batch_valid_length):
            cached = masks.past[1] if masks.past else 0
            return right(tokens, ops.full_like(batch_valid_length, cached + tokens.shape[1]))

        masks.construct = construct

    run = sequences(tmp_path / "run", prompts, responses, change=plant)
    one = find_mismatch(run).found[0]
    (rows,) = (said for said in one.said if said.code == "mismatch.rows")
    assert (rows.params["samples"], rows.params["padded"]) == (2, True)
    assert {token.role for token in one.first.worst if token.position == 0} == {"padding"}
    healthy = find_mismatch(sequences(tmp_path / "healthy", prompts, responses)).found[0]
    assert healthy.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    """Return a run of three steps; in the last two a bit of one weight is another one."""

    def plant(trainer):
        right = trainer.synchronise

        def synchronise():
            right()
            if trainer.global_step:
                weight = trainer.rollout.model.layers[1].attention.wo.weight
                values = weight.asnumpy().copy()
                values[3] += 0.1
                weight.set_data(wrong_rollouts.Tensor(values))

        trainer.synchronise = synchronise

    path = tmp_path_factory.mktemp("parted") / "run"
    return recorded(path, 3, plant, steps=3, response_length=2, minibatches=1, batch_size=4)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Return a run of one step in which both agree."""
    return recorded(tmp_path_factory.mktemp("healthy") / "run", 3, response_length=2, batch_size=4)


def test_values_that_were_measured_are_let_go(healthy):
    """Memory holds the rows of one value, not of all; parts of a fused one are copies."""
    run = open_run(healthy)
    walk = Walk(*(read_side(run, phase, 0, 0) for phase in PHASES))
    assert len(walk.stages) > 20
    gc.collect()  # what tests before have left
    assert not [one for one in gc.get_objects() if isinstance(one, Rows)]


def test_the_command_says_it_in_both_languages(parted, capsys):
    """With the exit code, the place, the cause and the weight, and of how many steps."""
    assert main(["mismatch", str(parted)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PARTED at step 1, rank 0")
    assert "model.layers.1.attention.wo output.0" in out
    assert "cause: weights" in out
    assert "from step 1 on" in out
    assert "1 agree, 2 parted" in out
    assert main(["mismatch", str(parted), "--lang", "zh"]) == 1
    assert "model.layers.1.attention.wo output.0" in capsys.readouterr().out


def test_one_step_can_be_asked_for(parted, capsys):
    """A step that is not there is named, with those that are."""
    assert main(["mismatch", str(parted), "--step", "0"]) == 0
    assert main(["mismatch", str(parted), "--step", "2"]) == 1
    assert "PARTED at step 2" in capsys.readouterr().out
    assert main(["mismatch", str(parted), "--step", "7"]) == 2
    assert "0-2" in capsys.readouterr().err
    assert main(["mismatch", str(parted), "--step", "two"]) == 2


def test_json_is_what_the_library_returns(parted, capsys):
    """The same for machines."""
    assert main(["mismatch", str(parted), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content == find_mismatch(parted).to_json()
    assert [step["status"] for step in content["steps"]] == ["within_rounding", "parted", "parted"]
    (weight,) = content["steps"][2]["weights"]["different"]
    assert weight["rollout"] == "model.layers.1.attention.wo.weight"
    assert (weight["since"], weight["stale"]) == (1, None)


def test_the_tables_have_every_value(parted, tmp_path):
    """Each value a row, each weight, each metric, and what was not compared with its reason."""
    assert main(["mismatch", str(parted), "-o", str(tmp_path / "out"), "--lang", "en"]) == 1
    found = find_mismatch(parted)
    book = openpyxl.load_workbook(tmp_path / "out" / "mismatch.xlsx", read_only=True)
    sheets = [[*sheet.iter_rows(values_only=True)] for sheet in book.worksheets]
    assert len(sheets[0]) == 1 + sum(len(one.stages) for one in found.found)
    everything = {str(cell) for sheet in sheets for row in sheet for cell in row}
    assert {"model.layers.1.attention.wo", "model.layers.1.attention.wo.weight"} <= everything
    assert "rollout_corr/kl" in everything
    (sampled,) = (rows for rows in sheets if "place in response" in rows[0])
    held = [t for one in found.found for t in one.sampled]
    assert [row[2:] for row in sampled[1:]] == [
        (t.row, t.place, t.id, pytest.approx(t.rollout), pytest.approx(t.training)) for t in held
    ]
    assert held
    assert json.loads((tmp_path / "out" / "mismatch.json").read_text()) == found.to_json()


def test_the_metrics_are_written_as_key_data(parted, tmp_path, capsys):
    """In a directory of their own, under verl's names; never into the run."""
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(parted, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["mismatch", str(run), "-o", str(run)]) == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    found = {one.step: one.metrics for one in find_mismatch(parted).found}
    for _ in range(2):  # written again, they take the place of those before
        assert main(["mismatch", str(run), "-o", str(out)]) == 1
    held = open_run(out)
    assert not held.problems
    for step, metrics in found.items():
        (saved,) = held.key_data("rollout_corr", step, 0)
        values = {r.path.replace("training.", "training/"): r for r in saved.records}
        assert {n.removeprefix("rollout_corr/") for n in metrics} == {*values}
        for name, value in metrics.items():
            assert float(values[name.removeprefix("rollout_corr/")].array()) == value
    capsys.readouterr()
    assert main(["trend", str(out), "--key", "rollout_corr", "--json"]) == 0
    assert "log_prob_diff_max" in capsys.readouterr().out


def test_the_rollout_of_one_run_and_the_training_of_another(parted, healthy, tmp_path):
    """Two engines record into a directory each. Of one seed they agree, of another they do not."""
    plant = wrong_rollouts.last_norm(0)
    kept = {"response_length": 2, "batch_size": 4}
    other = recorded(tmp_path / "other", 3, plant, **kept)
    one = find_mismatch(healthy, other)
    assert one.runs == (str(healthy), str(other))
    assert one.found[0].first.name == "model.norm_out output.0"
    assert find_mismatch(other, healthy)
    stranger = recorded(tmp_path / "stranger", 4, **kept)
    found = find_mismatch(healthy, stranger).found[0]
    assert found.status is not Agreement.WITHIN_ROUNDING


def test_the_other_way_round_the_phases_agree_as_well(healthy, capsys):
    """Which one is the rollout is what --phases says; of a wrong name the nearest is named."""
    there, back = (find_mismatch(healthy, phases=of).found[0] for of in (PHASES, PHASES[::-1]))
    assert back.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert {stage.name for stage in back.stages} == {stage.name for stage in there.stages}
    phases = "actor_generate_sequences,actor_compute_log_prob"
    assert main(["mismatch", str(healthy), "--phases", phases]) == 0
    assert main(["mismatch", str(healthy), "--phases", "actor_compute_log_prob"]) == 2
    assert main(["mismatch", str(healthy), "--phases", "actor_generate_sequence,x"]) == 2
    assert "actor_generate_sequences" in capsys.readouterr().err


def test_tokens_are_shown_as_text(parted, tmp_path, capsys):
    """With the tokenizer of the network, each with those before it."""
    vocabulary = {"END": 0, **{sign: at + 1 for at, sign in enumerate(task.CHARACTERS)}}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary}}
    tokenizer["model"]["unk_token"] = "END"
    tokenizer["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    pytest.importorskip("tokenizers")
    code = main(["mismatch", str(parted), "--tokenizer", str(path), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert code == 1
    worst = content["steps"][1]["first"]["worst"][0]
    assert worst["text"].replace(" ", "")[-1] == task.CHARACTERS[worst["id"] - 1] or not worst["id"]
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert main(["mismatch", str(parted), "--tokenizer", str(broken)]) == 2
    assert "is not a tokenizer" in capsys.readouterr().err


def test_the_metrics_are_those_of_what_was_saved(parted):
    """Of the log-probabilities up to the responses' ends; trends prove each by exact arithmetic."""
    run = open_run(parted)
    for one in find_mismatch(parted).found:
        rollout, training = (
            np.asarray(run.key_data(name, one.step, 0)[0].value, np.float64)
            for name in ("rollout_log_prob", "old_log_prob")
        )
        counts = np.cumsum((rollout != 0)[:, ::-1], axis=1)[:, ::-1] > 0
        expected = rollout_gap(rollout, training, counts).metrics
        assert "rollout_corr/kl" in one.metrics
        for name, value in one.metrics.items():
            assert value == pytest.approx(expected[name], rel=1e-6, abs=1e-12, nan_ok=True), name


def test_statistics_alone_cannot_decide(tmp_path, capsys):
    """The answer says what to record."""
    run = recorded(tmp_path / "run", task="statistics", response_length=2)
    assert main(["mismatch", str(run)]) == 2
    assert "task: tensor or task: sketch" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"token_range_start": 1, "token_range_end": 2}, "token_range_start: 0"),
        ({"token_range_start": 50, "token_range_end": 60}, "Only its tokens from 50 on"),
        ({"actor_train_dump": False}, "switched off (actor_train_dump"),
    ],
)
def test_a_window_that_covers_nothing_of_it_cannot_decide(tmp_path, capsys, section, said):
    """Without the pass over the prompts nobody knows what stands before a token."""
    run = recorded(tmp_path / "run", response_length=3, section=section)
    assert main(["mismatch", str(run)]) == 2
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_a_window_is_aligned_by_what_was_saved(tmp_path, capsys):
    """Prompts and responses as token ids say what stands before its tokens; faults are found."""
    prompts, responses = [[1, 2, 3], [4, 5]], [[4, 5, 6, 7, 8], [9, 9, 3, 8, 8]]
    ids = [[np.array(row) for row in rows] for rows in (prompts, responses)]

    def saving(trainer):
        trainer.probe.save_data(dict(zip(("prompts", "responses"), ids)))

    def wrong(trainer):
        saving(trainer)
        wrong_rollouts.keys_not_rotated(1)(trainer)

    section = {"token_range_start": 2, "token_range_end": 3, "key_data_dump": True}
    run = sequences(tmp_path / "right", prompts, responses, change=saving, **section)
    assert main(["mismatch", str(run)]) == 0
    assert "4 of 4 rows" in capsys.readouterr().out
    one = find_mismatch(
        sequences(tmp_path / "wrong", prompts, responses, change=wrong, **section)
    ).found[0]
    assert one.first.name.startswith("model.layers.1.attention")
    assert {token.position for token in one.first.worst} <= {3, 4, 5}


def test_a_window_of_the_first_tokens_is_aligned(tmp_path):
    """Prompts and the first token that was generated."""
    run = recorded(tmp_path / "run", response_length=4, section={"token_range_end": 1})
    one = find_mismatch(run).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens == 8 * 5


def test_phases_of_different_steps_cannot_be_held_against_each_other(parted, healthy, tmp_path):
    """Which steps have which phase is said."""
    late = recorded(tmp_path / "run", 3, section={"initial_step": 5}, response_length=2)
    with pytest.raises(MsprobeError, match=r"steps 0, .* steps 5"):
        find_mismatch(healthy, late)


def test_other_token_ids_cannot_be_aligned(healthy, tmp_path):
    """Another tokenizer: what both begin with is shown, and what may be the reason."""

    def plant(trainer):
        right = trainer.compute_log_prob

        def compute_log_prob(network, tokens):
            return right(network, tokens * 0 + 12)

        trainer.compute_log_prob = compute_log_prob

    run = recorded(tmp_path / "run", 3, plant, response_length=2)
    one = find_mismatch(run).found[0]
    assert one.status is Agreement.UNDECIDED
    assert [said.code for said in one.said] == ["mismatch.no_common_tokens"]
    assert "other prompts, another tokenizer, or ids shifted by padding" in str(one.said[0])


def test_what_cannot_be_read_is_not_compared(healthy, tmp_path):
    """One damaged file costs its value, and is named with the reason; the rest is compared."""
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    damaged = [*run.rglob("*actor_compute_log_prob*/**/*attention.wo*output*.npy")]
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-9])
    one = find_mismatch(run).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert "model.layers.0.attention.wo output.0" in dict(one.not_compared)
    for path in run.rglob("*actor_compute_log_prob*/**/*.npy"):
        path.unlink()
    assert main(["mismatch", str(run)]) == 2


def test_a_run_that_was_cut_off_is_compared_as_far_as_it_goes(healthy, tmp_path):
    """Half of a journal is half of the values; no traceback wherever it ends."""
    journals = [*healthy.rglob("records.jsonl")]
    assert len(journals) == 2
    for number, journal in enumerate(journals):
        for share in (0.0, 0.3, 0.7, 0.999):
            run = tmp_path / f"{number}_{share}"
            shutil.copytree(healthy, run)
            path = run / journal.relative_to(healthy)
            content = path.read_bytes()
            path.write_bytes(content[: int(len(content) * share)])
            (path.parent / "dump.json").unlink(missing_ok=True)
            try:
                one = find_mismatch(run).found[0]
            except MsprobeError:
                continue
            assert one.status in (Agreement.WITHIN_ROUNDING, Agreement.UNDECIDED)


def test_hostile_journals_never_raise_anything_else(healthy, tmp_path):
    """Bytes changed at random: an answer, or one of our errors."""
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    journals = [*run.rglob("records.jsonl")]
    contents = [path.read_bytes() for path in journals]
    for _ in range(12):
        for path, content in zip(journals, contents):
            changed = bytearray(content)
            for _ in range(random.choice([1, 5, 50])):
                changed[random.randrange(len(changed))] = random.choice(b'0159"{}[],:-e.n\\x')
            path.write_bytes(bytes(changed))
        with contextlib.suppress(MsprobeError):
            find_mismatch(run).to_json()


def test_names_cannot_move_the_cursor(parted, tmp_path, capsys):
    """Nor hide lines: what a journal calls a cell is shown as it is."""
    run = tmp_path / "run"
    shutil.copytree(parted, run)
    for path in run.rglob("records.jsonl"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("attention.wo.", "attention.\\u001b[2Jwo\\u202e."))
    code = main(["mismatch", str(run), "-o", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert "\x1b" not in captured.out + captured.err
    assert "\u202e" not in captured.out + captured.err


def test_msprobes_own_dumps_cannot_decide(tmp_path, capsys):
    """They have statistics, no token ids."""

    directory = tmp_path / "dump" / "step0" / "rank0"
    directory.mkdir(parents=True)
    content = {"task": "statistics", "level": "L0", "framework": "mindspore", "dump_data_dir": None}
    (directory / "dump.json").write_text(json.dumps({**content, "data": {}}))
    assert main(["mismatch", str(tmp_path / "dump")]) == 2
    assert capsys.readouterr().err


def test_a_mapping_renames_cells_of_the_rollout(healthy, tmp_path, capsys):
    """One that is wrong costs what it renames, and nothing is named wrongly."""
    path = tmp_path / "names.yaml"
    path.write_text("lm_head: lm_head\n")
    assert main(["mismatch", str(healthy), "--mapping", str(path)]) == 0
    path.write_text("lm_head: nowhere\n")
    assert main(["mismatch", str(healthy), "--mapping", str(path)]) in (0, 2)
    path.write_text("- not a mapping\n")
    assert main(["mismatch", str(healthy), "--mapping", str(path)]) == 2
    assert main(["mismatch", str(tmp_path / "none")]) == 2
    assert main(["mismatch", "a", "b", "c"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_calls_of_no_tokens_are_not_compared(tmp_path):
    """A journal may say that a call was given none; the others are compared."""
    run = recorded(tmp_path / "run", 3, task="sketch", response_length=2, batch_size=4)
    (path,) = run.glob("actor_generate_sequences/**/records.jsonl")
    text = path.read_text(encoding="utf-8")
    assert "[4, 1, 32]" in text
    path.write_text(text.replace("[4, 1", "[4, 0"), encoding="utf-8")
    for ids in path.parent.rglob("*RolloutNetwork*1*input.0.npy"):
        np.save(ids, np.zeros((4, 0), np.int32))
    one = find_mismatch(run).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == 4 * 4


@pytest.mark.parametrize("end", [[1, 1, 1], [2, 9, 9]], ids=["three ids", "two ids"])
def test_ids_repeated_at_the_end_of_a_prompt_are_tokens_where_the_network_was_given_them(
    tmp_path, end
):
    """Nothing says with what prompts are padded, and these look as if with what one ends with."""
    prompts = [[4, *end], [5, 6, 7, 8], [8, 3, 7, 5]]
    responses = [[10, 11, 12], [3, 10, 4], [6, 2, 11]]

    def save(trainer):
        trainer.probe.save_data(prompts=np.array(prompts), responses=np.array(responses))

    run = sequences(tmp_path / "run", prompts, responses, change=save, key_data_dump=True)
    one = find_mismatch(run).found[0]
    assert one.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert one.rows == one.tokens == 3 * (4 + 2)
    assert not any("continue differently" in str(note) for note in one.notes)
