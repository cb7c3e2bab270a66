"""msprobe's mappings: what stands against what is what the real msprobe pairs."""

from __future__ import annotations

import pytest
import yaml
from helpers.mapped_dumps import MAPPINGS, write_apis, write_cells, write_mixed
from reference_tool import compare, compare_8, interpreter

from mindrlhf_msprobe import compare_runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MAPPINGS)
def test_the_pairs_are_msprobes(tmp_path, name):
    """Of each kind, with a file and without: the same names stand against each other.

    Gradients of parameters lie where the layer does, also under a layer_mapping: msprobe 26 looks
    for those of a renamed layer in a layer that is not there.
    """
    python = interpreter("MSPROBE_REFERENCE_PYTHON")
    kind, content = f"{name.partition('_')[0]}_mapping", MAPPINGS[name]
    dumps = (write_apis if kind == "api_mapping" else write_cells)(tmp_path)
    given: bool | str = True
    if content is not None:
        (tmp_path / "map.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        given = str(tmp_path / "map.yaml")
    options = [f"--{kind}", *([given] if isinstance(given, str) else [])]
    rows = compare(python, *dumps, tmp_path / "theirs", *options)
    theirs = {(r["NPU Name"], r["Bench Name"]) for r in rows if r["Bench Name"] != "N/A"}
    findings = compare_runs(*reversed(dumps), **{kind: given}).findings
    ours = {(f.b.name, f.a.name) for f in findings if f.a.name and f.b.name}
    assert {f.b.name for f in findings} - {"", None} == {r["NPU Name"] for r in rows}
    assert theirs <= ours
    more = ours - theirs
    assert all(".parameters_grad." in a for a, _ in more)
    assert not more or kind == "layer_mapping"


def test_what_lies_in_a_layer_is_found_there(tmp_path):
    """Renumbered layers, and APIs by their layers and the framework's functions around them."""
    python = interpreter("MSPROBE_REFERENCE_PYTHON")
    dumps = write_mixed(tmp_path)
    rows = compare(python, *dumps, tmp_path / "theirs", "--layer_mapping")
    theirs = {(r["NPU Name"], r["Bench Name"]) for r in rows if r["Bench Name"] != "N/A"}
    findings = compare_runs(*reversed(dumps), layer_mapping=True).findings
    assert {(f.b.name, f.a.name) for f in findings} == theirs


@pytest.mark.parametrize("name", [name for name in MAPPINGS if name.startswith(("c", "d", "l"))])
def test_the_pairs_are_those_of_8(tmp_path, name):
    """Also of gradients of parameters, which have no number there; but whole names of cells only.

    26 replaces parts of names, too.
    """
    if name == "cell_parts":
        pytest.skip("8.x knows whole names only")
    python = interpreter("MSPROBE_REFERENCE_8_PYTHON")
    kind, content = name.partition("_")[0], MAPPINGS[name]
    dumps = write_cells(tmp_path)
    for path in [file for dump in dumps for file in dump.parent.iterdir()]:
        path.write_text(path.read_text().replace(".parameters_grad.0", ".parameters_grad"))
    given: bool | str = True
    if content is not None:
        if kind == "data":
            target = "Module.head.Linear.parameters_grad.bias"
            content = {**dict(content), "Cell.head.Dense.parameters_grad.weight": target}
        (tmp_path / "map.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        given = str(tmp_path / "map.yaml")
    options = [f"--{kind}_mapping", *([given] if isinstance(given, str) else [])]
    rows = compare_8(python, *dumps, tmp_path / "theirs", *options)
    theirs = {(r["NPU Name"], r["Bench Name"]) for r in rows if r["Bench Name"] != "N/A"}
    findings = compare_runs(*reversed(dumps), **{f"{kind}_mapping": given}).findings
    pairs = [(f.b.name, f.a.name) for f in findings if f.a.name and f.b.name]
    numbered, plain = ".parameters_grad.0", ".parameters_grad"
    assert {(x.replace(numbered, plain), y.replace(numbered, plain)) for x, y in pairs} == theirs
