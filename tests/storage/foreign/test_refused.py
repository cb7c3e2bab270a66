"""Dumps that are not read are refused by name, with what to use instead."""

from __future__ import annotations

import json

import pytest

from mindrlhf_msprobe import RunError, open_run


def write_dump(root, **head):
    directory = root / "step0" / "rank0"
    directory.mkdir(parents=True)
    content = {"task": "statistics", "dump_data_dir": None, **head, "data": {"a": {}}}
    (directory / "dump.json").write_text(json.dumps(content, indent=1))
    return root


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"level": "L2", "framework": "mindspore"}, "a dump of kernels (level L2)"),
        ({"level": "L2", "framework": "pytorch"}, "Dump with level L0, L1 or mix"),
    ],
)
def test_dumps_of_msprobe_that_are_not_of_networks(tmp_path, head, said):
    with pytest.raises(RunError) as error:
        open_run(write_dump(tmp_path, **head))
    assert said in str(error.value)


def test_what_stands_among_the_entries_decides_nothing(tmp_path):
    write_dump(tmp_path, level="L0", framework="mindspore")
    path = tmp_path / "step0" / "rank0" / "dump.json"
    path.write_text(path.read_text().replace('"a": {}', '"a": {"level": "L2"}'))
    assert open_run(tmp_path).steps == [0]


@pytest.mark.parametrize(
    "name",
    [
        "Add.Default_network-Net_Add-op1.5.7.1623124369613540",
        "MatMul.MatMul_1.2.3.1623124369613540.bin",
        "Add.Add-op1.5.7.1623124369613540.output.0.ND.bin",
    ],
)
def test_acl_dumps(tmp_path, name):
    directory = tmp_path / "20260101" / "0" / "net" / "1" / "0"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(b"\x08\x01")
    with pytest.raises(RunError, match="ACL dump of kernels") as error:
        open_run(tmp_path)
    assert name in str(error.value)
    assert "MINDSPORE_DUMP_CONFIG" in str(error.value)


def test_other_directories_are_refused_as_before(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(RunError, match="holds neither"):
        open_run(tmp_path)
