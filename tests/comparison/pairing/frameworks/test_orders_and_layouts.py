"""How weights stand in a network on MindSpore and in the same one on PyTorch: rows and layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs

WIDTH = 8


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dumped(path: Path, cells: dict[str, dict[str, Any]], *, torch: bool, elements: bool = True):
    """Record cells of a network on MindSpore, or write what msprobe dumps of them on PyTorch.

    Args:
        cells: by name: `kind`, `given` by argument, `weight`, `returned`.
        elements: with full tensors; else their statistics.
    """
    head = linear(drawn(7, 5, WIDTH), drawn(8, 3, WIDTH))  # called alike in both
    cells = {**cells, "head": head}
    if torch:
        return on_pytorch(path, cells, elements=elements)
    recording = Recording(path, task="tensor" if elements else "statistics", key_data_dump=False)
    with recording.phase("actor_compute_log_prob"):
        for name, cell in cells.items():
            if "within" not in cell:
                call(recording, name, cells)
    recording.end_step()
    return recording.close()


def call(recording: Recording, name: str, cells: dict[str, dict[str, Any]]) -> Any:
    """Record a call of a cell, and those of the cells within it."""
    cell = cells[name]
    given = dict(cell["given"])
    inputs = [given.pop("0")] if "0" in given else []
    weight = {"weight": cell["weight"]} if "weight" in cell else {}

    def made(*_: Any, **__: Any) -> Any:
        for other, inner in cells.items():
            if inner.get("within") == name:
                call(recording, other, cells)
        return cell["returned"]

    return recording.call(name, cell["kind"], made, *inputs, parameters=weight, **given)


def on_pytorch(path: Path, cells: dict[str, dict[str, Any]], *, elements: bool) -> Path:
    files = path / "step0/rank/dump_tensor_data"
    files.mkdir(parents=True)

    def described(name: str, values: np.ndarray) -> dict[str, Any]:
        leaf = {"type": "torch.Tensor", "dtype": f"torch.{values.dtype}", "shape": [*values.shape]}
        numbers = {"Max": values.max(), "Min": values.min()}
        if values.dtype.kind == "f":
            numbers |= {"Mean": values.mean(), "Norm": np.linalg.norm(values)}
        leaf |= {key: value.item() for key, value in numbers.items()}
        if not elements:
            return leaf
        np.save(files / f"{name}.npy", np.ascontiguousarray(values))
        return leaf | {"data_name": f"{name}.npy"}

    data = {}
    entries = {name: f"Module.{name}.{cell['kind']}.forward.0" for name, cell in cells.items()}
    around = {entries[name]: entries.get(cell.get("within")) for name, cell in cells.items()}
    for name, cell in cells.items():
        entry = entries[name]
        given = {key: described(f"{entry}.input.{key}", of) for key, of in cell["given"].items()}
        data[entry] = {
            "input_args": [given.pop("0")] if "0" in given else [],
            "input_kwargs": given,
            "output": [described(f"{entry}.output.0", cell["returned"])],
        }
        if "weight" in cell:
            weight = described(f"{entry}.parameters.weight", cell["weight"])
            data[entry]["parameters"] = {"weight": weight}
    task = "tensor" if elements else "statistics"
    content = {"task": task, "level": "L0", "framework": "pytorch", "data": data}
    (path / "step0/rank/dump.json").write_text(json.dumps(content))
    (path / "step0/rank/construct.json").write_text(json.dumps(around))
    return path


def compared(a: Path, b: Path, **options: Any):
    """Compare a network on either framework with one on the other."""
    torch = "dump" if (a / "step0").is_dir() else "actor_compute_log_prob"
    other = {"dump": "actor_compute_log_prob"}.get(torch, "dump")
    return compare_runs(a, b, phases=(torch, other), workers=1, **options)


def linear(given, weight, *, inputs_first=False, kind="Dense"):
    """Return a cell with a weight of its framework's layout."""
    returned = given @ (weight if inputs_first else weight.T)
    return {"kind": kind, "given": {"0": given}, "weight": weight, "returned": returned}


def unlike(result):
    return [f.record for f in result.findings if not f.status.agrees]


FUSED_CELL, PARTS = "layers.{}.attention.w_qkv", "layers.{}.self_attn.{}_proj"


def projections(wrong: dict[int, str], layers: int = 3, sizes=(8, 4, 4)):
    """Return fused cells, in layers of which some have other orders, and their parts."""
    fused, parts = {}, {}
    for layer in range(layers):
        given = drawn(100 + layer, 5, WIDTH)
        rows = {
            p: drawn(10 * layer + n, size, WIDTH) for n, (p, size) in enumerate(zip("qkv", sizes))
        }
        order = wrong.get(layer, "qkv")
        fused[FUSED_CELL.format(layer)] = linear(given, np.concatenate([rows[p] for p in order]))
        for part, weight in rows.items():
            parts[PARTS.format(layer, part)] = linear(given, weight, kind="Linear")
    return fused, parts


@pytest.mark.parametrize("of_torch", [False, True], ids=["MindSpore is", "PyTorch is"])
@pytest.mark.parametrize("fused_first", [False, True])
@pytest.mark.parametrize(
    ("wrong", "differing"),
    [
        ({}, []),
        (dict.fromkeys(range(3), "kqv"), []),
        ({1: "kqv"}, [1]),
        ({0: "vqk"}, [0]),
        ({0: "kqv", 1: "kqv"}, [2]),
    ],
)
def test_the_order_of_fused_rows_is_that_of_most_layers(
    tmp_path, wrong, differing, of_torch, fused_first
):
    """One layer with keys where the others have queries holds a wrong parameter."""
    fused, parts = projections(wrong)
    a = dumped(tmp_path / "a", fused, torch=of_torch)
    b = dumped(tmp_path / "b", parts, torch=not of_torch)
    result = compared(*((a, b) if fused_first else (b, a)))
    found = {f.entry: f for f in result.findings if f.io == "parameters" and "head" not in f.entry}
    assert len(found) == 3
    bad = {entry for entry, f in found.items() if not f.status.agrees}
    assert {entry.split(".")[2] for entry in bad} == {str(layer) for layer in differing}
    if differing:
        first = result.verdict.first_divergence
        assert first.cause.value == "parameter"
        assert first.entry in bad
    else:
        assert result.verdict.status == "within_tolerance"


def test_of_two_layers_the_usual_order_counts(tmp_path):
    """Nothing else tells which of both is wrong."""
    fused, parts = projections({0: "kqv"}, layers=2)
    a, b = dumped(tmp_path / "a", fused, torch=False), dumped(tmp_path / "b", parts, torch=True)
    first = compared(a, b).verdict.first_divergence
    assert first.cause.value == "parameter"
    assert first.entry.startswith("Cell.layers.0.attention.w_qkv.")


@pytest.mark.parametrize("groups", [1, 2], ids=["parts behind each other", "interleaved"])
def test_a_fused_weight_is_compared_with_its_parts(tmp_path, groups):
    """As a mapping says: what it holds, and what it returns."""
    _, parts = projections({}, sizes=(8, 8, 8))
    fused = {}
    for layer in range(3):
        held = [parts[PARTS.format(layer, part)] for part in "qkv"]
        turns = [cell["weight"].reshape(groups, -1, WIDTH) for cell in held]
        whole = np.concatenate(turns, axis=1).reshape(-1, WIDTH)
        fused[FUSED_CELL.format(layer)] = linear(held[0]["given"]["0"], whole)
    a, b = dumped(tmp_path / "a", fused, torch=False), dumped(tmp_path / "b", parts, torch=True)
    mapping = tmp_path / "names.yaml"
    names = ", ".join(PARTS.format("*", part) for part in "qkv")
    rule = f"{{parts: [{names}], groups: {groups}}}"
    mapping.write_text(f"{FUSED_CELL.format('*')}: {rule}\n")
    result = compared(a, b, mapping=mapping)
    found = {f.record: f.status for f in result.findings if "w_qkv" in f.record}
    last = f"Cell.{FUSED_CELL.format(2)}.Dense.forward.0"
    assert found[f"{last}.parameters.weight"].agrees
    assert found[f"{last}.output.0"].agrees
    assert any(note.code == "pairing.fused" for note in result.remarks)


@pytest.mark.parametrize("elements", [True, False])
def test_square_weights_are_turned_by_what_each_cell_computes(tmp_path, elements):
    """A class that has both layouts, and one of square weights alone; nothing is wrong."""
    given = drawn(0, 5, WIDTH)
    weights = {
        f"fc{n}": drawn(n, *shape) for n, shape in enumerate([(6, 8), (8, 8), (8, 8), (4, 8)])
    }
    kinds = {"fc2": "Conv1D", "fc3": "Conv1D"}
    turned = {"fc0", "fc1", "fc2"}
    mine = {n: linear(given, w) for n, w in weights.items()}
    theirs = {
        n: linear(given, w.T, inputs_first=True, kind=kinds.get(n, "Linear"))
        if n in turned
        else linear(given, w, kind=kinds.get(n, "Linear"))
        for n, w in weights.items()
    }
    theirs["fc4"] = mine["fc4"] = linear(given, drawn(9, 8, 8))
    a = dumped(tmp_path / "a", mine, torch=False, elements=elements)
    b = dumped(tmp_path / "b", theirs, torch=True, elements=elements)
    for runs in ((a, b), (b, a)):
        result = compared(*runs)
        assert not unlike(result)
        assert bool(result)


@pytest.mark.parametrize("inputs_first", [True, False])
def test_a_square_weight_that_was_not_turned_is_wrong(tmp_path, inputs_first):
    """The network reads it as it reads all others, and computes something else."""
    given, weight = drawn(0, 5, WIDTH), drawn(1, WIDTH, WIDTH)
    other = drawn(2, 4, WIDTH)
    mine = {"fc1": linear(given, other), "fc2": linear(given, weight)}
    stored = {"fc1": other.T, "fc2": weight} if inputs_first else {"fc1": other, "fc2": weight.T}
    theirs = {
        name: linear(given, own, inputs_first=inputs_first, kind="Conv1D")
        for name, own in stored.items()
    }
    a, b = dumped(tmp_path / "a", mine, torch=False), dumped(tmp_path / "b", theirs, torch=True)
    first = compared(a, b).verdict.first_divergence
    assert first.record == "Cell.fc2.Dense.forward.0.parameters.weight"
    assert first.inside.change.kind == "transposed"


FUSED = [f"layers.{n}.query_key_value" for n in range(3)]


ROTATED = [f"layers.{n}.{part}_proj" for n in range(3) for part in "qk"]


@pytest.mark.parametrize(
    ("names", "moved", "differing"),
    [
        (FUSED, FUSED, []),
        (FUSED, [], []),
        (FUSED, FUSED[1:2], FUSED[1:2]),
        (FUSED, FUSED[::2], FUSED[1:2]),
        (FUSED[:2], FUSED[1:2], FUSED[1:2]),
        (ROTATED, ROTATED, []),
        (ROTATED, ROTATED[3:4], ROTATED[3:4]),
        (ROTATED, ROTATED[:3] + ROTATED[4:], ROTATED[3:4]),
        (ROTATED, ROTATED[1::2], ROTATED[1::2]),
    ],
)
def test_a_weight_whose_rows_are_not_in_the_order_of_the_others_differs(
    tmp_path, names, moved, differing
):
    """One network reads all its layers alike; a weight that was not converted is an error."""
    given, mine, theirs = drawn(0, 2, 4), {}, {}
    for number, name in enumerate(names):
        values = drawn(number, 12, 4)
        axes = (0, 1) if name in FUSED else (1, 2)  # parts and heads, or halves of a head
        other = values.reshape(3, 2, 2, 4).swapaxes(*axes).reshape(12, 4)
        mine[name] = linear(given, values)
        theirs[name] = linear(given, other if name in moved else values, kind="Linear")
    a, b = dumped(tmp_path / "a", mine, torch=False), dumped(tmp_path / "b", theirs, torch=True)
    result = compared(a, b)
    found = {f.entry: f for f in result.findings if f.io == "parameters"}
    unlike = [name for name in names if not found[f"Cell.{name}.Dense.forward.0"].status.agrees]
    assert unlike == differing
    reordered = [note for note in result.remarks if note.code == "pairing.interleaved"]
    assert bool(reordered) == (len(moved) > len(names) / 2)
    if differing:
        first = result.verdict.first_divergence
        assert first.cause.value == "parameter"
        assert first.entry == f"Cell.{differing[0]}.Dense.forward.0"


@pytest.mark.parametrize("rows", ["as they are", "moved"])
def test_a_table_that_is_called_otherwise_is_found_by_its_rows(tmp_path, rows):
    """And compared with the one that it is; where its rows are moved, it differs."""
    ids, weight, table = np.arange(10).reshape(2, 5), drawn(1, 3, 4), drawn(2, 12, 4)
    runs = []
    for torch, name, held in (
        (False, "embed_tokens", table),
        (True, "shared", table if rows == "as they are" else table[::-1]),
    ):
        looked_up = {"given": {"0": ids}, "weight": held, "returned": held[ids]}
        cells = {name: {"kind": "Embedding", **looked_up}, "out": linear(held[ids], weight)}
        runs.append(dumped(tmp_path / name, cells, torch=torch))
    result = compared(*runs)
    assert [note.code for note in result.remarks].count("pairing.same_weight") == 1
    if rows == "as they are":
        assert not unlike(result)
        assert "embedding" in str({f.entry for f in result.findings}).lower()
    else:
        first = result.verdict.first_divergence
        assert first.record.startswith("Cell.shared.Embedding.forward.0.parameters.")


@pytest.mark.parametrize("noise", [0.0, 3e-5])
@pytest.mark.parametrize("parts_first", [False, True])
def test_fused_weights_are_turned_by_what_agrees(tmp_path, noise, parts_first):
    """A fused one is [inputs, outputs]; of its square parts the shapes do not say it."""
    mine, theirs = {}, {}
    for layer in range(2):
        given = drawn(50 + layer, 5, WIDTH)
        rows = {p: drawn(10 * layer + n, WIDTH, WIDTH) for n, p in enumerate("qkv")}
        whole = np.concatenate([*rows.values()]).T
        whole = (whole * (1 + noise * drawn(99, *whole.shape))).astype(np.float32)
        mine[FUSED_CELL.format(layer)] = linear(given, whole, inputs_first=True)
        for part, weight in rows.items():
            held = weight.T if parts_first else weight
            name = PARTS.format(layer, part)
            theirs[name] = linear(given, held, inputs_first=parts_first, kind="Linear")
    a, b = dumped(tmp_path / "a", mine, torch=False), dumped(tmp_path / "b", theirs, torch=True)
    mapping = tmp_path / "names.yaml"
    parts = ", ".join(PARTS.format("*", part) for part in "qkv")
    mapping.write_text(f"layers.*.attention.w_qkv: [{parts}]\n")
    result = compared(a, b, mapping=mapping)
    assert not unlike(result)
    assert {f.io for f in result.findings} >= {"parameters", "output"}


def seen(size: int, of: int = 3) -> np.ndarray:
    """Return which tokens each one sees, bool [1, 1, size, size], without the last of some."""
    found = np.tril(np.ones((size, size), bool))
    found[of:, 0] = False
    return found[None, None]


def attention(mask: dict[str, np.ndarray], returned: np.ndarray, kind: str, **given: np.ndarray):
    """Return a cell that is given a mask; what it makes of it is said."""
    return {
        "kind": kind,
        "given": {"0": drawn(1, 1, 6, WIDTH), **mask, **given},
        "returned": returned,
    }


def with_masks(
    path: Path, mine: np.ndarray, theirs: np.ndarray, *, other: bool = False, **both: Any
):
    """Record attention on both frameworks, by the names that these have for masks.

    Args:
        other: whether they return something else.
        both: further input of both, as a pair.
    """
    elements = both.pop("elements", True)
    returned = drawn(2, 1, 6, WIDTH)
    given = [{name: pair[side] for name, pair in both.items()} for side in (0, 1)]
    a = {"core": attention({"mask": mine}, returned, "CoreAttention", **given[0])}
    returned = returned * np.float32(1.5 if other else 1)
    b = {"core": attention({"attention_mask": theirs}, returned, "Attention", **given[1])}
    return compared(
        dumped(path / "a", a, torch=False, elements=elements),
        dumped(path / "b", b, torch=True, elements=elements),
    )


def additive(mask: np.ndarray, hidden: float) -> np.ndarray:
    return np.where(mask, 0, hidden).astype(np.float32)


ONE_FORM = {
    "bool": (seen(6), seen(6)),
    "additive": (additive(seen(6), -1e4), additive(seen(6), -1e4)),
    "integers": (seen(6).astype(np.int32), seen(6)[0].astype(np.int32)),
}
OTHER_FORMS = {
    "the opposite": (seen(6), ~seen(6)),
    "another number": (additive(seen(6), -1e4), additive(seen(6), -1e9)),
    "bool and additive": (seen(6), additive(seen(6), -1e4)),
    "of tokens alone": (seen(6), np.ones((1, 6), bool)),
}


@pytest.mark.parametrize("form", ONE_FORM)
def test_masks_of_one_form_are_compared(tmp_path, form):
    """They agree; and one that lets in more is the input that differs."""
    mine, theirs = ONE_FORM[form]
    result = with_masks(tmp_path / "same", mine, theirs)
    assert bool(result)
    assert "core" in str([f.record for f in result.findings if "mask" in f.record])
    wrong = theirs.copy()
    wrong.reshape(-1)[4 * 6] = wrong.reshape(-1)[0]
    first = with_masks(tmp_path / "other", mine, wrong, other=True).verdict.first_divergence
    assert first.record == "Cell.core.CoreAttention.forward.0.input.mask"
    assert first.cause.value == "input"


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_masks_of_other_forms_are_not_said_to_agree(tmp_path, form):
    """Nor to differ: what parts behind them may come of them."""
    mine, theirs = OTHER_FORMS[form]
    assert bool(with_masks(tmp_path / "same", mine, theirs))
    first = with_masks(tmp_path / "other", mine, theirs, other=True).verdict.first_divergence
    assert first.record == "Cell.core.CoreAttention.forward.0.output.0"
    codes = {said.code: said.params for said in first.reasons}
    assert "core" in codes["explanation.computed_or_mask"]["masks"]
    assert "explanation.cell_computed" not in codes
    assert "mask or positions were not compared" in first.explanation


@pytest.mark.parametrize("form", ["the opposite", "bool"])
def test_a_container_was_not_given_the_same_where_its_mask_was_not_compared(tmp_path, form):
    """Its code is to blame, or the mask."""
    mine, theirs = {**ONE_FORM, **OTHER_FORMS}[form]
    weight, returned, given = drawn(4, WIDTH, WIDTH), drawn(2, 1, 6, WIDTH), drawn(3, 1, 6, WIDTH)

    def cells(mask: dict[str, np.ndarray], scores: np.ndarray, kind: str) -> Any:
        inner = linear(scores, weight, kind=kind)
        return {
            "core.out": {**inner, "within": "core"},
            "core": attention(mask, returned, "Attention"),
        }

    a = dumped(tmp_path / "a", cells({"mask": mine}, given, "Dense"), torch=False)
    other = cells({"attention_mask": theirs}, given * np.float32(1.5), "Linear")
    first = compared(a, dumped(tmp_path / "b", other, torch=True)).verdict.first_divergence
    assert first.entry == "Cell.core.Attention.forward.0"
    codes = {said.code for said in first.reasons}
    assert ("explanation.container_or_mask" in codes) is (form == "the opposite")
    assert ("explanation.container" in codes) is (form == "bool")
    assert ("has the same inputs" in first.explanation) is (form == "bool")


def test_positions_of_one_form_are_compared(tmp_path):
    """Whole numbers of the same tokens, whatever their width."""
    mask = seen(6)
    right = np.arange(6, dtype=np.int64)[None]
    pair = right.astype(np.int32), right
    assert bool(with_masks(tmp_path / "same", mask, mask, position_ids=pair))
    pair = right.astype(np.int32), right + 1
    result = with_masks(tmp_path / "other", mask, mask, other=True, position_ids=pair)
    assert result.verdict.first_divergence.record.endswith("input.position_ids")


@pytest.mark.parametrize("form", ["additive", "the opposite"])
def test_by_statistics_masks_are_compared_where_these_say_the_same(tmp_path, form):
    """A mean that differs may be that of another form."""
    mine, theirs = {**ONE_FORM, **OTHER_FORMS}[form]
    result = with_masks(tmp_path, mine, theirs, elements=False)
    assert bool(result)
    assert any("mask" in f.record for f in result.findings) is (form == "additive")


def test_a_fault_below_the_tolerance_of_statistics_is_said_to_be_possible(tmp_path):
    """Where all before agrees by statistics alone."""
    mask = seen(6)
    first = with_masks(tmp_path, mask, mask, other=True, elements=False).verdict.first_divergence
    assert "explanation.but_below_tolerance" in {said.code for said in first.reasons}
    by_elements = with_masks(tmp_path / "tensor", mask, mask, other=True).verdict
    codes = {said.code for said in by_elements.first_divergence.reasons}
    assert "explanation.but_below_tolerance" not in codes
