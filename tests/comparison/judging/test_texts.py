"""Where two texts or two sequences of token ids first differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.runs import record_data

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.judging.status import (
    load_decoder,
    text_difference,
    token_difference,
)
from mindrlhf_msprobe.errors import UNDECIDED, UsageError
from mindrlhf_msprobe.report.messages import text_of

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return a tokenizer.json that knows the words for the ids 0 to 7."""
    from tokenizers import Tokenizer, models

    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="zero")).save(str(file))
    return file


def saved(root, **data):
    """Record one step in which only these key data were saved."""
    return record_data(root, data.items())


@pytest.mark.parametrize(
    ("a", "b", "token", "character"),
    [
        ("the sum is 7, done", "the sum is 8, done", 3, 11),
        ("答案是七", "答案是八吗", 3, 3),
        ("a b", "a b c", 2, 3),
        ("abc", "abcdef", 0, 3),
        ("", "x", 0, 0),
        ("x  y", "x y", 1, 2),
        ("say 'hi'", "say 'ho'", 2, 6),
    ],
)
def test_the_first_token_of_a_text_that_differs(a, b, token, character):
    """Words, signs and single Chinese characters are counted as tokens."""
    shown = text_of(text_difference(a, b), "en")
    assert shown.startswith(f"from token {token} (character {character}) on: ")
    assert repr(a) in shown
    assert repr(b) in shown


def test_the_first_token_id_that_differs_with_its_row():
    """Ids stand around the first that differs, which is marked."""
    a = np.arange(40).reshape(2, 20)
    b = a.copy()
    b[1, 9] = 99
    assert text_of(token_difference(a, b), "en") == (
        "from token 9 of row 1 on: … 24 25 26 27 28 [29] 30 31 32 33 … against "
        "… 24 25 26 27 28 [99] 30 31 32 33 …"
    )


@pytest.mark.parametrize("place", range(12))
def test_ids_that_are_left_out_are_marked(place):
    """Dots stand where the row goes on, and nowhere else."""
    a = np.arange(100, 112)
    b = np.where(np.arange(12) == place, 5, a)
    _, _, shown = text_of(token_difference(a, b), "en").partition(" on: ")
    for side in shown.split(" against "):
        ids = side.replace("[", "").replace("]", "").replace("…", "").split()
        numbers = [place + 100 if n == "5" else int(n) for n in ids]
        assert numbers == [*range(numbers[0], numbers[-1] + 1)]
        assert side.startswith("…") == (numbers[0] > 100)
        assert side.endswith("…") == (numbers[-1] < 111)


@pytest.mark.parametrize("length", [0, 3, 8])
def test_sequences_of_unlike_length_differ_where_one_ends(length):
    """A sequence that ends is marked as ended."""
    shown = text_of(token_difference(np.arange(length), np.arange(length + 2)), "en")
    assert shown.startswith(f"from token {length} on:")
    assert "[end] against" in shown


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array(3), np.array(4)),
        (np.zeros((2, 3), int), np.zeros((3, 3), int)),
        (np.zeros((2, 0), int), np.zeros((2, 0), int)),
        (np.arange(3), np.arange(3)),
    ],
)
def test_what_is_no_pair_of_sequences_says_nothing(a, b):
    """Numbers, unlike batches and equal sequences have no first token that differs."""
    assert token_difference(a, b) is None


def test_a_tokenizer_shows_ids_as_text(tokenizer):
    """Both sides are decoded around the first id that differs."""
    a, b = np.array([1, 2, 3]), np.array([1, 2, 7])
    shown = text_of(token_difference(a, b, load_decoder(tokenizer)), "en")
    assert "('one two three')" in shown
    assert "('one two seven')" in shown
    assert load_decoder(tokenizer.parent)([5]) == "five"


def test_ids_a_tokenizer_does_not_know_do_no_harm(tokenizer):
    """Padding with -1 and ids beyond the vocabulary are left out of the text."""
    a, b = np.array([1, -1, 2**40]), np.array([1, -1, 9999])
    shown = text_of(token_difference(a, b, load_decoder(tokenizer)), "en")
    assert "('one')" in shown


def test_the_verdict_names_the_first_token_and_its_text(tmp_path, tokenizer):
    """The explanation of differing responses shows both sides."""
    ids = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.int32)
    other = ids.copy()
    other[1, 2] = 6
    a, b = saved(tmp_path / "a", responses=ids), saved(tmp_path / "b", responses=other)
    first = compare_runs(a, b, tokenizer=tokenizer).verdict.first_divergence
    assert "from token 2 of row 1 on" in first.explanation
    assert "four three six one" in first.explanation
    assert "from token 2 of row 1" in compare_runs(a, b).verdict.first_divergence.explanation


def test_responses_of_unlike_length_say_where_they_part(tmp_path):
    """A shape mismatch of tokens still names the first one that differs."""
    a = saved(tmp_path / "a", responses=np.array([[5, 6, 7]]))
    b = saved(tmp_path / "b", responses=np.array([[5, 9, 7, 1]]))
    first = compare_runs(a, b).verdict.first_divergence
    assert str(first.cause) == "shape"
    assert "from token 1 of row 0" in first.explanation


def test_floats_have_no_tokens(tmp_path):
    """Only integers are sequences of token ids."""
    a, b = saved(tmp_path / "a", values=np.ones(3)), saved(tmp_path / "b", values=np.zeros(3))
    assert "token" not in compare_runs(a, b).verdict.first_divergence.explanation


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, capsys):
    """The message names the file and what was expected; nothing is compared."""
    (tmp_path / "t.json").write_text(json.dumps({"a": 1}))
    a = saved(tmp_path / "a", responses=np.arange(3))
    b = saved(tmp_path / "b", responses=np.arange(3))
    for bad in (tmp_path / "t.json", tmp_path / "missing.json", tmp_path):
        with pytest.raises(UsageError, match="is not a tokenizer"):
            load_decoder(bad)
        code = main(["compare", str(a), str(b), "-o", str(tmp_path / "o"), "--tokenizer", str(bad)])
        assert code == UNDECIDED
        assert "tokenizer.json" in capsys.readouterr().err
