"""What the script computes, for judging it: disturbed, too, and with nothing left behind.

Likewise a recorded operator by its formula in numpy, without a kernel. A dropout draws
another mask when it runs again, so that no kernel and no formula gives what was recorded. Its mask
is in the record: what is not zero in its output was kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import mindspore
import numpy as np
from mindspore import Tensor, ops

from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.replay.offline.folder import leaves_in, tensors_in, words_of
from mindrlhf_msprobe.replay.offline.template import BITS, WORDS, Side, distance
from mindrlhf_msprobe.replay.precise.allowance import MOST, Judgement, Opinion, judge
from mindrlhf_msprobe.replay.precise.formulas import NoFormulaError
from mindrlhf_msprobe.replay.precise.formulas.answering import compute_operator
from mindrlhf_msprobe.replay.precise.tape import Precision, Tape, backward, lowest_precision
from mindrlhf_msprobe.replay.precise.values import Value
from mindrlhf_msprobe.storage.operators import OperatorName

Node = dict[str, Any]  # of entry.json
SMALLEST = {"BFloat16": -126, "Float16": -14, "Float32": -126, "Float64": -1022}  # exponents
LARGEST = {"BFloat16": 3.39e38, "Float16": 65504.0, "Float32": 3.403e38, "Float64": 1.797e308}


class Recomputed(Side):
    """What was recorded in one run, as it is computed again to judge it.

    Attributes:
        lowest: the lowest dtype among inputs, weights, outputs, and those that cells declare.

    Raises:
        RunError: the network is not the one of which the entry was recorded.
    """

    def __init__(self, folder: Path, called: Any, network: Any = None) -> None:
        self._random: np.random.Generator | None = None
        self._rounding = 0.0
        try:
            super().__init__(folder, called, network)
        except SystemExit as refused:
            raise RunError(Message("replay.refused", {"why": str(refused)})) from None
        self.network = mindspore.nn.Cell() if network is None else network
        known = [*self.inputs, *self.weights, *self.outputs]
        dtypes = [node["dtype"] for node in known if node["dtype"] in BITS] + [*self._declared()]
        lowest = min(dtypes, key=BITS.__getitem__, default="Float32")
        self.lowest = self.entry["compute_dtype"] or lowest

    def _declared(self) -> Iterator[str]:
        """Yield the floating dtypes in which a cell says that it computes."""
        cells = self.called.cells_and_names() if isinstance(self.called, mindspore.nn.Cell) else ()
        for _, cell in cells:
            for value in vars(cell).values():
                if isinstance(value, mindspore.Type) and str(value) in BITS:
                    yield str(value)
            if cell.mixed_precision_type is not None:  # to_float
                yield {"FP16": "Float16", "BF16": "BFloat16"}.get(
                    cell.mixed_precision_type.name, "Float32"
                )

    @property
    def recorded(self) -> dict[str, Node]:
        """Name → what was recorded of each value that comes out."""
        found: dict[str, Node] = self.entry["recorded"]
        return found

    def array(self, node: Node) -> np.ndarray:
        """Return the elements of a recorded tensor; while it is computed disturbed, those."""
        array: np.ndarray = super().array(node)
        if self._random is None or node["dtype"] not in BITS or node.get("numpy"):
            return array
        array = array.astype(np.float64)
        return array * (1 + self._rounding * self._random.choice([-1.0, 1.0], array.shape))

    def compute(self, least: str | None = None, seed: int | None = None) -> dict[str, Any]:
        """Return name → tensor of what comes out.

        Args:
            least: the dtype that no floating value is below; None: the recorded dtypes.
            seed: disturbs every floating value that goes in by one rounding; None: none is.
        """
        self._rounding = 2.0 ** -(BITS[self.lowest] + (least is not None))
        with self._casts_put_back():
            try:
                return self._computed(least, seed)
            except (TypeError, ValueError):
                if self.sequence is list or '"list"' not in str(self.entry).replace("'", '"'):
                    raise
                self.sequence = list  # a record does not tell them from tuples
                try:
                    return self._computed(least, seed)
                except Exception:
                    self.sequence = tuple
                    raise

    def _computed(self, least: str | None, seed: int | None) -> dict[str, Any]:
        self._random = None if seed is None else np.random.default_rng(seed)
        try:
            return super().compute(least)
        finally:
            self._random = None

    def cast_up(self, least: str | None) -> None:
        """Follow no casts below a dtype from here on, and cast up what cells hold."""
        super().cast_up(least)
        ops.functional.cast = ops.cast

    @contextmanager
    def _casts_put_back(self) -> Iterator[None]:
        """Let casts, and what cells hold beside parameters, be as they were, at the end."""
        casts = [(ops.Cast, "__call__"), (ops, "cast"), (ops.functional, "cast")]
        methods = ("astype", "to", "type", "half", "float", "bfloat16")
        changed: list[tuple[Any, str]] = [*casts, *((Tensor, name) for name in methods)]
        changed.append((mindspore._checkparam, "check_type_name"))
        for _, cell in self.network.cells_and_names():
            held = [name for name, value in vars(cell).items() if type(value) is Tensor]
            changed += [(cell, name) for name in (*held, "mixed_precision_type")]
        with ExitStack() as stack:
            for owner, name in changed:
                stack.enter_context(mock.patch.object(owner, name, getattr(owner, name)))
            yield


def array_of(tensor: Any) -> np.ndarray:
    """Return the elements of a tensor; bfloat16 as float32."""
    bfloat16 = tensor.dtype == mindspore.bfloat16
    found: np.ndarray = (tensor.astype(mindspore.float32) if bfloat16 else tensor).asnumpy()
    return found


def prepare(device: str | None = None) -> None:
    """Let operators run where they are called: there one without a kernel raises, in words."""
    if device:
        mindspore.set_device(device)
    WORDS.update(words_of(language()))
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()


#: Dropouts that draw for each element, and those that draw for each channel.
_OF_ELEMENTS = frozenset(["dropout", "Dropout", "DropoutExt"])
_OF_CHANNELS = frozenset(["dropout1d", "dropout2d", "dropout3d", "Dropout2D", "Dropout3D"])
_DEFAULT = 0.5  # of p, and of what a primitive keeps
#: How many standard deviations the number of dropped elements may be from what it is on average.
_MOST_DEVIATIONS = 8.0


def values_by_formula(
    side: Recomputed, operator: OperatorName, primitive: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judge what a formula gives: yield name, and distances and verdict, as `judging` has them.

    Args:
        side: what was recorded.
        primitive: what has the attributes of a primitive; None for all else.

    Raises:
        Exception: there is no formula for the operator, or not for this call of it.
    """
    given: list[dict[str, Any]] = []  # the nodes of all arrays, in their order
    args = [_made(side, node, given) for node in side.entry["args"]]
    kwargs = {name: _made(side, node, given) for name, node in side.entry["kwargs"].items()}
    precision = lowest_precision([side.lowest.lower()])
    name = operator.name if primitive is None else type(primitive).__name__
    if name in _OF_ELEMENTS or name in _OF_CHANNELS:
        yield from _of_dropout(side, name, (args, kwargs, primitive), given, precision)
        return
    found = compute_operator(operator.kind, name, args, kwargs, precision, settings=primitive)
    outputs = [*leaves_in(side.entry["output"])]
    if len(outputs) != len(found.outputs):
        return
    pairs: list[tuple[str, Node, Value | None]] = [
        (node["at"], node, value) for node, value in zip(outputs, found.outputs) if "file" in node
    ]
    if any("gradient" in node for node in given):
        arriving = [side.array(n["arriving"]) if "arriving" in n else None for n in outputs]
        pairs += [
            (f"gradient:{node['at']}", node["gradient"], value)
            for node, value in zip(given, found.gradients(arriving))
            if "gradient" in node
        ]
    for record, node, value in pairs:
        recorded = side.array(node)
        if value is None or value.shape != recorded.shape:
            continue
        wide = recorded.astype(np.result_type(recorded, np.float64))
        beside = node.get("rounding", 0.0)
        opinion = judge(wide, value.draws, precision, beside)
        exact = value.exact.astype(wide.dtype)
        yield record, _as_value(node, opinion, distance(recorded, exact, node["dtype"]))


def _of_dropout(
    side: Recomputed,
    name: str,
    called: tuple[list[Any], dict[str, Any], Any],
    given: list[dict[str, Any]],
    precision: Precision,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name, distances and verdict of what a dropout with the recorded mask gives.

    Raises:
        NoFormulaError: its arguments are not those of a dropout.
    """
    args, kwargs, settings = called
    first, *more = tensors_in(side.entry["output"])
    output, gradient = side.array(first), given[0].get("gradient")
    x = next((a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)), None)
    if x is None or x.shape != output.shape:
        raise NoFormulaError(name)
    kept = again = output != 0
    if gradient is not None:
        leaving = side.array(gradient)
        if leaving.shape == x.shape:  # zero shows no mask
            kept = again = kept | ((x == 0) & (leaving != 0))
        if side.entry.get("repeated", False):  # the second run drew another mask
            again = leaving != 0
    probability = _probability(args, kwargs, settings)
    scale = 1 / (1 - probability) if probability < 1 else 0.0
    tape = Tape(precision)
    operand = tape.value(x)
    found: list[tuple[str, Node, Value | None]] = [
        (first["at"], first, operand * np.where(kept, scale, 0.0))
    ]
    if gradient is not None and "arriving" in first:
        dropped = operand * np.where(again, scale, 0.0)
        arriving = tape.value(side.array(first["arriving"]))
        exact = backward(tape, [(dropped, arriving)], [operand]).of[0]
        found.append((f"gradient:{given[0]['at']}", gradient, exact))
    odd = None if name in _OF_CHANNELS else _odd_share(x, kept, probability)
    for at, node, value in found:
        if value is not None:
            recorded = side.array(node)
            opinion = judge(recorded, value.draws, precision)
            apart = distance(recorded, value.exact, node["dtype"])
            judged = {**_as_value(node, opinion, apart), "by_mask": True}
            if odd is not None and node is first:
                judged |= {"verdict": "wrong", "dropped": odd, "probability": probability}
            yield at, judged
    for node in more:
        mask = side.array(node)
        if mask.shape == x.shape:  # else it has the form of a device
            same = ((mask != 0) == kept) | (x == 0)
            opinion = Judgement(Opinion.ORDINARY if same.all() else Opinion.WRONG, ratio=0.0)
            yield node["at"], _as_value(node, opinion, distance(mask, mask, node["dtype"]))


def _odd_share(given: np.ndarray, kept: np.ndarray, probability: float) -> float | None:
    """Return the share of dropped elements where chance does not explain it, else None."""
    count = int(np.count_nonzero(given))
    if not count:
        return None
    dropped = int(np.count_nonzero((given != 0) & ~kept))
    expected = count * probability
    apart = abs(dropped - expected) - 1
    deviation = math.sqrt(expected * (1 - probability))
    return dropped / count if apart > _MOST_DEVIATIONS * deviation else None


def _as_value(node: dict[str, Any], opinion: Judgement, apart: dict[str, float]) -> dict[str, Any]:
    return {
        **{"dtype": node["dtype"], "shape": node["shape"], "by": "formula", "formula": apart},
        **{"share": float(opinion.ratio) / MOST, "verdict": opinion.opinion.value},
    }


def _made(side: Recomputed, node: dict[str, Any], given: list[dict[str, Any]]) -> Any:
    """Return an argument with arrays in the place of tensors, and note their nodes."""
    if "file" in node:
        given.append(node)
        return side.array(node)
    if "list" in node:
        return tuple(_made(side, item, given) for item in node["list"])
    if "dict" in node:
        return {name: _made(side, item, given) for name, item in node["dict"].items()}
    if "dtype" in node:
        return node["dtype"].lower()
    return side.value(node, {}, None)


def _probability(args: Sequence[Any], kwargs: Mapping[str, Any], settings: Any) -> float:
    """Return with what probability elements are dropped."""
    if settings is not None:
        return 1 - float(getattr(settings, "keep_prob", _DEFAULT))
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    given = kwargs.get("p", args[1] if len(args) > 1 else _DEFAULT)
    if isinstance(training, np.ndarray) or not isinstance(given, (int, float)):
        raise NoFormulaError("dropout")
    return float(given) if training else 0.0
