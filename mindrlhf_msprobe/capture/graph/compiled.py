"""What compiled code calls: the wrappers' probes (watched.py), and `save` and `save_grad`.

The nodes that hand something over are the device's: those of cpu.py or ascend.py. Key data are
handed over as a call of no cell: when that is closed, they are saved as one value, as they would be
in PyNative mode.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, ops

from mindrlhf_msprobe.capture.framework.generated_modules import function_of
from mindrlhf_msprobe.capture.framework.private import EXECUTOR, has_gradient_graph, is_vectorised
from mindrlhf_msprobe.capture.graph.probes import (
    DATA,
    NO_CELL,
    SITES,
    Lines,
    Question,
    Site,
    Visit,
    writes_files,
)
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import Path, TensorOutline, UnknownOutline, filled
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.leaves import Leaf

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


# Key data.


class _Saving(Question):
    """What `save` does where it stands: "now" in Python, "later" or "never" in a graph."""

    in_python = "now"
    call = "save"
    suffix = ""  # of the key, behind the name

    def answer(self, name: Any) -> str:
        """Return whether the graph that is compiled is to hand a value over."""
        call = f"{self.call}({name!r}, …)"
        probe = CURRENT.probe_for(message("log.in_graph", call=call))
        key = f"{name}{self.suffix}"
        if probe is None:
            CURRENT.compiled_without.add(key)
            return "never"
        if not isinstance(name, str):
            CURRENT.log_once(message("log.no_constant", call=self.call, name=repr(name)))
            return "never"
        if not probe.config.key_data_dump:
            CURRENT.compiled_without.add(key)
            return "never"
        if is_vectorised():
            probe.leave_out_data(key, message("coverage.saved_vectorised", call=self.call))
            return "never"
        CURRENT.wait = VALUES.wait
        return "later"


class _SavingGradient(_Saving):
    """What `save_grad` does where it stands, likewise."""

    call = "save_grad"
    suffix = "_grad"


class _SaveNow(Question):
    """Save a value, where Python runs; while MindSpore compiles, nothing runs yet."""

    def __call__(self, name: Any, data: Any) -> None:
        """Save it with the current probe; what is wrong is said once, and training goes on."""
        probe = CURRENT.probe_for(f"save({name!r}, …)")
        if probe is not None:
            CURRENT.save(probe, name, data)


class _SaveGradientNow(Question):
    """Save a tensor's gradient when it comes, where Python runs; likewise."""

    def __call__(self, name: Any, tensor: Any) -> Any:
        """Return the tensor, its gradient watched if it can have one."""
        probe = CURRENT.probe_for(f"save_grad({name!r}, …)")
        if probe is None or not probe.config.key_data_dump:
            return tensor
        if not isinstance(tensor, Tensor) or not (
            tensor.is_floating_point() or tensor.is_complex()
        ):
            what = message("log.a_value", type=type(tensor).__name__)
            if isinstance(tensor, Tensor):
                what = message("log.a_tensor", dtype=str(tensor.dtype))
            call = f"save_grad({name!r}, …)"
            CURRENT.log_once(message("log.no_gradient", call=call, what=what))
            return tensor

        # MindSpore takes plain functions only, and what they return replaces the gradient.
        def hook(gradients: tuple[Tensor, ...]) -> None:
            SAVE_NOW(f"{name}_grad", gradients[0])

        tapped = ops.HookBackward(hook)(tensor)
        if isinstance(tensor, Parameter) or not has_gradient_graph(tensor):
            return tapped
        tensor.assign_value(tapped)  # so that a later change in place reaches whoever holds it
        return tensor


SAVING = _Saving()
SAVING_GRADIENT = _SavingGradient()
SAVE_NOW = _SaveNow()
SAVE_GRADIENT_NOW = _SaveGradientNow()


class Values:
    """Puts together what running graphs hand over, and saves it; called from any thread.

    Attributes:
        flush: returns when what runs has handed over all it saves.
    """

    def __init__(self) -> None:
        self.flush: Callable[[], None] = EXECUTOR.sync
        self._numbers = itertools.count(1)
        self._open: dict[int, dict[Path, HostTensor]] = {}
        self._strict_fault: Exception | None = None

    def opened(self, site: Site) -> int:
        """Open a value and return its number; 0 if no probe records it."""
        probe = CURRENT.probe
        if probe is None or not probe.config.key_data_dump:
            return 0
        number = next(self._numbers)
        self._open[number] = {}
        return number

    def tensor(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Take a tensor of a value; an array is valid until this returns."""
        if call in self._open:
            self._open[call][site.path] = _copied(found, site)

    def closed(self, call: int, site: Site) -> None:
        """Save a value."""
        tensors = self._open.pop(call, None)
        if tensors is None:
            return

        def elements(known: Any, path: Path) -> Any:
            if isinstance(known, TensorOutline) and path not in tensors:
                why = message("coverage.kept_by_graph", dtype=known.dtype)
                return UnknownOutline("mindspore.Tensor", why)
            return tensors.get(path, known)

        SAVE_NOW(site.path[0], filled(site.outline, elements, site.path, key_of=lambda key: key))

    def gradient(self, call: int, site: Site, found: np.ndarray | Leaf) -> None:
        """Save a gradient; an array is valid until this returns."""
        if CURRENT.probe is not None:
            SAVE_NOW(f"{site.path[0]}_grad", _copied(found, site))

    def fault(self, what: Message, error: Exception) -> None:
        """Count a fault; a strict run's waits until no graph runs: it would poison the executor."""
        try:
            CURRENT.fault(message("lost.graph_key_data"), error)
        except Exception as strict:
            self._strict_fault = strict

    def wait(self) -> None:
        """Return when what runs has handed over all it saves.

        Raises:
            Exception: what a strict run raises, or what the training itself has raised meanwhile.
        """
        self.flush()
        error, self._strict_fault = self._strict_fault, None
        if error is not None:
            raise error


VALUES = SITES.values = Values()
if writes_files():
    VALUES.flush = nodes.read_written


def snapshot(data: Any) -> Any:
    """Return a value whose tensors are copied to the host."""
    if isinstance(data, Tensor):
        host = to_host(data)
        return HostTensor(host.type, host.dtype, np.array(host.array))
    if isinstance(data, dict):
        return {key: snapshot(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)) and not hasattr(data, "_fields"):
        return type(data)(snapshot(item) for item in data)
    return data


CURRENT.snapshot = snapshot


def _copied(array: Any, site: Site) -> HostTensor:
    return HostTensor("mindspore.Tensor", site.outline.dtype, to_host(np.array(array)).array)


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
