"""A recorded dropout by its own output: what is not zero there was kept.

A dropout draws another mask when it runs again, so that no kernel and no formula gives what was
recorded. Its mask is in the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.allowance import Judgement, Opinion, judge
from mindrlhf_msprobe.replay.precise.basic import Basic
from mindrlhf_msprobe.replay.precise.formulas.table import NoFormulaError
from mindrlhf_msprobe.replay.precise.values import Precision, Tape, Value, backward

#: Dropouts that draw for each element, and those that draw for each channel.
_OF_ELEMENTS = frozenset(["dropout", "Dropout", "DropoutExt"])
_OF_CHANNELS = frozenset(["dropout1d", "dropout2d", "dropout3d", "Dropout2D", "Dropout3D"])
_DEFAULT = 0.5  # of p, and of what a primitive keeps

#: How many standard deviations the number of dropped elements may be from what it is on average.
_MOST_DEVIATIONS = 8.0


def is_dropout(name: str) -> bool:
    """Return whether an operator, by its name or the class of its primitive, is a dropout."""
    return name in _OF_ELEMENTS or name in _OF_CHANNELS


class Dropped:
    """One recorded call of a dropout.

    Args:
        name: of the operator.
        args, kwargs: as they were given, arrays in the place of tensors.
        settings: of a primitive: what has its attributes.
        output: the first of the recorded outputs.
        leaving: the recorded gradient of the input; None where there is none.
        repeated: whether that is of a second run (recompute), which drew another mask.

    Raises:
        NoFormulaError: its arguments are not those of a dropout.
    """

    def __init__(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        settings: Any,
        output: np.ndarray,
        leaving: np.ndarray | None,
        *,
        repeated: bool,
    ) -> None:
        given = next((a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)), None)
        if given is None or given.shape != output.shape:
            raise NoFormulaError(name)
        self._name, self._given = name, given
        self.probability = _probability(args, kwargs, settings)
        self.kept = output != 0
        if leaving is not None and leaving.shape == given.shape:  # zero shows no mask
            self.kept |= (given == 0) & (leaving != 0)
        self._kept_again = leaving != 0 if repeated and leaving is not None else self.kept

    def judged(
        self,
        recorded: Mapping[str, np.ndarray],
        names: tuple[str, str],
        arriving: np.ndarray | None,
        precision: Precision,
    ) -> Iterator[tuple[str, Judgement, np.ndarray]]:
        """Yield name, judgement and the exact value of the output and of the input's gradient.

        Args:
            recorded: both, by their names.
            names: of the output, and of the gradient.
            arriving: the gradient of the output.
        """
        tape = Tape(precision)
        given = tape.value(self._given)
        scale = 1 / (1 - self.probability) if self.probability < 1 else 0.0
        result = Basic(tape).multiply(given, tape.value(np.where(self.kept, scale, 0.0)))
        values: list[Value | None] = [result, None]
        if arriving is not None:
            again = Basic(tape).multiply(given, tape.value(np.where(self._kept_again, scale, 0.0)))
            values[1:] = backward(tape, [(again, tape.value(arriving))], [given]).of
        for name, value in zip(names, values):
            if value is not None and name in recorded:
                found = judge(recorded[name], value.exact, value.draws[1:], precision)
                yield name, found, value.exact

    def agrees(self, mask: np.ndarray) -> Judgement | None:
        """Return whether the mask that it returned is that of its output; None if not known."""
        if mask.shape != self._given.shape:
            return None  # in the form of a device
        same = ((mask != 0) == self.kept) | (self._given == 0)
        return Judgement(Opinion.ORDINARY if same.all() else Opinion.WRONG, ratio=0.0)

    def odd_share(self) -> float | None:
        """Return the share of dropped elements where chance does not explain it, else None."""
        count = int(np.count_nonzero(self._given))
        if self._name in _OF_CHANNELS or not count:
            return None
        dropped = int(np.count_nonzero((self._given != 0) & ~self.kept))
        expected = count * self.probability
        apart = abs(dropped - expected) - 1
        deviation = math.sqrt(expected * (1 - self.probability))
        return dropped / count if apart > _MOST_DEVIATIONS * deviation else None


def _probability(args: Sequence[Any], kwargs: Mapping[str, Any], settings: Any) -> float:
    """Return with what probability elements are dropped."""
    if settings is not None:
        return 1 - float(getattr(settings, "keep_prob", _DEFAULT))
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    given = kwargs.get("p", args[1] if len(args) > 1 else _DEFAULT)
    if isinstance(training, np.ndarray) or not isinstance(given, (int, float)):
        raise NoFormulaError("dropout")
    return float(given) if training else 0.0
