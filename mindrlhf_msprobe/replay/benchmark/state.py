"""A cell or an operator runs a second time, and the training cannot tell.

What a computation may depend on and change is noted before its first run (`State`). The second run
begins with that, and afterwards everything is as the first run left it: the process's random
generators, parameters that it writes (moving averages, counters, caches), and the Python attributes
of cells. No gradient is computed through the second run, unless it is handed on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe.capture.framework.private import (
    CASTING,
    close_cast,
    no_gradients,
    not_on_top,
)
from mindrlhf_msprobe.capture.networks.cells import named_cells
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.replay.python_state import PythonState


class State:
    """What a cell's computation may depend on and change, as it is now.

    Args:
        cell: None for an operator, which has the generators alone.
    """

    def __init__(self, cell: nn.Cell | None) -> None:
        self._generators = _Generators()
        self._cells = [*named_cells(cell).values()] if cell is not None else []
        self._attributes = PythonState(self._cells)
        self._parameters: dict[int, tuple[Parameter, np.ndarray]] = {}

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor that is no parameter is an attribute of the cells."""
        return any(tensor is value for value in self._attributes.values())

    @property
    def trained(self) -> str:
        """The name of a parameter among those that were noted that is trained; "" of none."""
        kept = (parameter for parameter, _ in self._parameters.values())
        return next((str(p.name) for p in kept if p.requires_grad), "")

    def keep(self, parameter: Parameter) -> None:
        """Note the elements of a parameter that is about to be written."""
        if id(parameter) not in self._parameters and not getattr(parameter, "has_init", False):
            self._parameters[id(parameter)] = parameter, np.array(to_host(parameter).array)

    def now(self) -> State:
        """Return the same of this moment."""
        state = State(None)
        state._cells = self._cells
        state._attributes = self._attributes.now()
        for parameter, _ in self._parameters.values():
            state.keep(parameter)
        return state

    @contextmanager
    def none_on_top(self) -> Iterator[None]:
        """Let no cell take itself for the one that is differentiated: it would end that."""
        with ExitStack() as ends:
            for cell in self._cells:
                ends.enter_context(not_on_top(cell))
            yield

    def put_back(self) -> None:
        """Let everything be as it was when this was made; what has not changed is not touched."""
        self._generators.put_back()
        self._attributes.put_back()
        for parameter, elements in self._parameters.values():
            if not _same_bits(np.asarray(to_host(parameter).array), elements):
                with no_gradients():  # in place: others may share its memory
                    ops.assign(parameter, tensor_of(elements, str(parameter.dtype)))


@contextmanager
def once_more(before: State, *, differentiated: bool = False) -> Iterator[None]:
    """Let what runs inside begin as the first run did, and leave everything as that one left it.

    Args:
        before: as it was before the first run.
        differentiated: whether gradients flow through the second run, because the training goes on
            with its result.
    """
    after = before.now()
    before.put_back()
    try:
        with before.none_on_top(), nullcontext() if differentiated else no_gradients():
            yield
    except Exception as error:
        _end_casts(error.__traceback__)
        raise
    finally:
        after.put_back()


def tensor_of(elements: np.ndarray, dtype: str) -> Tensor:
    """Return a new tensor of elements.

    Args:
        elements: of bfloat16 its uint16 bits.
        dtype: MindSpore's name, e.g. `Float32`.
    """
    if dtype == "BFloat16":
        from mindrlhf_msprobe.replay.benchmark.disturb import values_of

        return Tensor(values_of(elements, dtype), mindspore.bfloat16)
    return Tensor(np.array(elements))


def _end_casts(trace: TracebackType | None) -> None:
    """End the casts of cells with `to_float` that an exception passed: MindSpore leaves them on."""
    while trace is not None:
        if trace.tb_frame.f_code is CASTING:
            cell = trace.tb_frame.f_locals.get("self")
            if getattr(cell, "mixed_precision_type", None) is not None:
                close_cast()
        trace = trace.tb_next


class _Generators:
    """The states of the process's random generators."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()
        self._mindspore = mindspore.get_rng_state().asnumpy().copy()

    def put_back(self) -> None:
        if random.getstate() != self._python:
            random.setstate(self._python)
        now: Any = np.random.get_state()
        if any(not np.array_equal(a, b) for a, b in zip(now, self._numpy)):
            np.random.set_state(self._numpy)
        if not np.array_equal(mindspore.get_rng_state().asnumpy(), self._mindspore):
            mindspore.set_rng_state(Tensor(self._mindspore))


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
