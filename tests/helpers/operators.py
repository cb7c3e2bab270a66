"""Small trainings in plain numpy whose operators are recorded, forward and backward.

`record_operators` plays one step of an actor's update: two layers, each with operators of its own,
a sum in the network's own construct, and a loss outside every cell. A `Plant` changes what one
operator gives, or its gradient; `Extra` calls one more operator, which changes nothing unless it
has a factor. So what has to be blamed, and what is in one run only, is known.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import Recording
from mindrlhf_msprobe.capture.opening.opening import Call
from mindrlhf_msprobe.storage.operators import operator_entry
from mindrlhf_msprobe.storage.records import cell_name

UPDATE = "actor_update"
LAYERS = ("layers.0.attention", "layers.1.attention")

#: What a wrong kernel returns.
KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rounded": lambda x: (x * np.float32(1.0009)).astype(np.float16).astype(np.float32),
    "last row dropped": lambda x: np.concatenate([x[:-1], np.zeros_like(x[-1:])]) if x.ndim else x,
    "scaled": lambda x: (x * np.float32(1.5)).astype(np.float32),
}


@dataclass(frozen=True)
class Plant:
    """A wrong kernel: what the n-th call of an operator inside a cell gives is changed."""

    cell: str
    operator: str
    nth: int = 0
    change: Callable[[np.ndarray], np.ndarray] = KERNELS["scaled"]
    backward: bool = False


@dataclass(frozen=True)
class Extra:
    """One operator more: called before the n-th operator of all inside a call of a cell.

    Attributes:
        text: the line of code it is called from; as that of the operator after it where "".
        factor: what it makes of its input.
    """

    cell: str
    before: int
    operator: str = "Mint.add"
    text: str = "x = mint.add(x, 0.0)"
    factor: float = 1.0


@dataclass
class _Step:
    """One call, to go back through it."""

    name: str
    gradient: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    inputs: tuple[Any, ...]
    output: np.ndarray
    around: str
    planted: Plant | None = None


@dataclass
class Program:
    """Runs operators inside cells and records them."""

    recording: Recording
    plants: tuple[Plant, ...] = ()
    extras: tuple[Extra, ...] = ()
    stacks: bool = True
    cells: bool = True
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    order: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    steps: list[_Step] = field(default_factory=list)
    called: list[tuple[str, str, str]] = field(default_factory=list)
    added: set[str] = field(default_factory=set)

    def run(self, x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
        """Run the network and the loss; return the loss."""

        def network(x: np.ndarray) -> np.ndarray:
            for layer, weight in zip(LAYERS, weights):

                def attention(h: np.ndarray, w: np.ndarray = weight) -> np.ndarray:
                    return self.attention(h, w)

                y = self.cell(layer, "Attention", attention, x, parameters={"weight": weight})
                x = self.op("Tensor.__add__", "h = h + layer(h)", np.add, lambda g: (g, g), x, y)
            return x

        return self.loss(self.cell("root", "Network", network, x))

    def cell(self, name: str, class_name: str, function: Any, x: Any, **more: Any) -> Any:
        """Run a cell; it is recorded with `cells`."""
        if self.cells:
            return self.recording.call(name, class_name, function, x, **more)
        self.recording._running.append(
            Call(self.recording.opening, f"Cell.{name}.{class_name}.forward.0")
        )
        try:
            return function(x)
        finally:
            self.recording._running.pop()

    @property
    def around(self) -> str:
        """The cell in which the program is."""
        running = self.recording._running
        return cell_name(running[-1].entry) if running else ""

    def op(
        self,
        operator: str,
        text: str,
        function: Callable[..., np.ndarray],
        gradient: Callable[[np.ndarray], tuple[np.ndarray, ...]],
        *inputs: Any,
    ) -> np.ndarray:
        """Call one operator; its gradient is that of all its inputs that are arrays."""
        cell = self.around
        place = self.order[cell]
        self.order[cell] += 1
        for extra in self.extras:
            if (extra.cell, extra.before) == (cell, place):
                given = (inputs[0], 0.0)
                copied = self._call(
                    extra.operator,
                    extra.text or text,
                    lambda x, _, factor=extra.factor: np.array(x * np.float32(factor)),
                    lambda g, factor=extra.factor: (g * np.float32(factor),),
                    given,
                    None,
                )
                self.added.add(self.called[-1][2])
                inputs = (copied, *inputs[1:])
        nth = self.seen[cell, operator]
        self.seen[cell, operator] += 1
        plant = next(
            (p for p in self.plants if (p.cell, p.operator, p.nth) == (cell, operator, nth)), None
        )
        return self._call(operator, text, function, gradient, inputs, plant)

    def _call(self, operator, text, function, gradient, inputs, plant) -> np.ndarray:
        kind, _, own = operator.partition(".")
        number = self.calls[operator]
        self.calls[operator] += 1
        name = operator_entry(kind, own, number)
        cell = self.around
        self.called.append((cell, operator, name))
        opening = self.recording.opening
        frames = (f"File /home/u/net.py, line {10 + len(text)}, in construct, \n {text}",)
        running = self.recording._running
        parent = next((call.entry for call in reversed(running) if call.recorded), None)
        line = opening.line(name, opening.now(), None, parent, frames=frames if self.stacks else ())
        line.around = cell
        line.values["input_args"] = [
            opening.describe(value, f"{name}.input.{i}") for i, value in enumerate(inputs)
        ]
        line.values["input_kwargs"] = {}
        output = np.asarray(function(*inputs))
        if plant is not None and not plant.backward:
            output = plant.change(output)
        line.values["output"] = [opening.describe(output, f"{name}.output.0")]
        line.end = opening.now()
        if self.recording.config.records_cell(cell):
            opening.entries.append(line)
        self.steps.append(_Step(name, gradient, inputs, output, cell, plant))
        return output

    def go_back(self, loss: np.ndarray) -> dict[int, np.ndarray]:
        """Record the backward pass; return the gradient of each array by its identity."""
        grads: dict[int, np.ndarray] = {id(loss): np.ones_like(loss)}
        opening = self.recording.opening
        for step in reversed(self.steps):
            arriving = grads.get(id(step.output))
            if arriving is None:
                continue
            name = step.name.replace(".forward", ".backward")
            line = opening.line(name, opening.now())
            line.around = step.around
            line.values["input"] = [opening.describe(arriving, f"{name}.input.0")]
            given = step.gradient(arriving)
            if step.planted is not None and step.planted.backward:
                given = (step.planted.change(given[0]), *given[1:])
            line.values["output"] = [
                opening.describe(g, f"{name}.output.{i}") for i, g in enumerate(given)
            ]
            line.end = opening.now()
            if self.recording.config.records_cell(step.around):
                opening.entries.append(line)
            arrays = [value for value in step.inputs if isinstance(value, np.ndarray)]
            for value, gradient in zip(arrays, given):
                known = grads.get(id(value))
                grads[id(value)] = gradient if known is None else known + gradient
        return grads

    def matmul(self, x: np.ndarray, y: np.ndarray, text: str) -> np.ndarray:
        return self.op("Mint.matmul", text, np.matmul, lambda g: (g @ y.T, x.T @ g), x, y)

    def softmax(self, x: np.ndarray, text: str) -> np.ndarray:
        def forward(x, _axis):
            e = np.exp(x - x.max(-1, keepdims=True))
            return e / e.sum(-1, keepdims=True)

        s = forward(x, -1)
        return self.op(
            "Functional.softmax",
            text,
            forward,
            lambda g: (s * (g - (g * s).sum(-1, keepdims=True)),),
            x,
            -1,
        )

    def attention(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        q = self.matmul(x, weight, "q = mint.matmul(x, self.weight)")
        scores = self.op(
            "Tensor.__mul__",
            "scores = q * 0.5",
            lambda a, b: a * np.float32(b),
            lambda g: (g * np.float32(0.5),),
            q,
            0.5,
        )
        shares = self.softmax(scores, "shares = ops.softmax(scores, -1)")
        for _ in range(3):
            shares = self.op(
                "Mint.tanh",
                "shares = mint.tanh(shares)",
                np.tanh,
                lambda g, s=shares: (g * (1 - np.tanh(s) ** 2),),
                shares,
            )
        mixed = self.matmul(shares, weight, "mixed = mint.matmul(shares, self.weight)")
        return self.op("Mint.add", "return mint.add(mixed, x)", np.add, lambda g: (g, g), mixed, x)

    def loss(self, x: np.ndarray) -> np.ndarray:
        shares = self.softmax(x, "probs = ops.softmax(logits, -1)")
        logs = self.op(
            "Mint.log", "log_probs = mint.log(probs)", np.log, lambda g: (g / shares,), shares
        )
        mean = self.op(
            "Mint.mean",
            "return -mint.mean(log_probs)",
            np.mean,
            lambda g: (np.full_like(logs, g / logs.size),),
            logs,
        )
        return self.op(
            "Tensor.__neg__", "return -mint.mean(log_probs)", np.negative, lambda g: (-g,), mean
        )


def record_operators(
    root: Path,
    *,
    plants: Iterable[Plant] = (),
    extras: Iterable[Extra] = (),
    every_other: Iterable[Extra] = (),
    stacks: bool = True,
    backward: bool = True,
    cells: bool = True,
    seed: int = 0,
    batches: Sequence[int] = (4,),
    phase: str = UPDATE,
    steps: int = 1,
    save_loss: bool = True,
    **settings: Any,
) -> Program:
    """Record steps with their operators, and return what ran in the last one.

    Args:
        every_other: extras of every other step alone.
        batches: how many rows the network is given at once, one call after another.
        stacks: whether call stacks are recorded.
        cells: whether the cells themselves are, as at level mix.
    """
    settings = {"level": "mix" if cells else "L1", **settings}
    recording = Recording(Path(root), **settings)
    random = np.random.default_rng(seed)
    x = random.normal(size=(sum(batches), 4)).astype(np.float32)
    weights = [random.normal(size=(4, 4)).astype(np.float32) * 0.5 for _ in LAYERS]
    for step in range(steps):
        now = (*extras, *(every_other if step % 2 else ()))
        program = Program(recording, tuple(plants), now, stacks, cells)
        with recording.phase(phase):
            for end, rows in zip(itertools.accumulate(batches), batches):
                loss = program.run(x[end - rows : end], weights)
                if backward:
                    program.go_back(loss)
                program.steps.clear()
        if save_loss:
            recording.data("loss", loss)
        recording.end_step()
    recording.close()
    return program
