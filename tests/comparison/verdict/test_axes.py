"""What the axes of a record are called: samples, tokens, heads, channels, where that is known."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.verdict import axes
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.manifest.manifest import Networks
from mindrlhf_msprobe.storage.manifest.run_file import Settings

PHASE = "actor_compute_log_prob"
BATCH, LENGTH, HEADS, HIDDEN, VOCABULARY = 3, 7, 4, 20, 11
SHAPES = {
    "sample": BATCH,
    "token": LENGTH,
    "head": HEADS,
    "channel": HIDDEN,
    "head size": HIDDEN // HEADS,
    "token_id": VOCABULARY,
    "?": 13,
}


def record(path, shape, wrong, *, batch=BATCH, length=LENGTH, argument="input_ids", built=True):
    """Record a network of which a cell inside `attention` returns a tensor of this shape."""
    recording = Recording(path, task="tensor")
    ids = np.zeros((batch, length), np.int32)

    def inner(x):
        y = np.ones(shape, np.float32)
        if wrong is not None:
            y[wrong] += np.random.default_rng(1).normal(size=y[wrong].shape).astype(np.float32)
        return y

    def root(**given):
        recording.call("attention.core", "Core", inner, 1.0)
        return 1.0

    with recording.phase(PHASE):
        recording.call("root", "Net", root, **{argument: ids})
    if built:
        groups = [
            {"class": "Net", "attributes": {"vocab_size": VOCABULARY}, "cells": ["root"]},
            {
                "class": "Attention",
                "attributes": {"num_heads": HEADS, "hidden_size": HIDDEN, "head_dim": 5},
                "cells": ["attention"],
            },
        ]
        network = {"role": "actor", "class": "Net", "phases": [PHASE], "cells": groups}
        recording.writer.note(
            Networks(Settings({"networks": [network], "modes": {}, "optimizers": {}}))
        )
    recording.end_step()
    return recording.close()


def found(tmp_path, layout, axis, places, **options):
    shape = tuple(SHAPES[name] for name in layout)
    wrong = (slice(None),) * axis + (list(places),)
    a = record(tmp_path / "a", shape, None, **options)
    b = record(tmp_path / "b", shape, wrong, **options)
    result = compare_runs(a, b, output_path=tmp_path / "out")
    return result.verdict.first_divergence.inside, render(result)


@pytest.mark.parametrize(
    ("layout", "axis", "places", "words"),
    [
        (("sample", "token", "channel"), 0, [1], "Only sample 1 of 3 (axis 0)"),
        (("sample", "token", "channel"), 1, [4, 5, 6], "tokens 4-6 of 7 (axis 1, from there on)"),
        (("token", "sample", "channel"), 0, [2], "token 2 of 7 (axis 0)"),
        (("sample", "head", "token", "head size"), 1, [0, 2], "heads 0, 2 of 4 (axis 1)"),
        (("sample", "token", "head", "head size"), 3, [4], "channel 4 of 5 (axis 3"),
        (("sample", "head", "token", "token"), 1, [1], "head 1 of 4 (axis 1)"),
        (("sample", "token", "token_id"), 2, [5, 6], "token ids 5-6 of 11 (axis 2)"),
        (("sample", "token", "?"), 2, [0], "place 0 of 13 along axis 2"),
        (("?", "?"), 0, [0], "place 0 of 13 along axis 0"),
    ],
)
def test_axes_have_the_names_of_the_field(tmp_path, layout, axis, places, words):
    """What was given and what the cells were built with say what an axis is; else its number."""
    inside, text = found(tmp_path, layout, axis, places)
    assert words in text
    names = {i: "channel" if n == "head size" else n for i, n in enumerate(layout) if n != "?"}
    assert dict(inside.axes) == names
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert written["first_divergence"]["inside"]["axes"] == {str(i): n for i, n in names.items()}


def test_what_is_not_known_keeps_its_number(tmp_path):
    layout = ("sample", "token", "channel")
    inside, text = found(tmp_path / "1", layout, 0, [1], argument="x", built=False)
    assert inside.axes == ()
    assert "place 1 of 3 along axis 0" in text
    inside, _ = found(tmp_path / "2", ("token", "token", "channel"), 0, [1], batch=LENGTH)
    assert inside.axes == ((2, "channel"),)  # as many samples as tokens


@pytest.mark.parametrize(
    ("layout", "axis", "names"),
    [
        (("?", "token", "channel"), 2, {2: "channel"}),
        (("sample", "head", "token", "head size"), 1, {1: "head", 3: "channel"}),
        (("sample", "token", "head", "head size"), 2, {2: "head", 3: "channel"}),
        (("sample", "head", "head", "head size"), 1, {3: "channel"}),
        (("sample", "channel", "channel"), 1, {}),  # a mask of as many tokens as channels
        (("sample", "head", "token", "token"), 1, {}),
    ],
)
def test_heads_and_channels_are_known_without_token_ids(tmp_path, layout, axis, names):
    inside, _ = found(tmp_path, layout, axis, [0], argument="x")
    assert dict(inside.axes) == names


def test_no_axis_has_a_wrong_name():
    """Random sizes, many of them equal: a name is the true one, or there is none."""
    draw = random.Random(15)
    layouts = [layout for layout in axes._LAYOUTS if axes.ROW not in layout]
    named = 0
    for _ in range(3000):
        sizes = {
            name: {draw.choice([2, 3, 4, 6, 8, 16])}
            for name in (
                axes.SAMPLE,
                axes.TOKEN,
                axes.HEAD,
                axes.CHANNEL,
                "head_size",
                axes.TOKEN_ID,
            )
        }
        layout = draw.choice(layouts)
        shape = [draw.choice([2, 5, 32]) if n == "any" else min(sizes[n]) for n in layout]
        for axis, name in axes._named(shape, axes._LAYOUTS, sizes).items():
            true = "channel" if layout[axis] == "head_size" else layout[axis]
            assert name == true or true == "any", (layout, shape, sizes)
            named += 1
    assert named > 1000


@pytest.mark.parametrize(
    ("key", "shape", "names"),
    [
        ("old_log_prob", (4, 6), {0: "sample", 1: "token"}),
        ("rewards", (4,), {0: "sample"}),
        ("rewards", (5,), {}),
        ("my_own", (4, 6), {}),
    ],
)
def test_axes_of_key_data(of_both, key, shape, names):
    def record(recording, run):
        recording.data("prompts", ["p"] * 4)
        value = np.random.default_rng(0).normal(size=shape)
        value[0] += run == "b"
        recording.data(key, value)

    first = of_both(record).verdict.first_divergence
    assert first.record == key
    assert dict(first.inside.axes) == names


def test_tokens_from_which_on_responses_differ(of_both):
    def record(recording, run):
        responses = np.arange(24).reshape(4, 6)
        if run == "b":
            responses[:, 3:] += np.arange(4)[:, None] * 7 + 1
        recording.data("responses", responses)

    assert "Only tokens 3-5 of 6 (axis 1, from there on)" in render(of_both(record))
