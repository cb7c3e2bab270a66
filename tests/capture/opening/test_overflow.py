"""task: overflow_check: full tensors where something non-finite arose, and nowhere else."""

import functools
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import run_python
from helpers.small_networks import Does, Scale, tensor
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import check_run, open_run
from mindrlhf_msprobe.capture.recording import phases
from mindrlhf_msprobe.storage.reading.reader import Run

LARGE = 300  # squared, as float32, more than what is copied to the host in any case
INF, NAN = float("inf"), float("nan")


def log_of(shift: float) -> Does:
    return Does(lambda cell, x: ops.log(x - shift))


@pytest.fixture
def checked(run_phase: Callable[..., Run]) -> Callable[..., Run]:
    """Return a function that runs a network in phases of some steps and opens what was recorded."""

    def run(network: nn.Cell, body: Callable[[int], Any], steps: int = 1, **settings: Any) -> Run:
        numbers = itertools.count()
        given = {"task": "overflow_check", "steps": steps, **settings}
        return run_phase(network, lambda: body(next(numbers)), **given)

    return run


def stored(run: Run, step: int = 0) -> dict[str, list[str]]:
    """Return entry → the records with elements, of those that have any; all must be right."""
    found: dict[str, list[str]] = {}
    for entry in run.entries(step=step):
        for record in entry.records:
            if record.location is not None:
                assert record.holds_what_was_recorded(), record.name
                found.setdefault(entry.name, []).append(f"{record.io}.{record.path}")
    return found


def first_place(run: Run) -> str:
    """Return the entry that `check` names first."""
    (finding,) = [f for f in check_run(run.path).findings if f.rule == "non_finite.first"][:1]
    entry = finding.place.entry
    assert entry is not None
    return entry


def test_only_the_innermost_entry_that_made_it_is_written(checked):
    """Neither the containers around it, nor the cells before and after it."""
    inner = Does(lambda cell, x: cell.log(cell.scale(x)), scale=Scale(), log=log_of(1e3))
    network = Does(lambda cell, x: cell.after(cell.inner(x)), inner=inner, after=Scale())
    run = checked(network, lambda _: network(tensor(LARGE, LARGE)))
    name = "Cell.inner.log.Does.forward.0"
    assert stored(run) == {name: ["input.0", "output.0"]}
    assert first_place(run) == name
    (entry,) = [e for e in run.entries() if e.name == name]
    given, made = entry.records
    np.testing.assert_array_equal(given.array(), tensor(LARGE, LARGE).asnumpy() * 2)
    assert np.isnan(made.array()).any()


def test_a_containers_own_code_is_written_as_the_container(checked):
    network = Does(
        lambda cell, x: cell.after(ops.sqrt(cell.before(x) - 5)), before=Scale(), after=Scale()
    )
    run = checked(network, lambda _: network(tensor(3, 4)))
    assert stored(run) == {"Cell.root.Does.forward.0": ["input.0", "output.0"]}


def test_parameters_of_such_an_entry_are_written_too(checked):
    network = Does(lambda cell, x: cell.scale(x), scale=Scale(1e38))
    run = checked(network, lambda _: network(tensor(3, 4, start=100)))
    assert stored(run) == {
        "Cell.scale.Scale.forward.0": ["input.0", "output.0", "parameters.factor"]
    }


@pytest.mark.parametrize(("dtype", "large"), [("float16", 7e4), ("bfloat16", 3.4e38)])
def test_an_overflow_of_a_short_dtype_is_one(checked, dtype, large):
    cast = Does(lambda cell, x: x.astype(getattr(ms, dtype)))
    network = Does(lambda cell, x: cell.cast(x), cast=cast)
    run = checked(network, lambda _: network(Tensor(np.full(4, large, np.float32))))
    assert stored(run) == {"Cell.cast.Does.forward.0": ["input.0", "output.0"]}
    assert first_place(run) == "Cell.cast.Does.forward.0"


@pytest.mark.parametrize("size", [4, LARGE])
@pytest.mark.parametrize("number", [1, -1])
def test_a_nan_of_the_backward_pass_alone(checked, size, number):
    """sqrt has no finite gradient at 0; the cells before it are given one that is not finite."""
    network = Does(
        lambda cell, x: cell.after(cell.root_of(cell.before(x))),
        before=Scale(), root_of=Does(lambda cell, x: ops.sqrt(x)), after=Scale(),
    )  # fmt: skip
    x = tensor(size, size)
    run = checked(
        network,
        lambda _: ms.value_and_grad(lambda x: network(x).sum(), 0, network.trainable_params())(x),
        overflow_nums=number,
    )
    name = "Cell.root_of.Does.backward.0"
    assert stored(run) == {name: ["input.0", "output.0"]}
    assert first_place(run) == name


def test_a_gradient_that_overflows_by_itself_is_its_parameters(checked):
    """What arrives at the cell and what leaves it is finite; the sum over the batch is not."""
    scale = Scale()
    scale.factor = Parameter(Tensor(0.01, ms.float16), name="factor")
    network = Does(lambda cell, x: cell.scale(x * 1) * 300, scale=scale)
    x = Tensor(np.full(4, 100), ms.float16)
    run = checked(
        network, lambda _: ms.value_and_grad(lambda x: network(x).sum(), 0, [scale.factor])(x)
    )
    name = "Cell.scale.Scale.parameters_grad.0"
    assert stored(run) == {name: ["parameters_grad.factor"]}
    assert first_place(run) == name


def test_what_comes_out_of_an_optimizer_is_at_the_first_cell_that_has_it(checked):
    network = Does(lambda cell, x: cell.b(cell.a(x)), a=Scale(), b=Scale())

    def body(step: int) -> None:
        network(tensor(3, 4))
        if step == 1:  # an update of b, then of a, a step later
            network.b.factor.set_data(Tensor(np.float32(INF)))
        if step == 2:
            network.a.factor.set_data(Tensor(np.float32(INF)))

    run = checked(network, body, steps=4, overflow_nums=-1)
    name = "Cell.b.Scale.forward.0"
    assert [stored(run, step) for step in range(4)] == [
        {},
        {},
        {name: ["input.0", "output.0", "parameters.factor"]},
        {},
    ]
    assert first_place(run) == name


@pytest.mark.parametrize("size", [4, 100, LARGE])
def test_an_input_that_its_cell_overwrites_is_written_as_it_was(checked, size):
    """So is one that is overwritten when the cell has returned."""

    def overwrite(cell: nn.Cell, x: Tensor) -> Tensor:
        made = ops.log(x - 1e6)
        x[...] = 0
        return made

    network = Does(lambda cell, x: cell.bad(cell.before(x)), before=Scale(), bad=Does(overwrite))
    x = tensor(size, size)
    run = checked(network, lambda _: network(x))
    (entry,) = [e for e in run.entries() if e.cell == "bad"]
    assert stored(run) == {entry.name: ["input.0", "output.0"]}
    np.testing.assert_array_equal(entry.records[0].array(), tensor(size, size).asnumpy() * 2)


@pytest.mark.parametrize(("number", "written"), [(1, 1), (2, 2), (3, 3), (-1, 4)])
def test_overflow_nums_counts_entries(checked, number, written):
    """In the order of time, over all steps; statistics go on."""
    network = Does(
        lambda cell, x: (cell.a(x), cell.b(x)), a=log_of(1e3), b=Does(lambda cell, x: x / x)
    )
    run = checked(
        network, lambda step: network(tensor(3, 4, start=step % 2 * 1e4)), 4, overflow_nums=number
    )
    found = [(step, name) for step in range(4) for name in stored(run, step)]
    births = [(step, f"Cell.{cell}.Does.forward.0") for step in (0, 2) for cell in "ab"]
    assert found == births[:written]
    assert [len(run.entries(step=step)) for step in range(4)] == [3] * 4


def test_what_follows_from_an_earlier_step_is_no_origin(checked):
    """All weights are NaN once the update was."""
    network = Does(lambda cell, x: cell.b(cell.a(x)), a=Scale(), b=Scale())

    def body(step: int) -> None:
        x = tensor(3, 4) if step else Tensor(np.full((3, 4), 3e38, np.float32))
        _, gradients = ms.value_and_grad(
            lambda x: network(x).sum(), None, network.trainable_params()
        )(x)
        for parameter, gradient in zip(network.trainable_params(), gradients):
            parameter.set_data(parameter - gradient)

    run = checked(network, body, steps=3, overflow_nums=-1)
    first = "Cell.a.Scale.forward.0"
    assert [[*stored(run, step)] for step in range(3)] == [[first], [], []]


def test_masks_of_minus_infinity_are_no_overflow(checked):
    def masked(cell: nn.Cell, x: Tensor) -> Tensor:
        return ops.softmax(x + cell.mask(x))

    mask = Does(lambda cell, x: ops.select(x > 1, ops.zeros_like(x), ops.full_like(x, -INF)))
    network = Does(lambda cell, x: cell.attention(x), attention=Does(masked, mask=mask))
    run = checked(network, lambda _: network(tensor(1, 9) + 0.5), overflow_nums=-1)
    assert stored(run) == {}
    assert check_run(run.path).status != "unhealthy"


def test_minus_infinity_of_which_nan_comes_is_where_it_was_made(checked):
    """As check names it; what made NaN of it is the second origin."""
    network = Does(
        lambda cell, x: cell.less(cell.after(cell.log(x))),
        log=Does(lambda cell, x: ops.log(x)), after=Scale(),
        less=Does(lambda cell, x: x - x.min()),
    )  # fmt: skip
    runs = [checked(network, lambda _: network(tensor(3, 4)), overflow_nums=n) for n in (1, 2)]
    first, second = "Cell.log.Does.forward.0", "Cell.less.Does.forward.0"
    assert [[*stored(run)] for run in runs] == [[first], [first, second]]
    assert first_place(runs[0]) == first


def test_a_container_whose_inputs_have_no_room_is_counted(checked):
    """What was given to the outermost cells is given up first; what is lost is said, not hidden."""

    def inside(cell: nn.Cell, x: Tensor) -> Tensor:
        for number in range(3):
            x = cell.scale(x + number)
        return x

    scale = Does(lambda cell, x: cell.own(x), own=Scale(1.0))
    network = Does(lambda cell, x: ops.log(cell.inner(x) - 1e9), inner=Does(inside, scale=scale))
    x = tensor(600, 600)  # 1.4 MB
    run = checked(network, lambda _: network(x), buffer_mb=2, fingerprint=False)
    assert stored_names(run) == {"Cell.root.Does.forward.0": ["output.0"]}
    ((kind, count),) = run.run_files[0].losses
    assert (kind.params["what"].code, kind.params["why"].code) == ("lost.overflow", "lost.not_held")
    assert count == 1


def test_a_large_parameter_takes_no_room(checked):
    """It is there in any case: what the cells around it were given stays held."""
    scale = Scale()
    scale.table = Parameter(Tensor(np.ones((600, 600), np.float32)), name="table")
    network = Does(lambda cell, x: ops.log(cell.inner(x) - 1e9), inner=scale)
    x = tensor(300, 300)
    run = checked(network, lambda _: network(x), buffer_mb=1)
    assert stored(run) == {"Cell.root.Does.forward.0": ["input.0", "output.0"]}
    assert not run.losses


def stored_names(run: Run) -> dict[str, list[str]]:
    return {
        entry.name: names
        for entry in run.entries()
        if (names := [f"{r.io}.{r.path}" for r in entry.records if r.location is not None])
    }


def bits(array: np.ndarray) -> bytes:
    """Return the bytes of an array; the sign of a NaN, which MindSpore leaves to chance, is one."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def test_training_is_the_same_bit_for_bit(checked):
    def train(run: Callable[..., Any]) -> list[bytes]:
        network = Does(lambda cell, x: cell.b(ops.sqrt(cell.a(x))), a=Scale(0.3), b=Scale(0.7))
        seen: list[bytes] = []

        def body(step: int) -> None:
            found = ms.value_and_grad(
                lambda x: (network(x) ** 2).mean(), 0, network.trainable_params()
            )(tensor(3, 4, start=-0.5))
            for parameter, gradient in zip(network.trainable_params(), found[1][1]):
                parameter.set_data(parameter - gradient * 0.1)
            seen.extend(bits(t.asnumpy()) for t in (found[0], found[1][0], *found[1][1]))

        run(network, body)
        return seen

    plain = train(lambda network, body: [body(step) for step in range(2)])
    assert train(functools.partial(checked, steps=2, overflow_nums=-1)) == plain


def test_reduced_on_the_device_the_same_is_written(checked, monkeypatch):
    """What is held there is a copy: its entry is looked at long after it ended."""
    monkeypatch.setattr(phases, "reduces_on_device", lambda *_: True)

    def overwrite(cell: nn.Cell, x: Tensor) -> Tensor:
        y = cell.log(x)
        x[...] = 0
        return y

    network = Does(
        lambda cell, x: cell.after(cell.inner(cell.scale(x))),
        scale=Scale(), inner=Does(overwrite, log=log_of(1e3)), after=Scale(),
    )  # fmt: skip
    run = checked(network, lambda _: network(tensor(3, 4)), overflow_nums=-1, fingerprint=False)
    assert stored_names(run) == {"Cell.inner.log.Does.forward.0": ["input.0", "output.0"]}
    (entry,) = [e for e in run.entries() if e.cell == "inner.log"]
    np.testing.assert_array_equal(entry.records[0].array(), tensor(3, 4).asnumpy() * 2)


#: Records a run in PyNative and one in graph mode, and is killed behind the end of their step.
KILLED = """
import os, signal
import mindspore as ms
from helpers.small_networks import MODES, Scale, tensor
from mindspore import nn, ops
from mindrlhf_msprobe import Probe

class Bad(nn.Cell):
    def construct(self, x):
        return ops.log(x - 1e3)

for name, mode in MODES.items():
    ms.set_context(mode=mode)
    network = nn.SequentialCell(Scale(), Bad(), Scale())
    probe = Probe.from_config(
        dict(msprobe=True, actor_train_dump=True, task="overflow_check", step_end=9, dump_path=name)
    )
    probe.watch(actor=network)
    with probe.phase("actor_update"):
        network(tensor(300, 300))
    probe.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the two runs of a killed process."""
    directory = tmp_path_factory.mktemp("killed")
    (directory / "program.py").write_text(KILLED)  # graphs are compiled from files alone
    ended = run_python("import runpy; runpy.run_path('program.py')", directory)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return directory


def test_files_are_whole_when_the_process_is_killed(killed):
    run = open_run(killed / "pynative")
    assert stored(run) == {"Cell.1.Bad.forward.0": ["input.0", "output.0"]}


def test_in_a_graph_it_is_coverage_and_check_names_what_to_record(killed):
    run = open_run(killed / "graph")
    assert stored(run) == {}
    reasons = run.coverage()["graph_mode"]["actor"]["1"]
    assert [reason.code for reason in reasons] == ["coverage.overflow_in_graph"]
    first = check_run(run.path).findings[0]
    assert first.next_step == {
        **{"msprobe": True, "actor_train_dump": True, "step_start": 0, "step_end": 0},
        **{"task": "tensor", "include": [r"^1($|\.)"]},
    }


def test_where_elements_were_written_nothing_more_is_to_be_recorded(checked):
    network = Does(lambda cell, x: cell.log(x), log=log_of(1e3))
    run = checked(network, lambda _: network(tensor(3, 4)))
    first = check_run(run.path).findings[0]
    assert first.next_step is None
    files = {evidence.values.get("data_name") for evidence in first.evidence}
    assert "Cell.log.Does.forward.0.output.0.npy" in files
