"""The operators that can be recorded are those of the installed MindSpore."""

from __future__ import annotations

import types

import helpers.small_networks  # noqa: F401  (sets the device)
import pytest
from mindspore import mint, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.mint.nn import functional

from mindrlhf_msprobe.capture.operators.inventory import find_operator, installed_operators

#: What programs call all the time, in every supported MindSpore.
USUAL = [
    *("Mint.add", "Mint.matmul", "Mint.max", "Mint.sum", "Mint.exp", "Mint.log", "Mint.clamp"),
    *("Mint.cat", "Mint.gather", "Mint.where", "Mint.randn", "Mint.topk", "Mint.allclose"),
    *("MintFunctional.softmax", "MintFunctional.silu", "MintFunctional.linear"),
    *("MintFunctional.layer_norm", "MintFunctional.cross_entropy", "MintFunctional.dropout"),
    *("MintFunctional.embedding", "Functional.softmax", "Functional.matmul", "Functional.cast"),
    *("Functional.add", "Functional.rms_norm", "Functional.dropout"),
    *("Functional.stop_gradient", "Functional.assign", "Functional.one_hot", "Functional.cond"),
    *("Tensor.__add__", "Tensor.__iadd__", "Tensor.__getitem__", "Tensor.__setitem__"),
    *("Tensor.__matmul__", "Tensor.__lt__", "Tensor.__eq__", "Tensor.__neg__", "Tensor.matmul"),
    *("Tensor.add_", "Tensor.masked_fill", "Tensor.view", "Tensor.reshape", "Tensor.astype"),
    *("Tensor.to", "Tensor.float", "Tensor.sum", "Tensor.zero_", "Distributed.all_reduce"),
    *("Distributed.all_gather_into_tensor", "Distributed.barrier"),
    *("MintDistributed.all_reduce", "MintDistributed.all_gather", "MintDistributed.broadcast"),
    *("Primitive.softmax.Softmax", "Primitive.matmul.MatMul", "Primitive.AllReduce"),
    "Primitive.Cast",
]

#: What only looks, differentiates, manages or belongs to MindSpore itself.
NONE = [
    *("Functional.grad", "Functional.value_and_grad", "Functional.vmap"),
    *("Functional.is_tensor", "Functional.print_", "Functional.constexpr"),
    *("Functional.get_grad", "Functional.shape", "Mint.is_tensor", "Tensor.asnumpy"),
    *("Tensor.item", "Tensor.register_hook", "Tensor.assign_value", "Tensor.dim"),
    *("Tensor.numel", "Tensor.__bool__", "Tensor.__len__", "Tensor.__repr__"),
    *("Tensor.__hash__", "Tensor._data_ptr", "Tensor.data_ptr", "MintDistributed.get_rank"),
    *("MintDistributed.init_process_group", "Distributed.P2POp", "Primitive.HookBackward"),
    *("Primitive.Depend", "Primitive.nothing.Such", "Mint.os", "Mint.nn", "Mint.__name__"),
    *("Mint.", "Mine.add", "Mint.add.0", "os.system"),
]


def test_what_programs_call_is_an_operator():
    """Functions, methods, primitives and communication are found by their names."""
    for name in USUAL:
        operator = find_operator(name)
        assert operator is not None, name
        assert callable(operator.original)
        kind, *_, last = name.split(".")
        assert (operator.kind, operator.name) == (kind, last)


def test_what_computes_nothing_is_none():
    """Nothing else of MindSpore, and nothing of anybody else, is found by a name."""
    assert [name for name in NONE if find_operator(name) is not None] == []


def test_every_name_is_one_operator_and_its_owner_has_it():
    """What stands in the list is what a program gets that asks the owner for the attribute."""
    operators = installed_operators()
    names = [operator.full_name for operator in operators]
    assert len(names) == len(set(names)) > 1000
    for operator in operators:
        assert getattr(operator.owner, operator.attribute) == operator.original, operator.full_name


@pytest.mark.parametrize(
    ("kind", "module", "left_out"),
    [
        ("Mint", mint, {"is_tensor", "numel"}),
        ("MintFunctional", functional, set()),
        ("Distributed", comm_func, set()),
        (
            "MintDistributed",
            distributed,
            {
                *("destroy_process_group", "get_backend", "get_global_rank", "get_group_rank"),
                *("get_process_group_ranks", "get_rank", "get_world_size", "init_process_group"),
                *("new_group", "is_available", "is_initialized"),
            },
        ),
    ],
)
def test_all_functions_of_a_module_are_operators(kind, module, left_out):
    """But a few that are known: a new MindSpore's functions are recorded without a change here."""
    functions = {
        n for n in module.__all__ if isinstance(getattr(module, n, None), types.FunctionType)
    }
    known = {o.name for o in installed_operators() if o.kind == kind and o.owner is module}
    assert functions - known <= left_out


def test_functions_that_others_put_in_their_place_are_not_taken_for_mindspores(monkeypatch):
    """Of a kernel that was replaced before, MindSpore's own is found."""
    installed_operators.cache_clear()
    try:
        monkeypatch.setattr(ops, "softmax", lambda x: x)
        found = {o.full_name: o for o in installed_operators()}["Functional.softmax"]
        assert found.original.__module__.startswith("mindspore.")
    finally:
        installed_operators.cache_clear()
