"""Gradients of parameters: judged where calls of one cell make up all uses of the parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, Tensor

from mindrlhf_msprobe.replay.precise.allowance import Judgement, judge
from mindrlhf_msprobe.replay.precise.values import Precision, Value
from mindrlhf_msprobe.replay.second_opinion.again import host_values
from mindrlhf_msprobe.replay.second_opinion.held import HeldCall

#: Takes the share that was judged, and the judgement.
Judged = Callable[["Share", Judgement], None]


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

    def add(self, draws: list[np.ndarray], uses: int, *, known: bool, reach: float) -> None:
        """Add what another call contributes."""
        self.reach = max(self.reach, reach)
        self.uses += uses
        self.known &= known and len(draws) == len(self.sums)
        if self.known:
            self.sums = [a + b for a, b in zip(self.sums, draws)]


class ParameterOpinions:
    """Collects what calls contribute to gradients of parameters, and judges these.

    Args:
        judged: takes each judgement.
    """

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._uses: Counter[int] = Counter()
        self._inside: dict[int, Counter[str]] = {}
        self._held: dict[int, Parameter] = {}  # their ids must stay theirs
        self._shares: dict[int, dict[str, Share]] = {}
        self._arrived: dict[int, np.ndarray] = {}

    def used(self, parameter: Parameter) -> None:
        """Count one use in a computation through which gradients flow."""
        if id(parameter) in self._arrived:  # of the backward pass before
            self._judge(id(parameter))
        self._uses[id(parameter)] += 1
        self._held[id(parameter)] = parameter

    def used_inside(self, parameter: Parameter, by_cell: str, count: int) -> None:
        """Count uses in a call of a cell that no operator which is looked at made."""
        if count > 0:
            self._inside.setdefault(id(parameter), Counter())[by_cell] += count
            self._held[id(parameter)] = parameter

    def arrived(self, parameter: Parameter, gradient: Tensor) -> None:
        """Keep a gradient until all calls it comes from are known."""
        if id(parameter) in self._arrived:
            self._judge(id(parameter))
        if id(parameter) in self._uses or id(parameter) in self._inside:
            self._arrived[id(parameter)] = host_values(gradient)

    def share(
        self,
        entry: str,
        call: HeldCall,
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
            shares = self._shares.setdefault(id(parameter), {})
            share = shares.get(call.by_cell)
            if share is not None:
                share.add(draws, uses, known=known, reach=reach)
                continue
            record = f"{entry}.parameters.{parameter.name}"
            shares[call.by_cell] = Share(
                entry, call.cell_name, record, call.precision, draws, uses, known, reach
            )

    def close(self) -> None:
        """Judge what is left."""
        for key in list(self._arrived):
            self._judge(key)

    def _judge(self, key: int) -> None:
        gradient = self._arrived.pop(key)
        uses, shares = self._uses.pop(key, 0), self._shares.pop(key, {})
        uses += max(self._inside.pop(key, Counter()).values(), default=0)  # of the outermost cell
        self._held.pop(key, None)
        for share in shares.values():
            if share.known and share.uses == uses:
                found = judge(gradient, share.sums[0], share.sums[1:], share.precision)
                self._judged(share, found)
