"""Classes made by our `dataclass` against the standard one's: the same in all but their cost."""

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


def plain(make, **options):
    @make(**options)
    class Made:
        """A class."""

        one: int
        two: str = "b"
        three: list[int] = field(default_factory=list)
        hidden: float = field(default=NAN, repr=False, compare=False)
        kind: ClassVar[int] = 3

    return Made


def single(make, **options):
    @make(**options)
    class Made:
        """A class."""

        one: Any = 1

    return Made


def empty(make, **options):
    @make(**options)
    class Made:
        """A class."""

    return Made


def checked(make, **options):
    @make(**options)
    class Made:
        """A class."""

        one: int
        hashed: Any = field(default=2, hash=False)

        def __post_init__(self):
            if self.one < 0:
                raise ValueError(f"one is {self.one}")

    return Made


def with_its_own(make, **options):
    @make(**options)
    class Made:
        """A class."""

        one: int

        def __repr__(self):
            return "its own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

    return Made


def inherited(make, **options):
    @make(**options)
    class Base:
        """A class."""

        one: int
        two: int = 2

    @make(**options)
    class Made(Base):
        """A class."""

        two: int = 3
        three: tuple[int, ...] = ()

    return Made


def undocumented(make, **options):
    @make(**options)
    class Made:
        one: int
        two: str = "b"

    return Made


def without_hash(make, **options):
    @make(**options)
    class Made:
        """A class."""

        one: int
        __hash__ = None

    return Made


CLASSES = (plain, single, empty, checked, with_its_own, inherited, undocumented, without_hash)


def both(of, **options):
    """Return the standard's class and ours."""
    return [of(make, **options) for make in MAKERS]


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("of", CLASSES)
def test_it_is_described_as_the_standard_one(of, frozen, slots):
    """Signature, fields, positions in a match, and what is written down of an instance."""
    theirs, ours = both(of, frozen=frozen, slots=slots)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    names = [[f.name for f in dataclasses.fields(made)] for made in (theirs, ours)]
    assert names[0] == names[1]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == theirs.__doc__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    given = [5][: len(dataclasses.fields(ours))]
    assert repr(ours(*given)) == repr(theirs(*given))


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("of", CLASSES)
def test_instances_are_equal_and_hashed_as_the_standards(of, frozen, slots):
    """Which instances are equal, which have a hash, and which of them the same."""
    tables = []
    for made in both(of, frozen=frozen, slots=slots):
        values = [1, 2, NAN, (1, 2), [1]] if len(dataclasses.fields(made)) else []
        instances = [made(value) for value in values if of is not checked or value in (1, 2)]
        instances = instances or [made()]
        equal = [[x == y for y in instances] for x in instances]
        hashes = []
        for instance in instances:
            try:
                hashes.append(hash(instance))
            except TypeError:
                hashes.append(None)
        tables.append((equal, hashes, instances[0] == object()))
    assert tables[0] == tables[1]


@pytest.mark.parametrize("of", CLASSES)
def test_a_frozen_instance_stays_as_it_was_made(of):
    """Neither an assignment nor a deletion; a copy with other values can be had."""
    for made in both(of, frozen=True):
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
    two: list[Whole] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    """One with room for its fields alone, and one that inherits from it."""

    one: int
    two: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Longer(Slotted):
    """It has a field of its own."""

    three: int = 3


@pytest.mark.parametrize("made", [Whole, Slotted, Longer])
def test_it_is_pickled(made):
    """What is sent to a worker and back is the same."""
    whole = made(1, [made(2)])
    for again in (pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole)):
        assert again == whole
        assert again.two is not whole.two
    assert hasattr(whole, "__dict__") == (made is Whole)
    with pytest.raises(FrozenInstanceError):
        whole.one = 2
    with pytest.raises(FrozenInstanceError):
        del whole.one


def test_what_makes_an_instance_is_compiled_once_and_of_each_class():
    """Also of one that inherits from a class of which no instance was made yet."""
    made = plain(dataclass, frozen=True)
    sub = type("Sub", (made,), {})
    assert (sub(1).one, made(2).one) == (1, 2)
    assert made.__init__ is made.__init__ is sub.__init__
    assert made.__init__.__qualname__ == f"{made.__qualname__}.__init__"


def test_each_instance_has_its_own_default():
    """A default that is made anew is shared by no two instances."""
    assert Whole(1).two is not Whole(1).two


def test_one_that_holds_itself_can_be_shown():
    """As the standard one: the inner is shown as dots."""
    whole = Whole(1)
    whole.two.append(whole)
    assert repr(whole) == "Whole(one=1, two=[...])"


def test_what_is_checked_when_it_is_made_is_checked():
    """__post_init__ runs, and may refuse."""
    for made in both(checked, frozen=True):
        with pytest.raises(ValueError, match="one is -1"):
            made(-1)


def test_wrong_arguments_are_refused():
    """As of any function."""
    for made in both(plain, frozen=True):
        with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional"):
            made()
        with pytest.raises(TypeError, match="unexpected keyword argument 'nine'"):
            made(1, nine=9)


@pytest.mark.parametrize("options", [{"eq": False}, {"order": True}])
def test_other_options_are_the_standards(options):
    """What else the standard decorator is asked for it does itself."""
    theirs, ours = both(single, frozen=True, **options)
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert (ours.__hash__ is object.__hash__) == (theirs.__hash__ is object.__hash__)
    assert hasattr(ours(1), "__dict__") == hasattr(theirs(1), "__dict__")
    assert (ours(1) == ours(1)) == (theirs(1) == theirs(1))
    assert hasattr(ours, "__lt__") == hasattr(theirs, "__lt__")


def test_a_field_of_another_kind_is_made_by_the_standard_one():
    """Rather than a class that is made wrong."""
    fields = (
        {"__annotations__": {"x": int}, "x": field(kw_only=True)},
        {"__annotations__": {"x": int}, "x": field(init=False, default=1)},
        {"__annotations__": {"x": dataclasses.InitVar[int]}},
        {"__annotations__": {"x": dataclasses.InitVar[int]}, "x": 1},
    )
    for one in fields:
        theirs, ours = (make(frozen=True)(type("Made", (), dict(one))) for make in MAKERS)
        assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
        more = {"__annotations__": {"y": int}, "y": 2}
        subs = [make(frozen=True)(type("Sub", (theirs,), dict(more))) for make in MAKERS]
        assert str(inspect.signature(subs[1])) == str(inspect.signature(subs[0]))


@pytest.mark.parametrize("base", MAKERS)
@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_classes_and_others_do_not_inherit_from_each_other(base, frozen):
    """As the standard one refuses it, in the same words."""
    refusals = []
    for make in MAKERS:
        sub = type("Sub", (single(base, frozen=not frozen),), {"__annotations__": {"two": int}})
        with pytest.raises(TypeError) as refused:
            make(frozen=frozen)(sub)
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("decorated", [False, True])
def test_a_subclass_adds_attributes_and_keeps_the_fields(decorated):
    """A plain subclass sets what is its own; a frozen one of a frozen one sets nothing."""
    tables = []
    for make in MAKERS:
        base = plain(make, frozen=True)
        made = type("Sub", (base,), {})
        instance = (make(frozen=True)(made) if decorated else made)(1)
        found = []
        for name in ("one", "three", "another"):
            for change in (lambda *what: setattr(*what, 3), delattr):
                try:
                    found.append(change(instance, name))
                except FrozenInstanceError as error:
                    found.append(str(error))
        tables.append((found, instance.one, getattr(instance, "another", None)))
    assert tables[0] == tables[1]
