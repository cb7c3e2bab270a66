"""Small trainings in plain numpy, recorded through the real writer: runs with known answers.

`record_training` plays one job: every step generates, scores with three networks, computes rewards
and advantages, and updates two networks, whose weights it really changes. A `Fault` changes the
value at one named place, so the cell that ought to be blamed is known. What the configuration
switches off is not recorded, as with the real probe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.opening.opening import (
    Call,
    CellSlot,
    HostEntries,
    Opening,
    StepCounters,
    TokenCounter,
)
from mindrlhf_msprobe.capture.recording.saves import describe_key_data
from mindrlhf_msprobe.capture.tensors.summary import Summaries
from mindrlhf_msprobe.common.message import Message, in_words
from mindrlhf_msprobe.config import ProbeConfig, Selection
from mindrlhf_msprobe.storage.manifest.claim import remove_dumps
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.writer import RunWriter

MSPROBE_DATA = Path(__file__).parent / "data" / "msprobe"

#: The phases of a training with a critic, in the order of a step.
PHASES = [
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "critic_compute_values",
    "actor_update",
    "critic_update",
]
EVERYTHING = {
    "msprobe": True,
    "key_data_dump": True,
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "reference_dump": True,
    "critic_train_dump": True,
    "token_range_end": 99,
    "step_end": 99,
}
WIDTH = 6


def slightly_more(value: Any) -> Any:
    """Return `value` with its first element a little larger."""
    changed = np.array(value)
    changed.reshape(-1)[0] += np.asarray(0.01).astype(changed.dtype) or 1
    return changed


def a_nan(value: Any) -> Any:
    """Return `value` with a NaN as its first element."""
    changed = np.array(value)
    changed.reshape(-1)[0] = np.nan
    return changed


@dataclass(frozen=True)
class Fault:
    """A change at one place of a run, at one step and all later ones unless `only` is set."""

    place: str
    phase: str | None = None
    step: int = 0
    rank: int = 0
    change: Callable[[Any], Any] = slightly_more
    call: int | None = None

    def hits(self, place: str, phase: str | None, step: int, rank: int, call: int | None) -> bool:
        return (
            place == self.place
            and phase == self.phase
            and step >= self.step
            and rank == self.rank
            and self.call in (None, call)
        )


def leave_as_killed(writer: RunWriter) -> None:
    """Leave a run as a killed process does: what was handed over is on disk, the run not ended."""
    writer.wait()
    writer.abandon()
    writer.manifest._lock.release()


class Recording:
    """One rank of one run: what the probe does, without the framework."""

    def __init__(
        self,
        root: Path,
        *,
        rank: int = 0,
        step: int = 0,
        faults: Iterable[Fault] = (),
        **settings: Any,
    ) -> None:
        self.config = ProbeConfig(**{**EVERYTHING, "dump_path": str(root), **settings})
        self.writer = RunWriter(
            Path(root),
            rank=rank,
            config=self.config.to_json(),
            existing=self.config.existing,
            task=self.config.task,
            keep_bytes=self.config.keep_mb << 20,
        )
        self.root, self.rank, self.step = Path(root), rank, step
        if self.writer.continues:  # as `Manifest.begin`, which takes the step for the run's first
            remove_dumps(self.root, lambda at, of: of == rank and at >= step)
        self._faults = tuple(faults)
        self._sequence = itertools.count()
        self._summaries = Summaries()
        self._running: list[Call] = []
        self._phase: str | None = None
        self._forget_step()

    def _forget_step(self) -> None:
        self._counters: dict[str, StepCounters] = {}
        self._micro_steps: dict[str, int] = {}
        self._begun: str | None = None  # the phase that was entered last

    def touch(self, place: str, value: Any, call: int | None = None) -> Any:
        """Return `value`, changed if a fault was planted at this place."""
        for fault in self._faults:
            if fault.hits(place, self._phase, self.step, self.rank, call):
                value = fault.change(value)
        return value

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Open a phase."""
        self._phase = self._begun = name
        self.opening = self._opened(name)
        self._tokens = TokenCounter(self.opening.records_token)
        yield
        self._phase = None

    def _opened(self, name: str) -> Opening:
        """Return what the recorder makes when a phase opens, without a network."""
        counters = self._counters.setdefault(name, StepCounters(Selection(self.config)))
        counters.openings += 1
        return Opening(
            number=counters.openings - 1,
            root=None,  # type: ignore[arg-type]
            counters=counters,
            sequence=self._sequence,
            entries=HostEntries(
                self.writer.sink(name, self.step),
                self._summaries,
                fingerprint=self.config.fingerprint,
                charge=Ledger().charge(name),
                fault=_raise,
                elements=self.config.task == "tensor",
                sketches=self.config.task == "sketch",
            ),
            is_recorded=self.config.records_cell,
            records_token=self.config.records_token
            if self.config.phase_table()[name].counts_tokens
            else None,
            with_parameters=self.config.parameters,
            directions=self.config.directions,
            parameter_hooks=None,  # type: ignore[arg-type]
            buffer_bytes=0,
            fault=_raise,
        )

    def call(
        self,
        cell: str,
        class_name: str,
        function: Callable[..., Any],
        *inputs: Any,
        parameters: dict[str, np.ndarray] | None = None,
        frames: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> Any:
        """Run one cell and record it, its children inside it."""
        assert self._phase is not None
        opening, slot = self.opening, CellSlot(cell, class_name, True)
        token, in_range = self._tokens.begin(hash(cell), outermost=not self._running)
        recorded = (
            self.config.records_phase(self.config.phase_table()[self._phase])
            and self.config.records_step(self.step)
            and opening.is_recorded(cell)
        )
        made = Call(opening, "", token, recorded and in_range)
        made.inside(self._running[-1] if self._running else None)
        call = opening.counters.calls.count(slot.call_name)
        made.begin(f"{slot.call_name}.{call}")
        made.given(inputs, kwargs, frames=frames)
        if made.line is not None and opening.with_parameters and opening.selection.outputs:
            changed = {
                parameter: value
                for parameter, value in (parameters or {}).items()
                if opening.counters.parameters.changes(
                    f"{slot.call_name}.{parameter}", opening.entries.state_of(value)
                )
            }
            if changed:
                described = opening.describe(changed, f"{made.entry}.parameters")
                made.line.values["parameters"] = described
        self._running.append(made)
        try:
            output = self.touch(cell, function(*inputs, **kwargs), call)
        finally:
            self._running.pop()
        made.returned(output)
        return output

    def data(self, key: str, value: Any) -> None:
        """Save key data."""
        if not self.config.key_data_dump:
            return
        micro_step = self._micro_steps.get(key, 0)
        self._micro_steps[key] = micro_step + 1
        described = describe_key_data(key, value, fingerprint=self.config.fingerprint)
        seq = next(self._sequence)
        content = {"seq": seq, "phase": self._begun, "data": described.structure}
        self.writer.save_key_data(key, self.step, micro_step, lambda: content, described.arrays)

    def end_step(self) -> None:
        """End the step and begin the next one."""
        self.writer.end_step(self.step, {})
        self.step += 1
        self._forget_step()

    def close(self) -> Path:
        """End the run and return its directory."""
        self.writer.end_step(self.step, {}, complete=False)
        self.writer.close()
        return self.root


def record_data(
    root: Path, *steps: Iterable[tuple[str, Any]], configurations: Any = None, **settings: Any
) -> Path:
    """Record steps of key data alone, each a list of (key, value); return the run."""
    recording = Recording(root, **settings)
    if configurations is not None:
        recording.writer.save_configurations(lambda: configurations)
    for saves in steps:
        for key, value in saves:
            recording.data(key, value)
        recording.end_step()
    return recording.close()


def words(lost: Mapping[Message, int]) -> dict[str, int]:
    """Return what was lost, by the words of each kind."""
    return {in_words(kind, "en"): count for kind, count in lost.items()}


def _raise(what: Message, error: BaseException) -> None:
    raise error


class Network:
    """Two blocks of attention and mlp around a residual, then a head; weights are numpy arrays."""

    CELLS = ("embed", "layers.0.attention", "layers.0.mlp", "layers.1.attention", "layers.1.mlp")

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        names = (*self.CELLS, "head")
        self.weights = {
            name: random.normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.4 for name in names
        }

    def run(self, recording: Recording, x: np.ndarray) -> np.ndarray:
        """Return the output for `x`, shape (…, WIDTH)."""
        return recording.call("root", "Network", lambda x: self._root(recording, x), x)

    def _leaf(self, recording: Recording, name: str, x: np.ndarray) -> np.ndarray:
        weight = self.weights[name]
        result: np.ndarray = recording.call(
            name, "Dense", lambda x: np.tanh(x @ weight), x, parameters={"weight": weight}
        )
        return result

    def _root(self, recording: Recording, x: np.ndarray) -> np.ndarray:
        x = self._leaf(recording, "embed", x)
        for index in range(2):
            layer = f"layers.{index}"
            x = recording.call(
                layer, "Block", lambda x, layer=layer: self._block(recording, layer, x), x
            )
        return self._leaf(recording, "head", x)

    def _block(self, recording: Recording, layer: str, x: np.ndarray) -> np.ndarray:
        attended = self._leaf(recording, f"{layer}.attention", x)
        between = recording.touch(f"{layer}:between", attended * 2)
        mixed = self._leaf(recording, f"{layer}.mlp", between)
        result: np.ndarray = recording.touch(f"{layer}:sum", x + mixed)
        return result

    def update(self, recording: Recording, gradient: float) -> None:
        """Move every weight a little, as an optimizer would."""
        for name, weight in self.weights.items():
            moved = weight - np.float32(0.01 * gradient)
            self.weights[name] = recording.touch(f"weights:{name}", moved.astype(np.float32))


def record_training(
    root: Path,
    *,
    steps: int = 2,
    ranks: Sequence[int] = (0,),
    faults: Iterable[Fault] = (),
    rounds: int = 1,
    tokens: int = 3,
    data_at_end: bool = False,
    weights: dict[str, Callable[[Any], Any]] | None = None,
    **settings: Any,
) -> Path:
    """Record a whole training and return its directory.

    Args:
        rounds: how often each step goes through all phases (micro-steps).
        data_at_end: save all key data at the end of the step instead of where they arise.
        weights: what is changed in the actor's weights before the training starts.
    """
    for rank in ranks:
        recording = Recording(root, rank=rank, faults=faults, **settings)
        actor, reference, critic = Network(1), Network(1), Network(2)
        for name, change in (weights or {}).items():
            actor.weights[name] = change(actor.weights[name])
        random = np.random.default_rng(100 + rank)
        for _ in range(steps):
            late: list[tuple[str, Any]] = []
            for _ in range(rounds):
                for key, value in _round(recording, actor, reference, critic, random, tokens):
                    if data_at_end:
                        late.append((key, value))
                    else:
                        recording.data(key, value)
            for key, value in late:
                recording.data(key, value)
            recording.end_step()
        recording.close()
    return Path(root)


def _round(
    recording: Recording,
    actor: Network,
    reference: Network,
    critic: Network,
    random: np.random.Generator,
    tokens: int,
) -> Iterator[tuple[str, Any]]:
    x = recording.touch("prompts", random.normal(size=(2, WIDTH)).astype(np.float32))
    yield "prompts", x
    with recording.phase("actor_generate_sequences"):
        answers = [x]
        for _ in range(tokens):
            answers.append(actor.run(recording, answers[-1]))
    responses = recording.touch("responses", np.stack(answers, axis=1))
    yield "responses", responses
    with recording.phase("actor_compute_log_prob"):
        old_log_prob = actor.run(recording, responses).mean(axis=-1)
    yield "old_log_prob", old_log_prob
    with recording.phase("reference_compute_log_prob"):
        ref_log_prob = reference.run(recording, responses).mean(axis=-1)
    yield "ref_log_prob", ref_log_prob
    with recording.phase("critic_compute_values"):
        values = critic.run(recording, responses).mean(axis=-1)
    yield "values", values
    rewards = recording.touch("rewards", old_log_prob - ref_log_prob + responses.mean(axis=-1))
    yield "rewards", rewards
    advantages = recording.touch("advantages", rewards - values)
    yield "advantages", advantages
    with recording.phase("actor_update"):
        loss = float((actor.run(recording, responses).mean(axis=-1) * advantages).mean())
    actor.update(recording, loss)
    yield "loss", loss
    with recording.phase("critic_update"):
        value_loss = float(((critic.run(recording, responses).mean(axis=-1) - rewards) ** 2).mean())
    critic.update(recording, value_loss)
    yield "value_loss", value_loss
