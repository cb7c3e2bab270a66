"""msprobe's mappings: what stands against what is what the real msprobe pairs."""

from __future__ import annotations

import pytest
import yaml
from mapped_dumps import MAPPINGS, write_apis, write_cells
from reference_tool import compare, interpreter

from mindrlhf_msprobe import compare_runs


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
    findings = compare_runs(*dumps, **{kind: given}).findings
    ours = {(f.a.name, f.b.name) for f in findings if f.a.name and f.b.name}
    assert {f.a.name for f in findings} - {"", None} == {r["NPU Name"] for r in rows}
    assert theirs <= ours
    more = ours - theirs
    assert all(".parameters_grad." in a for a, _ in more)
    assert not more or kind == "layer_mapping"
