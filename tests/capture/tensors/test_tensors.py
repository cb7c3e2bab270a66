"""Full tensors of layers on disk, and the statistics of every kind of tensor."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json
from helpers.small_networks import Echo, Scale, tensor
from mindspore import nn

from mindrlhf_msprobe.capture.tensors import summary
from mindrlhf_msprobe.capture.tensors.summary import Summaries, fingerprint_of, summarise, to_host
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8

NAMES = "Float16 Float32 Float64 BFloat16 Bool Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64"
DTYPES = {
    name: getattr(ms, {"Bool": "bool_"}.get(name, name.lower()))
    for name in f"{NAMES} Complex64 Complex128".split()
}
SHAPES = ((2, 3), (), (0, 4))


def test_stored_tensors_equal_the_tensors(run_phase):
    """With task: tensor, numpy loads the very elements, dtype and shape known; bf16 exactly."""
    expected = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            numbers = np.linspace(0.3, 77, int(np.prod(shape))).reshape(shape)
            expected[dtype, shape] = ms.Tensor(numbers, ms.float32).astype(DTYPES[dtype])
    network = Echo()
    run = run_phase(network, lambda: [network(x) for x in expected.values()], task="tensor")
    for ((dtype, shape), given), entry in zip(expected.items(), run.entries(), strict=True):
        array = (given.astype(ms.float32) if dtype == "BFloat16" else given).asnumpy()
        assert len(entry.records) == 2
        for record in entry.records:
            assert (record.leaf.dtype, record.leaf.shape) == (dtype, shape)
            loaded = np.load(record.file)
            assert (loaded.dtype, loaded.shape) == (array.dtype, shape)
            assert loaded.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_floats_of_8_bits_are_recorded_as_float32(watched, recorded, dtype):
    """MindSpore makes the very bytes of what is loaded, by layer and by key."""
    own, given = getattr(ms, FLOAT8[dtype]), {}
    for shape in (*SHAPES, (300, 300)):
        numbers = np.linspace(-9, 77, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        given[str(shape)] = ms.Tensor(numbers, dtype=own)
    probe, network = watched(Echo(), task="tensor", key_data_dump=True)
    with probe.phase("actor_update"):
        for x in given.values():
            network(x)
    probe.save_data(given)
    run = recorded(probe)
    assert run.lost == []
    for (name, x), entry in zip(given.items(), run.entries(), strict=True):
        assert [record.leaf.dtype for record in entry.records] == [dtype] * 2
        (saved,) = run.key_data(name)
        for values in (entry.records[0].array(), saved.value):
            assert values.shape == x.shape
            assert ms.Tensor(np.array(values), dtype=own).get_bytes() == x.get_bytes()
        assert saved.records[0].leaf.fingerprint == entry.records[0].leaf.fingerprint


def test_sparse_tensors_are_recorded_as_what_they_are_made_of(watched, recorded):
    """Indices, values and shape, by layer and by key."""
    indices, values = ms.Tensor([[0, 1], [1, 2]], ms.int32), ms.Tensor([1.5, 2.5], ms.float32)
    coo = ms.COOTensor(indices, values, (3, 4))
    csr = ms.CSRTensor(ms.Tensor([0, 1, 2, 2], ms.int32), indices[1], values, (3, 4))
    probe, network = watched(Echo(), task="tensor", key_data_dump=True)
    with probe.phase("actor_update"):
        network([coo], csr)
    probe.save_data(sparse=coo)
    run = recorded(probe)
    found = {record.path: record for record in run.entries()[0].records if record.io == "input"}
    np.testing.assert_array_equal(found["0.0.indices"].array(), [[0, 1], [1, 2]])
    np.testing.assert_array_equal(found["0.0.values"].array(), [1.5, 2.5])
    assert [found[f"0.0.shape.{axis}"].leaf.value for axis in range(2)] == [3, 4]
    np.testing.assert_array_equal(found["1.indptr"].array(), [0, 1, 2, 2])
    assert run.lost == []
    np.testing.assert_array_equal(run.key_data("sparse")[0].value["values"], [1.5, 2.5])


def test_equal_tensors_share_one_file(run_phase):
    """An output that is the next cell's input is stored once and linked under each name."""
    network = nn.SequentialCell(Scale(2.0), Scale(3.0))
    body = lambda: network(tensor(5, start=1.0))  # noqa: E731
    run = run_phase(network, body, task="tensor", fingerprint=False)
    files = {r.name: r.file for e in run.entries() for r in e.records}
    inodes = {name: file.stat().st_ino for name, file in files.items()}
    first, second = "Cell.0.Scale.forward.0", "Cell.1.Scale.forward.0"
    assert inodes[f"{first}.output.0"] == inodes[f"{second}.input.0"]
    assert inodes["Cell.root.SequentialCell.forward.0.input.0"] == inodes[f"{first}.input.0"]
    assert len(files) == 8
    assert len(set(inodes.values())) == 5  # input, two weights, middle, output
    assert {file.name for file in files.values()} == {f"{name}.npy" for name in files}


def test_dump_json_names_the_stored_files(run_phase):
    """It holds msprobe's keys, its data_name are files; with task: statistics there are none."""
    network = Scale()
    run = run_phase(network, lambda: network(tensor(5)), task="tensor")
    directory = run.path / "actor_update" / "step0" / "rank0"
    dump = read_json(directory / "dump.json")
    assert (dump["task"], dump["level"], dump["framework"]) == ("tensor", "L0", "mindspore")
    entry = dump["data"]["Cell.root.Scale.forward.0"]
    leaf = entry["input_args"][0]
    assert {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "data_name"} <= set(leaf)
    assert (directory / "dump_tensor_data" / leaf["data_name"]).is_file()
    assert (directory / "dump_tensor_data" / entry["parameters"]["factor"]["data_name"]).is_file()
    plain = run_phase(network, lambda: network(tensor(5)))
    assert plain.entries()
    assert not list(plain.path.rglob("*.npy"))


RNG = np.random.default_rng(3)
ARRAYS: dict[str, np.ndarray] = {
    "float32": RNG.normal(size=(70, 1000)).astype(np.float32),
    "float16 whose sum overflows": np.full(200_000, 60_000, np.float16),
    "float32 whose squares overflow": np.full(1000, 1e30, np.float32),
    "float64": RNG.normal(size=1000),
    "int64 beyond float64": np.array([2**63 - 1, 2**62 + 1, 3]),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "uint8": np.arange(256, dtype=np.uint8),
    "one nan": np.array([1, np.nan, 3], np.float32),
    "infinities": np.array([np.inf, -np.inf, 1], np.float32),
    "inf and nan": np.array([np.inf, np.nan, np.nan], np.float16),
    "all nan": np.full((2, 2), np.nan),
    "not contiguous": np.arange(24, dtype=np.float32).reshape(4, 6).T[::2],
    "big-endian": np.arange(5, dtype=">f4"),
    "0-d": np.array(2.5, np.float32),
}


@pytest.fixture(params=["compiled", "numpy"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compute once with the compiled library, once as if it had not been built."""
    if request.param == "numpy":
        monkeypatch.setattr(summary, "_FLOAT32", None)
        monkeypatch.setattr(summary, "_BFLOAT16", None)
    elif summary._FLOAT32 is None:
        pytest.skip("the library was not built: there is no C compiler")
    return request.param


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_statistics_agree_with_numpy(name):
    """max, min, mean, L2 norm, NaN and Inf counts are numpy's in extended precision."""
    array = ARRAYS[name]
    leaf = summarise(to_host(array))
    wide = array.astype(np.longdouble)
    np.testing.assert_equal(leaf.max, array.max().item())
    np.testing.assert_equal(leaf.min, array.min().item())
    np.testing.assert_allclose(leaf.mean, float(wide.mean()), rtol=1e-12, atol=1e-300)
    # Squares of float32 are added up over short blocks in float32 first.
    rtol = 1e-7 if array.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(leaf.norm, float(np.sqrt((wide**2).sum())), rtol=rtol)
    floats = array.dtype.kind == "f"
    assert leaf.nan_count == (np.isnan(array).sum() if floats else 0)
    assert leaf.inf_count == (np.isinf(array).sum() if floats else 0)
    assert leaf.shape == array.shape


@pytest.mark.usefixtures("arithmetic")
def test_statistics_of_bfloat16_are_those_of_its_values() -> None:
    """bfloat16 is summarised by its float32 values, its dtype kept."""
    values = ms.Tensor(np.linspace(-3, 3, 100), ms.float32).astype(ms.bfloat16)
    leaf = summarise(to_host(values))
    exact = values.astype(ms.float32).asnumpy().astype(np.float64)
    assert (leaf.dtype, leaf.max, leaf.min) == ("BFloat16", exact.max(), exact.min())
    np.testing.assert_allclose(leaf.mean, exact.mean(), atol=1e-15)
    np.testing.assert_allclose(leaf.norm, np.linalg.norm(exact), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_norm_and_mean_of_float64_are_right_at_every_scale(dtype, size):
    """Exact fractions say what they are; where plain sums are right, the bits are theirs."""
    rng = np.random.default_rng(size)
    for scale in (5e-324, 1e-310, 1e-200, 1e-155, 1e-139, 1.0, 1e139, 1e153, 1e155, 1e200, 1e303):
        array = (rng.normal(size=size) + 1) * scale
        array[0] *= 1e-30  # elements of very different sizes
        array = (array * 1j if dtype is np.complex128 else array).astype(dtype)
        real = np.abs(array) if dtype is np.complex128 else array
        some = real if size < 100 else np.full(size, scale)
        array = array if size < 100 else some.astype(dtype)
        leaf = summarise(to_host(array))
        exponent = 1074
        whole = [int(Fraction(float(x)) * 2**exponent) for x in some[: 1 if size > 100 else size]]
        times = size // len(whole)
        norm = Fraction(math.isqrt(sum(x * x for x in whole) * times << 200), 1 << (exponent + 100))
        assert leaf.norm == pytest.approx(float(norm), rel=1e-12, abs=5e-324), scale
        mean = float(Fraction(sum(whole) * times, size << exponent))
        near = pytest.approx(mean, rel=1e-12, abs=max(5e-324, 1e-14 * scale))
        assert leaf.mean == near, scale
        plain = float(np.sqrt(np.dot(real, real)))
        if 1e-140 < real.max() < 1e140 and size < 60_000:
            assert leaf.norm == plain


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_norm_beyond_float64_is_infinite_and_its_elements_are_counted_as_finite() -> None:
    largest = np.finfo(np.float64).max
    leaf = summarise(to_host(np.array([largest, -largest, largest])))
    assert (leaf.norm, leaf.nan_count, leaf.inf_count) == (math.inf, 0, 0)
    assert leaf.mean == pytest.approx(largest / 3)


@pytest.mark.parametrize("array", [np.zeros(0), np.zeros((3, 0), bool)], ids=repr)
def test_an_empty_tensor_has_no_statistics(array):
    """An empty tensor has a shape, a fingerprint, no statistics and no NaN."""
    leaf = summarise(to_host(array))
    assert (leaf.max, leaf.min, leaf.mean, leaf.norm) == (None, None, None, None)
    assert (leaf.nan_count, leaf.inf_count) == (0, 0)
    assert leaf.fingerprint


def test_a_longdouble_is_summarised() -> None:
    """numpy's longest float has statistics that JSON can hold."""
    leaf = summarise(to_host(np.array([1, 2], np.longdouble)))
    assert [type(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)] == [float] * 4


def test_a_fingerprint_sees_order_dtype_shape_and_sign() -> None:
    """Equal bytes, dtype and shape give equal fingerprints, anything else another one."""
    base = np.arange(6, dtype=np.float32)
    different = [
        base[::-1],
        base.reshape(2, 3),
        base.reshape(3, 2),
        base.view(np.int32),
        base.astype(np.float64),
        np.where(base == 0, np.float32(-0.0), base),
    ]
    prints = [fingerprint_of(to_host(array)) for array in (base, *different)]
    assert len(set(prints)) == len(prints)
    same = np.arange(12, dtype=">f4")[:6]
    assert fingerprint_of(to_host(same)) == prints[0]
    assert fingerprint_of(to_host(ms.Tensor(base))) == prints[0]


def test_views_of_mindspore_tensors_are_read_as_they_are() -> None:
    """A transposed or sliced MindSpore tensor is recorded by its own elements and shape."""
    whole = tensor(4, 6)
    for view, expected in (
        (whole.T, whole.asnumpy().T),
        (whole[1:3, ::2], whole.asnumpy()[1:3, ::2]),
    ):
        host = to_host(view)
        assert np.array_equal(host.array, expected)
        assert fingerprint_of(host) == fingerprint_of(to_host(expected))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1e-6, 1.0, 1e15, 1e18, 1e38])
def test_the_norm_of_float32_is_right_at_every_size_and_scale(scale):
    """Neither tiny nor huge float32 lose their norm or mean, whatever the number of elements."""
    for size in (1, 4095, 4096, 4097, 3 * 4096 + 5):
        array = (np.random.default_rng(size).normal(size=size) * scale).astype(np.float32)
        wide = array.astype(np.longdouble)
        leaf = summarise(to_host(array))
        np.testing.assert_allclose(leaf.norm, float(np.sqrt((wide**2).sum())), rtol=1e-7)
        np.testing.assert_allclose(leaf.mean, float(wide.mean()), rtol=1e-9, atol=1e-300)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list into which the shapes go of which statistics are computed."""
    shapes, of_array = [], summary.statistics_of

    def counted(array: np.ndarray, **options: bool) -> summary.Statistics:
        shapes.append(array.shape)
        return of_array(array, **options)

    monkeypatch.setattr(summary, "statistics_of", counted)
    return shapes


def test_a_pass_through_the_network_computes_each_tensor_once(run_phase, computed):
    """The output of one cell is the input of the next, and of the cells around it."""
    network = nn.SequentialCell([Scale(2.0), Scale(3.0), nn.SequentialCell([Scale(5.0)])])
    run_phase(network, lambda: network(tensor(4)), steps=2)
    assert len(computed) == 4 + 3  # four tensors, three parameters, and nothing new in step 1


def test_what_is_remembered_is_bounded() -> None:
    """Leaves of tensors that never come again do not pile up."""
    summaries = Summaries(remembered=4)
    for i in range(20):
        summaries.describe(to_host(np.full(3, i)))
    assert len(summaries._known) <= 4
