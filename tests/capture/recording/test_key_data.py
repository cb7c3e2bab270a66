"""Key data: what goes in by name comes back with its dtype, its shape and its text."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json, tree
from helpers.small_networks import Hidden, Pair, tensor

from mindrlhf_msprobe import Probe, UsageError, compare_runs, open_run

NUMPY_DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
NAMES = {"bool": "Bool", **{n: n.capitalize() for n in NUMPY_DTYPES if not n.startswith("u")}}
NAMES |= {n: "UInt" + n[4:] for n in NUMPY_DTYPES if n.startswith("u")}


@pytest.fixture
def round_trip(make_probe: Callable[..., Probe]) -> Callable[[Any], Any]:
    """Return a function that saves one value and reads it back as a KeyDatum."""

    def save_and_read(value: Any) -> Any:
        probe = make_probe(key_data_dump=True)
        probe.save_data("key", value)
        probe.close()
        run = open_run(probe.config.dump_path)
        assert not run.manifests[0]["lost"]
        (datum,) = run.key_data("key")
        assert not run.problems
        return datum

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


@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (2, 0, 3), (1,)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("framework", ["numpy", "mindspore"])
def test_every_dtype_and_shape_comes_back(
    round_trip: Callable[[Any], Any], dtype: str, shape: tuple[int, ...], framework: str
) -> None:
    """An array or tensor of any dtype and shape comes back bit for bit, 0-d and empty ones too."""
    array = sample(dtype, shape)
    datum = round_trip(ms.Tensor(array) if framework == "mindspore" else array)
    assert datum.value.dtype == array.dtype
    assert datum.value.shape == shape
    assert datum.value.tobytes() == array.tobytes()
    leaf = datum.records[0].leaf
    assert (leaf.dtype, leaf.shape) == (NAMES[dtype], shape)
    assert leaf.type == ("mindspore.Tensor" if framework == "mindspore" else "numpy.ndarray")


@pytest.mark.parametrize("shape", [(2, 3), (), (0,)], ids=str)
def test_bfloat16_comes_back_exactly(
    round_trip: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    """bfloat16 comes back as the float32 of the same values, its dtype kept beside it."""
    given = ms.Tensor(sample("float32", shape) / 3, ms.float32).astype(ms.bfloat16)
    datum = round_trip(given)
    assert datum.records[0].leaf.dtype == "BFloat16"
    assert datum.value.dtype == np.float32
    assert datum.value.shape == shape
    assert datum.value.tobytes() == given.astype(ms.float32).asnumpy().tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(24)[::-3],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5, dtype=">i4"),
        np.arange(5, dtype=">f8").reshape(5, 1)[::2],
        np.broadcast_to(np.float32(2), (3, 3)),
    ],
    ids=["transposed", "reversed", "fortran", "big-endian", "big-endian slice", "broadcast"],
)
def test_any_memory_layout_comes_back(round_trip: Callable[[Any], Any], array: np.ndarray) -> None:
    """Values and shape do not depend on how an array lies in memory."""
    value = round_trip(array).value
    assert np.array_equal(value, array)
    assert value.shape == array.shape
    assert value.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "Int64"),
        (-(2**63), "Int64"),
        (2.5, "Float64"),
        (float("nan"), "Float64"),
        (float("-inf"), "Float64"),
        (True, "Bool"),
        (1 + 2j, "Complex128"),
        (np.float32(2.5), "Float32"),
        (np.int8(-3), "Int8"),
    ],
    ids=repr,
)
def test_a_number_becomes_a_0d_array(
    round_trip: Callable[[Any], Any], value: Any, dtype: str
) -> None:
    """A Python or numpy number comes back as a 0-d array of its dtype."""
    datum = round_trip(value)
    assert datum.records[0].leaf.dtype == dtype
    assert datum.value.shape == ()
    np.testing.assert_equal(datum.value[()], np.asarray(value)[()])


@pytest.mark.parametrize("number", [2**63, -(2**100), 10**4000], ids=["2**63", "big", "huge"])
def test_an_integer_beyond_int64_keeps_its_value(
    round_trip: Callable[[Any], Any], number: int
) -> None:
    """A Python integer that fits no array comes back as itself."""
    value = round_trip(number).value
    assert (int(value, 16) if isinstance(value, str) else value) == number


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "",
        "你好，世界",
        "a\nb\t\0c",
        "😀",
        "\ud800 alone",
        "x" * 100_000,
        '{"type": "str"}',
    ],
    ids=["plain", "empty", "chinese", "control", "emoji", "surrogate", "long", "json"],
)
def test_texts_come_back(round_trip: Callable[[Any], Any], text: str) -> None:
    """A text comes back as it was, whatever it holds, with its bytes beside it."""
    datum = round_trip(text)
    assert datum.value == text
    leaf = datum.records[0].leaf
    assert (leaf.type, leaf.dtype) == ("str", "UInt8")
    assert datum.records[0].array().tobytes() == text.encode("utf-8", errors="surrogatepass")


def test_none_comes_back(round_trip: Callable[[Any], Any]) -> None:
    """None is a value of its own."""
    assert round_trip(None).value is None


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


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_come_back(round_trip: Callable[[Any], Any], name: str) -> None:
    """Lists, tuples and dicts, nested, come back in their structure (tuples as lists)."""
    given, expected = STRUCTURES[name]
    assert plain(round_trip(given).value) == expected


def plain(value: Any) -> Any:
    """Turn 0-d arrays in a structure into numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.ndarray) else value


def test_the_elements_of_a_list_are_files_of_their_own(
    make_probe: Callable[..., Probe], tmp_path: Path
) -> None:
    """A list's elements are <key>.<i>.npy beside <key>.json, as msprobe names them."""
    probe = make_probe(key_data_dump=True)
    probe.save_data("rewards", [tensor(2), tensor(3)])
    probe.save_data("loss", tensor(1))
    probe.step()
    directory = tmp_path / "run" / "data"
    assert {p.name for p in (directory / "rewards/step0/rank0/micro_step0").iterdir()} == {
        "rewards.0.npy",
        "rewards.1.npy",
        "rewards.json",
    }
    assert {p.name for p in (directory / "loss/step0/rank0/micro_step0").iterdir()} == {
        "loss.npy",
        "loss.json",
    }


def test_the_json_holds_statistics(make_probe: Callable[..., Probe], tmp_path: Path) -> None:
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


def test_the_three_forms_are_one(make_probe: Callable[..., Probe]) -> None:
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
def test_a_call_without_data_is_refused(
    make_probe: Callable[..., Probe], arguments: tuple[Any, ...]
) -> None:
    """save_data without data says which three forms there are."""
    probe = make_probe(key_data_dump=True)
    with pytest.raises(UsageError, match=r"save_data\('loss', loss\)"):
        probe.save_data(*arguments)


def test_micro_steps_count_per_key_and_step(make_probe: Callable[..., Probe]) -> None:
    """The n-th save of a key in a step is its micro-step n; a new step starts at 0."""
    probe = make_probe(key_data_dump=True)
    for step in range(2):
        for i in range(3):
            probe.save_data(loss=10 * step + i)
        probe.save_data(reward=step)
        probe.step()
    probe.close()
    data = open_run(probe.config.dump_path).key_data()
    assert [(d.step, d.key, d.micro_step, d.value.item()) for d in data] == [
        *((0, "loss", i, i) for i in range(3)),
        (0, "reward", 0, 0),
        *((1, "loss", i, 10 + i) for i in range(3)),
        (1, "reward", 0, 1),
    ]


def test_key_data_ignore_step_and_token_windows(make_probe: Callable[..., Probe]) -> None:
    """Step and token ranges limit layer data, not key data, and phases are not needed."""
    probe = make_probe(key_data_dump=True, step_start=5, step_end=5)
    for _ in range(3):
        probe.save_data(loss=1.0)
        with probe.phase("actor_update"):
            probe.save_data(inside=1.0)
        probe.step()
    probe.close()
    assert open_run(probe.config.dump_path).steps == [0, 1, 2]


@pytest.mark.parametrize(
    "key",
    ["响应", "with spaces", "50%", "100%2E", ".hidden", "a.b", "a:b*?", "ünïcode", "a" * 180, "~"],
    ids=str,
)
def test_unusual_keys_work(make_probe: Callable[..., Probe], key: str, tmp_path: Path) -> None:
    """A key in Chinese, with spaces, dots or signs names its directory and comes back."""
    probe = make_probe(key_data_dump=True)
    probe.save_data(key, [tensor(2), {"x": 1}])
    probe.save_data({key: "text"})
    probe.close()
    run = open_run(probe.config.dump_path)
    assert run.keys == [key]
    first, second = run.key_data(key)
    assert np.array_equal(first.value[0], tensor(2).asnumpy())
    assert (first.value[1]["x"], second.value) == (1, "text")
    assert tree(tmp_path / "run") == {f"data/{key}/step0"}


@pytest.mark.parametrize(
    "key",
    [
        "..",
        ".",
        "",
        " ",
        "../evil",
        "a/b",
        "/absolute",
        "a\\b",
        "a\0b",
        "a\nb",
        "k" * 181,
        "钥" * 61,
        "\ud800",
        3,
        None,
        ("a",),
        2.5,
        b"bytes",
    ],
    ids=lambda key: repr(key)[:20],
)
def test_keys_that_cannot_name_a_directory_are_refused(
    make_probe: Callable[..., Probe], key: Any, tmp_path: Path
) -> None:
    """A key that would leave its directory, or is no text, is refused and writes nothing."""
    probe = make_probe(key_data_dump=True)
    with pytest.raises(UsageError, match="key"):
        probe.save_data(key, tensor(2))
    with pytest.raises(UsageError, match="key"):
        probe.save_data({key: tensor(2)})
    assert {p.name for p in tmp_path.rglob("[!.]*")} == {"run", "run.json"}


def test_what_is_saved_is_the_value_of_that_moment(make_probe: Callable[..., Probe]) -> None:
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


def test_switched_off_key_data_write_nothing(
    make_probe: Callable[..., Probe], tmp_path: Path
) -> None:
    """Without key_data_dump save_data does nothing, whatever the key."""
    probe = make_probe()
    probe.save_data("../evil", 1)
    probe.close()
    assert {p.name for p in (tmp_path / "run").glob("[!.]*")} == {"run.json"}


def test_a_structure_that_holds_itself_is_a_loss(
    make_probe: Callable[..., Probe], warnings_of: Callable[[], list[str]]
) -> None:
    """A list that holds itself is saved as far as it goes and reported as lost."""
    probe = make_probe(key_data_dump=True)
    loop: list[Any] = [1]
    loop += [loop, loop]
    probe.save_data(loop=loop)
    probe.close()
    assert any("key data loop" in w for w in warnings_of())
    assert open_run(probe.config.dump_path).key_data("loop")[0].value[0] == 1


@pytest.mark.parametrize("on", [True, False])
def test_fingerprints_of_key_data_can_be_left_out(
    make_probe: Callable[..., Probe], on: bool
) -> None:
    """fingerprint: false leaves the hash of key data out too."""
    probe = make_probe(key_data_dump=True, fingerprint=on)
    probe.save_data(a=tensor(2), b="text")
    probe.close()
    data = open_run(probe.config.dump_path).key_data()
    assert all((d.records[0].leaf.fingerprint is not None) is on for d in data)


@pytest.mark.parametrize("dtype", ["float32", "int8", "<U3"])
@pytest.mark.parametrize("where", ["alone", "deep"])
def test_a_masked_array_keeps_its_mask(
    round_trip: Callable[[Any], Any], dtype: str, where: str
) -> None:
    """Its elements and its mask are saved, as `data` and `mask`."""
    elements = np.array([["1", "2", "3"], ["4", "5", "6"]]).astype(dtype)
    mask = np.array([[False, True, False], [True, False, False]])
    masked = np.ma.array(elements, mask=mask)
    value = round_trip(masked if where == "alone" else {"a": [masked]}).value
    value = value if where == "alone" else value["a"][0]
    assert value["data"] == elements.tolist() if dtype == "<U3" else True
    if dtype != "<U3":
        np.testing.assert_array_equal(value["data"], elements, strict=True)
    np.testing.assert_array_equal(value["mask"], mask, strict=True)


def test_two_masks_over_equal_elements_differ(tmp_path: Path) -> None:
    """What one run masked and the other did not is a difference."""
    from mindrlhf_msprobe import compare_runs

    for name, mask in (("a", [False, True]), ("b", [False, False])):
        settings = {"msprobe": True, "key_data_dump": True, "dump_path": str(tmp_path / name)}
        with Probe.from_config(settings) as probe:
            probe.save_data(advantages=np.ma.array([1.0, 2.0], mask=mask))
            probe.step()
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first is not None
    assert first.record == "advantages.mask"


def test_key_data_know_which_phase_had_begun(make_probe: Callable[..., Probe]) -> None:
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


def test_the_kl_of_rewards_is_named_before_them(
    make_probe: Callable[..., Probe], tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Rewards", "rewards"),
        ("old_logprob", "old_log_prob"),
        ("advantage", "advantages"),
        ("ref-logprobs", "ref_log_probs"),
        ("reponses", "responses"),
        ("responces", "responses"),
        ("Losses", "loss"),
        ("kl_los", "kl_loss"),
        ("rewad", "reward"),
    ],
)
def test_a_name_that_was_probably_meant_to_be_another_is_said_once(make_probe, caplog, name, meant):
    """It is recorded under its own name."""
    probe = make_probe(key_data_dump=True)
    for _ in range(2):
        probe.save_data({name: np.ones(2, np.float32), meant: np.ones(2, np.float32)})
        probe.step()
    probe.close()
    said = [record.message for record in caplog.records if repr(meant) in record.message]
    assert len(said) == 1
    assert repr(name) in said[0]
    assert open_run(probe.config.dump_path).key_data(name)


@pytest.mark.parametrize(
    "name",
    [
        "old_values",
        "rewards.format",
        "new_log_prob",
        "lm_loss",
        "中文",
        "prompt_ids",
        "my_loss",
        "reward2",
        "values2",
        "kl_coef",
        "r",
        "损失",
    ],
)
def test_a_trainers_own_names_are_nothing_to_warn_of(make_probe, caplog, name):
    """They are near no name with a meaning."""
    with make_probe(key_data_dump=True) as probe:
        probe.save_data({name: 1.0})
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
