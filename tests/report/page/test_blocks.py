"""What the page's script decodes is what was put in."""

from __future__ import annotations

import base64
import json
import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.report.page.data import Blocks, as_little_endian, logarithmic

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def decoded(blocks: Blocks, name: str) -> bytes:
    return zlib.decompress(base64.b64decode(dict(blocks)[name]))


@given(st.floats(2.0**-64, 2.0**63))
def test_a_code_stands_for_its_value_to_what_the_page_says(value):
    """value = 2^((code − 16384) / 256), as the script computes it."""
    code = logarithmic(value)
    assert 4 <= code <= 32767
    assert 2.0 ** ((code - 16384) / 256) == pytest.approx(value, rel=0.00136)


@given(st.floats(0, 2.0**63), st.floats(0, 2.0**63))
def test_codes_have_the_order_of_values(a, b):
    """So that the worst of a row is found by its codes; zero is the least."""
    if a <= b:
        assert logarithmic(a) <= logarithmic(b) or {logarithmic(a), logarithmic(b)} & {1}


def test_what_is_no_number_has_a_code_of_its_own():
    """No value, zero, and NaN or infinity are told apart; what is beyond the range is its end."""
    assert [logarithmic(v) for v in (None, 0.0, math.nan, math.inf)] == [0, 1, 2, 2]
    assert logarithmic(1e-300) == 4
    assert logarithmic(1e300) == 32767
    assert np.frombuffer(as_little_endian(np.array([1, -2], np.int16)), "<i2").tolist() == [1, -2]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
        max_leaves=20,
    )
)
def test_json_comes_back(content):
    """Whatever texts and numbers a run holds; halves of surrogate pairs, too."""
    blocks = Blocks()
    blocks.json("x", content)
    assert json.loads(decoded(blocks, "x"), parse_constant=pytest.fail) == content


@pytest.mark.parametrize("beside", ["", "\ud800", 1 << 70])
def test_no_number_makes_json_that_a_browser_refuses(beside):
    """JSON has no NaN: such a number is a text already, or null."""
    blocks = Blocks()
    blocks.json("x", [math.nan, [math.inf], beside])
    found = json.loads(decoded(blocks, "x"), parse_constant=pytest.fail)
    assert found[:2] == [None, [None]]


def test_no_text_can_end_its_element():
    """A block is base64: nothing of a run stands in the page as it is."""
    blocks = Blocks()
    blocks.json("x", {"a": "</script><script>alert(1)</script>", "b": "\ud800"})
    assert set(dict(blocks)["x"]) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )
    assert blocks.size == len(dict(blocks)["x"])
