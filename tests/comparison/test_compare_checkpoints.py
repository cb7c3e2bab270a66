"""Two checkpoints: what differs by how much, what is missing, and what is the same otherwise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from helpers.checkpoint_files import write_ckpt, write_safetensors, write_strategy
from helpers.runs import record_training
from helpers.snapshots import rewrite
from openpyxl import load_workbook

from mindrlhf_msprobe import RunError, Tolerance, UsageError, compare_checkpoints, open_run
from mindrlhf_msprobe.comparison.judging import arrays
from mindrlhf_msprobe.comparison.judging.sums import BLOCK
from mindrlhf_msprobe.findings import Outcome, Status
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32, float32_to_bfloat16_bits
from mindrlhf_msprobe.storage.records import network_name

RNG = np.random.default_rng(11)


def floats(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def pair(folder, a, b, **options):
    """Compare two .ckpt with these arrays."""
    paths = (write_ckpt(folder / f"{name}.ckpt", arrays) for name, arrays in (("a", a), ("b", b)))
    return compare_checkpoints(*paths, lang="en", **options)


def statuses(found):
    return {finding.record: finding.status for finding in found.findings}


def test_both_formats_with_the_same_values_are_identical(tmp_path):
    """Whatever the order of the parameters; also those that are empty or have no axis."""
    arrays = {"w": floats(7, 3), "b": floats(5, dtype=np.float16), "n": np.array(3, np.int64)}
    a = write_ckpt(tmp_path / "a.ckpt", arrays)
    arrays |= {"w": arrays["w"].copy()}
    b = write_safetensors(tmp_path / "b.safetensors", dict(reversed(arrays.items())))
    found = compare_checkpoints(a, b)
    assert found
    assert found.status is Outcome.IDENTICAL
    assert found.kinds == ("ckpt", "safetensors")
    assert found.elements == 27


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
@pytest.mark.parametrize("size", [100, 5 * BLOCK + 77])
def test_the_numbers_are_those_of_numpy(tmp_path, monkeypatch, dtype, size):
    """Of small parameters and of those that are read in several spans, by several threads."""
    monkeypatch.setattr(arrays, "SPAN", BLOCK)
    a = (RNG.normal(size=size) * 100).astype(dtype)
    b = a.copy()
    changed = RNG.choice(size, size // 10, replace=False)
    b[changed] += np.ones((), dtype)
    found = pair(tmp_path, {"w": a}, {"w": b}, workers=3).weights[0]
    x, y = a.astype(np.float64), b.astype(np.float64)
    metrics = found.metrics
    assert found.status is Status.DIFFERENT
    assert metrics.max_abs_err == pytest.approx(np.abs(x - y).max())
    assert metrics.euclidean == pytest.approx(np.linalg.norm(x - y), rel=1e-6)
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    assert metrics.cosine == pytest.approx(cosine, abs=1e-6)
    assert metrics.equal_percent == 100 * np.mean(a == b)
    assert metrics.first_mismatch == int(np.argmax(a != b))
    assert found.a.norm == pytest.approx(np.linalg.norm(x), rel=1e-6)
    larger = max(np.linalg.norm(x), np.linalg.norm(y))
    assert found.distance == pytest.approx(np.linalg.norm(x - y) / larger, rel=1e-5)


def similar(a, b):
    """Return what msprobe 26.2.0 writes of two arrays (core/config_check/ckpt_compare/metrics)."""
    if a.shape != b.shape:
        sizes = a.size if a.size == b.size else [a.size, b.size]
        return {"l2": None, "cos": None, "numel": sizes, "shape": [list(a.shape), list(b.shape)]}
    norms = np.linalg.norm(a), np.linalg.norm(b)
    cos = 1.0 if norms == (0, 0) else None
    if all(norms):
        cos = (a.flatten().dot(b.flatten()) / (norms[0] * norms[1])).item()
    l2 = np.linalg.norm(a - b).item()
    return {"l2": l2, "cos": cos, "numel": a.size, "shape": list(a.shape)}


def test_ckpt_similarity_is_msprobes(tmp_path):
    """Its names and its numbers, also of zeros, unlike shapes, and what is not finite."""
    zero = np.zeros(3, np.float32)
    a = {"w": floats(4, 5), "z": zero, "o": zero, "s": floats(4), "t": floats(2, 3), "x": zero}
    b = {"w": floats(4, 5), "z": zero, "o": zero + 1, "s": floats(5), "t": floats(3, 2), "y": zero}
    a["n"] = b["n"] = np.float32([1, math.nan])
    found = pair(tmp_path, a, b, output_path=tmp_path / "out")
    written = json.loads((tmp_path / "out" / "ckpt_similarity.json").read_text())
    assert written == found.similarity()
    expected = {name: similar(a[name], b[name]) for name in "wzost"}
    expected["n"] = {"l2": "NaN", "cos": "NaN", "numel": 2, "shape": [2]}
    assert {*written} == {*expected}
    for name, of in expected.items():
        for key, value in of.items():
            number = isinstance(value, float)
            assert written[name][key] == (pytest.approx(value, rel=1e-5) if number else value), name


def test_what_one_side_lacks_differs_unless_it_is_asked_for(tmp_path):
    """With common it is coverage; nothing in common is no success."""
    arrays = {"v": floats(3), "w": floats(3), "x": floats(2)}
    found = pair(
        tmp_path, {"w": arrays["w"], "v": arrays["v"]}, {"w": arrays["w"], "x": arrays["x"]}
    )
    assert found.status is Outcome.DIVERGED
    assert statuses(found) == {"w": Status.IDENTICAL, "v": Status.ONLY_IN_A, "x": Status.ONLY_IN_B}
    common = compare_checkpoints(found.a, found.b, common=True)
    assert common.status is Outcome.IDENTICAL
    assert [said.params["names"] for said in common.coverage] == [["v"], ["x"]]
    nothing = pair(tmp_path, {"v": arrays["v"]}, {"w": arrays["w"]})
    assert nothing.status is Outcome.INCOMPARABLE
    assert not nothing
    assert not compare_checkpoints(nothing.a, nothing.b, common=True)


def test_a_file_that_may_be_cut_between_entries_is_said(tmp_path):
    """Not one that was saved in part, in the middle, nor a safetensors, whose header counts."""

    def said(a, b):
        found = compare_checkpoints(a, b)
        return [str(one) for one in found.remarks if one.code == "checkpoint.perhaps_cut"]

    arrays = {name: np.ones(2, np.float32) for name in "uvwx"}
    whole = write_ckpt(tmp_path / "a.ckpt", arrays)
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (said_of_b,) = said(whole, cut)
    assert said_of_b.startswith("B may be cut short: it lacks 2 parameters")
    assert said(cut, whole)[0].startswith("A may be cut short")
    assert said(cut, write_safetensors(tmp_path / "a.safetensors", arrays))
    chosen = write_ckpt(tmp_path / "chosen.ckpt", {"u": arrays["u"], "x": arrays["x"]})
    few = write_safetensors(tmp_path / "few.safetensors", {"u": arrays["u"]})
    assert said(whole, chosen) == said(whole, few) == []


def test_shapes_are_never_cut_to_fit(tmp_path):
    """Nor is a matrix its transpose."""
    w = floats(3, 3, 2)
    found = pair(tmp_path, {"v": w, "w": w}, {"v": w.T, "w": w.reshape(9, 2)})
    assert {*statuses(found).values()} == {Status.SHAPE_MISMATCH}


@pytest.mark.parametrize("span", [arrays.SPAN, 64])
def test_a_matrix_that_is_the_same_transposed_is_said_to_be(tmp_path, monkeypatch, span):
    """Whatever its shape and size; one that is so in its first row alone is not."""
    monkeypatch.setattr(arrays, "SPAN", span)
    a = {name: floats(30, 20) for name in ("w", "cast", "half")} | {"square": floats(9, 9)}
    b = {name: value.T.copy() for name, value in a.items()}
    b["cast"] = b["cast"].astype(np.float16)
    b["half"][3, 20] += 1
    found = pair(tmp_path, a, b)
    assert not found
    notes = {finding.record: finding.note for finding in found.weights}
    transposed = (
        "transposed: B is A with rows and columns exchanged"  # as a comparison of runs says
    )
    assert notes["w"] == f"[30, 20] against [20, 30]; {transposed}"
    assert notes["cast"].endswith(
        f"{transposed}; Float32 against Float16: equal once rounded to Float16"
    )
    assert "transposed" not in notes["half"]
    assert transposed in notes["square"]


def test_what_stands_elsewhere_is_said_as_a_comparison_of_runs_says_it(tmp_path):
    """Rows or columns in another order, halves exchanged, two parameters swapped, a bias moved."""
    a = {name: floats(6, 4) for name in ("rows", "columns", "halves", "one", "two", "three")}
    a |= {"bias": floats(9), "inside": floats(6, 9)}
    a["norm"], a["other_norm"] = np.ones(4, np.float32), floats(4)
    b = {name: value.copy() for name, value in a.items()}
    b["rows"], b["columns"] = a["rows"][[1, 0, 2, 3, 5, 4]], a["columns"][:, [1, 0, 2, 3]]
    b["halves"] = np.roll(a["halves"], 3, axis=0)
    b["bias"], b["inside"] = a["bias"][::-1].copy(), RNG.permuted(a["inside"], axis=1)
    b["one"], b["two"], b["three"] = a["two"], a["one"], a["three"] + 1
    b["norm"], b["other_norm"] = a["norm"] + 1, a["norm"]  # one number everywhere tells nothing
    notes = {finding.record: finding.note for finding in pair(tmp_path, a, b).weights}
    assert notes["rows"].startswith("moved, not changed: along axis 0, in another order: ")
    assert notes["columns"].startswith("moved, not changed: along axis 1, in another order: ")
    assert notes["halves"] == "moved, not changed: along axis 0, B is A turned by 3 of 6"
    assert notes["bias"].startswith("moved, not changed: along axis 0, in another order: ")
    assert notes["inside"].startswith("moved, not changed: along axis 1, each row holds")
    swapped = "swapped with another parameter: "
    assert (
        notes["one"]
        == f"{swapped}what A holds here, B holds at two; what B holds here, A holds at two"
    )
    assert notes["two"].startswith(swapped)
    assert not {notes["three"], notes["norm"], notes["other_norm"]} - {""}


def test_nan_on_both_sides_agrees_and_is_suspicious(tmp_path):
    """On one side it is non_finite; infinities of unlike sign differ."""
    a = {
        "n": np.float32([1, math.nan]),
        "o": np.float32([1, math.nan]),
        "i": np.float32([math.inf]),
    }
    b = {"n": a["n"].copy(), "o": np.float32([1, 1]), "i": -a["i"]}
    found = pair(tmp_path, a, b)
    assert statuses(found) == {"n": Status.IDENTICAL, "o": Status.NON_FINITE, "i": Status.DIFFERENT}
    assert found.suspicious == 1
    assert [bool(f.suspicions) for f in found.weights] == [True, False, False]


def test_a_lower_dtype_is_compared_by_value(tmp_path):
    """Rounding is what an export does: it is told from other values, and said."""
    w = floats(300, 100)
    bits = float32_to_bfloat16_bits(w)
    wrong = bits.copy()
    wrong[7, 7] ^= 1
    half = w.astype(np.float16)
    a = write_safetensors(
        tmp_path / "a.safetensors",
        {"cast": w, "off": w, "same": bfloat16_bits_to_float32(bits), "half": w},
    )
    b = write_safetensors(
        tmp_path / "b.safetensors", {"cast": bits, "off": wrong, "same": bits, "half": half}
    )
    found = compare_checkpoints(a, b, lang="en")
    assert statuses(found) == {
        "cast": Status.WITHIN_TOLERANCE,
        "off": Status.DIFFERENT,
        "same": Status.IDENTICAL,
        "half": Status.WITHIN_TOLERANCE,
    }
    notes = {f.record: f.note for f in found.weights}
    assert notes["cast"] == "Float32 against BFloat16: equal once rounded to BFloat16"
    assert notes["off"] == "Float32 against BFloat16"
    assert "same values" in notes["same"]


def test_tolerance_and_rules_decide_as_for_runs(tmp_path):
    """By the parameter's name; a rule that matches nothing is refused."""
    w = floats(50)
    arrays = ({"v": w, "w": w}, {"v": w * np.float32(1 + 1e-4), "w": w * np.float32(1 + 1e-4)})
    assert not pair(tmp_path, *arrays)
    assert pair(tmp_path, *arrays, tolerance=Tolerance(rtol=1e-3))
    rules = tmp_path / "rules.yaml"
    rules.write_text("w: {rtol: 1e-3}\n")
    found = pair(tmp_path, *arrays, tolerance=rules)
    assert statuses(found) == {"v": Status.DIFFERENT, "w": Status.WITHIN_TOLERANCE}
    assert [(rule.records, rule.passed) for rule in found.rules] == [(1, 1)]
    rules.write_text("nowhere: {rtol: 1e-3}\n")
    with pytest.raises(UsageError, match="nowhere"):
        pair(tmp_path, *arrays, tolerance=rules)


def test_noise_of_repetitions_explains_what_is_as_large(tmp_path):
    """And nothing larger."""
    w, size = floats(1000), 1e-4
    paths = [
        write_ckpt(tmp_path / f"{i}.ckpt", {"w": w + np.float32(size) * floats(1000)})
        for i in range(4)
    ]
    far = write_ckpt(tmp_path / "far.ckpt", {"w": w + np.float32(100 * size) * floats(1000)})
    a, b, *noise = paths
    assert not compare_checkpoints(a, b)
    assert compare_checkpoints(a, b, noise=noise).status is Outcome.WITHIN_TOLERANCE
    assert not compare_checkpoints(a, far, noise=noise)


def test_a_prefix_is_taken_off_also_behind_an_optimizers(tmp_path):
    """And said; a rule of the mapping holds for an optimizer's state, too."""
    arrays = {f"layers.{i}.weight": floats(3) for i in range(4)}
    a = arrays | {f"adam_m.{name}": array for name, array in arrays.items()}
    b = {f"network.{name}": array for name, array in arrays.items()}
    b |= {f"adam_m.{name}": b[name] for name in [*b]}
    found = pair(tmp_path, a, b)
    assert found
    assert (len(found.weights), len(found.optimizer)) == (4, 4)
    assert [remark.code for remark in found.remarks] == ["checkpoint.below"]
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("layers.*: blocks.*\n")
    b = {name.replace("layers", "blocks"): array for name, array in a.items()}
    assert pair(tmp_path, a, b, mapping=mapping)
    mapping.write_text("layers.*: block\n")
    with pytest.raises(UsageError, match="get the name"):
        pair(tmp_path, a, b, mapping=mapping)
    mapping.write_text("nowhere: block\n")
    with pytest.raises(UsageError, match="nowhere"):
        pair(tmp_path, a, b, mapping=mapping)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("turned", [False, True], ids=["fused in A", "fused in B"])
def test_a_fused_weight_is_compared_with_its_parts(tmp_path, monkeypatch, groups, turned):
    """And its bias, and an optimizer's state; in spans that end anywhere."""
    monkeypatch.setattr(arrays, "SMALL", 8)
    monkeypatch.setattr(arrays, "SPAN", BLOCK)
    sizes, wide = {"q": 8, "k": 4, "v": 4}, BLOCK // 16 + 5
    apart = {f"model.{part}.weight": floats(n, wide) for part, n in sizes.items()}
    apart |= {f"model.{part}.bias": floats(n) for part, n in sizes.items()}
    apart |= {f"moment1.{name}": floats(*value.shape) for name, value in apart.items()}

    def fused(name):
        parts = [apart[name.replace("qkv", part)] for part in sizes]
        turns = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
        return np.concatenate(turns, axis=1).reshape(-1, *parts[0].shape[1:])

    names = [f"{state}net.qkv.{own}" for state in ("", "moment1.") for own in ("weight", "bias")]
    one = {name: fused(name.replace("net", "model")) for name in names}
    extra = {"head": floats(3)}
    mapping = tmp_path / "mapping.yaml"
    parts = ", ".join(f"model.{part}" for part in sizes)
    mapping.write_text(f"net.qkv: {{parts: [{parts}], groups: {groups}}}\n")
    both = (apart | extra, one | extra) if turned else (one | extra, apart | extra)
    found = pair(tmp_path, *both, mapping=mapping)
    assert found.status is Outcome.IDENTICAL
    assert {*statuses(found)} == {*names, "head"}
    apart["model.k.weight"][1, 7] += 1
    found = pair(tmp_path, *both, mapping=mapping)
    assert [(f.record, f.metrics.max_abs_err) for f in found.differing] == [
        ("net.qkv.weight", pytest.approx(1))
    ]


def test_a_mapping_of_fused_weights_that_does_not_fit_is_refused(tmp_path):
    a = {"qkv.weight": floats(6, 2)}
    b = {f"{part}.weight": floats(2, 2) for part in "qkv"}
    mapping = tmp_path / "mapping.yaml"
    for content, said in (
        ("qkv: {parts: [q, k, v], groups: 4}", "in 4 group"),
        ("qkv: [q, k]", "do not make up"),
        ("qkv: [q, k, x]", "no x.weight"),
        ("other: [q, k, v]", "'other'"),
    ):
        mapping.write_text(f"{content}\n")
        with pytest.raises(UsageError, match=said):
            pair(tmp_path, a, b, mapping=mapping)


#: What Hugging Face calls the parameters of a layer, and MindFormers' Llama with fused weights.
LAYER = {
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
FUSED = {
    "attention.w_qkv": [f"self_attn.{part}_proj" for part in "qkv"],
    "feed_forward.w_gate_hidden": ["mlp.gate_proj", "mlp.up_proj"],
}


def of_both_networks(groups=1):
    """Return the parameters of one network by the names of Hugging Face, and of MindFormers."""
    face = {"model.embed_tokens.weight": floats(9, 8), "model.norm.weight": floats(8)}
    formers = {"model.tok_embeddings.embedding_weight": face["model.embed_tokens.weight"]}
    formers["model.norm_out.weight"] = face["model.norm.weight"]
    for layer in (f"model.layers.{n}" for n in range(3)):
        for of_face, of_formers in LAYER.items():
            value = floats(8, 8) if "proj" in of_face else floats(8)
            face[f"{layer}.{of_face}"] = formers[f"{layer}.{of_formers}"] = value
        for whole, parts in FUSED.items():
            rows = [floats(8 if "q_" in part else 4, 8) for part in parts]
            face |= {f"{layer}.{part}.weight": own for part, own in zip(parts, rows)}
            turns = [own.reshape(groups, -1, 8) for own in rows]
            formers[f"{layer}.{whole}.weight"] = np.concatenate(turns, axis=1).reshape(-1, 8)
    for side in (face, formers):
        side |= {f"adam_m.{n}": values.copy() for n, values in side.items() if "layers" in n}
    return face, formers


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("turned", [False, True], ids=["HF first", "MindFormers first"])
def test_another_frameworks_checkpoint_needs_no_mapping(tmp_path, groups, turned):
    """Names, gamma and beta, and fused weights: parts one behind the other, or by groups."""
    face, formers = of_both_networks(groups)
    face["model.norm.bias"], formers["model.norm_out.beta"] = [floats(8)] * 2
    found = pair(tmp_path, *((formers, face) if turned else (face, formers)))
    assert found.status is Outcome.IDENTICAL
    assert [said.code for said in found.remarks] == ["checkpoint.preset", "checkpoint.fused"]
    assert len(found.findings) == len(formers)
    face["model.layers.1.self_attn.k_proj.weight"][2, 3] += 1
    found = pair(tmp_path, *((formers, face) if turned else (face, formers)))
    assert [(f.record, f.metrics.max_abs_err) for f in found.differing] == [
        ("model.layers.1.attention.w_qkv.weight", pytest.approx(1))
    ]


def test_a_layer_whose_parts_changed_places_differs(tmp_path):
    """A network reads all its layers alike, so the order of the others counts."""
    face, formers = of_both_networks()
    first, second = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "kv")
    face[first], face[second] = face[second], face[first]
    differing = pair(tmp_path, face, formers).differing
    assert {f.record for f in differing} == {"model.layers.1.attention.w_qkv.weight"}


def shuffled(rows):
    return rows[np.random.default_rng(5).permutation(len(rows))]


def halves_to_pairs(rows):
    """Return the rows of a head for a rotary embedding of pairs; they were for one of halves."""
    return rows.reshape(2, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


#: What is wrong with the rows of fused queries, keys and values: 8, 4 and 4.
WRONG_ROWS = {
    "shuffled": shuffled,
    "two rows exchanged": lambda rows: rows[[3, 1, 2, 0, *range(4, 16)]],
    "rows of two parts exchanged": lambda rows: rows[[12, *range(1, 12), 0, 13, 14, 15]],
    "keys and values exchanged": lambda rows: rows[[*range(8), *range(12, 16), *range(8, 12)]],
    "keys before queries": lambda rows: rows[[*range(8, 12), *range(8), *range(12, 16)]],
    "rotary": lambda rows: np.concatenate([halves_to_pairs(rows[:8]), rows[8:]]),
}


@pytest.mark.parametrize("layers", [(0, 1, 2), (0, 1), (1,)], ids=str)
@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_rows_in_an_order_that_no_network_has_differ(tmp_path, wrong, layers):
    """Whether in all layers, in most or in one: there, and in no healthy layer."""
    face, formers = of_both_networks()
    names = [f"model.layers.{layer}.attention.w_qkv.weight" for layer in layers]
    for name in names:
        formers[name] = WRONG_ROWS[wrong](formers[name])
    found = pair(tmp_path, face, formers)
    assert found.status is Outcome.DIVERGED
    assert {f.record for f in found.differing} == {*names}


def test_a_fused_weight_that_is_transposed_is_not_the_same(tmp_path):
    face, formers = of_both_networks()
    name = "model.layers.{}.feed_forward.w_gate_hidden.weight"
    for layer in range(3):  # square, so that its shape does not tell
        formers[name.format(layer)] = formers[name.format(layer)].T.copy()
    differing = {f.record for f in pair(tmp_path, face, formers).differing}
    assert differing == {name.format(layer) for layer in range(3)}


@pytest.mark.parametrize("groups", [1, 2])
def test_the_order_in_which_parts_are_taken_is_said(tmp_path, groups):
    found = pair(tmp_path, *of_both_networks(groups))
    (said,) = (text_of(one, "en") for one in found.remarks if one.code == "checkpoint.fused")
    assert "12 fused parameters" in said  # with those of the optimizer
    for whole, parts in (("w_qkv", "q_proj, k_proj, v_proj"), ("w_gate_hidden", "gate_proj, up")):
        assert f"{whole} = {parts}" in said
    assert ("in 2 groups" in said) is (groups == 2)


def test_a_part_that_cannot_be_read_makes_its_fused_weight_unreadable(tmp_path):
    """And no other; nor is one partner given to two parameters of unlike names."""
    face, formers = of_both_networks()
    formers["model.norm_out.gamma"] = formers["model.norm_out.weight"]
    found = pair(tmp_path, face, formers)
    assert [(f.record, f.status) for f in found.differing] == [
        ("model.norm_out.gamma", Status.ONLY_IN_B)
    ]
    path = tmp_path / "a.ckpt"
    content = path.read_bytes()
    at = content.index(b"Float32", content.index(b"model.layers.1.mlp.up_proj.weight"))
    path.write_bytes(content[:at] + b"Float99" + content[at + 7 :])
    statuses_of = statuses(compare_checkpoints(path, tmp_path / "b.ckpt"))
    del statuses_of["model.norm_out.gamma"]
    odd = {name for name, status in statuses_of.items() if status is not Status.IDENTICAL}
    assert odd == {"model.layers.1.feed_forward.w_gate_hidden.weight"}
    assert statuses_of[odd.pop()] is Status.UNREADABLE


def test_a_preset_does_not_lead_two_parameters_to_one(tmp_path):
    """Of names that both checkpoints have, none is given to another."""
    face, formers = of_both_networks()
    both = {**face, **formers}
    assert pair(tmp_path, both, dict(reversed(both.items()))).status is Outcome.IDENTICAL


def test_an_optimizers_state_that_one_side_does_not_have_is_coverage(tmp_path):
    """An export holds weights alone; one moment that is missing among others differs."""
    w = floats(4)
    state = {"moment1.w": w, "moment2.w": w, "global_step": np.array([3], np.int32)}
    found = pair(tmp_path, {"w": w, **state}, {"w": w})
    assert found.status is Outcome.IDENTICAL
    assert [said.code for said in found.coverage] == ["checkpoint.optimizer_only_in"]
    found = pair(tmp_path, {"w": w, **state}, {"w": w, "moment1.w": w})
    assert found.status is Outcome.DIVERGED


def test_a_cell_that_is_called_as_an_optimizers_state_is_none(tmp_path):
    """What one side alone has of it is missing."""
    w = floats(4)
    found = pair(tmp_path, {"w": w, "linear.weight": w, "prev.weight": w}, {"w": w})
    assert found.status is Outcome.DIVERGED
    assert [finding.record for finding in found.differing] == ["linear.weight", "prev.weight"]


def test_include_and_exclude_choose_parameters(tmp_path):
    """By the names of either side; what leaves nothing is refused."""
    a = {"layers.0.w": floats(2), "layers.1.w": floats(2), "head": floats(2)}
    b = {**a, "layers.1.w": floats(2)}
    found = pair(tmp_path, a, b, exclude=r"layers\.1")
    assert found
    assert found.coverage[0].params == {"count": 1}
    assert [f.record for f in pair(tmp_path, a, b, include=r"1\.w").weights] == ["layers.1.w"]
    with pytest.raises(UsageError, match="no record to compare"):
        pair(tmp_path, a, b, include="nowhere")


def test_a_parameter_that_cannot_be_read_never_agrees(tmp_path):
    """Not even with the same bytes on both sides."""
    found = pair(tmp_path, {"w": floats(2)}, {"w": floats(2)})
    for name in "ab":
        path = tmp_path / f"{name}.ckpt"
        path.write_bytes(path.read_bytes().replace(b"Float32", b"Float99"))
    found = compare_checkpoints(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert statuses(found) == {"w": Status.UNREADABLE}
    assert not found


@pytest.fixture
def cut(tmp_path):
    """A checkpoint of one file, and the same over two ranks, without a strategy."""
    w = floats(4, 2)
    whole = write_ckpt(tmp_path / "whole.ckpt", {"w": w, "b": w[0]})
    for rank in range(2):
        arrays = {"w": w[2 * rank : 2 * rank + 2], "b": w[0]}
        write_ckpt(tmp_path / "ranks" / f"rank_{rank}" / "net.ckpt", arrays)
    return whole, tmp_path / "ranks"


def test_parts_of_parameters_need_a_strategy(cut, tmp_path):
    """With one they are the whole; without, nothing is guessed."""
    with pytest.raises(RunError, match="parts of parameters for 2 ranks"):
        compare_checkpoints(*cut)
    layouts = {"w": ([2], [0, -1]), "b": ([2], [-1])}
    write_strategy(cut[1] / "strategy" / "src_strategy.ckpt", layouts)
    found = compare_checkpoints(*cut)
    assert found.status is Outcome.IDENTICAL
    assert [remark.code for remark in found.remarks] == ["checkpoint.of_side"]


def test_two_of_several_ranks_are_compared_rank_by_rank(cut, tmp_path):
    """The finding says which rank."""
    other = tmp_path / "other"
    for rank in range(2):
        write_ckpt(other / f"rank_{rank}" / "net.ckpt", {"w": floats(2, 2), "b": floats(2)})
    source = (cut[1] / "rank_0" / "net.ckpt").read_bytes()
    (other / "rank_0" / "net.ckpt").write_bytes(source)
    found = compare_checkpoints(cut[1], other)
    differing = {(finding.record, finding.rank) for finding in found.differing}
    assert differing == {("w", 1), ("b", 1)}
    write_ckpt(other / "rank_2" / "net.ckpt", {"w": floats(2, 2)})
    with pytest.raises(RunError, match="A has ranks 0, 1, B ranks 0, 1, 2"):
        compare_checkpoints(cut[1], other)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_run_is_a_side(tmp_path, task):
    """By its elements, or by fingerprints; what the checkpoint has otherwise is found."""
    run = record_training(tmp_path / "run", task=task, steps=1, tokens=1)
    recorded = open_run(record_training(tmp_path / "full", task="tensor", steps=1, tokens=1))
    arrays = {
        network_name(entry.cell, record.path): record.array()
        for entry in reversed(recorded.entries(step=0))
        for record in entry.records
        if record.io == "parameters" and entry.phase.startswith("actor")
    }
    assert arrays
    good = write_ckpt(tmp_path / "good.ckpt", arrays)
    found = compare_checkpoints(run, good)
    assert found.status is Outcome.IDENTICAL
    assert found.kinds == ("run", "ckpt")
    name = next(iter(arrays))
    bad = write_ckpt(tmp_path / "bad.ckpt", {**arrays, name: arrays[name] + np.float32(1)})
    found = compare_checkpoints(bad, run)
    assert [finding.record for finding in found.differing] == [name]


def say_saved(run, role, saved):
    """Let a run say which checkpoints it saved, by the steps that were done."""
    paths = {str(n): str(path) for n, path in saved.items()}
    rewrite(run / "run.json", {"saved_checkpoints": {role: paths}})


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_what_a_run_saved_is_compared_with_the_step_that_begins_with_it(tmp_path, role):
    run = record_training(tmp_path / "run", task="tensor", steps=2, tokens=1)
    arrays = {
        network_name(entry.cell, record.path): record.array()
        for entry in reversed(open_run(run).entries(step=1))
        for record in entry.records
        if record.io == "parameters" and entry.phase.startswith(role)
    }
    saved = tmp_path / "checkpoints" / "1"
    saved.mkdir(parents=True)
    write_ckpt(saved / f"{role}.ckpt", arrays)
    unlike = compare_checkpoints(run, saved)
    assert unlike.status is not Outcome.IDENTICAL  # with the weights that the actor began with
    say_saved(run, role, {1: saved, 9: tmp_path / "later.ckpt"})
    for path in (saved, saved / f"{role}.ckpt"):
        found = compare_checkpoints(path, run)
        assert found.status is Outcome.IDENTICAL
        assert (
            "B: the run saved the other side before its step 1: compared are the parameters of "
            f"role {role} in step 1"
        ) in [text_of(remark, "en") for remark in found.remarks]
    write_ckpt(tmp_path / "later.ckpt", arrays)
    with pytest.raises(RunError, match="before its step 9, in which it recorded no parameters"):
        compare_checkpoints(run, tmp_path / "later.ckpt")
    asked = compare_checkpoints(run, tmp_path / "later.ckpt", step=1)
    assert (asked.status is Outcome.IDENTICAL) is (role == "actor")


@pytest.mark.parametrize(
    "said", [[], {"actor": []}, {"actor": {"-1": "x"}}, {"actor": {"1": 3}}, {"actor": {"1": ""}}]
)
def test_what_a_run_says_of_its_checkpoints_in_another_way_is_passed_over(tmp_path, said):
    run = record_training(tmp_path / "run", task="tensor", steps=1, tokens=1)
    rewrite(run / "run.json", {"saved_checkpoints": said})
    ckpt = write_ckpt(tmp_path / "a.ckpt", {"w": floats(2)})
    assert compare_checkpoints(run, ckpt).kinds == ("run", "ckpt")


def test_what_cannot_be_compared_is_refused(tmp_path):
    """The same file twice, nothing there, an output among what is compared."""
    a = write_ckpt(tmp_path / "a" / "a.ckpt", {"w": floats(2)})
    b = write_ckpt(tmp_path / "b.ckpt", {"w": floats(2)})
    (tmp_path / "link.ckpt").symlink_to(a)
    with pytest.raises(RunError, match="given as a and as b"):
        compare_checkpoints(a, tmp_path / "link.ckpt")
    with pytest.raises(RunError, match="does not exist"):
        compare_checkpoints(a, tmp_path / "none.ckpt")
    with pytest.raises(RunError, match="inside"):
        compare_checkpoints(tmp_path / "a", b, output_path=tmp_path / "a" / "out")


def test_the_tables_hold_every_parameter(tmp_path):
    """A row each, with its status; names cannot be formulas; a second comparison replaces them."""
    a, b = {"=1+1": floats(2), "w": floats(2), "adam_m.w": floats(2)}, {"=1+1": floats(2)}
    out = tmp_path / "out"
    found = pair(
        tmp_path, a, {**b, "w": a["w"], "adam_m.w": a["adam_m.w"]}, output_path=out, csv=True
    )
    book = load_workbook(out / "checkpoint.xlsx", read_only=True)
    assert book.sheetnames == ["verdict", "parameters", "optimizer"]
    header, *rows = book["parameters"].iter_rows(values_only=True)
    by_name = {row[0].strip(" '"): dict(zip(header, row)) for row in rows}
    assert by_name["=1+1"]["status"] == "different"
    assert by_name["=1+1"]["l2"] == pytest.approx(found.weights[0].metrics.euclidean)
    assert by_name["w"]["status"] == "identical"
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["status"] == "diverged"
    assert verdict["counts"] == {"different": 1, "identical": 2}
    assert verdict["first_divergence"]["record"] == "=1+1"
    assert {*verdict["tables"]} == {path.name for path in out.iterdir()} - {"verdict.json"}
    again = compare_checkpoints(found.a, found.b, output_path=out)
    assert {path.name for path in out.iterdir()} == {*again.tables, "verdict.json"}


@pytest.mark.parametrize("two_axes", [False, True])
@pytest.mark.parametrize("change", ["", "an expert differs", "an expert is missing"])
def test_stacked_experts_are_those_of_hugging_face(tmp_path, two_axes, change):
    """Each expert's [outputs, inputs] is found in the weight of all; a shared expert too."""
    experts, hidden, inner = 3, 6, 4
    theirs, ours = {}, {}
    for layer in range(2):
        a, b = f"model.layers.{layer}.mlp.", f"decoder.layers.{layer}.mlp."
        gates, ups, downs = (
            floats(experts, *s) for s in ((inner, hidden),) * 2 + ((hidden, inner),)
        )
        for kind, each in (("gate", gates), ("up", ups), ("down", downs)):
            theirs |= {f"{a}experts.{e}.{kind}_proj.weight": w for e, w in enumerate(each)}
        first = np.concatenate([gates, ups], 1).swapaxes(1, 2)
        second = downs.swapaxes(1, 2)
        for number, stacked in enumerate((first, second), 1):
            shape = (-1, stacked.shape[2]) if two_axes else stacked.shape
            ours[f"{b}experts.weight{number}"] = np.ascontiguousarray(stacked.reshape(shape))
        theirs[f"{a}gate.weight"] = ours[f"{b}router.weight"] = floats(experts, hidden)
        gate, up, down = floats(inner, hidden), floats(inner, hidden), floats(hidden, inner)
        for kind, weight in (("gate", gate), ("up", up), ("down", down)):
            theirs[f"{a}shared_experts.{kind}_proj.weight"] = weight
        ours[f"{b}shared_experts.linear_fc1.weight"] = np.concatenate([gate, up])
        ours[f"{b}shared_experts.linear_fc2.weight"] = down
    if change == "an expert differs":
        theirs["model.layers.1.mlp.experts.2.down_proj.weight"][0, 0] += 1
    if change == "an expert is missing":
        del theirs["model.layers.1.mlp.experts.2.down_proj.weight"]
    for own, other in ((theirs, ours), (ours, theirs)):
        found = pair(tmp_path, own, other)
        unlike = {f.record: f.status for f in found.findings if f.status is not Status.IDENTICAL}
        if not change:
            assert not unlike
            (fused,) = (said for said in found.remarks if said.code == "checkpoint.fused")
            assert "weight2 = down_proj of 3 experts" in text_of(fused, "en")
        elif "differs" in change:
            (name,) = unlike
            assert name.endswith("layers.1.mlp.experts.weight2")
        else:
            assert {*unlike.values()} == {Status.ONLY_IN_A, Status.ONLY_IN_B}
            assert "decoder.layers.1.mlp.experts.weight2" in unlike
