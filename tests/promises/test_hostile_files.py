"""Every file of a small run, damaged in every way: no traceback, no wrong exit code or same."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe.cli import main

pytestmark = pytest.mark.slow

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


def first_tensor(content):
    """Return the first description of a tensor in some JSON."""
    if isinstance(content, dict) and "shape" in content:
        return content
    parts = content.values() if isinstance(content, dict) else content
    found = (first_tensor(part) for part in parts if isinstance(part, (dict, list)))
    return next((leaf for leaf in found if leaf is not None), None)


LONG = "x" * 20_000
FIELDS = ["error", "dtype", "type", "data_name", "fingerprint", "max"]
HEADERS = [
    "{'descr': f(1), 'fortran_order': False, 'shape': (1,)}",
    f"{{'descr': '{'z' * 9000}', 'fortran_order': False, 'shape': (1,)}}",
    f"{{'descr': '<f4', '{'k' * 9000}': False, 'shape': (1,)}}",
]


@pytest.mark.parametrize("place", [*FIELDS, "state", "lost", *HEADERS])
def test_what_a_file_says_is_quoted_in_lines_that_can_be_read(small, tmp_path, capsys, place):
    """No endless line, and no address of an object, which would be another one each time."""
    run = tmp_path / "b"
    shutil.copytree(small, run)
    described = next(run.glob("data/loss/step0/rank0/*/loss.json"))
    if place in HEADERS:
        head = place.encode() + b"\n"
        npy = described.with_name("loss.npy")
        npy.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(64))
    elif place in FIELDS:
        content = json.loads(described.read_bytes())
        first_tensor(content)[place] = LONG
        described.write_text(json.dumps(content))
    else:
        manifest = json.loads((run / "run.json").read_bytes())
        manifest[place] = {LONG: 3} if place == "lost" else LONG
        (run / "run.json").write_text(json.dumps(manifest))
    out = tmp_path / "out"
    commands = [["compare", str(small), str(run), "-o", str(out)], ["show", str(run)]]
    commands += [["show", str(run), "loss"], ["show", str(run), "loss", "--step", "0"]]
    for command in commands:
        main(command)
        said = "".join(capsys.readouterr())
        assert max(map(len, said.splitlines())) < 1500
        assert " at 0x" not in said
    assert " at 0x" not in (out / "verdict.json").read_text()
