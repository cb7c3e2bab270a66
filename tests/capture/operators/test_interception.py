"""Calls of operators go to a handler, and nothing of that stays behind."""

from __future__ import annotations

import copy
import threading

import mindspore as ms
import numpy as np
import pytest
from helpers.small_networks import tensor
from mindspore import Parameter, mint, nn, ops
from mindspore.mint import add as imported_add
from mindspore.mint.nn.functional import silu
from mindspore.ops import functional as namespace
from mindspore.ops import softmax as imported_softmax

from mindrlhf_msprobe.capture.operators import interception
from mindrlhf_msprobe.capture.operators.interception import intercepted
from mindrlhf_msprobe.capture.operators.inventory import (
    find_operator,
    installed_operators,
    primitive_classes,
)


class Calls:
    """A handler that notes its calls."""

    def __init__(self):
        self.names = []

    def __call__(self, operator, original, args, kwargs):
        self.names.append(operator.full_name)
        return original(*args, **kwargs)


@pytest.fixture
def calls():
    return Calls()


def places():
    """Return every attribute by which operators are reached, with what is there."""
    owners = [(o.owner, o.attribute) for o in installed_operators()]
    owners += [(kind, "__call__") for kind in primitive_classes()]
    here = __import__(__name__)
    owners += [(here, "imported_add"), (here, "imported_softmax"), (here, "silu")]
    owners += [(namespace, "softmax")]
    return {(id(owner), name): vars(owner).get(name, "not its own") for owner, name in owners}


class Net(nn.Cell):
    """Holds a primitive, a function and a layer of MindSpore."""

    def __init__(self):
        super().__init__()
        self.softmax = ops.Softmax()
        self.act = silu
        self.dense = nn.Dense(3, 3, weight_init="ones")

    def construct(self, x):
        return self.act(self.dense(self.softmax(x)))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Mint.add", lambda x: mint.add(x, x)),
        ("Mint.add", lambda x: imported_add(x, x)),
        ("Mint.max", lambda x: mint.max(x, dim=-1)),
        ("MintFunctional.silu", lambda x: mint.nn.functional.silu(x)),
        ("MintFunctional.silu", lambda x: silu(x)),
        ("Functional.softmax", lambda x: ops.softmax(x)),
        ("Functional.softmax", lambda x: imported_softmax(x)),
        ("Functional.softmax", lambda x: namespace.softmax(x)),
        ("Tensor.__add__", lambda x: x + 1),
        ("Tensor.__radd__", lambda x: 1 + x),
        ("Tensor.__getitem__", lambda x: x[0]),
        ("Tensor.__matmul__", lambda x: x @ x),
        ("Tensor.__lt__", lambda x: x < 1),
        ("Tensor.__neg__", lambda x: -x),
        ("Tensor.matmul", lambda x: x.matmul(x)),
        ("Tensor.sum", lambda x: x.sum(-1, keepdims=True)),
        ("Tensor.add_", lambda x: x.add_(1)),
        ("Tensor.__mul__", lambda x: Parameter(x, name="p") * 2),
        ("Primitive.Softmax", lambda x: ops.Softmax()(x)),
        ("Primitive.ReduceSum", lambda x: ops.ReduceSum(True)(x, -1)),
        ("Functional.cast", lambda x: ops.cast(x, ms.float16)),
    ],
)
def test_an_operator_goes_to_the_handler_by_its_name(calls, name, call):
    """However it is reached; what MindSpore calls inside it goes straight to the originals."""
    expected = call(tensor(3, 3))
    x = tensor(3, 3)
    with intercepted(calls):
        found = call(x)
    assert calls.names == [name]
    several = isinstance(found, tuple)
    for one, other in zip(found, expected) if several else [(found, expected)]:
        assert np.array_equal(one.asnumpy(), other.asnumpy())


def test_a_networks_primitives_functions_and_layers_are_intercepted(calls):
    """Attributes of cells, and what the layers of MindSpore call."""
    network, x = Net(), tensor(3, 3)
    with intercepted(calls, network=network):
        network(x)
    assert calls.names[0] == "Primitive.Softmax"
    assert "Primitive.MatMul" in calls.names
    assert calls.names[-1] == "MintFunctional.silu"
    assert vars(network)["act"] is silu


def test_a_copy_of_a_network_has_its_own_functions(calls):
    """Also one that is made meanwhile."""
    network = Net()
    with intercepted(calls, network=network):
        assert vars(network)["act"] is not silu
        copied = copy.deepcopy(network)
    assert vars(copied)["act"] is silu


def test_nothing_stays_behind(calls):
    """Every attribute is what it was, in MindSpore and in modules that imported names."""
    before = places()
    with intercepted(calls):
        assert interception._PATCHES.are_on
        assert {*map(id, places().values())} != {*map(id, before.values())}
        with intercepted(calls):
            pass
        assert interception._PATCHES.are_on
    with pytest.raises(ValueError, match="on purpose"), intercepted(calls):
        raise ValueError("on purpose")
    after = places()
    assert not interception._PATCHES.are_on
    assert [key for key in before if before[key] is not after[key]] == []


def test_what_somebody_put_in_the_place_of_an_operator_is_intercepted_and_stays(calls, monkeypatch):
    """The handler is given theirs as the original; it is there again at the end."""

    def wrong(x, axis=-1):
        return x * 0

    monkeypatch.setattr(ops, "softmax", wrong)
    seen = []

    def handle(operator, original, args, kwargs):
        seen.append((operator.full_name, original, operator.original is original))
        return original(*args, **kwargs)

    with intercepted(handle):
        assert not ops.softmax(tensor(2, 2)).asnumpy().any()
    assert seen == [("Functional.softmax", wrong, False)]
    assert ops.softmax is wrong


def test_what_somebody_puts_there_meanwhile_stays(calls, monkeypatch):
    """It is not taken off with ours."""

    def other(x):
        return x

    with intercepted(calls):
        monkeypatch.setattr(ops, "relu", other)
    assert ops.relu is other
    monkeypatch.undo()  # puts ours back: it was there
    with intercepted(calls):
        pass
    assert ops.relu.__module__.startswith("mindspore.")
    assert ops.relu is find_operator("Functional.relu").original


@pytest.mark.parametrize(("every_thread", "expected"), [(True, ["Mint.exp"]), (False, [])])
def test_calls_of_other_threads_are_taken_where_that_is_wanted(calls, every_thread, expected):
    """Each thread has its own flag."""
    with intercepted(calls, every_thread=every_thread):
        thread = threading.Thread(target=lambda: mint.exp(tensor(2)))
        thread.start()
        thread.join()
    assert calls.names == expected


def test_a_function_that_is_called_like_an_operator_is_none(calls):
    """A user's own `softmax` is not taken for MindSpore's."""
    scope = {"__name__": "trainer", "mint": mint}
    exec("def softmax(x):\n    return mint.exp(x)", scope)
    with intercepted(calls):
        scope["softmax"](tensor(2))
    assert calls.names == ["Mint.exp"]
