"""What is a token and what is padding: by what was saved, else by what the network was given.

And token ids that are held against the prompts and responses that were saved.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, saved_sample, values

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.sequences.calls import read_tokens
from mindrlhf_msprobe.sequences.matching import coverage, match
from mindrlhf_msprobe.sequences.saved import saved_samples, unlike_saved

PROMPTS = [[5, 6], [7, 8, 9, 4], [3]]
RESPONSES = [[11, 12, 13], [12, 11, 10], [2, 1, 6]]
SAMPLES = [saved_sample(p, r) for p, r in zip(PROMPTS, RESPONSES)]


class Save:
    """A save of key data."""

    def __init__(self, value):
        self.key, self.value = "", value


def rollout(directory, *, mask=None, positions=None, responses=RESPONSES):
    """Record a prefill that is padded on the left, and the decode of all but the last token.

    Args:
        mask: makes the mask of where there are tokens; positions likewise. None: none is given.
    """
    directory.mkdir()
    phase = CausalPhase(directory)
    rows = np.array([[PAD] * (4 - len(p)) + p for p in PROMPTS])
    there = (rows != PAD).astype(np.int32)
    for at in range(3):
        ids = rows if not at else np.array([[r[at - 1]] for r in responses])
        if at:
            there = np.concatenate([there, np.ones((3, 1), np.int32)], axis=1)
        count = np.maximum(np.cumsum(there, axis=1) - 1, 0)[:, -ids.shape[1] :]
        given = {
            "attention_mask": mask and mask(there),
            "position_ids": positions and positions(count),
        }
        out = [values(row)[-ids.shape[1] :] for row in _so_far(at, responses)]
        phase.call(ids, np.array(out), **given)
    return phase


def _so_far(at, responses):
    return [[PAD] * (4 - len(p)) + p + r[:at] for p, r in zip(PROMPTS, responses)]


def training(directory, responses=RESPONSES):
    directory.mkdir()
    phase = CausalPhase(directory)
    rows = np.array([p + r + [PAD] * (4 - len(p)) for p, r in zip(PROMPTS, responses)])
    phase.call(rows, np.array([values(row) for row in rows.tolist()]))
    return phase


def counts(mine, other, samples, pad=PAD):
    """Return how much was aligned, and the rollout's tokens."""
    a, b = (read_tokens(p.entries, pad=pad, samples=samples) for p in (mine, other))
    return coverage(a, b, match(a, b), samples), a


ALL = len([*PROMPTS[0], *PROMPTS[1], *PROMPTS[2]]) + 2 * 3


@pytest.mark.parametrize("pad", [PAD, None], ids=["padding is known", "it is not"])
@pytest.mark.parametrize(
    "mask",
    [None, np.ones_like, lambda there: np.repeat(there[:, None], there.shape[1], axis=1)],
    ids=["no mask", "a mask that lets padding in", "a mask of three dimensions"],
)
def test_what_was_saved_says_what_is_padding(tmp_path, mask, pad):
    """Whatever the network's mask lets in: that is what is to be found."""
    mine = rollout(tmp_path / "a", mask=mask, positions=np.copy)
    found, tokens = counts(mine, training(tmp_path / "b"), SAMPLES, pad)
    assert [sequence.tolist() for sequence in tokens.sequences] == [
        p + r[:2] for p, r in zip(PROMPTS, RESPONSES)
    ]
    assert tokens.begun == tuple(map(len, PROMPTS))
    assert (found.rows, found.tokens, found.saved_aligned, found.saved) == (ALL,) * 4
    assert bool(tokens.notes) is (mask is np.ones_like)


def test_a_mask_that_lets_padding_in_is_said(tmp_path):
    """In two of three rows there is padding before the prompt."""
    mine = rollout(tmp_path / "a", mask=np.ones_like, positions=np.copy)
    (note,) = read_tokens(mine.entries, samples=SAMPLES).notes
    assert "in 2 of 3 rows its mask lets in padding" in str(note)


def test_a_mask_that_hides_a_token_hides_no_row(tmp_path):
    """Its row is a token's all the same."""

    def hiding(there):
        hidden = there.copy()
        hidden[1, 0] = 0
        return hidden

    mine = rollout(tmp_path / "a", mask=hiding, positions=np.copy)
    assert counts(mine, training(tmp_path / "b"), SAMPLES)[0].rows == ALL


@pytest.mark.parametrize("pad", [PAD, None])
def test_positions_alone_say_which_side_is_padded(tmp_path, pad):
    """Padding has one position throughout; a sample of one token is padded as the others are."""
    mine = rollout(tmp_path / "a", positions=np.copy)
    assert counts(mine, training(tmp_path / "b"), (), pad)[0].rows == ALL


def test_padding_that_nothing_tells_is_counted(tmp_path):
    """Rows of which nobody knows what stands before them are not aligned, and that is said."""
    mine = rollout(tmp_path / "a", mask=np.ones_like, positions=np.copy)
    found, _ = counts(mine, training(tmp_path / "b"), ())
    assert found.rows < found.tokens / 2
    assert found.share < 0.5


def test_rows_that_are_lost_are_counted(tmp_path):
    """Decode of other samples than the prefill's: only the prompts are aligned."""
    (tmp_path / "a").mkdir()
    phase = CausalPhase(tmp_path / "a")
    ids = np.array([p[:1] for p in PROMPTS])
    phase.call(ids, np.array([values(row) for row in ids.tolist()]))
    for at in range(3):
        phase.call([[r[at]] for r in RESPONSES[:2]], np.zeros((2, 1, 6)))
    found, _ = counts(phase, training(tmp_path / "b"), ())
    assert (found.rows, found.tokens) == (3, 3 + 3 * 2)


def test_rows_behind_a_response_are_no_tokens(tmp_path):
    """What is computed of padding behind its end is compared with nothing."""
    responses = np.array([[11, 12, 13], [12, PAD, PAD], [2, 1, PAD]])
    ends = [saved_sample(p, r, int((r != PAD).sum())) for p, r in zip(PROMPTS, responses)]
    mine = rollout(tmp_path / "a", positions=np.copy, responses=responses.tolist())
    other = training(tmp_path / "b", responses.tolist())
    found, tokens = counts(mine, other, ends)
    assert tokens.ends == (4, 5, 3)
    assert found.rows == found.tokens == 4 + 5 + 3
    assert (found.saved_aligned, found.saved) == (4 + 4 + 2,) * 2


def test_of_a_window_only_its_tokens_are_wanted(tmp_path):
    """The call with the prompts is token 0, that with the response's first token 1."""
    mine, other = rollout(tmp_path / "a", positions=np.copy), training(tmp_path / "b")
    a, b = (read_tokens(p.entries, samples=SAMPLES) for p in (mine, other))
    matched = match(a, b)
    wanted = {w: coverage(a, b, matched, SAMPLES, w).saved for w in ((0, 0), (1, 1), (1, 9))}
    assert wanted == {(0, 0): 7, (1, 1): 3, (1, 9): 6}


def test_samples_that_neither_phase_was_given_are_not_wanted(tmp_path):
    """They may be another rank's."""
    mine, other = rollout(tmp_path / "a", positions=np.copy), training(tmp_path / "b")
    more = [*SAMPLES, saved_sample([9, 9, 9], [1, 2])]
    assert counts(mine, other, more)[0].saved == ALL


def test_responses_end_where_their_mask_or_padding_says(tmp_path):
    """A mask counts before padding; what fills rows up with less than 0 is never a token."""

    prompts = [np.array([1, 2]), np.array([3])]
    responses = np.array([[4, 5, 0, 0], [6, 0, 7, 0]])

    def sizes(pad, responses=responses, **more):
        data = {"prompts": prompts, "responses": responses, **more}
        found = saved_samples(lambda key: [Save(data[key])] if key in data else [], pad)
        return [sample.tokens.tolist() for sample in found]

    assert sizes(0) == [[1, 2, 4, 5], [3, 6, 0, 7]]
    assert sizes(None) == [[1, 2, 4, 5, 0, 0], [3, 6, 0, 7, 0]]
    mask = np.array([[1.0, 1, 1, 0], [1, 0, 1, 0]])
    assert sizes(0, response_mask=mask) == [[1, 2, 4, 5, 0], [3, 6, 0, 7]]
    assert sizes(0, response_mask=mask[:, :2]) == sizes(0)
    assert sizes(0, np.array([[4, 0, -1], [-1, -1, -1]])) == [[1, 2, 4, 0], [3]]


BOS = [[PAD, 5, 6], [PAD, 7], [PAD, 8, 9, 4]]


def own(tmp_path, prompts, layout):
    """Return what a phase says of ids of padding before saved prompts that stand on the left."""
    width = max(map(len, prompts))
    table = np.array([[PAD] * (width - len(p)) + p for p in prompts])
    data = {"prompts": table, "responses": np.array(RESPONSES)}
    samples = saved_samples(lambda key: [Save(data[key])] if key in data else [], PAD)
    wholes = [p + r for p, r in zip(prompts, RESPONSES)]
    phase, places = CausalPhase(tmp_path), [[*range(len(w))] for w in wholes]
    if layout == "batch":
        size = max(map(len, wholes))
        there = np.array([[n >= size - len(w) for n in range(size)] for w in wholes])
        ids = np.array([[PAD] * (size - len(w)) + w for w in wholes])
        phase.call(ids, np.zeros(ids.shape), attention_mask=there.astype(np.int32))
    else:
        ends = {"cu_seqlens": np.cumsum([0, *map(len, wholes)])}
        if layout == "positions":
            ends = {"position_ids": [np.concatenate(places)]}
        row = np.concatenate(wholes)
        phase.call([row], np.zeros((1, len(row))), **ends)
    found = read_tokens(phase.entries, pad=PAD, samples=samples).own
    return samples, [found.get(one.tokens.tobytes()) for one in samples]


@pytest.mark.parametrize("prompts", [BOS, [BOS[0], [7], BOS[2]], [[7], [8, 9], [5, 6, 4]]])
@pytest.mark.parametrize("layout", ["cu_seqlens", "positions", "batch"])
def test_a_prompt_may_begin_with_the_id_of_padding(tmp_path, layout, prompts):
    """What the network was given says how many ids of padding are its own."""
    samples, found = own(tmp_path, prompts, layout)
    counts = [int(prompt[0] == PAD) for prompt in prompts]
    for sample, said, prompt, count in zip(samples, found, prompts, counts):
        if len(sample.filler):
            assert said == ((None, count) if layout == "batch" else (count, None))
            assert [*sample.filler[len(sample.filler) - count :], *sample.prompt] == prompt


def test_prompts_that_begin_with_the_id_that_fills_them_up_behind(tmp_path):
    """Their first token is no padding."""
    data = {"prompts": np.array([[PAD, 5, 6, PAD], [PAD, 7, PAD, PAD], [PAD, 8, 9, 4]])}
    data["responses"] = np.array(RESPONSES)
    samples = saved_samples(lambda key: [Save(data[key])] if key in data else [], PAD)
    assert [sample.prompt.tolist() for sample in samples] == BOS


SEQUENCES = [np.array([5, 6, 7, 8, 9]), np.array([4, 3, 2, 1])]


def saves(path, **data):
    with Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": str(path)}) as p:
        p.save_data(data)
        p.step()
    return open_run(path).key_data()


@pytest.mark.parametrize(
    "data",
    [
        {"responses": np.array([[7, 8, 9, 0, 0], [2, 1, 0, 0, 0]])},
        {"prompts": np.array([[0, 0, 5, 6], [0, 4, 3, 2]])},
        {"prompts": [np.array([5, 6, 7]), np.array([4, 3])], "responses": [np.array([8, 9])]},
        {"responses": ["a text", "another"]},
        {"responses": np.array([0.5, 1.5])},
        {"responses": []},
    ],
)
def test_saved_ids_that_stand_in_the_sequences_and_texts_say_nothing(tmp_path, data):
    """With padding on either side, as one array or a list of them."""
    assert unlike_saved(saves(tmp_path / "run", **data), SEQUENCES) is None


def test_ids_that_stand_nowhere_are_said(tmp_path):
    """What was taken for token ids is something else."""
    found = unlike_saved(saves(tmp_path / "run", responses=np.array([[7, 9, 8, 3]])), SEQUENCES)
    assert "responses" in str(found)
    assert "phase.tokens" in str(found)
    assert "another tokenizer" in str(found)
