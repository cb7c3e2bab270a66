"""Small trainings in plain numpy, recorded through the real writer: runs with known answers.

`record_training` plays one job: every step generates, scores with three networks, computes rewards
and advantages, and updates two networks, whose weights it really changes. A `Fault` changes the
value at one named place, so the cell that ought to be blamed is known. What the configuration
switches off is not recorded, as with the real probe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.recording.keydata import describe_key_data
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, is_tensor, summarise, to_host
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.config import ProbeConfig, Selection
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import entry_name
from mindrlhf_msprobe.storage.writing.writer import RunWriter

MSPROBE_DATA = Path(__file__).parent / "data" / "msprobe"

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
        )
        self.root, self.rank, self.step = Path(root), rank, step
        self._faults = tuple(faults)
        self._sequence = itertools.count()
        self._running: list[tuple[str, bool]] = []
        self._token = -1
        self._phase: str | None = None
        self._forget_step()

    def _forget_step(self) -> None:
        self._calls: dict[tuple[str | None, str], int] = {}
        self._parameters: dict[str, str] = {}
        self._selections: dict[str | None, Selection] = {}
        self._openings: dict[str, int] = {}
        self._micro_steps: dict[str, int] = {}

    def touch(self, place: str, value: Any, call: int | None = None) -> Any:
        """Return `value`, changed if a fault was planted at this place."""
        for fault in self._faults:
            if fault.hits(place, self._phase, self.step, self.rank, call):
                value = fault.change(value)
        return value

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Open a phase."""
        self._phase, self._token = name, -1
        self._openings[name] = self._openings.get(name, -1) + 1
        yield
        self._phase = None

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
        phase = self.config.phase_table()[self._phase]
        call = self._calls.get((self._phase, cell), 0)
        self._calls[self._phase, cell] = call + 1
        if not self._running:
            self._token += 1
        name = entry_name(cell, class_name, "forward", call)
        recorded = (
            self.config.records_phase(phase)
            and self.config.records_step(self.step)
            and self.config.records_cell(cell)
            and (not phase.counts_tokens or self.config.records_token(self._token))
        )
        line: JournalLine | None = None
        describe = self._describer().describe
        selection = self._selections.setdefault(self._phase, Selection(self.config))
        recorded = recorded and selection.begin(name)
        if recorded:
            parent = next((n for n, known in reversed(self._running) if known), None)
            token = self._token if phase.counts_tokens else None
            opening = self._openings[self._phase]
            line = JournalLine(name, next(self._sequence), None, parent, opening, token)
            line.frames = frames
            if selection.inputs:
                described = [describe(v, f"{name}.input.{i}") for i, v in enumerate(inputs)]
                line.values["input_args"] = described
                line.values["input_kwargs"] = describe(kwargs, f"{name}.input")
            changed = self._changed_parameters(cell, parameters or {})
            if changed and selection.outputs:
                line.values["parameters"] = describe(changed, f"{name}.parameters")
        self._running.append((name, recorded))
        try:
            output = self.touch(cell, function(*inputs, **kwargs), call)
        finally:
            self._running.pop()
        if line is not None:
            results = list(output) if isinstance(output, tuple) else [output]
            if selection.outputs:
                line.values["output"] = describe(results, f"{name}.output")
            line.end = next(self._sequence)
            self.writer.append_entry(self._phase, self.step, line)
        selection.end(name)
        return output

    def data(self, key: str, value: Any) -> None:
        """Save key data."""
        if not self.config.key_data_dump:
            return
        micro_step = self._micro_steps.get(key, 0)
        self._micro_steps[key] = micro_step + 1
        described = describe_key_data(key, value, fingerprint=self.config.fingerprint)
        content = {"seq": next(self._sequence), "data": described.structure}
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

    def _changed_parameters(self, cell: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if not self.config.parameters:
            return {}
        changed = {}
        for name, value in parameters.items():
            place, state = f"{self._phase} {cell} {name}", fingerprint_of(to_host(value))
            if self._parameters.get(place) != state:
                self._parameters[place] = state
                changed[name] = value
        return changed

    def _describer(self) -> TreeDescriber:
        def tensor(value: Any, record: str) -> Leaf:
            host = to_host(value)
            leaf = summarise(host)
            stored = None
            if self.config.task == "tensor":
                assert self._phase is not None
                stored = self.writer.save_tensor(
                    self._phase, self.step, record, host.values(), leaf.fingerprint
                )
            return leaf.stored(stored, fingerprint=self.config.fingerprint)

        return TreeDescriber(is_tensor, tensor)


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
