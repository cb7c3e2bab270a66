"""msprobe's cell, api, data and layer mappings: their files, and what stands against what."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import yaml
from helpers.mapped_dumps import MAPPINGS, write_apis, write_cells, write_mixed
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import ConfigError, UsageError, compare_distributed, compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import Kind, MsprobeMapping, recognised
from mindrlhf_msprobe.comparison.pairing.msprobe_partners import CellNames, under_names_of_npu
from mindrlhf_msprobe.comparison.pairing.planner import StepData, plan_step
from mindrlhf_msprobe.findings import Outcome, Status
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Entry, Record


def entry(name: str, seq: int, *paths: str) -> Entry:
    records = tuple(
        Record(f"{name}.{path}", *path.split(".", 1), Leaf("mindspore.Tensor", "Float32", (1,)))
        for path in paths
    )
    return Entry(name, "dump", 0, 0, seq, seq, records=records)


def paired(npu: list[Entry], bench: list[Entry], mapping: MsprobeMapping) -> set[tuple[str, str]]:
    """Return the names of the records that are compared, NPU's first; each is in one pair."""
    left, right = StepData(npu, []), StepData(bench, [])
    plan = plan_step(0, 0, under_names_of_npu(left, right, mapping), left, by_name=True)
    for side, entries in ((0, bench), (1, npu)):
        names = [(p.a, p.b)[side].name for p in plan.pairs if (p.a, p.b)[side] is not None]
        assert {*names} == {record.name for e in entries for record in e.records}
    return {(p.b.name, p.a.name) for p in plan.pairs if p.a is not None and p.b is not None}


PARTS = st.lists(st.text("abx0", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_whole_names_lead_where_the_file_says(cells: list[str], chance: random.Random) -> None:
    """cell_mapping of any names onto any others, both frameworks' scopes: each cell is found."""
    targets = [f"{cell}.y" for cell in cells]
    chance.shuffle(targets)
    scope = chance.choice(["Cell", "Module"])
    names = {f"{cell}.Dense": f"{target}.Linear" for cell, target in zip(cells, targets)}
    paths = ("input.0", "output.0")
    a = [
        entry(f"Cell.{cell}.Dense.{direction}.0", n, *paths)
        for direction in ("forward", "backward")
        for n, cell in enumerate(cells)
    ]
    b = [
        entry(f"{scope}.{target}.Linear.{direction}.0", n, *paths)
        for direction in ("forward", "backward")
        for n, target in enumerate(targets)
    ]
    expected = {
        (f"Cell.{x}.Dense.{d}.0.{path}", f"{scope}.{y}.Linear.{d}.0.{path}")
        for x, y in zip(cells, targets)
        for d in ("forward", "backward")
        for path in paths
    }
    assert paired(a, b, MsprobeMapping(Kind.CELL, names=names)) == expected
    chance.shuffle(b)
    rank = {e.name: n for n, e in enumerate(b)}
    b = [Entry(e.name, "dump", 0, 0, rank[e.name], None, records=e.records) for e in b]
    assert paired(a, b, MsprobeMapping(Kind.CELL, names=names)) == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_records_stand_where_the_file_says(count: int, others: int, data: st.DataObject) -> None:
    """data_mapping of any records onto any others, or onto nothing: these pairs, and no others.

    What is not in the file stands against the record of its own name, if no other has taken it.
    """
    paths = ("input.0", "input.x", "output.0")
    a = [
        entry(f"Cell.{'net' * (n % 2) or 'a'}.{n}.Dense.forward.0", n, *paths) for n in range(count)
    ]
    b = [entry(f"Cell.a.{n}.Dense.forward.0", n, *paths) for n in range(others)]
    names_a = [r.name for e in a for r in e.records]
    names_b = [r.name for e in b for r in e.records]
    sources = data.draw(st.lists(st.sampled_from(names_a), unique=True))
    targets = [data.draw(st.sampled_from([*names_b, "N/A"])) for _ in sources]
    names = dict(zip(sources, targets))
    expected = {(x, y) for x in names_a if (y := names.get(x, x)) in names_b}
    found = paired(a, b, MsprobeMapping(Kind.DATA, names=names))
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text("ab.", min_size=1, max_size=3), st.text("abc.", max_size=3), max_size=6
    ),
    st.text("ab.", max_size=8),
)
def test_parts_are_replaced_as_msprobe_does(names: dict[str, str], cell: str) -> None:
    """In the file's order, each once, on what the ones before it have left."""
    expected = names.get(cell)
    if expected is None:
        expected = cell
        for source, target in names.items():
            if source in expected:
                expected = expected.replace(source, target, 1)
    assert CellNames(names).renamed(cell) == expected


@pytest.fixture
def dumps(tmp_path):
    """Return the baseline, of PyTorch, and the run under test, of MindSpore."""
    npu, bench = write_cells(tmp_path)
    return bench, npu


def written(tmp_path: Path, content: object) -> str:
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    (tmp_path / "map.yaml").write_text(text)
    return str(tmp_path / "map.yaml")


def test_a_network_of_the_other_framework_agrees(tmp_path, dumps):
    """A layer_mapping and a cell_mapping of parts bring all of it together; workers do the same."""
    layer = written(tmp_path, MAPPINGS["layer"])
    result = compare_runs(*dumps, layer_mapping=layer)
    assert (result.verdict.status, result.notes) == (Outcome.WITHIN_TOLERANCE, ())
    cell = written(tmp_path, MAPPINGS["cell_parts"])
    for workers in (1, 2):
        again = compare_runs(*dumps, cell_mapping=cell, workers=workers)
        assert again.verdict.counts == result.verdict.counts
        names = {(f.a.name, f.b.name) for f in again.findings}
        assert names == {(f.a.name, f.b.name) for f in result.findings}


def test_a_layer_mapping_goes_by_where_something_lies(tmp_path):
    """Layers that one framework numbers otherwise; APIs by the layer that called them, and how."""
    npu, bench = write_mixed(tmp_path)
    result = compare_runs(bench, npu, layer_mapping=True)
    pairs = {(f.b.name, f.a.name) for f in result.findings}
    for a, b in (
        ("Cell.net.layers.4.fc.Dense.forward.0", "Module.net.layers.0.fc.Dense.forward.0"),
        ("Cell.net.layers.5.Block.backward.0", "Module.net.layers.1.Block.backward.0"),
        ("Mint.add.0.forward", "Torch.add.1.forward"),
        ("Mint.add.1.forward", "Torch.add.2.forward"),
        ("Mint.add.1.backward", "Torch.add.2.backward"),
        ("Mint.add.2.forward", "Torch.add.0.forward"),
    ):
        assert (f"{a}.input.0", f"{b}.input.0") in pairs
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE


def test_a_difference_is_named_by_both_names(tmp_path, dumps):
    """What differs behind a mapped name has the name of the run under test, the other beside it."""
    content = json.loads(dumps[0].read_text())
    name = "Module.layers.1.mlp.dense_h_to_4h.Linear.forward.0"
    content["data"][name]["output"][0]["Max"] = 7.0
    dumps[0].write_text(json.dumps(content))
    result = compare_runs(*dumps, layer_mapping=written(tmp_path, MAPPINGS["layer"]))
    first = result.verdict.first_divergence
    assert first.record == "Cell.layers.1.mlp.fc1.Dense.forward.0.output.0"
    (found,) = [f for f in result.findings if not f.status.agrees]
    assert (found.record, found.b.name) == (first.record, first.record)
    assert (found.a.name, found.status) == (f"{name}.output.0", Status.DIFFERENT)


def test_between_two_networks_of_mindspore(tmp_path):
    """msprobe's cell_mapping is of PyTorch's dumps; here it holds for two of MindSpore, too."""
    a, _ = write_cells(tmp_path / "a")
    b, _ = write_cells(tmp_path / "b")
    for path in (b, b.with_name("construct.json")):
        path.write_text(path.read_text().replace(".attn.", ".attention.").replace("Attn", "Att"))
    mapping = {"attn.Attn": "attention.Att", "attn.": "attention."}
    result = compare_runs(b, a, cell_mapping=written(tmp_path, mapping))
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert not compare_runs(b, a, cell_mapping=True)


def test_as_msprobe_takes_them(tmp_path, dumps, capsys):
    """On the command line, with and without a file, and in compare_distributed."""
    file = written(tmp_path, MAPPINGS["layer"])
    command = ["compare", "-tp", *map(str, (dumps[1], "-gp", dumps[0])), "-o", str(tmp_path / "o")]
    assert main([*command, "-lm", file]) == 0
    assert main([*command, "--layer_mapping"]) == 1
    assert main([*command, "-cm", written(tmp_path, MAPPINGS["cell_parts"])]) == 0
    assert main([*command, "-dm", written(tmp_path, MAPPINGS["data"])]) == 1
    assert main([*command, "-cm", str(tmp_path / "none.yaml")]) == 2
    capsys.readouterr()
    steps = [path.parents[1] for path in reversed(dumps)]  # NPU, then Bench
    out = tmp_path / "out"
    compare_distributed(*steps, out, layer_mapping=written(tmp_path, MAPPINGS["layer"]))
    assert json.loads((out / "verdict.json").read_text())["status"] == "within_tolerance"
    apis = write_apis(tmp_path / "apis")
    found = {}
    file = written(tmp_path, MAPPINGS["api"])
    for mapping in (True, file):
        result = compare_runs(*reversed(apis), api_mapping=mapping)
        found[mapping] = {(f.b.name, f.a.name) for f in result.findings}
    flipped = ("Functional.flip.0.forward.input.0", "Torch.flip.0.forward.input.")
    assert (flipped[0], f"{flipped[1]}0") in found[True]
    assert (flipped[0], f"{flipped[1]}1") in found[file]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cell_whole", "cell_mapping"),
        ("data", "data_mapping"),
        ("layer", "layer_mapping"),
        ("api", "api_mapping"),
    ],
)
def test_a_mapping_is_recognised_by_what_it_holds(tmp_path, dumps, capsys, name, kind):
    """`mapping` takes msprobe's files, too, and says which of them it is read as."""
    file = written(tmp_path, MAPPINGS[name])
    if kind == "api_mapping":
        dumps = (*reversed(write_apis(tmp_path / "apis")),)
    named, found = compare_runs(*dumps, **{kind: file}), compare_runs(*dumps, mapping=file)
    for one in (named, found):
        assert one.findings
    assert found.verdict.counts == named.verdict.counts
    pairs = [{(f.a and f.a.name, f.b and f.b.name) for f in one.findings} for one in (named, found)]
    assert pairs[0] == pairs[1]
    assert f"{file} is read as msprobe's {kind}" in found.notes
    main(["compare", *map(str, dumps), "--mapping", file, "-o", str(tmp_path / "out")])
    assert f"is read as msprobe's {kind}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "names",
    [
        {"layers.*.attn": "layers.*.Attention"},
        {r"Layers\.(\d+)": r"blocks.\1"},
        {"attn": "self_attention"},
        {"Primitive.matmul.MatMul": "Primitive.mm.MatMul"},
        {"net.qkv": ["net.q", "net.k"]},
        {"net.qkv": {"parts": ["net.q", "net.k"], "groups": 2}},
    ],
)
def test_names_of_cells_are_no_mapping_of_msprobe(tmp_path, names):
    """A has no such cell: the sentence says from where to where a mapping leads."""
    assert recognised(written(tmp_path, names)) is None


def test_of_several_the_first_counts(tmp_path, dumps):
    """As in msprobe api, cell, layer, data; the answer says which were given for nothing."""
    cell, data = written(tmp_path, MAPPINGS["cell_parts"]), dict(MAPPINGS["data"] or {})
    result = compare_runs(*dumps, cell_mapping=cell, data_mapping=data, layer_mapping=False)
    assert result.notes == (
        "data_mapping is not used: cell_mapping is given, too, and takes precedence",
    )
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    with pytest.raises(UsageError, match="mapping and cell_mapping are both given"):
        compare_runs(*dumps, cell_mapping=cell, mapping=cell)


def test_names_of_nothing_are_noted(tmp_path, dumps):
    """The answer names the first line that is of nothing in B, and how many more there are."""
    names = {"attn": "self_attention", "nothing.Dense": "x.Linear", "other": "y"}
    result = compare_runs(*dumps, cell_mapping=written(tmp_path, names))
    assert "cell_mapping: nothing in B has the name nothing.Dense and 1 more" in result.notes


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (
            "cell",
            "fc1.Dense: fc2.Linear\nfc2.Dense: 5\n",
            "line 2: 'fc2.Dense': 5; expected a name",
        ),
        ("cell", "- a\n", "expected a mapping of names at the top of the file, found a list"),
        ("cell", "{}", "is empty; expected lines such as 'fc2.Dense: fc2.Linear'"),
        ("cell", "a: b\na: c\n", "line 2: 'a' is repeated, after line 1"),
        ("data", "Cell.a: [1]\n", r"line 1: 'Cell.a': \[1\]; expected a name"),
        ("layer", "Block: fc\n", "line 1: 'Block': 'fc'; expected a layer's class and a mapping"),
        ("layer", "Mlp:\n  a: b\n  c: null\n", "line 3: Mlp: 'c': None; expected a name"),
        (
            "api",
            "Functional.abs: Torch.abs\n",
            "line 1: Functional.abs: 'Torch.abs'; expected one of",
        ),
        (
            "api",
            "- ms_api: abs\n  pt_api: Torch.abs\n",
            "line 1: ms_api: 'abs'; expected an API as",
        ),
        ("api", "- ms_api: F.abs\n", "line 1: pt_api: None; expected an API as in dump.json"),
        (
            "api",
            "ms_api: F.abs\npt_api: T.abs\nms_args: [0, 1]\npt_args: [0]\n",
            r"line 3: ms_args: \[0, 1\]; expected as many as in pt_args, 1",
        ),
        ("api", "ms_api: F.abs\npt_api: T.abs\nms_args: [0, 0]\n", "expected a list of numbers or"),
        ("api", "- ms_api: F.abs\n  pt_ap: T.abs\n", "line 2: pt_ap.*pt_api"),
        ("layer", "a: &x\n  b: *x\n", "line 1: a value contains itself"),
        ("cell", "a: [\n", "is not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, dumps, kind, content, said):
    """With the file, the line and the key, what stands there, and what was expected."""
    file = written(tmp_path, content)
    with pytest.raises(ConfigError, match=f"map.yaml: .*{said}"):
        compare_runs(*dumps, **{f"{kind}_mapping": file})


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("cell_mapping", 5),
        ("data_mapping", True),
        ("layer_mapping", ""),
        ("api_mapping", {"a": "b"}),
    ],
)
def test_what_is_no_file_is_refused(dumps, option, given):
    with pytest.raises(UsageError, match=re.escape(f"{option} is {given!r}; expected the path")):
        compare_runs(*dumps, **{option: given})


def test_a_missing_file_and_one_too_large_are_refused(tmp_path, dumps):
    with pytest.raises(ConfigError, match="there is no such file"):
        compare_runs(*dumps, cell_mapping=str(tmp_path / "none.yaml"))
    large = written(tmp_path, "".join(f"a{n}: b\n" for n in range(300_000)))
    with pytest.raises(ConfigError, match="is larger than"):
        compare_runs(*dumps, data_mapping=large)
    with pytest.raises(ConfigError, match="data_mapping: 'a': 5; expected a name"):
        compare_runs(*dumps, data_mapping={"a": 5})


def test_files_of_pytorch_are_not_opened(tmp_path, dumps):
    """A dump with .pt files is compared by its statistics."""
    content = json.loads(dumps[0].read_text())
    for name, own in content["data"].items():
        for record in own.get("output", [])[:1]:
            record["data_name"] = f"{name}.output.0.pt"
    dumps[0].write_text(json.dumps(content))
    result = compare_runs(*dumps, layer_mapping=written(tmp_path, MAPPINGS["layer"]))
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
