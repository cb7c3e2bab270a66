"""What the script computes, for judging it: disturbed, too, and with nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import mindspore
import numpy as np
from mindspore import Tensor, ops

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.replay.offline.script.template import (
    BITS,
    Side,
    at_least,
    tensor_of,
)

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
        self._constants = [
            (cell, name, value)
            for _, cell in (network.cells_and_names() if network is not None else ())
            for name, value in vars(cell).items()
            if type(value) is Tensor and str(value.dtype) in BITS
        ]
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
        with casts_go_no_lower_than(least), self._cells_at_least(least):
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
        """Do nothing: `compute` does it, and puts everything back."""

    @contextmanager
    def _cells_at_least(self, least: str | None) -> Iterator[None]:
        """Cast what cells hold beside parameters up, and let none cast down; until the end."""
        before = self._constants if least else []
        if least and isinstance(self.network, mindspore.nn.Cell):
            cells = [cell for _, cell in self.network.cells_and_names()]
            name = "mixed_precision_type"  # to_float
            before = [*before, *((cell, name, getattr(cell, name)) for cell in cells)]
        try:
            for cell, name, value in before:
                dtype = at_least(str(value.dtype), least) if isinstance(value, Tensor) else ""
                setattr(cell, name, tensor_of(array_of(value), dtype) if dtype else None)
            yield
        finally:
            for cell, name, value in before:
                setattr(cell, name, value)


@contextmanager
def casts_go_no_lower_than(least: str | None) -> Iterator[None]:
    """Let casts to a floating dtype below `least` go to that, and checks take float64."""
    if least is None:
        yield
        return
    wanted = getattr(mindspore, least.lower())
    known = {name.lower(): name for name in BITS}

    def raised(value: Any) -> Any:
        if not isinstance(value, (str, mindspore.Type)):
            return value
        name = known.get(str(value).rpartition(".")[2].lower(), "")
        return wanted if name and at_least(name, least) != name else value

    def cast(original: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: original(
            *map(raised, args), **{name: raised(value) for name, value in kwargs.items()}
        )

    def named(dtype: Any) -> Callable[..., Any]:
        return lambda tensor: tensor.astype(raised(dtype))

    checks = mindspore._checkparam  # MindFormers asks it whether an input may be float64
    of_types = checks.check_type_name

    def check(name: Any, dtype: Any, *args: Any) -> Any:
        return of_types(name, mindspore.float32 if dtype == mindspore.float64 else dtype, *args)

    replaced: list[tuple[Any, str, Any]] = [(ops.Cast, "__call__", cast(ops.Cast.__call__))]
    replaced.append((checks, "check_type_name", check))
    replaced += [(owner, "cast", cast(owner.cast)) for owner in (ops, ops.functional)]
    replaced += [(Tensor, name, cast(getattr(Tensor, name))) for name in ("astype", "to", "type")]
    for name, dtype in (("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")):
        replaced.append((Tensor, name, named(getattr(mindspore, dtype))))
    with ExitStack() as stack:
        for owner, name, new in replaced:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def array_of(tensor: Any) -> np.ndarray:
    """Return the elements of a tensor; bfloat16 as float32."""
    bfloat16 = tensor.dtype == mindspore.bfloat16
    found: np.ndarray = (tensor.astype(mindspore.float32) if bfloat16 else tensor).asnumpy()
    return found


def prepare() -> None:
    """Let operators run when they are called, so that one without a kernel raises there."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()
