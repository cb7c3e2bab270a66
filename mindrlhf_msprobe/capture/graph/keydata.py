"""Key data that a compiled graph hands over: what `save` and `save_grad` in a construct become.

A value is handed over as a call of no cell: when that is closed, it is saved as one value, as it
would be in PyNative mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, ops

from mindrlhf_msprobe.capture.framework.private import EXECUTOR, has_gradient_graph, is_vectorised
from mindrlhf_msprobe.capture.graph.probes import SITES, Question, Site
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import Path, TensorOutline, UnknownOutline, filled
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.leaves import Leaf

DATA = "data"  # the part in which the probes of key data stand


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
