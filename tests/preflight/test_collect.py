"""`preflight collect`: what a training would run with, collected by real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.programs import read_json, run_python, wait_for

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.comparison.preflight.collected import compare_collected
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.preflight.collect import collect
from mindrlhf_msprobe.storage.arrays.npy import fingerprint
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.manifest import FirstEntry
from mindrlhf_msprobe.storage.writing.writer import RunWriter

MODULE = """
import numpy as np
import sys

taken = []

def endless():
    print("reading")
    start = 0
    while True:
        taken.append(start)
        ids = np.arange(start, start + 4, dtype=np.int32)
        yield {"ids": ids, "more": [1.5, None], "text": "x" * 500}
        start += 1

def two():
    return [np.ones(3, np.float16), np.zeros((0, 2), bool)]

def one():
    return {"ids": np.ones(2)}

def text():
    return "ab"

def nothing():
    pass

def raises():
    raise ValueError("no such corpus")

def raises_later():
    yield 1
    raise OSError("the disk is gone")

def ends():
    sys.exit(3)

def number():
    return 3

def empty():
    return []

value = 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a module of data."""
    (tmp_path / "my_batches.py").write_text(MODULE)
    (tmp_path / "breaks.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_batches", raising=False)
    paths = os.pathsep.join(path for path in sys.path if path)
    monkeypatch.setenv("PYTHONPATH", paths)
    return tmp_path


def calls_of(content: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {(c["function"], c["line"]): c["count"] for c in content["random_calls"]}


SCRIPT = """\
import json, os, pickle, random, sys
import numpy as np

np.random.seed(int(sys.argv[1]))
random.seed(5)
def draw():
    return random.randint(0, 9), np.random.rand()
drawn = [draw() for _ in range(3)]
shuffled = [*range(9)]
random.shuffle(shuffled)
rng = np.random.default_rng(seed=7)
again = pickle.loads(pickle.dumps(np.random.rand)), pickle.loads(pickle.dumps(random.random))
drawn += [function() for function in again]
with open("drawn.json", "w") as file:
    json.dump([drawn, shuffled, rng.normal(), sys.path, "sitecustomize" in sys.modules], file)
print("done")
"""


def test_what_a_script_draws_is_counted_and_stays_the_same(here: Path, capfd: Any) -> None:
    """Seeds, functions, lines and counts are noted; the script's numbers are those without it."""
    (here / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py", "3"], check=True, capture_output=True)
    alone = read_json(here / "drawn.json")
    (here / "drawn.json").unlink()
    content = collect("a.json", command=[sys.executable, "train.py", "3"])
    assert read_json(here / "drawn.json")[:4] == alone[:4]
    assert calls_of(content) == {
        ("numpy.random.seed", 4): 1,
        ("random.seed", 5): 1,
        ("random.randint", 7): 3,
        ("numpy.random.rand", 7): 3,
        ("random.shuffle", 10): 1,
        ("numpy.random.default_rng", 11): 1,
    }
    seeds = {c["function"]: c["seeds"] for c in content["random_calls"] if c["seeds"]}
    assert seeds == {
        "numpy.random.seed": ["3"],
        "random.seed": ["5"],
        "numpy.random.default_rng": ["7"],
    }
    first = content["random_calls"][0]
    assert (first["file"], first["code"]) == ("train.py", "np.random.seed(int(sys.argv[1]))")
    assert content["script"]["exit_code"] == 0
    out, err = capfd.readouterr()
    assert (out, "done" in err) == ("", True), "what the script prints is no answer of ours"
    assert read_json(here / "a.json")["random_calls"] == content["random_calls"]


MINDSPORE = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, jit, ops

ms.set_seed(11)
ms.set_deterministic(True)
@jit
def compiled(x):
    return ops.rand(2) + x
print(compiled(Tensor(np.ones(2, np.float32))))
print(ops.rand(2), ops.dropout(Tensor(np.ones(2, np.float32))))
"""


def test_mindspore_is_read_in_the_scripts_own_process(here: Path) -> None:
    """Its seed, its context and its random functions; a compiled function still compiles."""
    (here / "train.py").write_text(MINDSPORE)
    content = collect("a.json", command=[sys.executable, "train.py"])
    assert content["script"]["exit_code"] == 0
    assert content["seeds"]["mindspore"] == 11
    assert content["determinism"]["deterministic"] == "ON"
    assert calls_of(content) == {
        ("mindspore.set_seed", 6): 1,
        ("mindspore.ops.rand", 12): 1,
        ("mindspore.ops.dropout", 12): 1,
    }


def test_processes_that_a_script_starts_are_looked_at_rank_by_rank(here: Path) -> None:
    """Also those of a shell, and forked ones; a forked one begins to count anew."""
    (here / "draw.py").write_text(
        "import os, random\nrandom.seed(1)\nif os.fork() == 0:\n    random.random()\n"
        "    os._exit(0)\nos.wait()\n"
    )
    shell = f"RANK_ID=0 {sys.executable} draw.py; RANK_ID=1 {sys.executable} draw.py"
    content = collect("a.json", command=["sh", "-c", shell])
    found = [(c["rank"], c["function"], c["count"]) for c in content["random_calls"]]
    assert sorted(found) == [
        (0, "random.random", 1),
        (0, "random.seed", 1),
        (1, "random.random", 1),
        (1, "random.seed", 1),
    ]
    complete = {c["function"]: c["complete"] for c in content["random_calls"]}
    assert complete == {"random.seed": True, "random.random": False}


def test_a_script_that_becomes_another_program_is_counted_before_that(here: Path) -> None:
    (here / "again.py").write_text(
        "import os, random, sys\nif len(sys.argv) == 1:\n    random.seed(5)\n"
        "    os.execv(sys.executable, [sys.executable, 'again.py', 'again'])\nrandom.random()\n"
    )
    content = collect("a.json", command=[sys.executable, "again.py"])
    found = {c["function"]: (c["line"], c["seeds"]) for c in content["random_calls"]}
    assert found == {"random.seed": (3, ["5"]), "random.random": (5, [])}


def test_workers_of_multiprocessing_are_counted_to_their_end(here: Path) -> None:
    """They end without `atexit`, and are complete all the same."""
    (here / "work.py").write_text(
        "import multiprocessing, random\n\ndef work():\n    for _ in range(1000):\n"
        "        random.random()\n\nif __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    workers = [context.Process(target=work) for _ in range(2)]\n"
        "    [w.start() for w in workers], [w.join() for w in workers]\n"
    )
    content = collect("a.json", command=[sys.executable, "work.py"])
    found = {(c["function"], c["count"], c["complete"]) for c in content["random_calls"]}
    assert found == {("random.random", 2000, True)}


TORCH = """
def manual_seed(seed):
    return seed

class _Base:
    def uniform_(self, a=0.0):
        return self, a

class Tensor(_Base):
    pass

rand = len
"""


def test_functions_and_methods_of_torch_are_counted_as_they_were(here: Path) -> None:
    """A stand-in of PyTorch: builtins, functions, methods that a class inherits."""
    (here / "torch.py").write_text(TORCH)
    (here / "train.py").write_text(
        "import torch\nfrom torch import rand\nassert torch.manual_seed(3) == 3\n"
        "one = torch.Tensor()\nassert one.uniform_(a=2) == (one, 2)\nassert rand([1, 2]) == 2\n"
    )
    content = collect("a.json", command=[sys.executable, "train.py"])
    assert content["script"]["exit_code"] == 0
    assert calls_of(content) == {
        ("torch.manual_seed", 3): 1,
        ("torch.Tensor.uniform_", 5): 1,
        ("torch.rand", 6): 1,
    }


def test_another_sitecustomize_is_still_imported(here: Path, monkeypatch: Any) -> None:
    """What an environment does in its own sitecustomize is done."""
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text("import builtins; builtins.of_theirs = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{here / 'site'}{os.pathsep}{os.environ['PYTHONPATH']}")
    content = collect("a.json", command=[sys.executable, "-c", "assert of_theirs == 1"])
    assert content["script"]["exit_code"] == 0


def test_a_script_that_never_ends_is_stopped_with_all_that_it_started(here: Path) -> None:
    """What it drew until then is known; it is stopped as Ctrl-C does, so that it can clean up."""
    (here / "train.py").write_text(
        "import random, subprocess, sys, time\nrandom.seed(2)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "try:\n    time.sleep(600)\nfinally:\n    open('cleaned', 'w')\n"
    )
    content = collect("a.json", command=[sys.executable, "train.py"], seconds=1.0)
    assert (content["script"]["exit_code"], content["script"]["stopped"]) == (None, True)
    assert calls_of(content) == {("random.seed", 2): 1}
    assert (here / "cleaned").exists()
    child = Path("/proc", (here / "child").read_text(), "stat")
    assert wait_for(lambda: not child.exists() or ") Z " in child.read_text())


def test_a_script_that_fails_is_collected_and_said(here: Path, capsys: Any) -> None:
    """The file is written; the exit code says that something is wrong."""
    (here / "train.py").write_text("import random, sys\nrandom.seed(2)\nsys.exit(7)\n")
    assert main(["preflight", "collect", "-o", "a.json", "--", sys.executable, "train.py"]) == 1
    assert "exit code 7" in capsys.readouterr().err
    assert read_json(here / "a.json")["script"]["exit_code"] == 7


def test_a_command_without_python_is_said(here: Path, capsys: Any) -> None:
    """Nothing noted is not nothing drawn."""
    assert main(["preflight", "collect", "-o", "a.json", "--", "true"]) == 0
    assert "no Python process" in capsys.readouterr().err
    assert "random_calls" not in read_json(here / "a.json")


def test_the_first_batches_are_described_and_no_more_are_taken(here: Path, capsys: Any) -> None:
    """Names, dtypes, shapes, statistics and fingerprints; texts are cut."""
    data = collect("a.json", data="my_batches:endless", batches=2)["data"]
    assert sys.modules["my_batches"].taken == [0, 1]
    assert (data["exhausted"], len(data["batches"])) == (False, 2)
    first = data["batches"][0]
    assert list(first) == ["ids", "more.0", "more.1", "text"]
    ids = first["ids"]
    assert (ids["dtype"], ids["shape"], ids["Max"], ids["Mean"]) == ("Int32", [4], 3, 1.5)
    assert ids["fingerprint"] != data["batches"][1]["ids"]["fingerprint"]
    assert (first["more.0"]["value"], first["text"]["length"]) == (1.5, 500)
    assert len(first["text"]["value"]) < 100
    assert "reading" in capsys.readouterr().err
    (one,) = collect("c.json", data="my_batches:one")["data"]["batches"]
    assert one["ids"]["shape"] == [2]  # a mapping is a batch
    two = collect("b.json", data="my_batches:two")["data"]
    assert (two["exhausted"], [b[""]["shape"] for b in two["batches"]]) == (True, [[3], [0, 2]])


def test_a_batch_of_many_values_differs_by_each_of_them(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token ids in lists, say: a thousand values are listed, and the others are one."""
    (here / "many.py").write_text(
        "import os\n\ndef lists():\n    last, opaque = map(int, os.environ['MANY'].split())\n"
        "    ids, nan = [*range(3000), last], float('nan')\n"
        "    return [{'ids': ids, 'nan': nan, 'x': [object()] * opaque}]\n"
    )
    for name, many in (("a", "0 0"), ("b", "0 0"), ("c", "7 0"), ("d", "0 2"), ("e", "0 2")):
        monkeypatch.setenv("MANY", many)
        collect(f"{name}.json", data="many:lists")
    said = {}
    for pair in ("ab", "ac", "de"):
        code = main(["preflight", "compare", f"{pair[0]}.json", f"{pair[1]}.json"])
        said[pair] = code, capsys.readouterr().out
    assert said["ab"][0] == 0
    assert "Not compared" not in said["ab"][1]
    assert said["ac"][0] == 1
    assert "batch 0: [1000:]: 2002 #" in said["ac"][1]
    assert said["de"][0] == 0
    assert "batch 0: [1000:] 2 only the type is known" in said["de"][1]


def test_other_checkpoints_are_fingerprinted_file_by_file(here: Path) -> None:
    """One byte makes another fingerprint; names and times make none."""
    (here / "shards").mkdir()
    for name, content in (("shards/a.bin", b"abc"), ("shards/b.bin", b"abd"), ("c", b"abc")):
        (here / name).write_bytes(content)
    found = collect("a.json", checkpoints=["shards", "other=c"])["checkpoints"]
    shards, other = found["shards"]["files"], found["other"]["files"]
    assert list(shards) == ["a.bin", "b.bin"]
    assert shards["a.bin"] == other["c"] != shards["b.bin"]
    assert other["c"]["size"] == 3


def safetensors(path: Path, **arrays: np.ndarray) -> None:
    """Write a file of float32 parameters."""
    header, at = {}, 0
    for name, array in arrays.items():
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    head = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


def test_parameters_of_a_checkpoint_are_compared_across_formats(here: Path) -> None:
    """A .ckpt and safetensors of equal parameters are the same; one that differs is named."""
    import mindspore

    one, two = (np.arange(6, dtype=np.float32).reshape(2, 3) + n for n in range(2))
    parameters = [{"name": n, "data": mindspore.Tensor(a)} for n, a in (("w", one), ("b", two))]
    mindspore.save_checkpoint(parameters, str(here / "a.ckpt"))
    safetensors(here / "b.safetensors", b=two, w=one)
    safetensors(here / "c.safetensors", b=two, w=two)
    for name in ("a.ckpt", "b.safetensors", "c.safetensors"):
        collect(f"{name[0]}.json", checkpoints=[name])
    assert not compare_collected("a.json", "b.json").differ
    (weights,) = compare_collected("a.json", "c.json").weights
    assert (weights.role, weights.compared, weights.different) == ("a.ckpt", 2, ("w",))


def test_a_checkpoint_is_compared_with_the_initial_weights_of_a_run(here: Path) -> None:
    """Under the name of the role: is it what the run began with?"""
    weights = {"w": np.arange(4, dtype=np.float32), "b": np.zeros(2, np.float32)}
    safetensors(here / "a.safetensors", **weights)
    collect("a.json", checkpoints=["actor=a.safetensors"])
    for name, moved in (("same", 0.0), ("moved", 1.0)):
        known = {k: fingerprint("Float32", v + np.float32(moved)) for k, v in weights.items()}
        writer = RunWriter(
            here / name, rank=0, config={}, existing="overwrite", task="statistics", settings={}
        )
        writer.note(FirstEntry("actor", known, {}))
        writer.close()
        (found,) = compare_collected("a.json", name).weights
        assert (found.role, found.compared, found.agree) == ("actor", 2, not moved)


def test_a_checkpoint_cut_in_half_is_said(here: Path, capsys: Any) -> None:
    """It is fingerprinted as a file, and it is said why."""
    safetensors(here / "a.safetensors", w=np.zeros(100, np.float32))
    whole = (here / "a.safetensors").read_bytes()
    (here / "a.safetensors").write_bytes(whole[:-50])
    assert main(["preflight", "collect", "-o", "a.json", "--checkpoint", "a.safetensors"]) == 0
    assert "a.safetensors: no parameters could be read" in capsys.readouterr().err
    assert list(read_json(here / "a.json")["checkpoints"]["a.safetensors"]["files"])


def test_no_secret_is_written(here: Path, monkeypatch: Any) -> None:
    """Neither of variables, nor of configurations, nor of the command."""
    monkeypatch.setenv("MS_TEST_VALUE", "Bearer abcdefgh12345678")
    monkeypatch.setenv("MS_SECRET_TOKEN", "hush-hush")
    (here / "c.yaml").write_text(
        "lr: 1.0\nhub: {password: hush-hush, url: 'http://u:hush-hush@h'}\n"
    )
    command = [sys.executable, "-c", "pass", "--api-key", "hush-hush", "--password=hush-hush"]
    content = collect("a.json", configurations=["c.yaml"], command=command)
    written = (here / "a.json").read_text()
    assert "hush-hush" not in written
    assert "abcdefgh12345678" not in written
    assert content["configurations"]["c.yaml"]["hub"] == {"password": WITHHELD, "url": WITHHELD}
    assert content["configurations"]["c.yaml"]["lr"] == 1.0


def test_keys_of_yaml_that_python_holds_equal_are_both_kept(here: Path) -> None:
    """1, true and 1.0 are one key of a dict; of a key that stands twice the last one counts."""
    (here / "c.yaml").write_text(
        'of: {1: a, true: b, 1.0: c, "1": d, "True": e, 1: f, true: g}\n'
        "base: &base {0: a, 2: z}\n"
        "more: {<<: *base, false: b, 2: y, 0: c}\n"
    )
    content = collect("a.json", configurations=["c.yaml"])["configurations"]["c.yaml"]
    assert content["of"] == {"1": "f", "True": "g", "1.0": "c", "1~": "d", "True~": "e"}
    assert content["more"] == {"0": "c", "2": "y", "False": "b"}


BAD = [
    ({"data": "my_batches:nothing"}, "returned None"),
    ({"data": "my_batches:raises"}, "ValueError: no such corpus"),
    ({"data": "my_batches:raises_later"}, "OSError: the disk is gone"),
    ({"data": "my_batches:ends"}, "SystemExit: 3"),
    ({"data": "my_batches:number"}, "returned a int"),
    ({"data": "my_batches:text"}, "returned a str"),
    ({"data": "my_batches:empty"}, "no batch"),
    ({"data": "my_batches:value"}, "is a int"),
    ({"data": "my_batches:absent"}, "my_batches has no absent"),
    ({"data": "breaks:f"}, "No module named 'no_such_module_at_all'"),
    ({"data": "absent_module:f"}, "No module named 'absent_module'"),
    ({"data": "my_batches"}, "expected MODULE:FUNCTION"),
    ({"data": "../my_batches:two"}, "expected MODULE:FUNCTION"),
    ({"configurations": ["absent.yaml"]}, "--config absent.yaml: there is no such file"),
    ({"configurations": ["broken.yaml"]}, "broken.yaml"),
    ({"configurations": ["list.yaml"]}, "expected a mapping"),
    ({"configurations": ["list.json"]}, "holds a list"),
    ({"configurations": ["half.json"]}, "half.json is not JSON"),
    ({"configurations": ["."]}, "is a directory"),
    ({"configurations": ["a=ok.yaml", "a=list.yaml"]}, "would both be called a"),
    ({"checkpoints": ["absent.ckpt"]}, "--checkpoint absent.ckpt: there is no such file"),
    ({"checkpoints": ["empty"]}, "holds no file"),
    ({"command": ["absent_program"]}, "absent_program is not a program"),
    ({"command": ["train.py"]}, "such as -- python train.py"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_named_and_nothing_is_written(
    here: Path, given: dict[str, Any], said: str
) -> None:
    """What was wrong and its value, in both languages."""
    (here / "broken.yaml").write_text("a: [1\n")
    (here / "list.yaml").write_text("- 1\n")
    (here / "list.json").write_text("[1]")
    (here / "half.json").write_text('{"a": ')
    (here / "ok.yaml").write_text("a: 1\n")
    (here / "empty").mkdir()
    with pytest.raises(MsprobeError) as raised:
        collect("out.json", **given)
    with speaking("en"):
        assert said in str(raised.value)
    with speaking("zh"):
        assert "collect." not in str(raised.value)
    assert not (here / "out.json").exists()


def test_a_file_that_exists_is_refused_before_anything_runs(here: Path, capsys: Any) -> None:
    """With --overwrite it is replaced, where it is one of these files."""
    (here / "a.json").write_text("mine")
    command = ["--", sys.executable, "-c", "open('ran', 'w')"]
    assert main(["preflight", "collect", "-o", "a.json", *command]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (here / "a.json").read_text() == "mine"
    assert not (here / "ran").exists()
    assert main(["preflight", "collect", "-o", "a.json", "--overwrite", *command]) == 2
    assert (here / "a.json").read_text() == "mine"
    for more in ([], ["--overwrite"]):
        assert main(["preflight", "collect", "-o", "b.json", *more, *command]) == 0
    assert read_json(here / "b.json")["kind"] == "preflight"
    for wrong in (".", "a.json/b.json"):
        assert main(["preflight", "collect", "-o", wrong, "--overwrite", *command]) == 2


def test_nothing_behind_two_dashes_is_refused(here: Path, capsys: Any) -> None:
    """`-- $COMMAND`, say, where the variable is empty."""
    assert main(["preflight", "collect", "-o", "a.json", "--"]) == 2
    assert "no command behind --" in capsys.readouterr().err
    assert not Path("a.json").exists()


@pytest.mark.parametrize("option", [["--batches", "0"], ["--batches", "x"], ["--seconds", "-1"]])
def test_numbers_that_are_none_are_refused(here: Path, capsys: Any, option: list[str]) -> None:
    """With the option, the value and what was expected."""
    assert main(["preflight", "collect", "-o", "a.json", *option]) == 2
    err = capsys.readouterr().err
    assert option[0] in err
    assert "expected a" in err


def test_without_a_script_mindspore_is_not_imported(here: Path) -> None:
    """Nor are the modules that only recording needs started."""
    program = (
        "import sys\nfrom mindrlhf_msprobe.cli import main\n"
        "assert main(['preflight', 'collect', '-o', 'a.json']) == 0\n"
        "assert 'mindspore' not in sys.modules\n"
    )
    done = run_python(program, here)
    assert done.returncode == 0, done.stderr
    content = json.loads((here / "a.json").read_text())
    assert content["versions"]["numpy"] == np.__version__
    assert content["packages"]["numpy"] == np.__version__
