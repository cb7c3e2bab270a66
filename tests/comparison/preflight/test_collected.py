"""`preflight compare`: two collections, or one and a run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from helpers import snapshots
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.preflight.collected import compare_collected, compare_sides
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.findings import Preflight
from mindrlhf_msprobe.storage.manifest.manifest import FirstEntry
from mindrlhf_msprobe.storage.snapshot import Snapshot
from mindrlhf_msprobe.storage.writing.writer import RunWriter


def call(function: str, count: int = 1, line: int = 1, **more: Any) -> dict[str, Any]:
    where = {"file": "train.py", "line": line, "in": "<module>", "code": f"{function}()"}
    base = {"rank": None, "function": function, "count": count, "seeds": [], "complete": True}
    return {**base, **where, **more}


def tensor(fingerprint: str = "1", dtype: str = "Int32", largest: int = 3) -> dict[str, Any]:
    numbers = {"Max": largest, "Min": 0, "Mean": 1.5, "Norm": 4.0}
    kind = {"type": "numpy.ndarray", "dtype": dtype, "shape": [4]}
    return {**kind, **numbers, "fingerprint": f"xxh3_128:{fingerprint}"}


CONTENT: dict[str, Any] = {
    "schema": 1,
    "tool": "mindrlhf_msprobe",
    "kind": "preflight",
    "tool_version": "0.1.0",
    "taken": "collect",
    "versions": {"python": "3.11.7", "mindspore": "2.7.0"},
    "packages": {"numpy": "1.26.4", "transformers": "4.50", "mindspore": "2.7.0"},
    "device": {"machine": "aarch64"},
    "seeds": {"mindspore": 1, "PYTHONHASHSEED": None},
    "determinism": {"deterministic": "ON", "HCCL_DETERMINISTIC": "true"},
    "environment": {"HCCL_ALGO": "ring"},
    "configurations": {"a.yaml": {"lr": 1e-6, "model": {"layers": [1, 2]}}},
    "checkpoints": {"m": {"files": {"0.ckpt": {"size": 3, "fingerprint": "xxh3_128:1"}}}},
    "data": {
        **{"source": "m:f", "asked": 2, "exhausted": False},
        "batches": [{"ids": tensor(), "text": {"type": "str", "value": "x", "fingerprint": "f"}}],
    },
    "script": {"command": ["python", "train.py"], "exit_code": 0, "stopped": False},
    "random_calls": [
        call("numpy.random.seed", seeds=["1"], line=3),
        call("numpy.random.rand", 3, line=7),
    ],
}


def changed(*path: Any, to: Any = ...) -> dict[str, Any]:
    """Return the content with one value changed, or without it."""
    return snapshots.changed(CONTENT, {path: to})


def compared(a: dict[str, Any], b: dict[str, Any]) -> Preflight:
    return compare_sides(*(Snapshot.of_collection(Path("x"), side) for side in (a, b)))


def shown(found: Preflight) -> list[tuple[Any, ...]]:
    return [(d.section, d.setting, d.a, d.b) for d in found.differences]


def test_two_equal_collections_are_the_same() -> None:
    """No difference and nothing unknown."""
    found = compared(CONTENT, copy.deepcopy(CONTENT))
    assert (found.differ, found.not_compared) == (False, ())


AT_3 = "numpy.random.seed (train.py:3) numpy.random.seed()"
AT_7 = "numpy.random.rand (train.py:7) numpy.random.rand()"


LAYERS = ("configurations", "a.yaml", "model", "layers", 1)
FILE = ("checkpoints", "m", "files", "0.ckpt", "fingerprint")


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        ("random_calls.0.seeds", ["2"], ("seeds", AT_3, "1", "2")),
        ("random_calls.0", ..., ("seeds", AT_3, "1", None)),
        ("random_calls.1.count", 4, ("random_calls", AT_7, "3", "4")),
        ("random_calls.1", ..., ("random_calls", AT_7, "3", None)),
        ("seeds.mindspore", 2, ("seeds", "mindspore", "1", "2")),
        ("determinism.deterministic", "OFF", ("determinism", "deterministic", "ON", "OFF")),
        ("versions.mindspore", "2.8", ("versions", "mindspore", "2.7.0", "2.8")),
        (LAYERS, 3, ("configurations", "a.yaml.model.layers.1", "2", "3")),
        (("configurations", "a.yaml", "lr"), ..., ("configurations", "a.yaml.lr", "1e-06", None)),
        (
            FILE,
            "xxh3_128:2",
            ("checkpoints", "m: 0.ckpt", "3 bytes, xxh3_128:1", "3 bytes, xxh3_128:2"),
        ),
        ("data.batches.0.text", {"type": "int", "value": 3}, ("data", "batch 0: text", "x", "3")),
        (
            "data.batches.0.ids",
            tensor("2", largest=4),
            (
                *("data", "batch 0: ids"),
                *(f"Int32[4] max {n + 2} min 0 mean 1.5 norm 4.0 #{n}" for n in (1, 2)),
            ),
        ),
        ("script.command.1", "t.py", ("script", "command.1", "train.py", "t.py")),
        ("script.exit_code", 1, ("script", "exit_code", "0", "1")),
        ("packages.transformers", "4.51", ("packages", "transformers", "4.50", "4.51")),
        ("packages.transformers", ..., ("packages", "transformers", "4.50", None)),
        ("environment.HCCL_ALGO", ..., ("environment", "HCCL_ALGO", "ring", None)),
    ],
)
def test_one_change_is_the_one_difference(path: Any, value: Any, difference: Any) -> None:
    """Named with both values."""
    b = snapshots.changed(CONTENT, {path: value})
    assert shown(compared(CONTENT, b)) == [difference]


def test_what_changes_numbers_comes_first() -> None:
    """Seeds before versions before configurations before data before variables."""
    changes = {
        **{"environment.HCCL_ALGO": "mesh", "packages.transformers": "5"},
        "data.batches.0.ids": tensor("2"),
        ("configurations", "a.yaml", "lr"): 2,
        ("configurations", "a.yaml", "msprobe_config"): {"msprobe": True},
        **{"versions.python": "3.12", "determinism.deterministic": "OFF"},
        **{"random_calls.1.count": 9, "random_calls.0.seeds": ["9"]},
    }
    b = snapshots.changed(CONTENT, changes)
    sections = [d.section for d in compared(CONTENT, b).differences]
    assert sections == [
        *("seeds", "random_calls", "determinism", "versions", "configurations", "data"),
        *("packages", "environment", "configurations"),
    ]


def test_what_one_side_alone_collected_is_unknown() -> None:
    """It is no difference, and it is said."""
    for section in ("random_calls", "data", "checkpoints", "configurations", "script"):
        found = compared(CONTENT, changed(section))
        assert (found.differ, len(found.unknown)) == (False, 1), section


def test_lines_that_moved_are_the_same_places() -> None:
    """Other lines, and a code line that was edited: the counts are compared all the same."""
    b = copy.deepcopy(CONTENT)
    b["random_calls"] = [
        call("random.random", line=2),
        call("numpy.random.rand", 3, line=70),
        call("numpy.random.seed", seeds=["1"], line=30, code="numpy.random.seed(seed)"),
    ]
    found = compared(CONTENT, b)
    assert shown(found) == [
        ("random_calls", "random.random (train.py:2) random.random()", None, "1")
    ]


def test_a_script_that_draws_nothing_is_another_one() -> None:
    """Its empty list is known; what was not collected is not."""
    nothing = changed("random_calls", to=[])
    expected = [("seeds", AT_3, "1", None), ("random_calls", AT_7, "3", None)]
    assert shown(compared(CONTENT, nothing)) == expected
    assert [d[:2] for d in shown(compared(nothing, CONTENT))] == [d[:2] for d in expected]
    assert not compared(CONTENT, changed("random_calls")).differ


def test_draws_of_one_generator_in_another_order_differ() -> None:
    """Of as many calls at the same places; not those of two generators, nor of two processes."""

    def found(*functions: str, process: Any = 0) -> list[tuple[Any, ...]]:
        def content(names: Any) -> dict[str, Any]:
            calls = [call(name, process=process) for name in names]
            return changed("random_calls", to=calls)

        return shown(compared(content(functions), content(functions[::-1])))

    rand, normal = "numpy.random.rand", "numpy.random.normal"
    at = [f"{name} (train.py:1) {name}()" for name in (rand, normal)]
    assert found(rand, normal) == [("random_calls", "order of calls (numpy)", *at)]
    assert found(rand, "random.random", "numpy.random.default_rng") == []
    assert found(rand, normal, process=None) == []


def test_ranks_are_compared_one_by_one() -> None:
    """A difference of one rank names it; one of all is one difference."""
    a, b = (copy.deepcopy(CONTENT) for _ in "ab")
    a["random_calls"] = [call("random.seed", seeds=["1"], rank=rank) for rank in range(3)]
    b["random_calls"] = [call("random.seed", seeds=["2"], rank=rank) for rank in range(3)]
    assert [d.ranks for d in compared(a, b).differences] == [()]
    b["random_calls"][1:] = a["random_calls"][1:]
    assert [d.ranks for d in compared(a, b).differences] == [(0,)]
    del b["random_calls"][2]
    assert "rank 2" in " ".join(compared(a, b).unknown)


@pytest.mark.parametrize("stopped", [0, 1])
def test_counts_of_a_stopped_script_are_not_compared(stopped: int) -> None:
    """It may have come less far; what it did and the other did not is a difference."""
    sides = [copy.deepcopy(CONTENT) for _ in "ab"]
    sides[stopped]["script"] |= {"stopped": True, "exit_code": None}
    sides[stopped]["random_calls"] = [
        call("numpy.random.seed", seeds=["1"], line=3),
        call("random.random", line=5),
    ]
    found = compared(*sides)
    assert [d.setting.split()[0] for d in found.differences] == ["random.random"]
    assert "was stopped" in found.unknown[0]


def test_counts_of_a_killed_process_are_not_compared() -> None:
    """They may be too low."""
    b = changed("random_calls", 1, "count", to=2)
    b["random_calls"][1]["complete"] = False
    found = compared(CONTENT, b)
    assert (found.differ, "was killed" in found.unknown[0]) == (False, True)


def test_seeds_of_a_killed_process_are_not_missing() -> None:
    """It may have set those that the other has; another seed differs. Processes have no order."""

    def seeded(*seeds: str, **more: Any) -> dict[str, Any]:
        return changed("random_calls", to=[call("numpy.random.seed", seeds=[*seeds], **more)])

    found = compared(seeded("0", "1"), seeded("0", complete=False))
    assert not found.differ
    assert "a process was ended before its time" in str(found.not_compared[0])
    assert compared(seeded("0", "1"), seeded("2", complete=False)).differ
    assert compared(seeded("0", "1"), seeded("0")).differ
    assert compared(seeded("0", "1"), seeded("1", "0")).differ
    several = [seeded(*seeds, process=None) for seeds in ("01", "10")]
    assert not compared(*several).differ


def test_single_files_are_compared_whatever_they_are_called() -> None:
    """Of several, those of one name; others are unknown."""
    b = changed("configurations", to={"b.yaml": {"lr": 2, "model": {"layers": [1, 2]}}})
    assert shown(compared(CONTENT, b)) == [("configurations", "a.yaml.lr", "1e-06", "2")]
    b["configurations"]["c.yaml"] = {}
    found = compared(CONTENT, b)
    assert (found.differ, len(found.unknown)) == (False, 2)
    b = changed("checkpoints", to={"n": CONTENT["checkpoints"]["m"]})
    assert not compared(CONTENT, b).differ


def test_a_data_set_that_ends_earlier_differs() -> None:
    """One of which fewer batches were requested does not."""
    b = changed("data", "batches", to=CONTENT["data"]["batches"] * 2)
    assert (compared(CONTENT, b).differ, len(compared(CONTENT, b).unknown)) == (False, 1)
    a = changed("data", "exhausted", to=True)
    assert shown(compared(a, b)) == [("data", "batches", "1", "2")]


def test_what_nothing_is_known_of_is_not_called_the_same() -> None:
    """An object of the batch; of another type it differs."""
    unknown = {"type": "Sample", "value": None, "opaque": True}
    a, b = (changed("data", "batches", 0, "text", to=dict(unknown)) for _ in range(2))
    found = compared(a, b)
    assert shown(found) == []
    assert any("batch 0: text" in note for note in found.unknown)
    b["data"]["batches"][0]["text"]["type"] = "Other"
    assert shown(compared(a, b)) == [("data", "batch 0: text", "Sample", "Other")]


def test_a_tensor_of_another_framework_is_the_same() -> None:
    """Dtype, shape and bytes decide."""
    b = changed("data", "batches", 0, "ids", "type", to="mindspore.Tensor")
    assert not compared(CONTENT, b).differ


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CONTENT)), JSON, JSON)
def test_whatever_stands_in_a_file_nothing_raises(section: str, one: Any, other: Any) -> None:
    """Files come from others."""
    for a, b in ((CONTENT, {**CONTENT, section: one}), ({**CONTENT, section: other},) * 2):
        found = compared(a, b)
        json.dumps(found.to_json())
    inside = {**CONTENT, "random_calls": [one, {"function": other, "rank": one, "seeds": one}]}
    compared(CONTENT, inside | {"data": {"batches": [one, {"ids": other}]}})
    compared(inside | {"checkpoints": {"m": {"files": {"0.ckpt": one}}}}, CONTENT)


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_command_says_it_in_both_languages_and_writes_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes 0 and 1; the files hold the same."""
    a = write(tmp_path / "a.json", CONTENT)
    same = write(tmp_path / "same.json", CONTENT)
    b = write(tmp_path / "b.json", changed("seeds", "mindspore", to=2))
    assert main(["preflight", "compare", a, same]) == 0
    assert capsys.readouterr().out.startswith("SAME")
    out = str(tmp_path / "out")
    assert main(["preflight", "compare", a, b, "-o", out]) == 1
    assert "seeds: mindspore: 1 in A, 2 in B" in capsys.readouterr().out
    assert main(["preflight", "--lang", "zh", "compare", a, b]) == 1
    assert "随机种子" in capsys.readouterr().out
    assert main(["preflight", "compare", a, b, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out/preflight.json").read_text())
    assert printed["status"] == "different"
    assert printed["differences"][0]["section"] == "seeds"
    with ZipFile(tmp_path / "out/preflight.xlsx") as book:
        assert b"mindspore" in b"".join(book.read(name) for name in book.namelist())


def test_a_collection_is_compared_with_a_recorded_run(tmp_path: Path) -> None:
    """What both say; what only a run has, a collection does not lack."""
    sections = ("device", "seeds", "determinism", "environment")
    settings_of_run = {name: copy.deepcopy(CONTENT[name]) for name in sections}
    settings_of_run["determinism"]["deterministic"] = "OFF"
    writer = RunWriter(
        tmp_path / "run",
        rank=0,
        config={},
        existing="overwrite",
        task="statistics",
        settings={**settings_of_run, "versions": {}},
    )
    writer.save_configurations(lambda: {"actor": {"lr": 2.0}})
    writer.close()
    versions = json.loads((tmp_path / "run/run.json").read_text())["versions"]
    content = {**CONTENT, "versions": versions, "configurations": {"actor": {"lr": 1.0}}}
    a = write(tmp_path / "a.json", content)
    found = compare_collected(a, tmp_path / "run")
    assert shown(found) == [
        ("determinism", "deterministic", "ON", "OFF"),
        ("configurations", "actor.lr", "1.0", "2.0"),
    ]
    assert not any("msprobe_config" in text or "world" in text for text in found.unknown)


def test_settings_of_a_script_are_compared_with_those_at_the_first_phase(tmp_path: Path) -> None:
    """A trainer sets its context and seed after the probe's start; a script that ran had, too."""
    early, late = ({"determinism": {"deterministic": v}} for v in ("OFF", "ON"))
    writer = RunWriter(
        tmp_path / "run", rank=0, config={}, existing="overwrite", task="statistics", settings=early
    )
    writer.note(FirstEntry("actor", {}, late))
    writer.close()
    sides = {"collect": "OFF", "script": "ON"}
    for taken, value in sides.items():
        content = {**CONTENT, "taken": taken, "determinism": {"deterministic": value}}
        found = compare_collected(write(tmp_path / taken, content), tmp_path / "run")
        assert "determinism" not in [d.section for d in found.differences], taken


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(CONTENT)[:200], "cut off"),
        ("", "cut off"),
        ("[]", "is not a file of `preflight collect`"),
        ("{}", "is not a file of `preflight collect`"),
        ({**CONTENT, "schema": 2}, "has the schema 2, this version reads 1"),
        ({**CONTENT, "schema": True}, "has the schema True"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, said: str
) -> None:
    """Cut in half, of another version, something else: exit code 2."""
    a, b = write(tmp_path / "a.json", CONTENT), write(tmp_path / "b.json", content)
    assert main(["preflight", "compare", a, b]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert b in err


def test_sides_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    """The same file twice, an empty path, none at all, a directory that is no run."""
    a = write(tmp_path / "a.json", CONTENT)
    (tmp_path / "empty").mkdir()
    for other in (a, "", str(tmp_path / "absent.json"), str(tmp_path / "empty")):
        with pytest.raises(MsprobeError):
            compare_collected(a, other)


def pack(path: Path, **changes: Any) -> Path:
    """Write a config_check_pack.zip as msprobe does; of a member that is None, nothing."""
    statistics = {"max": 3.0, "min": 0.0, "mean": 1.5, "norm": 4.0}
    stack = [
        "File /home/a/train.py, line 3, in <module>, main(1, 2)",
        "File /usr/lib/python3.11/site-packages/numpy/x.py, line 9, in g, return f()",
    ]
    members = {
        "env": {"HCCL_ALGO": "ring", "API_TOKEN": "hunter2", "HOME": "/root", **changes},
        "pip": "numpy=1.26.4\nmindspore=2.7.0\n",
        "hyperparameters/hyperparameters_static.json": {"lr": "1e-6"},
        "random/rank0.json": {"np.random.rand": [{"count": 3, "stack": stack}]},
        "dataset/step0/rank0/dataset.json": {"args": {"0": statistics}, "kwargs": {"mask": ""}},
        "weights/step0/rank0/weight.json": {"w": statistics},
        "../outside": "x",
    }
    members |= {name: content for name, content in changes.items() if "/" in name}
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            text = content if isinstance(content, str) else json.dumps(content)
            archive.writestr(name, text)
    return path


STATISTICS = {"max": 4.0, "min": 0.0, "mean": 1.5, "norm": 4.0}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"HCCL_ALGO": "mesh"}, ("environment", "HCCL_ALGO", "ring", "mesh")),
        ({"HOME": "/x", "API_TOKEN": "other"}, None),
        (
            {"hyperparameters/hyperparameters_static.json": {"lr": "1e-5"}},
            ("configurations", "hyperparameters_static.lr", "1e-6", "1e-5"),
        ),
        (
            {"dataset/step0/rank0/dataset.json": {"args": {"0": STATISTICS}}},
            (
                *("data", "batch 0: rank0.args.0"),
                *(f"max {n} min 0.0 mean 1.5 norm 4.0" for n in ("3.0", "4.0")),
            ),
        ),
        (
            {"random/rank0.json": {}},
            (*("random_calls", "numpy.random.rand (/home/a/train.py:3) main(1, 2)"), *("3", None)),
        ),
        ({"weights/step0/rank0/weight.json": {"w": STATISTICS}}, ("w",)),
    ],
)
def test_packs_of_msprobe_are_compared(
    tmp_path: Path, change: dict[str, Any], difference: tuple[Any, ...] | None
) -> None:
    """Variables of the field, packages, hyperparameters, random calls, data and weights."""
    found = compare_collected(pack(tmp_path / "a.zip"), pack(tmp_path / "b.zip", **change))
    (weights,) = found.weights
    apart = shown(found) + ([weights.different] if weights.different else [])
    assert apart == ([difference] if difference else [])
    assert "hunter2" not in str(found)


def test_a_pack_is_compared_with_a_collection_in_what_both_say_in_one_form(tmp_path: Path) -> None:
    """Not in statistics beside fingerprints, which is said."""
    (tmp_path / "b.json").write_text(json.dumps(CONTENT))
    found = compare_collected(pack(tmp_path / "a.zip", HCCL_ALGO="mesh"), tmp_path / "b.json")
    assert ("environment", "HCCL_ALGO", "mesh", "ring") in shown(found)
    assert {d.section for d in found.differences}.isdisjoint({"data", "random_calls"})
    assert any("pack counts" in str(note) for note in found.not_compared)


def test_archives_that_are_no_pack_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    """Cut, of something else, or larger than is read."""
    a, b = (pack(tmp_path / f"{name}.zip") for name in "ab")
    monkeypatch.setattr("mindrlhf_msprobe.storage.foreign.config_pack._LARGEST", 4096)
    pack(b, **{"random/rank0.json": "0" * 100_000})
    with pytest.raises(MsprobeError, match="larger than"):
        compare_collected(a, b)
    pack(b, **{"random/rank0.json": "{"})
    with pytest.raises(MsprobeError, match=r"(a|a readable) config_check_pack\.zip"):
        compare_collected(a, b)
    pack(b, **{"random/rank0.json": "[]"})
    with pytest.raises(MsprobeError, match=r"b\.zip: random/rank0\.json holds a list"):
        compare_collected(a, b)
    odd = [1, {"stack": 3, "count": 1}, {"stack": ["File"], "count": 1}, {"stack": [], "count": {}}]
    pack(b, **{"random/rank0.json": {"np.random.rand": odd, "f": 3}})
    assert compare_collected(a, b).differ
    b.write_bytes(a.read_bytes()[:100])
    with pytest.raises(MsprobeError, match=r"(a|a readable) config_check_pack\.zip"):
        compare_collected(a, b)
    with ZipFile(b, "w") as archive:
        archive.writestr("archive/data.pkl", "x")
    with pytest.raises(MsprobeError, match="is an archive"):
        compare_collected(a, b)
