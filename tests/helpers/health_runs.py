"""Runs entry by entry, for checks: what each record holds is written down, not computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.runs import Recording
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf

NAN, INF = float("nan"), float("inf")


def tensor(
    high: float = 1.0,
    low: float = -1.0,
    *,
    nan: int = 0,
    inf: int = 0,
    dtype: str = "Float32",
    shape: Sequence[int] = (2, 3),
    fingerprint: str | None = None,
    **others: Any,
) -> Leaf:
    """Return the description of a tensor; with NaN in it its statistics are NaN."""
    whole = {"max": high, "min": low, "mean": (high + low) / 2, "norm": 1.0}
    if nan:
        whole = dict.fromkeys(whole, NAN)
    return Leaf(
        "mindspore.Tensor",
        dtype,
        tuple(shape),
        **{**whole, **others},
        nan_count=nan,
        inf_count=inf,
        fingerprint=fingerprint,
    )


def a_nan(**others: Any) -> Leaf:
    """Return a tensor with one NaN."""
    return tensor(nan=1, **others)


def an_inf(**others: Any) -> Leaf:
    """Return a tensor with one infinity."""
    return tensor(INF, inf=1, **{"mean": INF, "norm": INF, **others})


def masking(high: float = 0.0, **others: Any) -> Leaf:
    """Return a tensor of which some elements are -inf."""
    return tensor(high, -INF, inf=2, mean=-INF, norm=INF, **others)


class HealthRun:
    """One rank of a run; time is counted by what is written."""

    def __init__(self, root: Path, rank: int = 0, **settings: Any) -> None:
        self.recording = Recording(root, rank=rank, **settings)
        self._inside: list[str] = []
        self._lines: list[JournalLine] = []
        self._phase = "actor_update"
        self._calls: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Open a phase."""
        with self.recording.phase(name):
            self._phase = name
            yield

    @contextmanager
    def cell(
        self,
        cell: str,
        given: Leaf | None = None,
        output: Leaf | None = None,
        *,
        kind: str = "Dense",
        direction: str = "forward",
        parameters: dict[str, Leaf] | None = None,
        frames: tuple[str, ...] = (),
    ) -> Iterator[None]:
        """Run a cell, and inside it what the block does."""
        call_name = f"Cell.{cell}.{kind}.{direction}"
        at = f"{self._phase} {call_name}"
        call = self._calls[at] = self._calls.get(at, -1) + 1
        name = f"{call_name}.{call}"
        line = JournalLine(name, self._now(), parent=self._inside[-1] if self._inside else None)
        line.frames = frames
        given, output = given or tensor(), output or tensor()
        first = "input_args" if direction == "forward" else "input"
        line.values = {first: [given.to_json()], "output": [output.to_json()]}
        if parameters:
            line.values["parameters"] = {n: leaf.to_json() for n, leaf in parameters.items()}
        self._inside.append(name)
        yield
        self._inside.pop()
        line.end = self._now()
        self._append(line)

    def call(self, cell: str, given: Leaf | None = None, output: Leaf | None = None, **how: Any):
        """Run a cell with nothing inside it."""
        with self.cell(cell, given, output, **how):
            pass

    def gradients(self, cell: str, kind: str = "Dense", **of: Leaf) -> None:
        """Record gradients of a cell's parameters."""
        at = f"{self._phase} {cell} gradients"
        number = self._calls[at] = self._calls.get(at, -1) + 1
        line = JournalLine(f"Cell.{cell}.{kind}.parameters_grad.{number}", self._now())
        line.end = line.seq
        line.values = {"parameters_grad": {name: [leaf.to_json()] for name, leaf in of.items()}}
        self._append(line)

    def data(self, key: str, value: Any) -> None:
        """Save key data."""
        self.recording.data(key, value)

    def end_step(self) -> None:
        """End the step."""
        self._calls.clear()
        self.recording.end_step()

    def close(self) -> Path:
        """End the run."""
        return self.recording.close()

    def _now(self) -> int:
        return next(self.recording._sequence)

    def _append(self, line: JournalLine) -> None:
        self.recording.writer.sink(self._phase, self.recording.step).append(line)


def steps_of(
    root: Path, steps: int = 1, ranks: Iterable[int] = (0,), **settings: Any
) -> Iterator[tuple[HealthRun, int, int]]:
    """Yield each step of each rank of a run, with its number and rank, to be recorded.

    A step ends when the next one is asked for, and the run behind the last one.
    """
    for rank in ranks:
        run = HealthRun(root, rank, **settings)
        for step in range(steps):
            yield run, step, rank
            run.end_step()
        run.close()
