"""Values that are written as JSON come back as they were; what is of another type is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.common.typed_json import codec


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: float
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...] = ()
    pair: tuple[int, bool] = (0, False)
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    color: Color = Color.RED
    open: Any = None


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.fractions()
KEYS = st.text() | st.integers()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.builds(Message, st.text(), st.dictionaries(st.text(), inner))
    ),
    max_leaves=8,
)
INNER = st.builds(Inner, st.floats(), st.none() | st.text())
OUTER = st.builds(
    Outer,
    INNER,
    st.lists(INNER).map(tuple),
    st.tuples(st.integers(), st.booleans()),
    st.dictionaries(st.text(), INNER),
    st.just(Color.RED),
    VALUES,
)


@given(OUTER)
def test_what_is_written_comes_back(value: Outer) -> None:
    """Types included: a tuple is no list, -0.0 no 0.0, a NaN a NaN."""
    written = json.dumps(codec(Outer).write(value), allow_nan=False)
    assert repr(codec(Outer).read(json.loads(written))) == repr(value)


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        {"inner": {"number": "1"}},
        {"inner": {"number": True}},
        {"inner": {"number": 1, "other": 2}},
        {"inner": {"number": 1, "__class__": "os"}},
        {"inner": {"number": 1}, "several": {}},
        {"inner": {"number": 1}, "pair": [1]},
        {"inner": {"number": 1}, "pair": [1.0, True]},
        {"inner": {"number": 1}, "pair": [True, True]},
        {"inner": {"number": 1}, "by_name": [["a"]]},
        {"inner": {"number": 1}, "by_name": [[1, {"number": 1}]]},
        {"inner": {"number": 1}, "color": "blue"},
        {"inner": {"number": 1}, "color": ["red"]},
        {"inner": {"number": 1}, "open": {"path": "/"}},
        {"inner": {"number": 1}, "open": {"tuple": 1}},
        {"inner": {"number": 1}, "open": {"map": [[[], 1]]}},
        {"inner": {"number": 1}, "open": {"fraction": [1, 0]}},
        {"inner": {"number": 1}, "open": {"float": "1.0x"}},
        {"inner": {"number": 1}, "open": {"tuple": [], "map": []}},
    ],
    ids=json.dumps,
)
def test_what_is_of_another_type_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        codec(Outer).read(found)


def test_a_number_that_json_has_none_for_is_a_number_again() -> None:
    for value in (math.inf, -math.inf):
        assert codec(float).read(json.loads(json.dumps(codec(float).write(value)))) == value
