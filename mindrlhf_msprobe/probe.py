"""The probe and its phases: what a trainer calls."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mindrlhf_msprobe.capture.arguments import MISSING, checked_cell, checked_tokens, key_data_items
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.config import (
    ACCURACY_CHECK,
    FREE_BENCHMARK,
    ProbeConfig,
    load_config,
    overridden,
)
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.phases import GENERATE, PHASE_TOKENS, ROLES, Phase, names_of
from mindrlhf_msprobe.storage.manifest import coverage

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.playback.playback import Playback
    from mindrlhf_msprobe.capture.recording.recorder import Recorder
    from mindrlhf_msprobe.live.training import Live
    from mindrlhf_msprobe.storage.manifest.run_file import Stop

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Batch = TypeVar("_Batch")
_Value = TypeVar("_Value")
_RUN_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


class Probe:
    """Records what each phase of a reinforcement-learning step computed.

        probe = Probe.from_config("ppo.yaml")
        probe.watch(actor=actor, reference=reference, critic=critic)
        with probe.phase("actor_update"):
            loss = train_step(batch)
        probe.save_data(loss=loss)
        probe.step()

    A probe that is switched off accepts every call and does nothing. Misuse (a phase that is not
    known, `phase` before `watch`, `step()` inside a phase) raises UsageError at once; faults while
    recording never raise, unless the configuration says `strict: true`.

    Args:
        config: what to record; see `from_config` for other sources.

    Raises:
        UsageError: `config` is no ProbeConfig.
        RunError: the dump_path already holds another run, or cannot be written.
    """

    def __init__(self, config: ProbeConfig | None = None) -> None:
        if not isinstance(config, ProbeConfig | None):
            raise UsageError.saying("error.no_config", name=type(config).__name__)
        self._config = overridden(config or ProbeConfig())
        self._phases = self._config.phase_table()
        self._networks: dict[str, Any] = {}
        self._open: PhaseContext | None = None
        self._lock = threading.RLock()  # a phase belongs to the step in which it is opened
        self._closed = self._ended = False
        self._stop: Stop | None = None
        # Handled around this run, or of a session before it: none that ends it.
        self._raised_before = {id(getattr(sys, "last_value", None)), id(sys.exc_info()[1])}
        self._recorder: Recorder | None = None
        self._live: Live | None = None
        self._playback: Playback | None = None
        self._steps_ended = 0  # where nothing is recorded, and something is played
        if self._config.msprobe:
            self._start()
        else:
            CURRENT.expected = True

    @classmethod
    def from_config(cls, source: Any) -> Probe:
        """Make a probe from a YAML path, a mapping, a dataclass or an object with attributes.

        Takes the section `msprobe_config` of the source if there is one.

        Raises:
            ConfigError: the configuration is wrong; the message names key, value and expectation.
            RunError: the dump_path already holds another run, or cannot be written.
        """
        return cls(load_config(source))

    def _start(self) -> None:
        from mindrlhf_msprobe import log
        from mindrlhf_msprobe.capture.recording.recorder import Recorder, current_rank

        rank = current_rank(os.environ)
        log.configure(rank)
        scheduler = os.environ.get("MS_ROLE") == "MS_SCHED"  # msrun's runs the script, too
        recorded = not scheduler and self._config.records_rank(rank)
        # A rank that is not recorded ends with those that are.
        looks = self._config.on_finding, self._config.tensorboard, self._config.compare_to
        if any(looks) and (recorded or (self._config.may_stop and not scheduler)):
            from mindrlhf_msprobe.live.training import Live

            self._live = Live(self._config)
        if self._config.plays and not scheduler:
            from mindrlhf_msprobe.capture.playback.playback import Playback

            self._playback = Playback(self._config, rank)
        grafts = None
        if self._config.graft and recorded:
            from mindrlhf_msprobe.capture.playback.graft import Grafts

            grafts = Grafts(self._config, rank)
        if not recorded:
            CURRENT.expected = True
            if self._live is not None:
                self._live.begin(Path(self._config.dump_path).expanduser().absolute(), rank)
                atexit.register(self._close_at_exit)
            return
        self._recorder = Recorder(self._config, rank)
        CURRENT.recorded.append((self._recorder.root, rank))
        if self._playback is not None:
            self._playback.record(self._recorder)
        if grafts is not None:
            grafts.record(self._recorder)
        self._observe_calls(self._recorder)
        atexit.register(self._close_at_exit)
        if self._live is not None:
            of = self._recorder
            not_observed = functools.partial(of.leave_out, coverage.LIVE, "steps", quiet=True)
            self._live.begin(of.root, rank, of.fault, not_observed, of.phases.look_closer)
        _RECORDING.add(self)
        _watch_forks()
        CURRENT.begin(self, self._recorder.fault)

    def _observe_calls(self, recorder: Recorder) -> None:
        """Have calls computed again, if the configuration asks for it: else nothing is imported."""
        recorder.phases.observer_of = None
        if self._config.task == ACCURACY_CHECK:
            from mindrlhf_msprobe.replay.second_opinion import check_accuracy

            check_accuracy(recorder, self._config)
        elif self._config.task == FREE_BENCHMARK:
            from mindrlhf_msprobe.replay.free_benchmark import benchmark

            benchmark(recorder, self._config)

    @property
    def enabled(self) -> bool:
        """Whether this process records anything."""
        return self._recorder is not None

    @property
    def plays(self) -> bool:
        """Whether the training is given values of another run, also on a rank not recorded."""
        return self._playback is not None and self._playback.plays

    @property
    def config(self) -> ProbeConfig:
        """What is recorded."""
        return self._config

    @property
    def current_step(self) -> int:
        """The number of the training step that is running."""
        if self._recorder is not None:
            return self._recorder.step
        return self._config.initial_step + self._steps_ended

    def start_at(self, step: int) -> None:
        """Number the steps from `step` on, where a trainer resumes; an `initial_step` counts more.

        What an earlier attempt at this run recorded from this step on is removed, as it is where
        `existing: resume` finds the step by itself.

        Raises:
            UsageError: it is no step's number, or something has been recorded already.
        """
        if (recorder := self._recording("start_at")) is None and self._playback is None:
            return
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise UsageError.saying("error.start_at", step=step)
        if recorder is not None:
            recorder.start_at(step)
        else:
            self._steps_ended = max(0, step - self._config.initial_step)

    def watch(self, /, *, optimizers: Mapping[str, Any] | None = None, **networks: Any) -> None:
        """Name the networks by role, before anything is compiled: `watch(actor=cell, critic=cell)`,
        and the `optimizers` whose gradients are wanted.

        May be called again; a role given again replaces its network. A role whose network is None
        does not exist in this training, and its phases record nothing.

        Call it after the networks are built and before anything of them is compiled: what
        GRAPH_MODE or `ms.jit` compiles is recorded by probes that are compiled with it. Gradients
        of parameters are recorded there as they enter the `optimizers` (role → optimizer), and
        only there.

        Raises:
            UsageError: a role is not known, what is given is not a mindspore.nn.Cell, or, in
                GRAPH_MODE, it has been compiled already.
        """
        if (recorder := self._recording("watch")) is None:
            return
        roles = [*ROLES, *(phase.role for phase in self._phases.values())]
        for role in (*networks, *(optimizers or {})):
            if role not in roles:
                raise UsageError.saying(
                    "error.unknown_role",
                    role=role,
                    join=", ".join(dict.fromkeys(roles)),
                    nearest=nearest_of(role, roles),
                )
        checked = {
            role: checked_cell(f"watch({role}=…)", network) for role, network in networks.items()
        }
        self._networks |= checked
        recorder.phases.watch(
            checked,
            {
                role: checked_cell(f"watch(optimizers[{role!r}])", optimizer)
                for role, optimizer in (optimizers or {}).items()
            },
        )

    def leave_out(self, phase: str, why: str | Message, *, quiet: bool = False) -> None:
        """Say that a phase cannot be recorded in this training, and why.

        A comparison then lists its layers as left out; without this they are missing. Where the
        phase is switched off this does nothing.

        Args:
            why: a text, or a message of this package's.
            quiet: do not log it: it has been said in other words.

        Raises:
            UsageError: the phase is not known.
        """
        if (recorder := self._recording("leave_out")) is not None:
            known = self._known_phase("leave_out", phase)
            if self._config.records_phase(known):
                recorder.leave_out(coverage.PHASES, known.name, why, quiet=quiet)

    def leave_out_data(self, key: str, why: str | Message, *, quiet: bool = False) -> None:
        """Say that a key's data cannot be recorded in this training, and why; as `leave_out`."""
        recorder = self._recording("leave_out_data")
        if recorder is not None and self._config.key_data_dump:
            recorder.leave_out(coverage.KEY_DATA, key, why, quiet=quiet)

    def note_generation(self, settings: Mapping[str, Any], phase: str = GENERATE) -> None:
        """Say what generation runs with in this step (temperature, top_p, …), where that is not the
        arguments of a watched network's `generate`.

        Written to run.json under `generation`, so that a comparison names what differs, and from
        which step on. The arguments of a method `generate` of a watched network, or of a cell in
        it, are noted without this.

        Args:
            settings: name → number, switch or short text; other values are left out.

        Raises:
            UsageError: the phase is not known.
        """
        if (recorder := self._recording("note_generation")) is not None:
            known = self._known_phase("note_generation", phase)
            recorder.settings.note_generation(known, settings)

    def note_checkpoint(self, role: str, path: str, *, saved_after: int | None = None) -> None:
        """Say which checkpoint a role's network was loaded from ("" for none), or saved to with
        `saved_after`.

        Written to run.json under `checkpoints`. A reference and an actor that were both loaded from
        none begin with random weights of their own, so that `check` expects no KL of 0 of them.

        Args:
            saved_after: the training saved this one itself, when so many of its steps had ended;
                it is written under `saved_checkpoints`, for a comparison with it later.
        """
        if (recorder := self._recording("note_checkpoint")) is not None:
            from mindrlhf_msprobe.storage.manifest.manifest import CheckpointPath

            recorder.note(CheckpointPath(role, path, saved_after))

    def phase(
        self,
        name: str | Sequence[str],
        model: Any = None,
        *,
        token_range: tuple[int, int] | None = None,
    ) -> PhaseContext | NoPhase:
        """Return a context manager, also a decorator, around a phase of the step (a list of those
        that one call runs), for another network with `model`.

        Args:
            name: the phase, e.g. `actor_update`. Or several, e.g. `["actor_update",
                "critic_update"]`, where one call runs the networks of all of them: each network is
                recorded in the phase of its role.
            model: the network that runs in it, instead of the one watched for the phase's role.
            token_range: counts tokens in any phase, and records those from the first number to the
                second, inclusive, instead of what the configuration says.

        Raises:
            UsageError: a phase or the token range is none, or two of several phases have one role;
                on entry, no network was watched for its role, at level L0 or in GRAPH_MODE, or
                another phase is still open.
        """
        if self._recorder is None:
            return NO_PHASE
        several = isinstance(name, (list, tuple)) and len(name) != 1
        together = [self._known_phase("phase", each) for each in (name if several else [name])]
        if len({phase.role for phase in together}) < max(len(together), 1):
            raise UsageError.saying("error.phases_of_a_role", name=name)
        if model is not None:
            if len(together) > 1:
                raise UsageError.saying("error.model_of_phases", name=name)
            model = checked_cell(f"phase({name!r}, model=…)", model)
        if token_range is not None:
            token_range = checked_tokens(f"phase({name!r}, token_range=…)", token_range)
        return PhaseContext(self, self._recorder, together, model, token_range)

    def _known_phase(self, call: str, name: Any) -> Phase:
        phase = self._phases.get(name) if isinstance(name, str) else None
        if phase is None:
            raise UsageError.saying(
                "error.unknown_phase",
                call=f"{call}({name!r})",
                nearest=nearest_of(str(name), self._phases),
                known=", ".join(self._phases),
            )
        return phase

    def save_data(self, name: Any = None, data: Any = MISSING, /, **named: Any) -> None:
        """Save key data: `save_data(loss=loss)`, or `("loss", loss)`, or `({"loss": loss})`.

        Takes tensors, numpy arrays, Python numbers, texts, None, and lists, tuples and dicts of
        them. The n-th save of a key in a step is its micro-step n.

        Raises:
            UsageError: a key cannot name a directory; the other keys of the call are saved.
        """
        if self._config.key_data_dump and (recorder := self._recording("save_data")) is not None:
            self._save(recorder, key_data_items(name, data, named), None)

    def save_data_at(self, micro_step: int | None, data: Mapping[str, Any]) -> None:
        """Save a mapping of key data at a micro-step of the caller's (None: none).

        What was saved there in this step under the same key is replaced. `save_data` goes on
        counting as if this had not been called.

        Args:
            micro_step: None: none; the files lie beside those of the micro-steps.

        Raises:
            UsageError: as `save_data`.
        """
        if self._config.key_data_dump and (recorder := self._recording("save_data_at")) is not None:
            self._save(recorder, key_data_items(data, MISSING, {}), (micro_step,))

    def _save(
        self, recorder: Recorder, items: Iterable[tuple[str, Any]], at: tuple[int | None] | None
    ) -> None:
        from mindrlhf_msprobe.storage.layout import check_key
        from mindrlhf_msprobe.storage.writing.ledger import KEY_DATA

        refused: UsageError | None = None
        for key, value in items:
            try:
                check_key(key)
            except UsageError as error:
                refused = refused or error
            else:
                with recorder.ledger.charge(KEY_DATA):
                    recorder.saves.save(key, value, at)
        if refused is not None:
            raise refused

    def rollout(
        self, generate: Callable[[_Batch], _Value], batch: _Batch, *, generators: Sequence[Any] = ()
    ) -> _Value:
        """Return `generate(batch)`, or with `rollout_from` what another run recorded of this call.

        With `key_data_dump` the batch and the result are saved, under the keys
        `probe_rollout.batch` and `probe_rollout`. In a run with `rollout_from: RUN` the result of
        RUN's call is returned, of the step that `rollout_order` says and of the same number in
        it, as what it was: tensors, numpy arrays, texts and numbers in lists, tuples, dicts,
        dataclasses and named tuples, of the same dtypes. `generate` is not called then.

        Args:
            generate: is given the batch.
            batch: what it generates for; nothing of it changes.
            generators: random generators of your own that go on behind the rollout, beside the
                default ones: of `random.Random`, `numpy.random.Generator` or `RandomState`,
                `mindspore.Generator`, `torch.Generator` (on the host), in the same order in both
                runs. Behind RUN's rollout they are put into the states that RUN's had there.

        Raises:
            UsageError: RUN has no such call, or its batch was another one, or other generators;
                both are shown. With another `rollout_order` than `same` only shapes and dtypes
                must be the same. Something in `generators` is none of those.
        """
        playback = self._playback_or_recording("rollout")
        if playback is None:
            return generate(batch)
        value: _Value = playback.rollout(generate, batch, self.current_step, generators)
        return value

    def replace(self, name: str, value: _Value) -> _Value:
        """Return `value`, or with the key `replace` what another run recorded of this call.

        As `rollout`, for any value of the training: it is saved under `probe_replace.<name>`, and
        in a run with `replace: {name: RUN}` that of RUN is returned, of the same step and call.

        Args:
            name: letters, digits and _.
            value: what the training computed.

        Raises:
            UsageError: the name is none, RUN has no such call, or its value has other shapes or
                dtypes; both are shown.
        """
        playback = self._playback_or_recording("replace")
        if playback is None:
            return value
        played: _Value = playback.replace(name, value, self.current_step)
        return played

    def _playback_or_recording(self, call: str) -> Playback | None:
        """Return what plays or records rollouts and other values; None if neither is wanted."""
        recorder = self._recording(call)
        if self._playback is None and recorder is not None and self._config.key_data_dump:
            from mindrlhf_msprobe.capture.playback.playback import Playback

            with self._lock:
                if self._playback is None:
                    self._playback = Playback(self._config, recorder.rank)
                    self._playback.record(recorder)
        return self._playback

    def save_configs(self, configurations: Any) -> None:
        """Write the trainer's configurations (name → configuration) to configurations.json.

        Args:
            configurations: name → configuration (mappings, dataclasses, enums, paths, dtypes, …);
                what was saved under other names before stays.

        Raises:
            UsageError: it is not a mapping, a dataclass or a namespace.
        """
        wanted = self._config.configurations_dump
        if not wanted or (recorder := self._recording("save_configs")) is None:
            return
        nameless = isinstance(configurations, type) or inspect.isroutine(configurations)
        named = isinstance(configurations, Mapping) or hasattr(configurations, "__dict__")
        named = named or hasattr(type(configurations), "__dataclass_fields__")
        if nameless or not (named or hasattr(configurations, "_fields")):
            from mindrlhf_msprobe.capture.settings.configurations import as_text

            raise UsageError.saying(
                "error.no_configurations",
                as_text=as_text(configurations)[:80],
                name=type(configurations).__name__,
            )
        from mindrlhf_msprobe.storage.writing.ledger import CONFIGURATIONS

        with recorder.ledger.charge(CONFIGURATIONS):
            recorder.saves.save_configurations(configurations)

    def step(self) -> None:
        """End the training step: when this returns, all it recorded is readable on disk.

        What another thread saves meanwhile belongs to this step if the save began before this
        call, which waits for it, and to the next step if it began after it.

        Raises:
            UsageError: a phase is still open.
            SystemExit: with code 1, under `on_finding: stop` or `on_divergence: stop`, after the
                run was closed.
        """
        if (recorder := self._recording("step")) is None:
            self._steps_ended += self._playback is not None
            ended = None
        else:
            with self._lock:
                if self._open is not None:
                    raise UsageError.saying("error.step_in_phase", name=self._open.name)
                CURRENT.wait()  # for what graphs that run save in the open step
                ended = recorder.advance()
            recorder.end_step(ended)
            CURRENT.step_ended(ended, *recorder.ledger.taken_by(ended))
        if self._live is not None and self._live.step_ended(ended):
            end = SystemExit(1)
            self._close(end)
            raise end

    def close(self) -> None:
        """End the run, as leaving the `with` block or the process does.

        A phase that is still open ends with it.

        Called again, or at exit, it does nothing more. The run has finished, unless an exception
        is on its way (in a `finally` block, say), or the last phase ended in one: then run.json
        says in which step and phase, and which. A process that ends inside a step without this
        call leaves an interrupted run.
        """
        self._close(sys.exc_info()[1])

    def _close_at_exit(self) -> None:
        interactive = hasattr(sys, "ps1") or sys.flags.interactive
        self._close(None if interactive else getattr(sys, "last_value", None), at_exit=True)

    def _close(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        if self._recorder is None or self._ended:
            self._leave_others()
            return
        if not self._closed:
            phase = None if self._open is None else self._open.name
            news = None if id(error) in self._raised_before else error
            self._stop = self._recorder.ending.stop(phase, news, at_exit=at_exit)
        try:
            try:
                if not self._closed and error is None:
                    CURRENT.wait()
            finally:
                self._closed = self._ended = True
                CURRENT.end(self)
                try:
                    if self._open is not None:
                        self._open.end()
                    if self._live is not None:
                        self._live.close()
                finally:
                    self._recorder.close(self._stop)
        except (KeyboardInterrupt, SystemExit):
            self._ended = False  # it was waiting, and waits again at exit: nothing gets lost
            raise
        finally:
            if self._ended:
                atexit.unregister(self._close_at_exit)
                self._leave_others()

    def _leave_others(self) -> None:
        """Let the other ranks of the job know that this one ends no further step."""
        live, self._live = self._live, None
        if live is not None:
            live.leave()

    def record_more(self, **settings: Any) -> None:
        """Change settings of a run that has begun: for tools that are set up one by one.

        Args:
            settings: of `ProbeConfig`, but those that say where and which ranks record.
        """
        self._config = dataclasses.replace(self._config, **settings)
        self._phases = self._config.phase_table()
        if self._recorder is not None:
            self._recorder.record_more(self._config)
            if self._config.task != ACCURACY_CHECK:  # what it has written of this step stays
                self._observe_calls(self._recorder)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def _recording(self, call: str) -> Recorder | None:
        """Return what records; None where nothing is. After `close` a call of it raises."""
        if self._closed and self._recorder is not None:
            raise UsageError.saying("error.after_close", call=f"{call}()")
        return self._recorder


@dataclasses.dataclass(eq=False, repr=False)
class PhaseContext:
    """One phase of the step, or several at once: `with probe.phase(…):` or `@probe.phase(…)`.

    Exceptions inside pass through; the phase is closed all the same.
    """

    _probe: Probe
    _recorder: Recorder
    _phases: Sequence[Phase]
    _model: Any
    _token_range: tuple[int, int] | None
    _capture: Any = None

    @property
    def name(self) -> str:
        """The phase's name; of several, all of them."""
        return names_of(self._phases)

    def __enter__(self) -> PhaseContext:
        probe = self._probe
        recorder = probe._recording("phase")
        assert recorder is not None
        with probe._lock:
            if (around := probe._open) is not None:
                raise UsageError.saying("error.nested_phase", name=self.name, name2=around.name)
            probe._open = self
        try:
            if probe._live is not None:
                probe._live.look()
            self._capture = recorder.phases.open(
                self._phases, probe._networks, self._model, self._token_range
            )
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._recorder.ending.note_failure(self._phases, error)
        try:
            self.end(raised=error is not None)
        except Exception:
            if error is None:  # strict mode never hides the training's own exception
                raise

    def tokens(self, ids: Any, lengths: Any = None, positions: Any = None) -> None:
        """Say which tokens the next call of the network is given, where its inputs do not.

        `mindrlhf-msprobe mismatch` names the rows of that call by them, and those of all that runs
        until the next `tokens`. They are saved as key data, `phase_tokens`, also where
        `key_data_dump` is off; only where the phase is recorded.

        Args:
            ids: token ids, integers [batch, length], or [tokens] of all samples one behind the
                other.
            lengths: how many tokens of each sample, from its first one on, are known with this
                call; integers [batch]. None: all of `ids` are tokens.
            positions: the place of each token in its sequence, from 0 on; the shape of `ids`. None:
                a sequence begins with this call, or, of one token a sample, goes on.

        Raises:
            UsageError: the shapes do not fit.
        """
        given = {"ids": ids, "lengths": lengths, "positions": positions}
        shapes = [tuple(v.shape) if hasattr(v, "shape") else None for v in given.values()]
        of_ids, of_lengths, of_positions = shapes
        fit = of_positions in (None, of_ids) and (of_lengths is None or len(of_lengths) == 1)
        if of_ids is None or len(of_ids) not in (1, 2) or not fit:
            shown = ", ".join(map(str, shapes))
            raise UsageError.saying("error.tokens_shapes", name=self.name, given=shown)
        if self._capture is None:
            return
        content = {name: value for name, value in given.items() if value is not None}
        for phase in self._phases:
            self._recorder.saves.save(PHASE_TOKENS, {"phase": phase.name, **content})

    def end(self, *, raised: bool = False) -> None:
        """Remove the hooks; does nothing where the phase has ended already.

        Args:
            raised: the training raised inside the phase, so it may well be empty.
        """
        capture, self._capture = self._capture, None
        try:
            if capture is not None:
                self._recorder.phases.close(capture, raised=raised)
        finally:
            self._leave()

    def _leave(self) -> None:
        probe = self._probe
        with probe._lock:
            if probe._open is self:
                probe._open = None
                if probe._recorder is not None:
                    probe._recorder.phases.leave()

    def __call__(self, function: _Function) -> _Function:
        """Return `function` wrapped so that each call of it is this phase.

        Raises:
            UsageError: it is not a function, or one whose body runs after it returned.
        """
        if not callable(function):
            raise UsageError.saying("error.no_function", name=self.name, function=function)
        if any(kind(function) for kind in _RUN_LATER):
            raise UsageError.saying(
                "error.late_function", name=self.name, qualname=function.__qualname__
            )
        probe, model, tokens = self._probe, self._model, self._token_range
        each = [phase.name for phase in self._phases]
        names = each if len(each) > 1 else each[0]

        @functools.wraps(function)
        def in_phase(*args: Any, **kwargs: Any) -> Any:
            with probe.phase(names, model=model, token_range=tokens):
                return function(*args, **kwargs)

        return in_phase  # type: ignore[return-value]


class NoPhase:
    """The phase of a probe that is switched off: costs nothing, changes nothing."""

    def __enter__(self) -> NoPhase:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tokens(self, ids: Any, lengths: Any = None, positions: Any = None) -> None:
        """Do nothing."""

    def __call__(self, function: _Function) -> _Function:
        """Return `function` as it is."""
        return function


NO_PHASE = NoPhase()


_RECORDING: weakref.WeakSet[Probe] = weakref.WeakSet()


def recording_probes() -> list[Probe]:
    """Return the probes of this process whose runs have not ended."""
    return [p for p in _RECORDING if p._recorder is not None and not p._ended]


@functools.cache
def _watch_forks() -> None:
    def leave_to_parent() -> None:  # the runs belong to the process that started them
        for probe in list(_RECORDING):
            live, probe._live = probe._live, None
            if live is not None:
                live.abandon()
            if probe._recorder is not None:
                CURRENT.end(probe)
                probe._recorder.abandon()
                probe._recorder = None
        _RECORDING.clear()

    os.register_at_fork(after_in_child=leave_to_parent)
