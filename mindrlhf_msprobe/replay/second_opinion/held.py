"""A call while it waits to be judged: what it was given, what it returned, and its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from mindrlhf_msprobe.capture.opening.observer import CellCall, OperatorCall
from mindrlhf_msprobe.capture.tensors.summary import is_tensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.replay.precise.operators import leaves_of
from mindrlhf_msprobe.replay.precise.values import Precision, Value
from mindrlhf_msprobe.replay.python_state import PythonState
from mindrlhf_msprobe.replay.second_opinion.again import Drawn, SecondRun, host_values, like


@dataclass(eq=False)
class HeldCall:
    """A call that is computed again.

    Attributes:
        before: of an operator that writes into its first argument, what stood there.
        repeats: whether it is a second run for gradients, of a recomputed cell.
        alone: whether nobody else looks at what it computes: of a cell, an operator in it is not
            looked at by itself.
        met: how many operators ran in it that compute floating numbers.
        uses: of parameters by their ids, how many of those took it.
        run: the second computation, kept until its gradients have come.
        overflowed: whether an output is beyond what its dtype holds.
        outputs: what that computed, one for each leaf of `output`.
        arriving: gradients of outputs by the ids of those.
        leaving: of inputs: gradient, its part from after the call, whether it is more.
    """

    entry: str
    cell_name: str
    call: CellCall | OperatorCall
    state: PythonState | None = None
    before: np.ndarray | None = None
    repeats: bool = False
    alone: bool = False
    met: int = 0
    uses: Counter[int] = field(default_factory=Counter)
    drawn: list[Drawn] = field(default_factory=list)
    output: Any = None
    outputs: list[Value | None] = field(default_factory=list)
    precision: Precision | None = None
    run: SecondRun | None = None
    overflowed: bool = False
    arriving: dict[int, np.ndarray] = field(default_factory=dict)
    leaving: dict[int, tuple[np.ndarray, np.ndarray | None, bool]] = field(default_factory=dict)

    @property
    def cell(self) -> nn.Cell | None:
        """The cell; None of an operator."""
        return self.call.cell if isinstance(self.call, CellCall) else None

    @property
    def by_cell(self) -> str:
        """What it is one call of: the name of its cell, or its own entry."""
        return self.entry if self.cell is None else self.cell_name

    def keep(self, key: int, gradient: Tensor, *, of_input: bool, after: Any, whole: bool) -> None:
        """Keep a gradient; the arguments are those of `CallObserver.gradient`."""
        if of_input:
            behind = None if after is None else np.array(to_host(after).values())
            self.leaving[key] = host_values(gradient), behind, whole
        else:
            self.arriving[key] = host_values(gradient)

    def arrived(self) -> tuple[list[tuple[Value, np.ndarray]], bool]:
        """Return outputs with the gradients that arrived, and whether these are all of them."""
        found, keys = [], set()
        for leaf, value in zip(leaves_of(self.output), self.outputs):
            if id(leaf) not in self.arriving:
                continue
            if value is not None:
                keys.add(id(leaf))
            if value is not None and value.floating:
                found.append((value, self.arriving[id(leaf)]))
        return found, keys >= {*self.arriving}

    def gradients_of_output(self) -> Any:
        """Return the gradients that arrived, in the structure of what it returned."""

        def arrived(leaf: Any) -> Any:
            if not is_tensor(leaf):
                return leaf
            gradient = self.arriving.get(id(leaf))
            if gradient is None:
                gradient = np.zeros(leaf.shape, np.float32)
            return Tensor(gradient, leaf.dtype)

        return like(self.output, map(arrived, leaves_of(self.output)))

    def inputs(self) -> dict[int, Value]:
        """Return the floating inputs by their ids."""
        assert self.run is not None
        leaves = leaves_of([[*self.call.args], self.call.kwargs])
        return {id(leaf): v for leaf, v in zip(leaves, self.run.inputs) if v is not None}

    def note_slopes(
        self, arriving: Sequence[tuple[Value, np.ndarray]], wanted: Sequence[Value]
    ) -> None:
        """Note how large the derivatives are, of which the gradients may be made."""
        assert self.run is not None
        tape = self.run.tape
        tape.slopes = True
        try:
            finite = [(value, np.nan_to_num(g, posinf=0, neginf=0)) for value, g in arriving]
            found = self.run.gradients(finite, wanted).of
            most = np.array([np.max(np.abs(g), initial=0) for _, g in finite])
            for value in found:
                if value is not None:
                    tape.note_reach(value.exact, most)
        finally:
            tape.slopes = False

    def left(self) -> list[tuple[np.ndarray, np.ndarray | float] | None]:
        """Return the gradient that left through each of `inputs`, and what may be wrong with it.

        None where it is not known, or holds more: of what is returned as it was given.
        """
        assert self.run is not None
        passed_on = {id(leaf) for leaf in leaves_of(self.output)} | {*self.run.parameters}
        found: list[tuple[np.ndarray, np.ndarray | float] | None] = []
        for key in self.inputs():
            gradient, after, whole = self.leaving.get(key, (None, None, True))
            if gradient is None or whole or key in passed_on:
                found.append(None)
            else:
                found.append(self._less(np.asarray(gradient, np.float64), after))
        return found

    def _less(
        self, gradient: np.ndarray, after: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | float]:
        """Return a gradient less its part from after the call, and the rounding of that."""
        assert self.precision is not None
        if after is None:
            return gradient, 0.0
        with np.errstate(all="ignore"):  # Inf less Inf
            beside = self.precision.unit * np.maximum(np.abs(gradient), np.abs(after))
            return gradient - np.asarray(after, np.float64), beside

    def output_paths(self) -> dict[int, str]:
        """Return the records of outputs by their ids."""
        several = isinstance(self.output, tuple) and not hasattr(self.output, "_fields")
        results = list(self.output) if several else [self.output]
        return _paths(results, f"{self.entry}.output")

    def input_paths(self, entry: str) -> dict[int, str]:
        """Return the records of the inputs' gradients in a backward entry, by their ids."""
        args, kwargs = [*self.call.args], self.call.kwargs
        return _paths(kwargs, f"{entry}.output") | _paths(args, f"{entry}.output")


def _paths(value: Any, path: str) -> dict[int, str]:
    """Return the record's path of each tensor in a value, by the tensor's id: the first of it."""
    found: dict[int, str] = {}

    def note(tensor: Any, name: str) -> Any:
        found.setdefault(id(tensor), name)
        return {}

    describer = TreeDescriber(is_tensor, note, to_json=lambda leaf: {})
    describer.describe(value, path)
    return found
