"""Operators computed again: faults are told from rounding, over dtypes and seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops
from replay.operator_runs import BFloat16, Operation, replayed, write_run

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.findings.accuracy import ReplayedOperators
from mindrlhf_msprobe.replay.offline.computing import Recomputed, values_by_formula
from mindrlhf_msprobe.replay.offline.judging import by_kernels, conclude
from mindrlhf_msprobe.replay.offline.replaying import replay_entry, replay_operators
from mindrlhf_msprobe.replay.offline.script import folder, template
from mindrlhf_msprobe.replay.offline.script.recorded import CallPlace, Probed, find_call
from mindrlhf_msprobe.storage.operators import parse_operator

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 2)


def elements(tensor: Tensor) -> Any:
    if tensor.dtype == ms.bfloat16:
        return BFloat16(tensor.astype(ms.float32).asnumpy())
    return tensor.asnumpy()


def tensor(value: Any) -> Any:
    if isinstance(value, BFloat16):
        return Tensor(value.array).astype(ms.bfloat16)
    if isinstance(value, np.ndarray):
        return Tensor(value)
    return value


def recorded(name: str, operator: Any, *args: Any, seed: int = 0, **kwargs: Any) -> Operation:
    """Return a call of a healthy operator as it is recorded, forward and backward."""
    given = [tensor(arg) for arg in args]
    floating = [i for i, a in enumerate(given) if isinstance(a, Tensor) and a.is_floating_point()]
    output = operator(*given, **kwargs)
    random = np.random.default_rng(seed + 100)
    arriving = Tensor(random.normal(size=output.shape).astype(np.float32)).astype(output.dtype)

    def weighted(*tensors: Any) -> Any:
        full = [*given]
        for i, one in zip(floating, tensors):
            full[i] = one
        return (operator(*full, **kwargs) * arriving).sum()

    found = ms.grad(weighted, tuple(floating))(*(given[i] for i in floating))
    gradients: list[Any] = [None] * len(given)
    for i, gradient in zip(floating, found if isinstance(found, tuple) else (found,)):
        gradients[i] = elements(gradient)
    return Operation(
        name, args, kwargs, (elements(output),), (elements(arriving),), tuple(gradients)
    )


def healthy(seed: int) -> list[Operation]:
    """Return ordinary calls of float32, float16 and bfloat16 operators."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return random.normal(size=shape).astype(dtype)

    half = {"dtype": np.float16}
    return [
        recorded("Mint.matmul", mint.matmul, normal(16, 96), normal(96, 24), seed=seed),
        recorded("Mint.exp", mint.exp, normal(6, 8), seed=seed),
        recorded("Mint.erf", mint.erf, normal(40, 30), seed=seed),
        recorded("Mint.sigmoid", mint.sigmoid, normal(40, 30), seed=seed),
        recorded("MintFunctional.silu", mint.nn.functional.silu, normal(40, 30), seed=seed),
        recorded("Functional.softmax", ops.softmax, 8 * normal(16, 60), -1, seed=seed),
        recorded("Functional.log_softmax", ops.log_softmax, 8 * normal(16, 60), -1, seed=seed),
        recorded("Tensor.sum", lambda x: x.sum(), normal(300, 200), seed=seed),
        recorded("Tensor.__mul__", lambda x, y: x * y, normal(30, 20), 0.1, seed=seed),
        recorded("Tensor.reshape", lambda x, s: x.reshape(s), normal(4, 6), (3, 8), seed=seed),
        recorded("Mint.matmul", mint.matmul, normal(16, 96, **half), normal(96, 24, **half)),
        recorded("Functional.softmax", ops.softmax, normal(16, 60, **half), -1, seed=seed),
    ]


def to_float16(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def without_last_row(array: np.ndarray) -> np.ndarray:
    return np.vstack([array[:-1], np.zeros_like(array[:1])])


def _operands(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = ((16, 96), (96, 24))
    first, second = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return first, second


def faulty(seed: int) -> list[Operation]:
    """Return calls with a fault each: what a wrong kernel leaves in a record."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    rounded = recorded("Mint.matmul", mint.matmul, *_operands(seed), seed=seed)
    rounded.output = (to_float16(rounded.output[0]),)
    dropped = recorded("Mint.add", mint.add, normal(16, 96), normal(16, 96), seed=seed)
    dropped.output = (without_last_row(dropped.output[0]),)
    half = recorded("Functional.softmax", ops.softmax, normal(16, 60).astype(np.float16), -1)
    half.output = (without_last_row(half.output[0]),)
    logits = 40 * normal(16, 60)
    overflowing = recorded("Functional.log_softmax", ops.log_softmax, logits, -1, seed=seed)
    with np.errstate(all="ignore"):
        powers = np.exp(3 * logits)
        overflowing.output = (np.log(powers / powers.sum(-1, keepdims=True)).astype(np.float32),)
    gradient = recorded("MintFunctional.silu", mint.nn.functional.silu, normal(40, 30), seed=seed)
    gradient.leaving = (gradient.leaving[0] * np.float32(1.001),)
    return [rounded, dropped, half, overflowing, gradient]


@pytest.fixture(scope="module", autouse=True)
def pynative() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)


def table_of(run: Path, output: Path) -> ReplayedOperators:
    return replay_operators(Probed((str(run),), None, str(output)))


def verdicts(run: Path, output: Path) -> dict[str, str]:
    return {one.entry: one.verdict for one in table_of(run, output).operators}


@pytest.mark.parametrize("seed", SEEDS)
def test_ordinary_operators_are_not_accused(tmp_path, seed):
    """Kernels that approximate, sums in any order, float16."""
    found = verdicts(write_run(tmp_path / "run", healthy(seed)), tmp_path / "out")
    assert set(found.values()) == {"ordinary"}, found


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_operators_are_found(tmp_path, seed):
    """Rounded to float16, a row lost, no maximum subtracted, a wrong gradient."""
    found = verdicts(write_run(tmp_path / "run", faulty(seed)), tmp_path / "out")
    assert set(found.values()) == {"wrong"}, found


def test_a_sum_in_another_order_is_ordinary(tmp_path):
    """A reduction that is not deterministic differs by rounding."""
    values = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
    call = recorded("Tensor.sum", lambda x: x.sum(), values)
    other = np.float32(0)
    for row in np.random.default_rng(1).permutation(values).sum(1, dtype=np.float32):
        other += row
    call.output = (np.asarray(other),)
    found = verdicts(write_run(tmp_path / "run", [call]), tmp_path / "out")
    assert {*found.values()} == {"ordinary"}


def test_statistics_alone_judge_the_operator_as_it_computes_here(tmp_path, capsys):
    """Whatever was recorded; the answer says so."""
    run = write_run(tmp_path / "run", faulty(0), elements=False)
    assert main(["replay", str(run), "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["operators"]
    assert {one["verdict"] for one in found} == {"ordinary"}
    assert all(one["drawn"] for one in found)
    main(["replay", str(run), "-o", str(tmp_path / "out"), "--lang", "en"])
    assert "random inputs" in capsys.readouterr().out


def test_the_table_is_ranked_and_written(tmp_path, capsys):
    """The most suspicious first, and exit code 1."""
    run = write_run(tmp_path / "run", [*healthy(0)[:3], *faulty(0)[:2]])
    assert main(["replay", str(run), "-o", str(tmp_path / "out"), "--lang", "en"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "wrong: Mint.add.0.forward" in lines[1]
    assert "2 wrong, 3 ordinary, 0 undecided" in lines
    assert (tmp_path / "out" / "replay.xlsx").is_file()


def test_what_cannot_be_computed_again_is_said(tmp_path):
    """Communication, what prints or writes, unknown ones, wrong arguments."""
    x = np.ones((4, 4), np.float32)
    calls = [
        Operation("Distributed.all_reduce", (x,), {}, (x,)),
        Operation("Functional.tensordump", ("stolen", x), {}, ()),
        Operation("Functional.print_", (x,), {}, ()),
        Operation("Mint.no_such", (x,), {}, (x,)),
        Operation("Primitive.custom.Custom", (x,), {}, (x,)),
        Operation("Primitive.reduce.AllReduce", (x,), {}, (x,)),
        Operation("Mint.matmul", (x, np.ones((3, 3), np.float32)), {}, (x,)),
    ]
    table = table_of(write_run(tmp_path / "run", calls), tmp_path / "out")
    assert {*table.verdicts} == {"undecided"}
    assert all(one.notes for one in table.operators), table.operators


def test_what_computes_no_floating_numbers_is_counted_and_no_failure(tmp_path, capsys):
    """Shapes and indices without an opinion; beside floating numbers without one, it is one."""
    whole, x = np.arange(4, dtype=np.int64), np.ones((4, 4), np.float32)
    calls = [
        *healthy(0)[:2],
        Operation("Functional.tuple_to_array", ((1.0, 2.0),), {}, (np.array([1, 2], np.float32),)),
        Operation("Primitive.shapes.Custom", (whole,), {}, (whole,)),
    ]
    for more, code, counts in (([], 0, "0 undecided"), ([x], 2, "1 undecided")):
        calls += [Operation("Primitive.custom.Custom", (one,), {}, (one,)) for one in more]
        run = write_run(tmp_path / str(code), calls)
        assert main(["replay", str(run), "-o", str(tmp_path / "out"), "--lang", "en"]) == code
        said = capsys.readouterr().out
        assert counts in said
        assert "2 not judged" in said


def dropped(seed: int, scale: float = 1.0, share: float = 0.3, probability: float = 0.3):
    """Return a dropout as it is recorded, as a function and as a primitive; zeros among its input.

    Args:
        scale: a fault: what it multiplies by beside what makes up for what it drops.
        share: of the elements that are dropped, with `probability` told to the operator.
    """
    random = np.random.default_rng(seed)
    for kept_as in (np.float32, np.float16):
        x, arriving = (random.normal(size=(40, 30)).astype(kept_as) for _ in range(2))
        x[0, :4] = 0
        mask = random.random(x.shape) >= share
        factor = (mask * (scale / (1 - share))).astype(kept_as)
        y, left = x * factor, arriving * factor
        yield Operation(
            "Functional.dropout", (x, probability), {"seed": None}, (y,), (arriving,), (left, None)
        )
        attributes = {"keep_prob": 1 - probability}
        yield Operation(
            "Primitive.dropout.Dropout",
            (x,),
            output=(y, mask.astype(np.float32)),
            attributes=attributes,
        )


def test_a_dropout_is_judged_with_the_mask_of_its_output(tmp_path, capsys):
    """And what else draws random numbers does not make a run undecided."""
    x = np.ones((4, 4), np.float32)
    random = [Operation("Mint.rand_like", (x,), {}, (x,)), Operation("Mint.randperm", (4,), {}, ())]
    runs = {
        "healthy": ([*dropped(0), *random], "ordinary"),
        "wrong scale": ([*dropped(1, scale=1.1), *random], "wrong"),
        "drops too much": ([*dropped(2, share=0.5)], "wrong"),
        "random alone": (random, "undecided"),  # nothing was judged
    }
    for name, (calls, verdict) in runs.items():
        code = ("ordinary", "wrong", "undecided").index(verdict)
        run, output = str(write_run(tmp_path / name, calls)), str(tmp_path / f"{name} again")
        assert main(["replay", run, "-o", output, "--lang", "en", "--json"]) == code, name
        found = json.loads(capsys.readouterr().out)["operators"]
        for one in found:
            dropout = "ropout" in one["entry"]
            assert one["verdict"] == ("unjudged" if not dropout else verdict), (name, one)
            assert "random" in one["notes"][0] or name == "drops too much"
    run, entry = str(tmp_path / "healthy"), "Functional.dropout.0.backward"
    assert main(["replay", run, entry, "-o", str(tmp_path / "one"), "--lang", "en"]) == 0
    assert "judged with the mask" in capsys.readouterr().out


def primitive(attribute: str, made: Any, *args: Any) -> Operation:
    """Return a call of a primitive as it is recorded: its attributes are not."""
    return recorded(f"Primitive.{attribute}.{type(made).__name__}", made, *args)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def primitives() -> list[Operation]:
    return [
        primitive("matmul", ops.MatMul(transpose_b=True), normal(16, 16), normal(16, 16, seed=1)),
        primitive("batch", ops.BatchMatMul(False, True), normal(2, 8, 6), normal(2, 4, 6)),
        primitive("softmax", ops.Softmax(0), normal(16, 16)),
        primitive("mean", ops.ReduceMean(keep_dims=True), normal(16, 16), -1),
        primitive("mul", ops.Mul(), normal(16, 16), normal(16, 1)),
    ]


def test_attributes_of_primitives_follow_from_what_came_out(tmp_path):
    """Square matrices leave them open by their shapes alone; a wrong result hides none."""
    calls = primitives()
    found = verdicts(write_run(tmp_path / "run", calls), tmp_path / "out")
    assert {*found.values()} == {"ordinary"}, found
    for call in calls:
        call.output = (to_float16(call.output[0]),)
    found = verdicts(write_run(tmp_path / "wrong", calls), tmp_path / "out")
    assert {*found.values()} == {"wrong"}, found


def test_attributes_that_cannot_be_known_accuse_nobody(tmp_path):
    """An epsilon, a probability: there is nothing to try."""
    call = layer_norm(0.5)
    call.attributes = None
    table = table_of(write_run(tmp_path / "run", [call]), tmp_path / "out")
    assert table.verdicts == ["undecided"]
    assert "attributes" in table.operators[0].notes[0]


def test_a_script_has_the_attributes_of_its_primitive(tmp_path):
    run = write_run(tmp_path / "run", primitives()[:1])
    asked = Probed((str(run),), "Primitive.matmul.MatMul.0.forward", str(tmp_path / "out"))
    replay_entry(asked, run=False)
    script = (tmp_path / "out" / "replay.py").read_text(encoding="utf-8")
    assert "return MatMul(transpose_b=True), None" in script


def layer_norm(epsilon: float) -> Operation:
    """Return a call whose attributes are recorded."""
    layer = ops.LayerNorm(begin_norm_axis=1, begin_params_axis=1, epsilon=epsilon)
    ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
    output = [one.asnumpy() for one in layer(Tensor(normal(4, 16)), Tensor(ones), Tensor(zeros))]
    attributes = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": epsilon}
    given = (normal(4, 16), ones, zeros)
    return Operation("Primitive.norm.LayerNorm", given, {}, (*output,), attributes=attributes)


def test_attributes_that_were_recorded_are_used(tmp_path):
    """An epsilon is known then, and what needs arguments to be made is computed again."""
    conv = ops.Conv2D(3, 2, pad_mode="pad", pad=(1, 1, 0, 0))
    call = primitive("conv", conv, normal(2, 3, 8, 8), normal(3, 3, 2, 2))
    call.attributes = {**conv.init_attrs, "pad": [1, 1, 0, 0]}
    axes = primitive("softmax", ops.Softmax(axis=(0,)), normal(16, 16))
    axes.attributes = {"axis": [0]}
    run = write_run(tmp_path / "run", [layer_norm(0.5), call, axes])
    found = verdicts(run, tmp_path / "out")
    assert {*found.values()} == {"ordinary"}, found  # conv has no kernel of float64 on a CPU
    assert {name.split(".")[1] for name in found} == {"norm", "softmax", "conv"}


def test_each_side_is_made_with_its_own_attributes(tmp_path):
    """Both compute what their attributes say: neither is wrong."""
    a = write_run(tmp_path / "a", [layer_norm(0.5)])
    b = write_run(tmp_path / "b", [layer_norm(0.1)])
    asked = Probed((str(a), str(b)), "Primitive.norm.LayerNorm.0.forward", str(tmp_path / "out"))
    assert replay_entry(asked).verdicts == ["ordinary", "ordinary"]
    entry = json.loads((tmp_path / "out" / "b" / "entry.json").read_text(encoding="utf-8"))
    assert entry["attributes"]["epsilon"] == {"value": 0.1}


def test_the_attributes_of_a_dump_become_no_code(tmp_path):
    """Names that the class has not are left out, texts stay data."""
    call = layer_norm(0.5)
    call.attributes = {**call.attributes, "__import__('os')": 1}
    run, entry = write_run(tmp_path / "run", [call]), "Primitive.norm.LayerNorm.0.forward"
    replay_entry(Probed((str(run),), entry, str(tmp_path / "out")), run=False)
    assert "__import__" not in (tmp_path / "out" / "replay.py").read_text(encoding="utf-8")
    softmax = primitive("softmax", ops.Softmax(0), normal(16, 16))
    softmax.attributes = {"axis": "__import__('os')"}
    run = write_run(tmp_path / "text", [softmax])
    assert verdicts(run, tmp_path / "out") == {"Primitive.softmax.Softmax.0.forward": "undecided"}


def test_an_l1_dump_of_msprobe_is_replayed(tmp_path):
    """Its dump.json has the same names; it has no journal."""
    call = recorded("Functional.softmax", ops.softmax, normal(16, 60), -1)
    wrong = recorded("Functional.softmax", ops.softmax, normal(16, 60), -1)
    wrong.output = (without_last_row(wrong.output[0]),)
    place = write_run(tmp_path / "ours", [call, wrong]) / "actor_update" / "step0" / "rank0"
    lines = [json.loads(line) for line in (place / "records.jsonl").read_text().splitlines()]
    parts = ("input_args", "input_kwargs", "input", "output")
    data = {line["entry"]: {part: line[part] for part in parts if part in line} for line in lines}
    dump = tmp_path / "dump" / "step0" / "rank"
    (place / "dump_tensor_data").rename(tmp_path / "tensors")
    dump.mkdir(parents=True)
    (tmp_path / "tensors").rename(dump / "dump_tensor_data")
    content = {"task": "tensor", "level": "L1", "framework": "mindspore", "data": data}
    (dump / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    found = verdicts(tmp_path / "dump", tmp_path / "out")
    assert found == {
        "Functional.softmax.0.forward": "ordinary",
        "Functional.softmax.1.forward": "wrong",
    }


def test_the_folder_runs_by_itself_where_this_package_is_not(tmp_path):
    """From another directory, in a process that cannot import it; exit code 0, also if wrong."""
    run = write_run(tmp_path / "run", faulty(0)[:1])
    other = write_run(tmp_path / "other", [recorded("Mint.matmul", mint.matmul, *_operands(0))])
    asked = Probed((str(run), str(other)), "Mint.matmul.0.backward", str(tmp_path / "out"))
    replay_entry(asked, run=False)
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    alone = "import runpy, sys; sys.modules['mindrlhf_msprobe'] = None; "
    alone += "runpy.run_path(sys.argv.pop(1), {}, '__main__')"
    done = subprocess.run(
        [sys.executable, "-c", alone, str(moved / "replay.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "A is the wrong one."


def test_a_kernel_that_computes_in_fewer_bits_than_it_is_given_proves_nothing(tmp_path):
    """The script leaves it open; the formula decides, and exit codes follow that."""

    def in_float32(x: Any) -> Any:
        array = x.asnumpy()
        return Tensor((array.astype(np.float32) * np.float32(1.001)).astype(array.dtype))

    call = Operation("Mint.exp", (normal(6, 8),), {}, (normal(6, 8) * np.float32(1.001),))
    run = write_run(tmp_path / "run", [call])
    side_of(run, "Mint.exp.0.forward", tmp_path / "a")
    found = replayed(Recomputed(tmp_path / "a", in_float32))
    assert found["verdict"] == "undecided"
    assert "Float32 for inputs in Float64" in found["notes"][0]


def side_of(run: Path, entry: str, output: Path) -> None:
    template.WORDS.update(folder.words_of("en"))
    folder.write_side(output, find_call(open_run(run), entry, CallPlace()), compute_dtype=None)


@pytest.mark.parametrize(
    ("recorded_off", "here_off", "said", "verdict"),
    [
        (0.0, 0.0, [], "ordinary"),
        (0.1, 0.1, ["wrong_here"], "wrong"),
        (0.1, 0.0, [], "wrong"),
        (0.0, 0.1, ["other_here"], "ordinary"),
    ],
)
def test_a_kernel_here_is_only_called_wrong_where_it_is(
    tmp_path, recorded_off, here_off, said, verdict
):
    """Under the healthy one of two runs nothing says that it is computed in the wrong way, too."""

    def here(x: Any) -> Any:
        return mint.exp(x) * (1 + here_off * (x.dtype == ms.float32))

    x = normal(6, 8)
    call = Operation("Mint.exp", (x,), {}, (np.exp(x) * np.float32(1 + recorded_off),))
    side_of(write_run(tmp_path / "run", [call]), "Mint.exp.0.forward", tmp_path / "a")
    found = by_kernels(Recomputed(tmp_path / "a", here))
    assert ([code for code, _ in found.notes], found.verdict) == (said, verdict)


def test_a_formula_finds_what_is_wrong_in_float64_as_well(tmp_path):
    """A kernel that is wrong wherever it computes agrees with itself."""
    calls = [recorded("MintFunctional.silu", mint.nn.functional.silu, normal(40, 30))]
    calls[0].output = (calls[0].output[0] * np.float32(1.001),)
    side_of(write_run(tmp_path / "run", calls), "MintFunctional.silu.0.forward", tmp_path / "a")
    wrong = Recomputed(tmp_path / "a", lambda x: mint.nn.functional.silu(x) * 1.001)
    assert replayed(wrong)["values"]["output.0"]["verdict"] == "ordinary"
    operator = parse_operator("MintFunctional.silu.0.forward")
    found = values_by_formula(wrong, operator, None)
    assert found["output.0"]["verdict"] == "wrong"
    assert found["gradient:input.0"]["verdict"] == "ordinary"


def test_json_has_no_infinite_numbers(tmp_path, capsys):
    """A wrong result may be infinitely far; JSON has no number for that."""
    call = recorded("Mint.exp", mint.exp, normal(6, 8))
    call.output = (np.full_like(call.output[0], np.nan),)
    run = write_run(tmp_path / "run", [call])
    assert main(["replay", str(run), "-o", str(tmp_path / "out"), "--json"]) == 1

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["operators"][0]["share"] == "Infinity"


def test_very_large_logits_are_judged_by_the_formula(tmp_path):
    """Float64 disturbed by one rounding explains less there than a formula that rounds inside."""
    logits = 300 * normal(64, 64)
    calls = [recorded("MintFunctional.softmax", mint.nn.functional.softmax, logits, dim=-1)]
    run = write_run(tmp_path / "run", calls)
    asked = Probed((str(run),), "MintFunctional.softmax.0.forward", str(tmp_path / "out"))
    found = replay_entry(asked)
    assert found.verdicts == ["ordinary"], found.text
    assert "wrong" not in found.text
    assert "by its formula in numpy" in found.text


def test_the_formula_says_which_of_two_runs_is_wrong_where_a_kernel_cannot(tmp_path):
    """A kernel that computes in float32 whatever it is given leaves it open; who judged is said."""

    def in_float32(x: Any) -> Any:
        return Tensor(x.astype(ms.float32).asnumpy()).exp().astype(x.dtype)

    x = normal(6, 8)
    right = recorded("Mint.exp", mint.exp, x)
    wrong = Operation("Mint.exp", (x,), {}, (np.exp(x) * np.float32(1.001),))
    runs = [write_run(tmp_path / name, [call]) for name, call in (("a", right), ("b", wrong))]
    entry, output = "Mint.exp.0.forward", tmp_path / "out"
    replay_entry(Probed((str(runs[0]), str(runs[1])), entry, str(output)), run=False)
    conclude(output, in_float32)
    judged = json.loads((output / "b" / "entry.json").read_text(encoding="utf-8"))["judged"]
    assert judged["answer"][-1] == "B is the wrong one."
    assert "by its formula in numpy" in judged["answer"][0]


def test_without_numpy_the_script_says_one_sentence(tmp_path):
    """And without MindSpore; nothing of Python's is shown."""
    run = write_run(tmp_path / "run", [recorded("Mint.exp", mint.exp, normal(2, 2))])
    replay_entry(Probed((str(run),), "Mint.exp.0.forward", str(tmp_path / "out")), run=False)
    for missing in ("numpy", "mindspore"):
        without = f"import runpy, sys; sys.modules['{missing}'] = None; "
        without += "runpy.run_path(sys.argv.pop(1), {}, '__main__')"
        command = [sys.executable, "-c", without, str(tmp_path / "out" / "replay.py")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("replay.py computes with MindSpore and numpy, which cannot")
