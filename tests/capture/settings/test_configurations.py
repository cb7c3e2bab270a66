"""configurations.json: a trainer's configurations as plain JSON."""

import argparse
import dataclasses
import enum
import os
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.programs import read_json

from mindrlhf_msprobe import UsageError, open_run


class Mode(enum.Enum):
    """An enum whose values are no JSON."""

    FAST = object()
    SLOW = ("a", 1)


class Level(enum.IntEnum):
    """An enum of numbers."""

    LOW = 1


@dataclasses.dataclass
class Optimizer:
    """A dataclass with a dataclass inside."""

    lr: float = 1e-3
    mode: Mode = Mode.FAST
    inner: Any = None


class WithToDict:
    """An object that describes itself, as transformers' and mindformers' configurations do."""

    def to_dict(self):
        return {"hidden": 16, "dtype": np.float16}


class BrokenToDict:
    """An object whose to_dict raises."""

    def to_dict(self):
        raise RuntimeError("no")

    def __repr__(self):
        return "BrokenToDict()"


class Liar:
    """An object that says it is a text."""

    @property
    def __class__(self):
        return str

    def __repr__(self):
        return "Liar()"


class BrokenRepr:
    """An object that cannot be printed."""

    def __repr__(self):
        raise RuntimeError("no")


class Plain:
    """An object that says nothing but its address."""


class Endless:
    """An object whose to_dict leads back to it."""

    def to_dict(self):
        return {"a": self, "b": self}

    def __repr__(self):
        return "Endless()"


class Unwritable(dict):
    """A mapping that breaks in the middle, and is read item by item."""

    def items(self):
        yield "first", 1
        raise RuntimeError("broken in the middle")


def cycle():
    """Return a dict and a list that hold each other, twice."""
    knot = {}
    knot["list"] = [knot, knot]
    knot["again"] = knot
    return knot


MASKED = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])


@pytest.fixture
def kept(make_probe, tmp_path):
    """Return a function that saves configurations in one call each and reads them back."""

    def save_and_read(*values):
        probe = make_probe(configurations_dump=True)
        for value in values:
            probe.save_configs(value)
        probe.close()
        return read_json(tmp_path / "run" / "configurations.json")

    return save_and_read


@pytest.fixture
def saved(kept, tmp_path):
    """Return a function that saves one configuration and reads it back."""

    def save_and_read(value):
        found = kept({"it": value})["it"]
        assert not read_json(tmp_path / "run" / "run.json")["lost"]
        return found

    return save_and_read


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (1e-3, 1e-3),
        ("文本", "文本"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (10**30, 10**30),
        ({"a": [1, (2, 3)]}, {"a": [1, [2, 3]]}),
        (OrderedDict(b=1), {"b": 1}),
        ({1: "int", "1": "text"}, {"1": "int", "1~": "text"}),
        ({None: 1, (1, 2): 2}, {"None": 1, "(1, 2)": 2}),
        ({Mode.FAST: 1}, {"FAST": 1}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("a"), ["a"]),
        (Mode.FAST, "FAST"),
        (Mode.SLOW, "SLOW"),
        (Level.LOW, "LOW"),
        (Path("/a/b"), "/a/b"),
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        (np.array(2.5), 2.5),
        (np.array([np.nan]), ["NaN"]),
        (np.longdouble(0.5), 0.5),
        (Optimizer(), {"lr": 1e-3, "mode": "FAST", "inner": None}),
        (
            Optimizer(inner=[Optimizer(mode=Mode.SLOW)]),
            {"lr": 1e-3, "mode": "FAST", "inner": [{"lr": 1e-3, "mode": "SLOW", "inner": None}]},
        ),
        (SimpleNamespace(a=1), {"a": 1}),
        (argparse.Namespace(a=Mode.FAST), {"a": "FAST"}),
        (WithToDict(), {"hidden": 16, "dtype": "float16"}),
        ({"good": 1, "broken": Unwritable(a=1)}, {"good": 1, "broken": {"a": 1}}),
        (MASKED, {"data": [[1, 2], [3, 4]], "mask": [[False, True], [False, False]]}),
        ([MASKED[0]], [{"data": [1, 2], "mask": [False, True]}]),
        (np.ma.masked, {"data": 0.0, "mask": True}),
    ],
)
def test_configurations_become_json(saved, value, expected):
    """What configurations are made of is written as plain JSON values, without a warning."""
    assert saved(value) == expected


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "bool_"])
def test_mindspore_dtypes_become_their_names(saved, name):
    """A MindSpore dtype is written by its name."""
    ms = pytest.importorskip("mindspore")
    assert saved({"dtype": getattr(ms, name)})["dtype"].lower().startswith(name.rstrip("_"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"bytes", "b'bytes'"),
        (1 + 2j, "(1+2j)"),
        (BrokenToDict(), "BrokenToDict()"),
        (BrokenRepr(), "<BrokenRepr, whose repr failed: RuntimeError>"),
        (Plain(), "<test_configurations.Plain object>"),
        (print, "<built-in function print>"),
        (range(3), "range(0, 3)"),
        (Liar(), "Liar()"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_becomes_text_with_a_warning(saved, warnings_of, value, text):
    """Anything else is written as its text, without its address, and a warning names the place."""
    assert saved({"deep": [value]}) == {"deep": [text]}
    assert len(warnings_of()) == 1
    assert "it.deep.0" in warnings_of()[0]


@pytest.mark.parametrize(
    "value",
    [
        {BrokenRepr(), 1},
        {BrokenRepr(): 1},
        {"a": 7**6000},
        {"lone": "\ud800"},
        cycle(),
        Endless(),
        [cycle(), Endless()] * 3,
    ],
    ids=["set", "key", "huge", "surrogate", "cycle", "endless", "many"],
)
def test_hostile_configurations_are_written_all_the_same(saved, value):
    """Cycles, unprintable keys, huge numbers and lone surrogates lose nothing beside them."""
    assert saved({"before": 1, "value": value, "after": 2})["after"] == 2


def test_two_runs_write_the_same_text(saved):
    """No memory address is written, so that the configurations of two runs can be compared."""
    written = saved({"f": test_two_runs_write_the_same_text, "o": [Plain(), {Plain(): Plain()}]})
    assert "0x" not in str(written)


def test_a_second_call_adds_to_the_first(kept):
    """What was saved under other names stays; the same name is replaced."""
    found = kept({"actor": {"lr": 1}, "critic": 1}, {"critic": 2, "reward": 3})
    assert found == {"actor": {"lr": 1}, "critic": 2, "reward": 3}


class BrokenText(str):
    """A text, as far as json is concerned, that cannot be formatted."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __format__(self, spec):
        raise RuntimeError("no text")


class BrokenKey:
    """A name that has no text at all."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def test_a_name_whose_text_raises_costs_nothing_else(kept, tmp_path):
    """At the top and below it; a text stays what it is, whatever its class does."""
    actor = {BrokenText("lr"): BrokenText("x")}
    assert kept({BrokenText("actor"): actor, BrokenKey(): 1, "critic": 2}) == {
        "actor": {"lr": "x"},
        "<BrokenKey, whose repr failed: RuntimeError>": 1,
        "critic": 2,
    }
    assert not open_run(tmp_path / "run").lost


@pytest.mark.parametrize(
    "value", [None, 3, "text", [1], object(), Optimizer, print, [BrokenKey()], ["x" * 10_000]]
)
def test_what_names_no_configurations_is_refused(make_probe, value):
    """A value that is no mapping, dataclass or namespace is misuse: that raises in a line.

    Also where the value cannot be shown, or only at length.
    """
    probe = make_probe(configurations_dump=True)
    with pytest.raises(UsageError, match="expected a mapping of name to configuration") as raised:
        probe.save_configs(value)
    assert len(str(raised.value)) < 400


class Path3(os.PathLike):
    """A path that does not say where it leads."""

    def __fspath__(self):
        raise KeyError("home")


class Missing(dict):
    """A mapping with a mandatory value that was not given, as OmegaConf's are."""

    def items(self):
        return [(key, self[key]) for key in self]

    def __getitem__(self, key):
        if key == "lr":
            raise LookupError(f"{key} is mandatory")
        return super().__getitem__(key)


class BrokenSequence(list):
    """A list with one item that cannot be had."""

    def __iter__(self):
        raise RuntimeError("not this way")

    def __getitem__(self, index):
        if index == 1:
            raise RuntimeError("no item 1")
        return super().__getitem__(index)


class Odd(enum.Enum):
    """An enum whose members' names raise."""

    ONE = 1

    @property
    def name(self):
        raise ValueError("nameless")


@dataclasses.dataclass
class Derived:
    """A dataclass with a field that raises."""

    lr: float = 0.5
    betas: Any = None

    def __getattribute__(self, name):
        if name == "betas":
            raise RuntimeError("password: hunter2")
        return super().__getattribute__(name)


class Impostor:
    """An object whose class cannot be read."""

    @property
    def __class__(self):
        raise RuntimeError("x" * 1000)


NOT_HAD = "<value that cannot be recorded: "
#: Values, and what is written of them; of the last one its beginning.
BAD = {
    "path": (Path3, "<Path3 that cannot be recorded: KeyError: 'home'>"),
    "mapping": (
        lambda: Missing(lr=1, beta=2),
        {"lr": f"{NOT_HAD}LookupError: lr is mandatory>", "beta": 2},
    ),
    "list": (lambda: BrokenSequence([1, 2, 3]), [1, f"{NOT_HAD}RuntimeError: no item 1>", 3]),
    "enum": (lambda: Odd.ONE, "<Odd that cannot be recorded: ValueError: nameless>"),
    "field": (
        Derived,
        {"lr": 0.5, "betas": f"{NOT_HAD}RuntimeError: <withheld: it could be a secret>>"},
    ),
    "impostor": (Impostor, "<Impostor that cannot be recorded: RuntimeError: "),
}


@pytest.mark.parametrize(("make", "written"), BAD.values(), ids=BAD)
def test_one_bad_value_costs_that_value_alone(kept, warnings_of, tmp_path, make, written):
    """What stands beside it, in this call and in others, is written; the loss is counted."""
    beside = {"actor": {"lr": 1e-6}, "critic": [1, {"b": 2}]}
    found = kept({"before": {"a": 1}}, {**beside, "bad": make()}, {"after": 3})
    bad = found.pop("bad")
    assert found == {"before": {"a": 1}, **beside, "after": 3}
    if isinstance(written, str):
        assert bad.startswith(written[:-1]), bad
        assert len(bad) < 400
    else:
        assert bad == written
    lost = open_run(tmp_path / "run").manifests[0]["lost"]
    assert lost == {"configurations: ValueError": 1}
    told = [w for w in warnings_of() if "could not record configurations" in w]
    assert ["bad" in warning for warning in told] == [True]


@pytest.mark.parametrize("config", [Optimizer(), SimpleNamespace(lr=1e-3), Derived(lr=1e-3)])
def test_a_configuration_object_is_taken_by_its_fields(kept, config):
    """A dataclass or a namespace may stand for the mapping of names; one that raises keeps others.

    Training goes on.
    """
    saved = kept(config)
    assert saved["lr"] == 1e-3
    assert "betas" not in saved or saved["betas"].startswith("<value that cannot be recorded")


def test_content_that_fails_leaves_the_old_file(make_probe, warnings_of, tmp_path):
    """When new content cannot be written, the old file stays whole and training goes on."""
    resource = pytest.importorskip("resource")
    probe = make_probe(configurations_dump=True)
    probe.save_configs({"actor": 1})
    before = (tmp_path / "run" / "configurations.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        probe.save_configs({"broken": "x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "run" / "configurations.json").read_bytes() == before
    assert any("configurations" in w and "File too large" in w for w in warnings_of())
    probe.save_configs({"broken": 0, "critic": 2})
    assert open_run(tmp_path / "run").configurations() == {"actor": 1, "broken": 0, "critic": 2}
    assert {p.name for p in (tmp_path / "run").glob("[!.]*")} == {"run.json", "configurations.json"}
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_switched_off_writes_nothing(make_probe, tmp_path):
    """Without configurations_dump nothing is written, whatever is given."""
    probe = make_probe()
    probe.save_configs(3)
    assert not (tmp_path / "run" / "configurations.json").exists()
