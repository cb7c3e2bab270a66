"""The command compare, given checkpoints: answers, exit codes, options that are not for them."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
from helpers.checkpoint_files import write_ckpt, write_safetensors
from openpyxl import load_workbook

from mindrlhf_msprobe.cli import main

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def compare(tmp_path, capsys, monkeypatch):
    """Return what runs `compare` in a directory and returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, lang="en"):
        code = main(["compare", *map(str, arguments), "--lang", lang])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_equal_ones_are_identical(compare, tmp_path):
    """Exit code 0, and where the tables are."""
    write_ckpt(tmp_path / "a.ckpt", {"w": W})
    write_safetensors(tmp_path / "b.safetensors", {"w": W})
    code, out, err = compare("a.ckpt", "b.safetensors")
    assert (code, err) == (0, "")
    assert out.startswith("IDENTICAL: the one parameter is equal.")
    assert "ckpt_similarity.json" in out
    assert (tmp_path / "msprobe_compare_output" / "checkpoint.xlsx").exists()


def test_unlike_ones_are_said_worst_first(compare, tmp_path):
    """Exit code 1; with --json what verdict.json holds."""
    write_ckpt(tmp_path / "a.ckpt", {"near": W, "far": W, "gone": W})
    write_ckpt(tmp_path / "b.ckpt", {"near": W * np.float32(1.001), "far": -W})
    code, out, _ = compare("a.ckpt", "b.ckpt")
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == "DIVERGED: 3 of 3 parameters do not agree."
    assert lines[4].startswith("  far · cosine -1, l2 14.8 (relative 2), max abs 10, 83.3 % of 6")
    assert lines[5].startswith("  near · ")
    assert lines[7] == "  gone"
    code, out, _ = compare("a.ckpt", "b.ckpt", "--json")
    found = json.loads(out)
    assert (code, found["status"], found["of"]) == (1, "diverged", "checkpoints")
    assert found["counts"] == {"only_in_a": 1, "different": 2}


def test_headers_and_counts_are_in_one_language(compare, tmp_path):
    """As of runs: the columns have the same names in Chinese, and counts its commas."""
    write_ckpt(tmp_path / "a.ckpt", {"w": W, "v": W})
    write_ckpt(tmp_path / "b.ckpt", {"w": W, "v": -W})
    said = {
        lang: compare("a.ckpt", "b.ckpt", "--csv", "-o", lang, lang=lang)[1]
        for lang in ("en", "zh")
    }
    heads = {
        (tmp_path / lang / "checkpoint_parameters.csv").read_text("utf-8").splitlines()[0]
        for lang in said
    }
    assert len(heads) == 1
    assert "：zh：checkpoint.xlsx、" in said["zh"]
    assert said["zh"].splitlines()[-1].endswith("：1 different，1 identical")
    assert said["en"].splitlines()[-1].endswith(": 1 different, 1 identical")


def test_suspicious_ones_fail_where_that_is_asked_for(compare, tmp_path):
    """NaN on both sides."""
    for name in "ab":
        write_ckpt(tmp_path / f"{name}.ckpt", {"w": np.float32([math.nan])})
    assert compare("a.ckpt", "b.ckpt")[0] == 0
    code, out, _ = compare("a.ckpt", "b.ckpt", "--fail-on", "suspicious")
    assert code == 1
    assert "1 NaN on both sides" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--html", "x.html"], "--html is for runs"),
        (["--phases", "x,y"], "--phases is for runs"),
        (["--engine", "ray"], "--engine is for runs"),
        (["--first-only"], "--first-only is for runs"),
        (["--steps", "1-2"], "expected one step"),
    ],
)
def test_options_of_runs_are_refused(compare, tmp_path, options, words):
    """And not ignored."""
    for name in "ab":
        write_ckpt(tmp_path / f"{name}.ckpt", {"w": W})
    code, out, err = compare("a.ckpt", "b.ckpt", *options)
    assert (code, out) == (2, "")
    assert words in err


def test_a_mapping_is_suggested_by_the_values_and_used(compare, tmp_path):
    """Of names that no preset knows, and of a fused weight whose parts alternate."""
    rng = np.random.default_rng(5)
    mine, theirs = {}, {}
    for layer in range(3):
        for name, other in (("up", "w_in"), ("down", "w_out")):
            values = rng.normal(size=(6, 8)).astype(np.float32)
            mine[f"blocks.{layer}.{name}.weight"] = values
            theirs[f"net.layer.{layer}.ff.{other}.weight"] = values
        parts = rng.normal(size=(2, 4, 8)).astype(np.float32)
        for part, values in zip(("left", "right"), parts):
            mine[f"blocks.{layer}.{part}.weight"] = values
        whole = np.concatenate(parts.reshape(2, 2, 2, 8), axis=1).reshape(8, 8)
        theirs[f"net.layer.{layer}.both.weight"] = whole
    write_ckpt(tmp_path / "a.ckpt", mine)
    write_safetensors(tmp_path / "b.safetensors", theirs)
    both = "a.ckpt", "b.safetensors"
    assert compare(*both)[0] == 2
    code, out, _ = compare(*both, "--mapping", "suggest", "-o", "out")
    assert (code, "out/mapping.yaml" in out) == (0, True)
    proposal = (tmp_path / "out" / "mapping.yaml").read_text()
    assert "blocks.*.up: net.layer.*.ff.w_in  # 0.8" in proposal
    parts = "[blocks.*.left, blocks.*.right]"
    assert f"net.layer.*.both: {{parts: {parts}, groups: 2}}  # 0.8" in proposal
    assert compare(*both, "--mapping", "out/mapping.yaml")[0] == 0
    code, _, err = compare(*both, "--mapping", "suggest", "-o", "out")
    assert (code, "already there" in err) == (2, True)


ODD = ["a # c", "x\ny", "[0]", "'q\"", "{x}", "#c", "@u", "*", "a*b", r"\*", r"\1", "(*)"]


@pytest.mark.parametrize("plain", [("first", "second"), ("layers.0", "layers.1")])
@pytest.mark.parametrize("odd", ODD)
def test_a_suggested_mapping_can_be_used_whatever_names_hold(compare, tmp_path, odd, plain):
    """Of names of either side, each as it is or in layers; it is YAML, and `*` is no wildcard."""
    values = np.random.default_rng(5).normal(size=(2, 6, 8)).astype(np.float32)
    strange = [f"{odd}.{name.replace('layers', 'h')}.w" for name in plain]
    write_safetensors(tmp_path / "a.safetensors", dict(zip((f"{n}.w" for n in plain), values)))
    write_safetensors(tmp_path / "b.safetensors", dict(zip(strange, values)))
    for a, b in ("ab", "ba"):
        both = f"{a}.safetensors", f"{b}.safetensors"
        assert compare(*both, "--mapping", "suggest", "-o", a)[0] == 0
        assert compare(*both, "--mapping", f"{a}/mapping.yaml")[0] == 0


def test_of_thousands_of_equal_shapes_a_mapping_is_suggested_in_seconds(compare, tmp_path):
    rows = np.random.default_rng(3).normal(size=(1000, 4, 3)).astype(np.float32)
    write_ckpt(tmp_path / "a.ckpt", {f"a{n}.weight": row for n, row in enumerate(rows)})
    write_ckpt(tmp_path / "b.ckpt", {f"b{n}.weight": row for n, row in enumerate(rows)})
    began = time.process_time()
    assert compare("a.ckpt", "b.ckpt", "--mapping", "suggest", "-o", "out")[0] == 0
    assert time.process_time() - began < 60
    proposal = (tmp_path / "out" / "mapping.yaml").read_text()
    assert all(f"\na{n}: b{n}  #" in proposal for n in (0, 500, 999))


def test_what_cannot_be_read_is_exit_code_2(compare, tmp_path):
    """Half a checkpoint, a directory without one, a file that is not there, nothing in common."""
    whole = write_ckpt(tmp_path / "a.ckpt", {"w": W}).read_bytes()
    (tmp_path / "half.ckpt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    write_ckpt(tmp_path / "other.ckpt", {"v": W})
    for other, words in (
        ("half.ckpt", "half.ckpt: is cut short"),
        ("empty", "holds no checkpoint"),
        ("none.ckpt", "does not exist"),
    ):
        for given in (("a.ckpt", other), (other, "a.ckpt")):
            code, out, err = compare(*given)
            assert (code, out) == (2, "")
            assert words in err
            assert len(err.splitlines()) == 1
    code, _, err = compare("none.ckpt", "no.safetensors")
    assert code == 2
    assert "expected a .ckpt, a .safetensors" in err
    code, out, _ = compare("a.ckpt", "other.ckpt")
    assert code == 2
    assert out.startswith("INCOMPARABLE")


def test_a_parameter_that_is_called_like_a_word_of_ours_keeps_its_name(tmp_path, monkeypatch):
    """In Chinese, too, where `verdict` of ours is translated; headers are those of any language."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_ckpt(tmp_path / f"{name}.ckpt", {"note": W, "verdict": W})
    assert main(["compare", "a.ckpt", "b.ckpt", "-o", "out", "--lang", "zh"]) == 0
    parameters = load_workbook("out/checkpoint.xlsx").worksheets[1]
    assert [cell.value for cell in parameters["A"]] == ["record", "note", "verdict"]
