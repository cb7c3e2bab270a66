"""Rollouts and other values of a training: recorded, and played again in another one.

`probe.rollout(generate, batch)` and `probe.replace(name, value)` save what the training computes
under keys of their own. In a run with `rollout_from` or `replace` they return what another run
saved there instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.capture.playback.forms import Form, opaque_parts, put_together, take_apart
from mindrlhf_msprobe.capture.playback.generators import check_own, put_back, states_of_generators
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import CYCLE, NAME, SAME, ProbeConfig
from mindrlhf_msprobe.errors import MsprobeError, RunError, UsageError
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import BATCH, GENERATE, REPLACED, ROLLOUT
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, loads
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.coverage import PHASES
from mindrlhf_msprobe.storage.manifest.manifest import Replaced
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run, open_run
from mindrlhf_msprobe.storage.step_lines import NO_LINE, generator_lines
from mindrlhf_msprobe.storage.writing.ledger import Counted

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder

#: The place in a value, what was recorded there, and what is given.
Difference = tuple[str, Message | str, Message | str]

#: Elements of a tensor that an error shows.
SHOWN = 6


@dataclass(frozen=True)
class Recorded:
    """One value as it was recorded: its form, and of each leaf the description and the content.

    Attributes:
        root, step, call: where.
    """

    root: Path
    step: int
    call: int
    form: Form
    leaves: Sequence[tuple[Leaf, Any]]

    @property
    def value(self) -> Any:
        """The value: as it was, in memory of its own."""
        return put_together(self.form, self.leaves)


class RecordedCalls:
    """The recorded calls under one key of a run.

    Args:
        root: the run's directory.
        key: as the key data are called that hold them.
        rank: whose.

    Raises:
        RunError: there is no such run, or it holds no such calls of this rank.
    """

    def __init__(self, root: Path, key: str, rank: int) -> None:
        self.root, self._key, self._rank = root, key, rank
        self._run: Run = open_run(root)
        self.steps = sorted({datum.step for datum in self._run.key_data(key, rank=rank)})
        if not self.steps:
            keys = sorted(self._run.keys)
            shown = ", ".join(keys) or message("console.no_value")
            raise RunError.saying(
                "error.playback_no_calls", path=root, rank=rank, key=key, keys=shown
            )

    def played(self, step: int, source: int, call: int) -> Recorded:
        """Return what was recorded of a call, to be played in a step.

        Args:
            source: the step in which it was recorded.

        Raises:
            UsageError: nothing was recorded of it.
            RunError: it cannot be read.
        """
        found = self.at(source, call)
        if found is None:
            raise UsageError.saying(
                "error.playback_no_call",
                key=self._key,
                step=step,
                source=source,
                call=call,
                calls=len(self._run.key_data(self._key, step=source, rank=self._rank)),
                path=self.root,
                first=self.steps[0],
                last=self.steps[-1],
            )
        return found

    def at(self, step: int, call: int, part: str = "") -> Recorded | None:
        """Return what was recorded of a call; None if nothing was.

        Args:
            part: "" the value, `.batch` what it was computed of.

        Raises:
            RunError: it cannot be read.
        """
        key = self._key + part
        for datum in self._run.key_data(key, step=step, rank=self._rank):
            if datum.micro_step == call:
                try:
                    form, leaves = _read(datum)
                    return Recorded(self.root, step, call, form, leaves)
                except MsprobeError as error:
                    why: Any = error.said
                except (ArrayFileError, KeyError, IndexError, TypeError, ValueError) as error:
                    why = getattr(error, "said", None) or str(error) or type(error).__name__
                raise RunError.saying(
                    "error.playback_unread", path=self.root, key=key, step=step, call=call, why=why
                )
        return None


def _read(datum: KeyDatum) -> tuple[Form, list[tuple[Leaf, Any]]]:
    unread = next((r.leaf.why for r in datum.records if r.leaf.why is not None), None)
    if unread is not None:
        raise ArrayFileError(unread)
    by_path = {record.path: record for record in datum.records}
    form = loads(by_path["form"].leaf.value.encode("utf-8"))
    leaves: list[tuple[Leaf, Any]] = []
    while (record := by_path.get(f"leaves.{len(leaves)}")) is not None:
        text = record.leaf.type == "str"
        leaves.append((record.leaf, record.leaf.value if text else record.array()))
    return form, leaves


def differences(
    recorded: Recorded, form: Form, leaves: Sequence[Any], *, values: bool = True
) -> Iterator[Difference]:
    """Yield where a value is not the one that was recorded: the place, what was, and what is.

    Args:
        values: whether elements, texts and numbers must be the same, not only shapes and dtypes.
    """
    yield from _Compared(recorded, leaves, values).forms("", recorded.form, form)


class _Compared:
    """A recorded value beside a given one."""

    def __init__(self, recorded: Recorded, leaves: Sequence[Any], values: bool) -> None:
        self._recorded, self._leaves, self._values = recorded.leaves, leaves, values

    def forms(self, at: str, a: Form, b: Form) -> Iterator[Difference]:
        (kind, left), (other, right) = next(iter(a.items())), next(iter(b.items()))
        if kind != other or (kind in ("record", "opaque") and left != right):
            yield at, _content_said(kind, left), _content_said(other, right)
        elif kind in ("leaf", "scalar"):
            yield from self._tensors(at, *self._recorded[left], self._leaves[right])
        elif kind in ("list", "tuple", "array", "dict", "record"):
            items, others = (_items(kind, side) for side in (a, b))
            if items.keys() != others.keys() or a.get("shape") != b.get("shape"):
                yield at, _content_said(kind, left), _content_said(kind, right)
                return
            for name, item in items.items():
                yield from self.forms(at + name, item, others[name])
        elif self._values:
            shown = _content_said(kind, left), _content_said(kind, right)
            if kind == "text":
                shown = repr(self._recorded[left][1]), repr(self._leaves[right])
            if shown[0] != shown[1]:
                yield at, *shown

    def _tensors(self, at: str, leaf: Leaf, a: Any, given: Any) -> Iterator[Difference]:
        host = to_host(given)
        b = host.values()
        same = (leaf.dtype, a.shape) == (host.dtype, b.shape)
        if same and self._values:
            same = bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
        if not same:
            yield at, _elements(leaf.dtype, a), _elements(host.dtype, b)


def _items(kind: str, form: Form) -> dict[str, Form]:
    """Return what a structure holds, by how it is reached: `[0]`, `['ids']`, `.mask`."""
    if kind == "record":
        return {f".{name}": item for name, item in form["fields"]}
    if kind == "dict":
        return {f"[{key.get('value', key)!r}]": item for key, item in form["dict"]}
    return {f"[{i}]": item for i, item in enumerate(form[kind])}


def _content_said(kind: str, content: Any) -> Message | str:
    if kind in ("list", "tuple", "dict", "array"):
        return message("error.playback_items", kind=kind, count=len(content))
    if kind in ("leaf", "scalar", "text"):
        return message("lost.tensor" if kind != "text" else "error.playback_text")
    return str(content)


def _elements(dtype: str | None, array: np.ndarray) -> str:
    some = ", ".join(map(str, array.reshape(-1)[:SHOWN].tolist()))
    return f"{dtype} {list(array.shape)} [{some}{', …' if array.size > SHOWN else ''}]"


#: Of run.json: the first step in which what was played had been generated of another batch.
OTHER_BATCH = "other_batch_in_step"
#: Of run.json: whether generators were put into the states behind the recorded rollouts.
GENERATORS = "generators"
#: Differences that an error lists.
_LISTED = 3


class Playback:
    """What is played in one process, and what is recorded so that it can be played.

    Args:
        config: with `rollout_from` and `replace`.
        rank: this process's. One that is not recorded plays all the same.

    Raises:
        RunError: a run that is to be played is none, is the one that is recorded, or holds
            nothing to play.
    """

    def __init__(self, config: ProbeConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._recorder: Recorder | None = None
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str], int] = {}
        self._rollouts: RecordedCalls | None = None
        self._order: Order | None = None
        own = Path(config.dump_path).expanduser().resolve()

        def calls(run: str, key: str) -> RecordedCalls:
            root = Path(run).expanduser().absolute()
            if root.resolve() == own:
                option = "rollout_from" if key == ROLLOUT else "replace"
                raise RunError.saying("error.run_itself", key=option, path=run)
            return RecordedCalls(root, key, rank)

        if config.rollout_from:
            self._rollouts = calls(config.rollout_from, ROLLOUT)
            self._order = Order(config, self._rollouts.steps, self._rollouts.root)
        self._values = {
            name: calls(run, f"{REPLACED}.{name}") for name, run in config.replace.items()
        }
        # What run.json says of it: name → the run and the order.
        self._played_from: dict[str, dict[str, Any]] = {}
        if self._rollouts is not None and self._order is not None:
            self._played_from[ROLLOUT] = {
                "from": str(self._rollouts.root),
                "order": config.rollout_order,
                "steps": [self._order.steps[0], self._order.steps[-1]],
            }
        for name, of_value in self._values.items():
            self._played_from[name] = {"from": str(of_value.root)}
        for name, what in self._played_from.items():
            warn("log.played", name=name, path=what["from"])

    @property
    def plays(self) -> bool:
        """Whether the training goes on with anything of another run."""
        return bool(self._played_from)

    def record(self, recorder: Recorder) -> None:
        """Record what is computed and played from now on, and that it is played."""
        self._recorder = recorder
        if self._played_from:
            self._note_played()
        generates = self._config.phase_table()[GENERATE]
        if self._rollouts is not None and self._config.records_phase(generates):
            why = message("coverage.rollout_played", path=str(self._rollouts.root))
            recorder.leave_out(PHASES, GENERATE, why, quiet=True)

    def _note_played(self) -> None:
        if self._recorder is not None:
            played = {name: {**what} for name, what in self._played_from.items()}
            self._recorder.note(Replaced("played", played))

    def rollout(
        self, generate: Callable[[Any], Any], batch: Any, step: int, generators: Sequence[Any] = ()
    ) -> Any:
        """Return what is played in the place of `generate(batch)`, or that; record both.

        Args:
            generators: the trainer's own, beside the default ones.

        Raises:
            UsageError: the recorded step or call is not there, or had another batch, or other
                generators; or one of them is none.
        """
        check_own(generators)
        call = self._next(step, ROLLOUT)
        form, leaves = self._taken_apart(ROLLOUT + BATCH, batch)
        self._save(ROLLOUT + BATCH, form, leaves, call)
        played = None if self._rollouts is None else self._played(step, call, form, leaves)
        value = generate(batch) if played is None else played.value
        self._save_whole(ROLLOUT, value, call)
        if played is not None:
            self._put_generators_back(step, call, generators)
        recorder = self._recorder
        if recorder is not None and self._config.key_data_dump:
            with Counted(recorder.fault, "lost.random_states"):
                states = states_of_generators(generators)
                line = {"step": step, "call": call, "states": states}
                generator_lines(recorder.root, self._rank).append([line])
        return value

    def _put_generators_back(self, step: int, call: int, own: Sequence[Any]) -> None:
        """Let what is drawn behind a played rollout be what was drawn behind the recorded one.

        Only with the recorded step of the same number: else numbers would be drawn twice.

        Raises:
            RunError: the states that were recorded cannot be used.
            UsageError: other generators were recorded.
        """
        assert self._rollouts is not None
        if self._config.rollout_order != SAME:
            return
        root = self._rollouts.root
        states = None
        for at, of in generator_lines(root, self._rank).read():
            states = of if at == (step, call) else states  # as they were written last
        if states is not None:
            try:
                put_back(states, own)
            except UsageError:
                raise
            except (*NO_LINE, RuntimeError) as error:
                where = {"key": GENERATORS, "step": step, "call": call}
                raise RunError.saying(
                    "error.playback_unread", path=root, **where, why=str(error)
                ) from None
        noted = self._played_from[ROLLOUT]
        known = states is not None and ("own" in states or not own)
        found = known and noted.get(GENERATORS) is not False
        if noted.get(GENERATORS) is not found:
            noted[GENERATORS] = found
            self._note_played()
            if not found:
                warn("log.generators_not_put_back", step=step, path=root)

    def replace(self, name: str, value: Any, step: int) -> Any:
        """Return what is played in the place of `value`, or that; record it.

        Raises:
            UsageError: the recorded call is not there, or its value has other shapes or dtypes.
        """
        key = f"{REPLACED}.{name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError.saying("error.playback_name", name=name)
        call = self._next(step, key)
        calls = self._values.get(name)
        if calls is not None:
            recorded = calls.played(step, step, call)
            _refuse(name, recorded, *take_apart(value), values=False)
            value = recorded.value
        self._save_whole(key, value, call)
        return value

    def _next(self, step: int, key: str) -> int:
        with self._lock:
            call = self._counts.get((step, key), 0)
            self._counts = {at: n for at, n in self._counts.items() if at[0] >= step}
            self._counts[step, key] = call + 1
            return call

    def _played(self, step: int, call: int, form: Form, leaves: Sequence[Any]) -> Recorded | None:
        assert self._rollouts is not None
        assert self._order is not None
        source = self._order.source_of(step)
        if source is None:
            return None
        recorded = self._rollouts.played(step, source, call)
        batch = self._rollouts.at(source, call, BATCH)
        if batch is None:
            raise UsageError.saying(
                "error.playback_no_batch", path=self._rollouts.root, step=source, call=call
            )
        same = self._config.rollout_order == SAME
        _refuse(ROLLOUT, batch, form, leaves, values=same)
        noted = self._played_from[ROLLOUT]
        found = None
        if not same and OTHER_BATCH not in noted:
            found = next(differences(batch, form, leaves), None)
        if found is not None:  # what is played answers another batch, which is said once
            noted[OTHER_BATCH] = step
            self._note_played()
            place = {"step": step, "source": source, "call": call}
            warn("log.played_other_batch", **place, difference=_said(found))
        return recorded

    def _taken_apart(self, key: str, value: Any) -> tuple[Form, list[Any]]:
        """Take a value apart; what raises when it is looked at does not come back."""
        try:
            return take_apart(value)
        except Exception as error:
            if self._recorder is not None:
                self._recorder.fault(message("lost.key_data", key=key), error)
            return {"opaque": type(value).__name__}, []

    def _save_whole(self, key: str, value: Any, call: int) -> None:
        form, leaves = self._taken_apart(key, value)
        parts = sorted(set(opaque_parts(form)))
        if parts and self._recorder is not None:
            why = TypeError(message("error.playback_opaque", name=", ".join(parts)))
            self._recorder.fault(message("lost.key_data", key=key), why)
            return
        self._save(key, form, leaves, call)

    def _save(self, key: str, form: Form, leaves: Sequence[Any], call: int) -> None:
        if self._recorder is not None and self._config.key_data_dump:
            content = {"form": dump_json(form).decode("utf-8"), "leaves": [*leaves]}
            self._recorder.saves.save(key, content, (call,))


def _refuse(
    name: str, recorded: Recorded, form: Form, leaves: Sequence[Any], *, values: bool
) -> None:
    """Raise an error that shows both, if a value is not the one that was recorded."""
    found = list(differences(recorded, form, leaves, values=values))
    if not found:
        return
    lines = [_said(one) for one in found[:_LISTED]]
    raise UsageError.saying(
        "error.playback_differs",
        name=name,
        path=recorded.root,
        step=recorded.step,
        call=recorded.call,
        differences=lines,
        more=max(0, len(found) - _LISTED),
        batch=name == ROLLOUT,
    )


def _said(difference: Difference) -> Message:
    at, a, b = difference
    return message("error.playback_difference", at=at or message("error.playback_whole"), a=a, b=b)


class Order:
    """Which recorded step is played in which step of the training.

    Args:
        config: `rollout_order`, `rollout_seed`, `rollout_steps`, and the number of its first step.
        recorded: the steps of which there are rollouts.
        root: whose they are.

    Raises:
        RunError: none of them lies in `rollout_steps`.
    """

    def __init__(self, config: ProbeConfig, recorded: Sequence[int], root: Path) -> None:
        self._config, self._window = config, config.rollout_steps
        self.steps = [step for step in recorded if self._in_window(step)]
        if not self.steps:
            first, last = self._window
            raise RunError.saying(
                "error.playback_no_steps",
                first=first,
                last=last,
                path=root,
                steps=", ".join(map(str, recorded)),
            )

    def _in_window(self, step: int) -> bool:
        return not self._window or self._window[0] <= step <= self._window[1]

    def source_of(self, step: int) -> int | None:
        """Return the recorded step that is played in a step; None if nothing is."""
        if self._config.rollout_order == SAME:
            return step if self._in_window(step) else None
        turn, place = divmod(step - self._config.initial_step, len(self.steps))
        if self._config.rollout_order == CYCLE:
            return self.steps[place]
        draws = np.random.default_rng([self._config.rollout_seed, max(turn, 0)])
        return self.steps[int(draws.permutation(len(self.steps))[place])]
