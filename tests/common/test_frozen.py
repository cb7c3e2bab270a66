"""Frozen classes made by our `dataclass` against the standard one's: the same in all but cost."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from mindrlhf_msprobe.common.frozen import dataclass

MAKERS = (dataclasses.dataclass, dataclass)
NAN = float("nan")
SLOTS = ("__dict__", "__weakref__")  # that each class gets of its own


class Plain:
    """A class."""

    one: int
    two: str = "b"
    three: list[int] = field(default_factory=list)
    hidden: float = field(default=NAN, repr=False, compare=False)
    kind: ClassVar[int] = 3


class Single:
    """A class."""

    one: Any = 1


class Empty:
    """A class."""


class Checked:
    """A class."""

    one: int
    hashed: Any = field(default=2, hash=False)

    def __post_init__(self):
        if self.one == -1:
            raise ValueError(f"one is {self.one}")


class WithItsOwn:
    """A class."""

    one: int

    def __repr__(self):
        return "its own"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


class WithoutHash:
    """A class."""

    one: int
    __hash__ = None


def both(of):
    """Return the standard's class and ours."""
    # With fields of its own for each: the decorators change them.
    own = [{k: copy.copy(v) for k, v in vars(of).items() if k not in SLOTS} for _ in MAKERS]
    return [make(frozen=True)(type("Made", (), names)) for make, names in zip(MAKERS, own)]


CLASSES = (Plain, Single, Empty, Checked, WithItsOwn, WithoutHash)


@pytest.mark.parametrize("of", CLASSES)
def test_it_is_described_as_the_standard_one(of):
    """Signature, fields, positions in a match, and what is written down of an instance."""
    said = [
        (
            str(inspect.signature(made)),
            [one.name for one in dataclasses.fields(made)],
            made.__match_args__,
            made.__doc__,
            repr(made(*[5][: len(dataclasses.fields(made))])),
        )
        for made in both(of)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("of", CLASSES)
def test_instances_are_equal_and_hashed_as_the_standards(of):
    """Which instances are equal, which have a hash, and which of them the same."""
    tables = []
    for made in both(of):
        values = [(value,) for value in (1, 2, NAN, (1, 2), [1])]
        instances = [made(*value) for value in (values if dataclasses.fields(made) else [()])]
        hashes = []
        for instance in instances:
            try:
                hashes.append(hash(instance))
            except TypeError:
                hashes.append(None)
        equal = [[x == y for y in instances] for x in instances]
        tables.append((equal, hashes, instances[0] == object()))
    assert tables[0] == tables[1]


@pytest.mark.parametrize("of", CLASSES)
def test_a_frozen_instance_stays_as_it_was_made(of):
    """Neither an assignment nor a deletion; a copy with other values can be had."""
    for made in both(of):
        instance = made(*[5][: len(dataclasses.fields(made))])
        before = repr(instance)
        for name in ("one", "another"):
            with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
                setattr(instance, name, 3)
            with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
                delattr(instance, name)
        assert repr(instance) == before
        assert copy.deepcopy(instance) == instance
        if dataclasses.fields(made):
            assert dataclasses.replace(instance, one=6).one == 6
            assert dataclasses.asdict(instance)["one"] == 5


@dataclass(frozen=True)
class Whole:
    """A frozen class that can be found again."""

    one: int
    two: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Longer(Whole):
    """One that inherits from it."""

    three: int = 3


@dataclass(frozen=True, slots=True)
class Slotted:
    """One with room for its fields alone."""

    one: int
    two: list[Any] = field(default_factory=list)


@pytest.mark.parametrize("made", [Whole, Slotted, Longer])
def test_it_is_pickled(made):
    """What is sent to a worker and back is the same; no two instances share a default."""
    whole = made(1, [made(2)])
    for again in (pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole)):
        assert again == whole
        assert again.two is not whole.two
    assert hasattr(whole, "__dict__") == (made is not Slotted)
    assert made(1).two is not made(1).two
    with pytest.raises(FrozenInstanceError):
        whole.one = 2


def test_what_makes_an_instance_is_compiled_once_and_of_each_class():
    """Also of one that inherits from a class of which no instance was made yet."""
    made = both(Plain)[1]
    sub = type("Sub", (made,), {})
    assert (sub(1).one, made(2).one) == (1, 2)
    assert made.__init__ is made.__init__ is sub.__init__
    assert made.__init__.__qualname__ == f"{made.__qualname__}.__init__"


def test_one_that_holds_itself_can_be_shown():
    """As the standard one: the inner is shown as dots."""
    whole = Whole(1)
    whole.two.append(whole)
    assert repr(whole) == "Whole(one=1, two=[...])"


def test_wrong_arguments_are_refused():
    """As of any function; __post_init__ runs, and may refuse."""
    for made in both(Plain):
        with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional"):
            made()
        with pytest.raises(TypeError, match="unexpected keyword argument 'nine'"):
            made(1, nine=9)
    for made in both(Checked):
        with pytest.raises(ValueError, match="one is -1"):
            made(-1)


def test_a_field_it_has_no_means_for_is_refused():
    """Rather than a class that is made wrong."""
    fields = (
        {"__annotations__": {"x": int}, "x": field(kw_only=True)},
        {"__annotations__": {"x": int}, "x": field(init=False, default=1)},
        {"__annotations__": {"x": dataclasses.InitVar[int]}},
        {"__annotations__": {"x": dataclasses.InitVar[int]}, "x": 1},
    )
    for one in fields:
        with pytest.raises(TypeError, match=r"Made\.x .* Use dataclasses\.dataclass"):
            dataclass(frozen=True)(type("Made", (), one))


@pytest.mark.parametrize("decorated", [False, True])
def test_a_subclass_adds_attributes_and_keeps_the_fields(decorated):
    """A plain subclass sets what is its own; a frozen one of a frozen one sets nothing."""
    tables = []
    for make, base in zip(MAKERS, both(Plain)):
        made = type("Sub", (base,), {})
        instance = (make(frozen=True)(made) if decorated else made)(1)
        found = []
        for name in ("one", "three", "kind", "another"):
            for change in (lambda *what: setattr(*what, 3), delattr):
                try:
                    found.append(change(instance, name))
                except FrozenInstanceError as error:
                    found.append(str(error))
        tables.append((found, instance.one, getattr(instance, "another", None)))
    assert tables[0] == tables[1]


def test_what_the_standard_one_refuses_is_refused():
    """Frozen classes and others do not inherit from each other; none has such a method itself."""
    (_, frozen), open_one = both(Single), dataclass(type("Base", (), {"__annotations__": {}}))
    for options, bases, own in (
        ({}, (frozen,), {"__annotations__": {"two": int}}),
        ({"frozen": True}, (open_one,), {"__annotations__": {"two": int}}),
        ({"frozen": True}, (), {"__setattr__": lambda *_: None}),
        ({"frozen": True}, (), {"__delattr__": lambda *_: None}),
    ):
        refusals = []
        for make in MAKERS:
            with pytest.raises(TypeError) as refused:
                make(**options)(type("Made", bases, own))
            refusals.append(str(refused.value))
        assert refusals[0] == refusals[1]
