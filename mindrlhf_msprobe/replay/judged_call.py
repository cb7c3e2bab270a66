"""A call while it waits to be judged: what it was given, what it returned, and its gradients.

Gradients of parameters are judged where calls of one cell make up all uses of the parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mindrlhf_msprobe.capture.opening.observer import CellCall, OperatorCall
from mindrlhf_msprobe.capture.tensors.summary import is_tensor
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.replay.held import HeldCall
from mindrlhf_msprobe.replay.precise.allowance import Judgement, judge
from mindrlhf_msprobe.replay.precise.tape import Precision
from mindrlhf_msprobe.replay.precise.values import Value, leaves_of, replaced
from mindrlhf_msprobe.replay.second_run import SecondRun, host_values


class JudgedCall(HeldCall):
    """A call that is computed again, and judged.

    Args:
        before: of an operator that writes into its first argument, what stood there.
        repeats: whether it is a second run for gradients, of a recomputed cell.

    Attributes:
        cell_name: of the cell, or of that around an operator.
        alone: whether nobody else looks at what it computes: of a cell, an operator in it is not
            looked at by itself.
        met: how many operators ran in it that compute floating numbers.
        uses: of parameters by their ids, how many of those took it.
        run: the second computation, kept until its gradients have come.
        overflowed: whether an output is beyond what its dtype holds.
        output: what it returned.
        outputs: what the second computation gave, one for each leaf of `output`.
        arriving: gradients of outputs by the ids of those.
        leaving: of inputs: gradient, its part from after the call, whether it is more.
    """

    def __init__(
        self,
        entry: str,
        call: CellCall | OperatorCall,
        *,
        before: np.ndarray | None = None,
        repeats: bool = False,
    ) -> None:
        super().__init__(entry, call, by_formula=True)
        self.cell_name = call.name if isinstance(call, CellCall) else call.around
        self.before, self.repeats = before, repeats
        self.alone = False
        self.met = 0
        self.uses: Counter[int] = Counter()
        self.output: Any = None
        self.outputs: list[Value | None] = []
        self.precision: Precision | None = None
        self.run: SecondRun | None = None
        self.overflowed = False
        self.arriving: dict[int, np.ndarray] = {}
        self.leaving: dict[int, tuple[np.ndarray, np.ndarray | None, bool]] = {}

    @property
    def by_cell(self) -> str:
        """What it is one call of: the name of its cell, or its own entry."""
        return self.entry if self.cell is None else self.cell_name

    def keep(self, key: int, gradient: Tensor, *, of_input: bool, after: Any, whole: bool) -> None:
        """Keep a gradient; the arguments are those of `CallObserver.gradient`."""
        if of_input:
            behind = None if after is None else host_values(after)
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

        return replaced(self.output, arrived)

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
        assert self.precision is not None
        passed_on = {id(leaf) for leaf in leaves_of(self.output)} | {*self.run.parameters}
        found: list[tuple[np.ndarray, np.ndarray | float] | None] = []
        for key in self.inputs():
            gradient, after, whole = self.leaving.get(key, (None, None, True))
            if gradient is None or whole or key in passed_on:
                found.append(None)
                continue
            gradient = np.asarray(gradient, np.float64)
            if after is None:
                found.append((gradient, 0.0))
                continue
            with np.errstate(all="ignore"):  # less its part from after the call; Inf less Inf
                beside = self.precision.unit * np.maximum(np.abs(gradient), np.abs(after))
                found.append((gradient - np.asarray(after, np.float64), beside))
        return found

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


@dataclass
class Share:
    """What calls of one cell contribute to the gradient of a parameter.

    Attributes:
        reach: the largest magnitude on the way.
    """

    entry: str
    cell_name: str
    record: str
    precision: Precision
    sums: list[np.ndarray]
    uses: int
    known: bool
    reach: float = 0.0

    def add(self, other: Share) -> None:
        """Add what another call contributes."""
        self.reach = max(self.reach, other.reach)
        self.uses += other.uses
        self.known &= other.known and len(other.sums) == len(self.sums)
        if self.known:
            self.sums = [a + b for a, b in zip(self.sums, other.sums)]


@dataclass
class _Uses:
    """How a parameter was used until its gradient came.

    Attributes:
        count: of computations through which gradients flow.
        inside: cell → uses in its calls that no operator which is looked at made.
        shares: cell or entry → what its calls contribute.
    """

    parameter: Parameter  # its id must stay its own
    count: int = 0
    inside: Counter[str] = field(default_factory=Counter)
    shares: dict[str, Share] = field(default_factory=dict)
    gradient: np.ndarray | None = None


class ParameterOpinions:
    """Collects what calls contribute to gradients of parameters, and judges these.

    Args:
        judged: takes what was judged, and the judgement.
    """

    def __init__(self, judged: Callable[[Share, Judgement], None]) -> None:
        self._judged = judged
        self._of: dict[int, _Uses] = {}

    def _uses_of(self, parameter: Parameter) -> _Uses:
        return self._of.setdefault(id(parameter), _Uses(parameter))

    def used(self, parameter: Parameter) -> None:
        """Count one use in a computation through which gradients flow."""
        if self._uses_of(parameter).gradient is not None:  # of the backward pass before
            self._judge(id(parameter))
        self._uses_of(parameter).count += 1

    def used_inside(self, parameter: Parameter, by_cell: str, count: int) -> None:
        """Count uses in a call of a cell that no operator which is looked at made."""
        if count > 0:
            self._uses_of(parameter).inside[by_cell] += count

    def arrived(self, parameter: Parameter, gradient: Tensor) -> None:
        """Keep a gradient until all calls it comes from are known."""
        uses = self._of.get(id(parameter))
        if uses is not None and uses.gradient is not None:
            self._judge(id(parameter))
        elif uses is not None and (uses.count or uses.inside):
            uses.gradient = host_values(gradient)

    def share(
        self,
        entry: str,
        call: JudgedCall,
        gradients: Iterable[tuple[Parameter, Value | None]],
        *,
        known: bool,
    ) -> None:
        """Add what a call contributes to the gradients of parameters.

        Args:
            entry: the call's backward entry.
            gradients: of each parameter; None: nothing flows to it.
            known: whether that is all of it.
        """
        assert call.run is not None
        assert call.precision is not None
        for parameter, value in gradients:
            if not parameter.requires_grad:
                continue
            reach = np.inf if call.overflowed else call.run.tape.reach
            draws = [np.zeros(parameter.shape)] * 2 if value is None else [*value.draws]
            uses = call.run.uses.get(id(parameter), 0)
            record = f"{entry}.parameters.{parameter.name}"
            one = Share(entry, call.cell_name, record, call.precision, draws, uses, known, reach)
            kept = self._uses_of(parameter).shares.setdefault(call.by_cell, one)
            if kept is not one:
                kept.add(one)

    def close(self) -> None:
        """Judge what is left."""
        for key in [key for key, uses in self._of.items() if uses.gradient is not None]:
            self._judge(key)

    def _judge(self, key: int) -> None:
        uses = self._of.pop(key)
        assert uses.gradient is not None
        count = uses.count + max(uses.inside.values(), default=0)  # of the outermost cell
        for share in uses.shares.values():
            if share.known and share.uses == count:
                found = judge(uses.gradient, share.sums, share.precision)
                self._judged(share, found)
