"""Every file of a small run, damaged in every way: no traceback, no wrong exit code or same."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
from runs import Recording

from mindrlhf_msprobe.cli import main

SEEDS = range(40)
VALUES = [None, True, -1, 10**4000, 1e308, "x" * 5000, "\x1b[2J\n", [], {}, [[[[]]]], "NaN", 2**63]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a run with every kind of file, as small as can be."""
    root = tmp_path_factory.mktemp("small") / "a"
    recording = Recording(root, task="tensor")
    with recording.phase("actor_update"):
        recording.call("net", "Dense", lambda x: x + 1, np.ones(2, np.float32))
    recording.data("loss", 1.0)
    recording.data("prompts", ["a text", "another"])
    recording.end_step()
    recording.close()
    (root / "configurations.json").write_text('{"actor": {"lr": 1}}')
    return root


def damage(seed, root):
    """Damage one file of a run and return its name and what was done to it."""
    rng = random.Random(seed)
    file = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    raw = file.read_bytes()
    how = rng.choice(["flip", "cut", "swap", "swap", "swap", "nest", "noise", "gone"])
    if how == "swap" and file.suffix in (".json", ".jsonl"):
        lines = raw.splitlines() if file.suffix == ".jsonl" else [raw]
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(swapped(rng, json.loads(lines[at]))).encode()
        raw = b"\n".join(lines) + b"\n"
    elif how == "nest":
        raw = b"[" * 100_000
    elif how == "noise":
        raw = rng.randbytes(rng.randrange(200))
    elif how == "cut":
        raw = raw[: rng.randrange(len(raw))]
    else:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]
    file.unlink()
    if how != "gone":
        file.write_bytes(raw)
    return file.relative_to(root), how


def swapped(rng, content):
    """Return a JSON value with one value in it replaced."""
    if isinstance(content, dict) and content and rng.random() < 0.85:
        key = rng.choice(sorted(content))
        return {**content, key: swapped(rng, content[key])}
    if isinstance(content, list) and content and rng.random() < 0.85:
        at = rng.randrange(len(content))
        return [*content[:at], swapped(rng, content[at]), *content[at + 1 :]]
    return rng.choice(VALUES)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_damaged_the_answer_is_right(small, tmp_path, seed, capsys):
    """0 only where what was damaged is not read or says the same; never a fault of ours."""
    b = shutil.copytree(small, tmp_path / "b")
    name, how = damage(seed, b)
    for command in (["compare", str(small), str(b), "-o", str(tmp_path / "o"), "--workers", "1"],
                    ["show", str(b)], ["show", str(b), "loss"], ["estimate", str(b)]):  # fmt: skip
        code = main(command)
        shown = capsys.readouterr()
        assert code in (0, 1, 2)
        assert "fault of this tool" not in shown.err, (name, how, shown.err)
        assert "Traceback" not in shown.err
        assert (shown.out + shown.err).replace("\n", "").isprintable()
        if command[0] == "compare" and code == 1:
            assert "DIVERGED" in shown.out
        unread = how in ("nest", "noise", "gone") and name.name not in (
            "dump.json", "stack.json", "construct.json", "configurations.json"
        )  # fmt: skip
        if command[0] == "compare" and unread:
            assert code != 0, (name, how, shown.out)
