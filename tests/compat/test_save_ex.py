"""SingleSave.save_ex, numbered files, and what msprobe and its guide write, read back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import read_json, run_python

from mindrlhf_msprobe import SingleComparator, SingleSave, UsageError, compare_runs, open_run
from mindrlhf_msprobe.findings import Outcome
from mindrlhf_msprobe.probe import recording_probes

pytestmark = pytest.mark.usefixtures("older_tools")


def files(root: Path) -> list[str]:
    """Return the files of key data, relative to `data`."""
    return sorted(str(p.relative_to(root / "data")) for p in (root / "data").rglob("*.*"))


def saved(root: Path, key: str) -> list[tuple[int, int, object]]:
    data = open_run(root).key_data(key)
    return [(d.step, d.micro_step, np.asarray(d.value).tolist()) for d in data]


def test_the_micro_step_is_the_callers(tmp_path):
    """Given, it names the directory; without one there is none; save counts on by itself."""
    SingleSave(tmp_path / "run")
    SingleSave.save_ex({"x": np.arange(2), "pair": (np.ones(1), np.ones(2))}, micro_batch=3)
    SingleSave.save_ex(data={"y": np.arange(3)})
    SingleSave.save({"x": np.arange(5)})
    SingleSave.step()
    SingleSave.save_ex({"x": {"mask": np.ones(2)}}, np.int64(0))
    SingleSave.step()
    assert files(tmp_path / "run") == sorted(
        [
            *(f"pair/step0/rank0/micro_step3/{f}" for f in ("pair.0.npy", "pair.1.npy")),
            "pair/step0/rank0/micro_step3/pair.json",
            *(f"x/step0/rank0/micro_step{m}/x.{s}" for m in (0, 3) for s in ("json", "npy")),
            *(f"x/step1/rank0/micro_step0/{f}" for f in ("x.json", "x.mask.npy")),
            *(f"y/step0/rank0/y.{s}" for s in ("json", "npy")),
        ]
    )
    run = open_run(tmp_path / "run")
    assert not run.problems
    assert saved(tmp_path / "run", "y") == [(0, 0, [0, 1, 2])]
    assert [(d.step, d.micro_step) for d in run.key_data("x")] == [(0, 0), (0, 3), (1, 0)]


def test_saved_again_the_last_one_stays(tmp_path):
    """As with msprobe, with nothing left of the one before, and nothing counted twice or lost."""
    SingleSave(tmp_path / "run")
    for size in (3, 1):
        for micro_batch in (0, None):
            values = [np.full(2, size)] * size
            SingleSave.save_ex({"x": values}, micro_batch)
    SingleSave.save({"x": np.zeros(1)})  # micro-step 0, which is there: replaced, too
    SingleSave.step()
    below = ("micro_step0/x.json", "micro_step0/x.npy", "x.0.npy", "x.json")
    assert files(tmp_path / "run") == sorted(f"x/step0/rank0/{name}" for name in below)
    assert saved(tmp_path / "run", "x") == [(0, 0, [0.0]), (0, 1, [[1, 1]])]
    for probe in recording_probes():
        probe.close()
    run = open_run(tmp_path / "run")
    assert (run.problems, run.lost, run.finished) == ([], [], True)


def test_an_interrupted_step_is_recorded_afresh(tmp_path):
    """Nothing of the killed attempt stays where no micro-step was given either."""
    program = """
import os, signal, numpy
from mindrlhf_msprobe import SingleSave
SingleSave("run", numbered=True)
SingleSave.save_ex({{"a": [numpy.full(2, {value})] * {size}}})
{end}
"""
    killed = "SingleSave._current._shared.probe._recorder.writer.wait(); "
    killed += "os.kill(os.getpid(), signal.SIGKILL)"
    run_python(program.format(value=0, size=3, end=killed), tmp_path)
    assert len(files(tmp_path / "run")) == 7
    assert run_python(program.format(value=1, size=1, end=""), tmp_path).returncode == 0
    left = [f"a/step0/rank0/{name}" for name in ("a.json", "a0.json", "a0.npy")]
    assert files(tmp_path / "run") == left
    assert saved(tmp_path / "run", "a") == [(0, 0, [[1, 1]])]


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "0"])
def test_what_is_no_micro_step_is_refused(tmp_path, wrong):
    SingleSave(tmp_path / "run")
    with pytest.raises(UsageError, match=r"micro_batch=.*whole number from 0"):
        SingleSave.save_ex({"x": np.ones(1)}, wrong)


def test_what_msprobe_leaves_out_is_left_out(tmp_path, warnings_of):
    SingleSave(tmp_path / "run")
    SingleSave.save_ex([1])
    SingleSave.save_ex({5: np.ones(1), "x": np.ones(1)}, 0)
    assert [text.split(";")[0] for text in warnings_of()] == [
        "SingleSave.save_ex() got list",
        "SingleSave.save_ex() left out the name 5: it is no text.",
    ]


VALUES = {
    "response": np.arange(4.0, dtype=np.float32),
    "list": [np.arange(n) for n in range(1, 13)],
    "texts": ["一", "two"],
    "dict": {"mask": np.ones(2), "0": np.zeros(3)},
    "nested": [{"a": np.ones(1)}, [np.ones(2), 3.5]],
}


def test_files_are_numbered_if_asked(tmp_path):
    """As the guide shows them, each with its statistics; what is read back is the same."""
    for name, numbered in (("plain", False), ("numbered", True)):
        SingleSave(tmp_path / name, numbered=numbered)
        for _ in range(2):
            SingleSave.save(VALUES)
        SingleSave.step()
    at = tmp_path / "numbered/data"
    own = at / "response/step0/rank0/micro_step1"
    assert sorted(p.name for p in own.iterdir()) == [
        *("response.json", "response0.json", "response0.npy")
    ]
    statistics = read_json(own / "response0.json")["data"]
    assert statistics.items() >= {"max": 3.0, "min": 0.0, "mean": 1.5, "shape": [4]}.items()
    names = {p.name for p in (at / "list/step0/rank0/micro_step0").glob("*.npy")}
    assert names == {f"list{n}.npy" for n in range(12)}
    nested = (at / "nested/step0/rank0/micro_step0").glob("*.npy")
    assert {p.name for p in nested} == {"nested0.a.npy", "nested1.0.npy", "nested1.1.npy"}
    result = compare_runs(tmp_path / "plain", tmp_path / "numbered")
    assert result.verdict.status is Outcome.IDENTICAL
    assert result.verdict.compared == 2 * (1 + 12 + 2 + 2 + 3)


def test_files_of_the_guide_are_read(tmp_path):
    """`response0.npy` without any JSON, one or many, against what is saved here."""
    SingleSave(tmp_path / "ours", numbered=True)
    SingleSave.save({"response": VALUES["response"], "list": VALUES["list"]})
    SingleSave.step()
    for key, values in (("response", [VALUES["response"]]), ("list", VALUES["list"])):
        place = tmp_path / f"guide/data/{key}/step0/rank0/micro_step0"
        place.mkdir(parents=True)
        for number, value in enumerate(values):
            np.save(place / f"{key}{number}.npy", value)
            (place / f"{key}{number}.json").write_text(json.dumps({"data": {"max": 1.0}}))
    result = compare_runs(tmp_path / "ours", tmp_path / "guide")
    assert (result.verdict.status, result.verdict.compared) == (Outcome.IDENTICAL, 13)
    SingleComparator.compare(tmp_path / "guide", tmp_path / "ours", tmp_path / "out")


def test_many_threads_save_at_one_micro_step(tmp_path):
    """None is in another's way: the last one stays whole, and nothing is lost."""
    SingleSave(tmp_path / "run", numbered=True)

    def work(value: int) -> None:
        for number in range(20):
            at = number % 2 or None
            SingleSave.save_ex({"x": [np.full(3, value)] * (1 + number % 3)}, at)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    SingleSave.step()
    for probe in recording_probes():
        probe.close()
    run = open_run(tmp_path / "run")
    assert (run.problems, run.lost) == ([], [])
    data = run.key_data("x")
    assert [d.micro_step for d in data] == [0, 1]
    for datum in data:
        assert len({np.asarray(value).tobytes() for value in datum.value}) == 1
    left = [p.name for p in (tmp_path / "run").rglob("*tmp*")]
    assert left == []
