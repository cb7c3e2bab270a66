"""Key data: what goes in by name comes back with its dtype, its shape and its text."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json, tree
from helpers.small_networks import Hidden, Pair, tensor

from mindrlhf_msprobe import Probe, UsageError, compare_runs, open_run

NUMPY_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
NAMES = {"bool": "Bool", **{n: n.capitalize() for n in NUMPY_DTYPES if not n.startswith("u")}}
NAMES |= {n: "UInt" + n[4:] for n in NUMPY_DTYPES if n.startswith("u")}


@pytest.fixture
def round_trip(make_probe: Callable[..., Probe]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that saves values by their names and reads them back as KeyDatums."""

    def save_and_read(values: dict[str, Any]) -> dict[str, Any]:
        probe = make_probe(key_data_dump=True)
        probe.save_data(values)
        probe.close()
        run = open_run(probe.config.dump_path)
        assert not run.manifests[0]["lost"]
        found = {datum.key: datum for datum in run.key_data()}
        assert not run.problems
        assert found.keys() == values.keys()
        return found

    return save_and_read


def sample(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers of a dtype, among them its extremes, NaN and infinities."""
    size = int(np.prod(shape))
    numbers = np.arange(size).astype(dtype)
    if numbers.dtype.kind in "iu" and size > 1:
        limits = np.iinfo(dtype)
        numbers[:2] = limits.min, limits.max
    if numbers.dtype.kind == "f" and size > 4:
        numbers[:4] = np.nan, np.inf, -np.inf, -0.0
    return numbers.reshape(shape)


SHAPES = ((2, 3), (), (0,), (2, 0, 3), (1,))


def test_every_dtype_and_shape_comes_back(round_trip):
    """An array or tensor of any dtype and shape comes back bit for bit, 0-d and empty ones too."""
    arrays = {f"{d} {s}": sample(d, s) for d in NUMPY_DTYPES for s in SHAPES}
    tensors = {f"tensor {name}": ms.Tensor(array) for name, array in arrays.items()}
    for name, datum in round_trip(arrays | tensors).items():
        array = arrays[name.removeprefix("tensor ")]
        assert datum.value.dtype == array.dtype, name
        assert datum.value.shape == array.shape, name
        assert datum.value.tobytes() == array.tobytes(), name
        leaf = datum.records[0].leaf
        assert (leaf.dtype, leaf.shape) == (NAMES[array.dtype.name], array.shape)
        assert leaf.type == ("mindspore.Tensor" if name in tensors else "numpy.ndarray")


def test_bfloat16_comes_back_exactly(round_trip):
    """bfloat16 comes back as the float32 of the same values, its dtype kept beside it."""
    samples = {str(shape): sample("float32", shape) / 3 for shape in SHAPES}
    given = {name: ms.Tensor(array).astype(ms.bfloat16) for name, array in samples.items()}
    for name, datum in round_trip(given).items():
        assert datum.records[0].leaf.dtype == "BFloat16"
        assert datum.value.dtype == np.float32
        assert datum.value.shape == samples[name].shape
        assert datum.value.tobytes() == given[name].astype(ms.float32).asnumpy().tobytes()


def test_any_memory_layout_comes_back(round_trip):
    """Values and shape do not depend on how an array lies in memory."""
    arrays = {
        "transposed": np.arange(24).reshape(4, 6).T,
        "reversed": np.arange(24)[::-3],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(5, dtype=">i4"),
        "big-endian slice": np.arange(5, dtype=">f8").reshape(5, 1)[::2],
        "broadcast": np.broadcast_to(np.float32(2), (3, 3)),
    }
    for name, datum in round_trip(arrays).items():
        native = arrays[name].astype(arrays[name].dtype.newbyteorder("="))
        np.testing.assert_array_equal(datum.value, native, strict=True, err_msg=name)


def test_a_number_becomes_a_0d_array(round_trip):
    """A Python or numpy number comes back as a 0-d array of its dtype; what fits none, as it is."""
    numbers = {
        "Int64": [3, -(2**63)],
        "Float64": [2.5, float("nan"), float("-inf")],
        "Bool": [True],
        "Complex128": [1 + 2j],
        "Float32": [np.float32(2.5)],
        "Int8": [np.int8(-3)],
    }
    given = {f"{d} {n}": value for d, values in numbers.items() for n, value in enumerate(values)}
    for name, datum in round_trip(given).items():
        assert datum.records[0].leaf.dtype == name.split()[0]
        assert datum.value.shape == ()
        np.testing.assert_equal(datum.value[()], np.asarray(given[name])[()])


def test_an_integer_beyond_int64_keeps_its_value(round_trip):
    """A Python integer that fits no array comes back as itself."""
    given = {"2**63": 2**63, "big": -(2**100), "huge": 10**4000}
    for name, datum in round_trip(given).items():
        value = datum.value
        assert (int(value, 16) if isinstance(value, str) else value) == given[name]


def test_texts_and_none_come_back(round_trip):
    """A text comes back as it was, whatever it holds, with its bytes beside it."""
    texts = ["hello", "", "你好，世界", "a\nb\t\0c", "😀", "\ud800 alone", "x" * 100_000]
    given = {str(n): text for n, text in enumerate([*texts, '{"type": "str"}'])}
    found = round_trip({**given, "none": None})
    assert found.pop("none").value is None
    for name, datum in found.items():
        assert datum.value == given[name]
        (record,) = datum.records
        assert (record.leaf.type, record.leaf.dtype) == ("str", "UInt8")
        assert record.array().tobytes() == given[name].encode("utf-8", errors="surrogatepass")


STRUCTURES: dict[str, tuple[Any, Any]] = {
    "list": ([1, 2.5, "three", None], [1, 2.5, "three", None]),
    "empty list": ([], []),
    "empty dict": ({}, {}),
    "tuple": ((1, (2, 3)), [1, [2, 3]]),
    "texts": (["你", "", "b"], ["你", "", "b"]),
    "array of texts": (np.array(["一", "b"]), ["一", "b"]),
    "dict": ({"a": 1, "b": {"c": [2]}}, {"a": 1, "b": {"c": [2]}}),
    "ordered": (OrderedDict(z=1, a=2), {"z": 1, "a": 2}),
    "dots": ({"a.b": 1, "a": {"b": 2}}, {"a.b": 1, "a": {"b": 2}}),
    "slashes": ({"../x": 1, "a/b": 2, "%": 3, "": 4}, {"../x": 1, "a/b": 2, "%": 3, "": 4}),
    "1 and '1'": ({1: 10, "1": 11}, {"1": 10, "1~": 11}),
    "words of our own": (
        {"type": "x", "shape": 1, "value": 2, "data_name": "y"},
        {"type": "x", "shape": 1, "value": 2, "data_name": "y"},
    ),
    "namedtuple": (Pair(1, [2]), {"left": 1, "right": [2]}),
    "dataclass": (Hidden(1, "x"), {"states": 1, "cache": "x"}),
}


def test_structures_come_back(round_trip):
    """Lists, tuples and dicts, nested, come back in their structure (tuples as lists)."""
    found = round_trip({name: given for name, (given, _) in STRUCTURES.items()})
    assert {name: plain(datum.value) for name, datum in found.items()} == {
        name: expected for name, (_, expected) in STRUCTURES.items()
    }


def plain(value: Any) -> Any:
    """Turn 0-d arrays in a structure into numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.ndarray) else value


def test_the_elements_of_a_list_are_files_of_their_own(make_probe, tmp_path):
    """A list's elements are <key>.<i>.npy beside <key>.json, as msprobe names them."""
    probe = make_probe(key_data_dump=True)
    probe.save_data({"rewards": [tensor(2), tensor(3)], "loss": tensor(1)})
    probe.step()
    for key, arrays in (("rewards", {"rewards.0.npy", "rewards.1.npy"}), ("loss", {"loss.npy"})):
        directory = tmp_path / "run" / "data" / key / "step0/rank0/micro_step0"
        assert {p.name for p in directory.iterdir()} == {*arrays, f"{key}.json"}


def test_the_json_holds_statistics(make_probe, tmp_path):
    """Beside the data stand max, min, mean, norm, shape, dtype, NaN and Inf counts: valid JSON."""
    probe = make_probe(key_data_dump=True)
    probe.save_data(values=np.array([[3, 4], [np.nan, -np.inf]], np.float32), good=np.float32(2))
    probe.step()
    values = read_json(tmp_path / "run/data/values/step0/rank0/micro_step0/values.json")["data"]
    assert values["shape"] == [2, 2]
    assert values["dtype"] == "Float32"
    assert (values["nan_count"], values["inf_count"]) == (1, 1)
    assert values["max"] == "NaN"
    good = read_json(tmp_path / "run/data/good/step0/rank0/micro_step0/good.json")["data"]
    assert [good[name] for name in ("max", "min", "mean", "norm")] == [2, 2, 2, 2]


def test_the_three_forms_are_one(make_probe):
    """save_data(name, data), save_data({name: data}) and save_data(name=data) do the same."""
    probe = make_probe(key_data_dump=True)
    probe.save_data("a", 1)
    probe.save_data({"b": 2, "c": None})
    probe.save_data(d=4, name=5, data=6, self=7)
    probe.save_data("e", None)
    probe.save_data({"f": 8}, g=9)
    probe.save_data({})
    probe.close()
    found = {d.key: plain(d.value) for d in open_run(probe.config.dump_path).key_data()}
    assert found == {
        **{"a": 1, "b": 2, "c": None, "d": 4, "name": 5, "data": 6, "self": 7, "e": None},
        **{"f": 8, "g": 9},
    }


@pytest.mark.parametrize("arguments", [(), ("loss",), (None,), (3,), (["loss"],)])
def test_a_call_without_data_is_refused(make_probe, arguments):
    """save_data without data says which three forms there are."""
    probe = make_probe(key_data_dump=True)
    with pytest.raises(UsageError, match=r"save_data\('loss', loss\)"):
        probe.save_data(*arguments)


def test_micro_steps_count_per_key_and_step(make_probe):
    """The n-th save of a key in a step is its micro-step n; a new step starts at 0."""
    probe = make_probe(key_data_dump=True)
    for step in range(2):
        for i in range(12):
            probe.save_data(loss=20 * step + i)
        probe.save_data(reward=step)
        probe.step()
    probe.close()
    data = open_run(probe.config.dump_path).key_data()
    assert [(d.step, d.key, d.micro_step, d.value.item()) for d in data] == [
        *((0, "loss", i, i) for i in range(12)),
        (0, "reward", 0, 0),
        *((1, "loss", i, 20 + i) for i in range(12)),
        (1, "reward", 0, 1),
    ]


def test_key_data_ignore_step_and_token_windows(make_probe):
    """Step and token ranges limit layer data, not key data, and phases are not needed."""
    probe = make_probe(key_data_dump=True, step_start=5, step_end=5)
    for _ in range(3):
        probe.save_data(loss=1.0)
        with probe.phase("actor_update"):
            probe.save_data(inside=1.0)
        probe.step()
    probe.close()
    assert open_run(probe.config.dump_path).steps == [0, 1, 2]


def test_unusual_keys_work(make_probe, tmp_path):
    """A key in Chinese, with spaces, dots or signs names its directory and comes back."""
    keys = ["响应", "with spaces", "50%", "100%2E", ".hidden", "a.b", "a:b*?", "ünïcode", "~"]
    keys += ["=1+1", "step5", "a" * 180]
    probe = make_probe(key_data_dump=True)
    for key in keys:
        probe.save_data(key, [tensor(2), {"x": 1}])
        probe.save_data({key: "text"})
    probe.close()
    run = open_run(probe.config.dump_path)
    assert {*run.keys} == {*keys}
    for key in keys:
        first, second = run.key_data(key)
        assert np.array_equal(first.value[0], tensor(2).asnumpy())
        assert (first.value[1]["x"], second.value) == (1, "text")
    assert tree(tmp_path / "run") == {f"data/{key}/step0" for key in keys}


@pytest.mark.parametrize(
    "key",
    [
        *("..", ".", "", " ", "../evil", "a/b", "/absolute", "a\\b", "a\0b", "a\nb", "k" * 181),
        *("钥" * 61, "\ud800", 3, None, ("a",), 2.5, b"bytes"),
    ],
    ids=lambda key: repr(key)[:20],
)
def test_keys_that_cannot_name_a_directory_are_refused(make_probe, key, tmp_path):
    """A key that would leave its directory, or is no text, is refused by name, nothing written."""
    probe = make_probe(key_data_dump=True)
    for arguments in ((key, tensor(2)), ({key: tensor(2)},)):
        with pytest.raises(UsageError, match="key") as error:
            probe.save_data(*arguments)
        shown = key[:40] if isinstance(key, str) and key.isprintable() else repr(key)
        assert shown in str(error.value)
    assert {p.name for p in tmp_path.rglob("[!.]*")} == {"run", "run.json"}


def test_what_is_saved_is_the_value_of_that_moment(make_probe):
    """Changing an array or a parameter after save_data does not change what was saved."""
    probe = make_probe(key_data_dump=True)
    array = np.zeros(3)
    weight = ms.Parameter(tensor(3), name="w")
    probe.save_data(array=array, weight=weight)
    array += 1
    weight.set_data(tensor(3, start=9.0))
    probe.close()
    run = open_run(probe.config.dump_path)
    assert not run.key_data("array")[0].value.any()
    assert np.array_equal(run.key_data("weight")[0].value, tensor(3).asnumpy())


def test_switched_off_key_data_write_nothing(make_probe, tmp_path):
    """Without key_data_dump save_data does nothing, whatever the key."""
    probe = make_probe()
    probe.save_data("../evil", 1)
    probe.close()
    assert {p.name for p in (tmp_path / "run").glob("[!.]*")} == {"run.json"}


def test_a_structure_that_holds_itself_is_a_loss(make_probe, warnings_of):
    """A list that holds itself is saved as far as it goes and reported as lost."""
    probe = make_probe(key_data_dump=True)
    loop: list[Any] = [1]
    loop += [loop, loop]
    probe.save_data(loop=loop)
    probe.close()
    assert any("key data loop" in w for w in warnings_of())
    assert open_run(probe.config.dump_path).key_data("loop")[0].value[0] == 1


@pytest.mark.parametrize("on", [True, False])
def test_fingerprints_of_key_data_can_be_left_out(make_probe, on):
    """fingerprint: false leaves the hash of key data out too."""
    probe = make_probe(key_data_dump=True, fingerprint=on)
    probe.save_data(a=tensor(2), b="text")
    probe.close()
    data = open_run(probe.config.dump_path).key_data()
    assert all((d.records[0].leaf.fingerprint is not None) is on for d in data)


@pytest.mark.parametrize("dtype", ["float32", "int8", "<U3"])
def test_a_masked_array_keeps_its_mask(round_trip, dtype):
    """Its elements and its mask are saved, as `data` and `mask`."""
    elements = np.array([["1", "2", "3"], ["4", "5", "6"]]).astype(dtype)
    mask = np.array([[False, True, False], [True, False, False]])
    masked = np.ma.array(elements, mask=mask)
    found = round_trip({"alone": masked, "deep": {"a": [masked]}})
    for value in (found["alone"].value, found["deep"].value["a"][0]):
        if dtype == "<U3":
            assert value["data"] == elements.tolist()
        else:
            np.testing.assert_array_equal(value["data"], elements, strict=True)
        np.testing.assert_array_equal(value["mask"], mask, strict=True)


def test_two_masks_over_equal_elements_differ(make_probe, tmp_path):
    """What one run masked and the other did not is a difference."""
    for name, mask in (("a", [False, True]), ("b", [False, False])):
        with make_probe(key_data_dump=True, dump_path=str(tmp_path / name)) as probe:
            probe.save_data(advantages=np.ma.array([1.0, 2.0], mask=mask))
            probe.step()
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first is not None
    assert first.record == "advantages.mask"


def test_key_data_know_which_phase_had_begun(make_probe):
    """Where phases are told and not recorded, too; a new step begins with none."""
    probe = make_probe(key_data_dump=True)
    cell = ms.nn.Dense(2, 2)
    probe.save_data("prompts", [1])
    for _ in range(2):
        with probe.phase("reference_compute_log_prob", model=cell):
            probe.save_data("ref_log_prob", 1.0)
        probe.save_data("kl", 1.0)
        with probe.phase("actor_update", model=cell):
            cell(tensor(2, 2))
        probe.save_data("loss", 1.0)
        probe.step()
    probe.close()
    run = open_run(probe.config.dump_path)
    assert [d.phase for d in run.key_data("prompts")] == [None]
    for key in ("ref_log_prob", "kl"):
        assert [d.phase for d in run.key_data(key)] == ["reference_compute_log_prob"] * 2
    assert [d.phase for d in run.key_data("loss")] == ["actor_update"] * 2


def test_the_kl_of_rewards_is_named_before_them(make_probe, tmp_path):
    """A round of key data alone: the KL term that rewards are made of parts first."""
    runs = []
    for kl in (0.5, 0.6):
        probe = make_probe(key_data_dump=True, dump_path=str(tmp_path / str(kl)))
        cell = ms.nn.Dense(2, 2)
        with probe.phase("reference_compute_log_prob", model=cell):
            pass
        probe.save_data({"ref_log_prob": 1.0, "kl": kl, "rewards": 1 - kl, "advantages": 2 * kl})
        with probe.phase("actor_update", model=cell):
            probe.save_data({"log_prob": 1.0, "loss": kl})
        probe.step()
        probe.close()
        runs.append(probe.config.dump_path)
    first = compare_runs(*runs).verdict.first_divergence
    assert (first.record, first.phase) == ("kl", None)
    assert first.agreed_before == 1


def test_a_name_that_was_probably_meant_to_be_another_is_said_once(make_probe, caplog):
    """It is recorded under its own name."""
    names = {
        "Rewards": "rewards",
        "old_logprob": "old_log_prob",
        "advantage": "advantages",
        "ref-logprobs": "ref_log_probs",
        "reponses": "responses",
        "responces": "responses",
        "Losses": "loss",
        "kl_los": "kl_loss",
        "rewad": "reward",
    }
    probe = make_probe(key_data_dump=True)
    for _ in range(2):
        probe.save_data(dict.fromkeys({*names, *names.values()}, 1.0))
        probe.step()
    probe.close()
    for name, meant in names.items():
        said = [r.message for r in caplog.records if repr(name) in r.message]
        assert len(said) == 1, name
        assert repr(meant) in said[0]
        assert open_run(probe.config.dump_path).key_data(name)


def test_a_trainers_own_names_are_nothing_to_warn_of(make_probe, caplog):
    """They are near no name with a meaning."""
    names = "old_values rewards.format new_log_prob lm_loss 中文 prompt_ids my_loss reward2 values2"
    with make_probe(key_data_dump=True) as probe:
        probe.save_data(dict.fromkeys([*names.split(), "kl_coef", "r", "损失"], 1.0))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
