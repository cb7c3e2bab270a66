"""What compiled code calls: the wrappers' probes (watched.py), and `save` and `save_grad`.

The nodes that hand something over are the device's: those of cpu.py or ascend.py.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindrlhf_msprobe.capture.framework.generated_modules import function_of
from mindrlhf_msprobe.capture.graph.keydata import (
    DATA,
    SAVE_GRADIENT_NOW,
    SAVE_NOW,
    SAVING,
    SAVING_GRADIENT,
)
from mindrlhf_msprobe.capture.graph.probes import NO_CELL, Lines, Question, Visit, writes_files
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.errors import UsageError

if writes_files():
    from mindrlhf_msprobe.capture.graph import ascend as nodes
else:
    from mindrlhf_msprobe.capture.graph import cpu as nodes  # type: ignore[no-redef]

gradient_saved = nodes.gradient_saved


# What Python runs in the place of those functions, where it runs a wrapper itself
# (`capture_mode="bytecode"` does, in part): there is no call, and nothing is handed over.


def _nothing(*_: Any) -> int:
    return 0


def _nothing_watched(args: Any, kwargs: Any, *_: Any) -> tuple[int, Any, Any]:
    return 0, args, kwargs


def _as_it_is(returned: Any, *_: Any) -> Any:
    return returned


class _Entering(Question):
    """The function that opens a call and hands over what it is given, and its constants.

    It returns the call; if gradients are handed over, also the arguments that the cell is given.
    """

    def answer(self, cell: int, probed: Any, args: Any, kwargs: Any, parameters: Any) -> Any:
        """Return both.

        Args:
            probed: whether the arguments are handed over, and their gradients; and the names of
                the parameters.
        """
        tensors, gradients, names = probed
        visit = Visit(cell, "(args, kwargs)", (args, kwargs), gradients=gradients)
        returned = "call"
        if tensors:
            passed = visit.passed_on("input_args", (), args, "args")
            passed += ", " + visit.passed_on("input_kwargs", (), kwargs, "kwargs")
            returned += f", {passed}" if gradients else ""
        for i, name in enumerate(names):
            visit.passed_on("parameters", (name,), parameters[i], f"parameters[{i}]")
        return _written("args, kwargs, parameters", nodes.entering(visit, returned))

    def __call__(self, cell: int, probed: Any, *_: Any) -> Any:
        """Return a function that hands over nothing."""
        tensors, gradients, _names = probed
        return (_nothing_watched if tensors and gradients else _nothing), ()


class _Leaving(Question):
    """The function that hands over what a call returns and closes it, and its constants.

    It returns what the call returns.
    """

    in_python = _as_it_is, ()

    def answer(self, cell: int, probed: Any, returned: Any) -> Any:
        """Return both; `probed` as for what a call is given, without names."""
        tensors, gradients = probed
        visit = Visit(cell, "returned", returned, gradients=gradients)
        passed = "returned"
        if tensors:
            root = () if isinstance(returned, tuple) else (0,)  # one that is no tuple is the first
            passed = visit.passed_on("output", root, returned, "returned")
        return _written("returned, call", nodes.leaving(visit, passed))


class _Updating(Question):
    """The function that opens a call of an optimizer and hands over the gradients it is given."""

    in_python = _nothing, ()

    def answer(self, cell: int, gradients: Any) -> Any:
        """Return it and its constants; it returns the call."""
        visit = Visit(cell, "((), {})", ((), {}), gradients=False)
        visit.passed_on("gradients", (), gradients, "gradients")
        return _written("gradients", nodes.entering(visit, "call"))


ENTERING = _Entering()
LEAVING = _Leaving()
UPDATING = _Updating()


def _written(arguments: str, lines: Lines) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    head, body, constants = lines
    head = [*head, "", "", f"def construct({arguments}, constants):"]
    source = "\n".join([*head, *(f"    {line}" for line in body), ""])
    return function_of(source, like=None), constants


class _Saved(Question):
    """The function that hands over a value that is saved as key data, and its constants."""

    in_python = _nothing, ()

    def answer(self, name: str, data: Any) -> Any:
        """Return both."""
        visit = Visit(NO_CELL, "data", data, gradients=False, path=(name,))
        visit.passed_on(DATA, (name,), data, "data")
        return _written("data", nodes.entering(visit, "call", ends=True))


SAVED = _Saved()


def saved(name, data):
    """Hand over a value that is saved as key data."""
    hand_over, constants = SAVED(name, data)
    hand_over(data, constants)


def save(save_dir: Any, name: Any, data: Any) -> None:
    """Save key data with the newest probe whose run has not ended.

    May be called anywhere, also inside a construct that MindSpore compiles; there the value is
    saved whenever the graph runs. The n-th save of a name in a step is its micro-step n.

    Args:
        save_dir: taken for msprobe's sake; the data lie in the probe's dump_path.
        name: the key, a text; inside a graph a constant.
        data: as for `Probe.save_data`; inside a graph tensors, constants, and tuples, lists and
            dicts of them.
    """
    mode = SAVING(name)
    if mode == "now":
        SAVE_NOW(name, data)
    elif mode == "later":
        saved(name, data)


def save_grad(save_dir: Any, name: Any, tensor: Any) -> Any:
    """Return a tensor as it is, and save its gradient as key data, as `<name>_grad`, when it comes.

    Use what is returned in the place of the tensor. May be called where `save` may.

    Args:
        save_dir: taken for msprobe's sake; the data lie in the probe's dump_path.
        name: a text; inside a graph a constant.
        tensor: of floating point or complex numbers.
    """
    mode = SAVING_GRADIENT(name)
    if mode == "now":
        return SAVE_GRADIENT_NOW(name, tensor)
    if mode == "later":
        return gradient_saved(name, tensor)
    return tensor


def step() -> None:
    """End the training step of the newest probe whose run has not ended; see `Probe.step`.

    Graphs that still run are waited for. Where a phase is open this does nothing but say so once.
    """
    probe = CURRENT.probe_for("step()")
    if probe is not None:
        try:
            probe.step()
        except UsageError as error:
            CURRENT.log_once(error.said)
