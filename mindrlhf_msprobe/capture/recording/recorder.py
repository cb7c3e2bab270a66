"""What a switched-on probe records: opens phases, saves key data, and never stops the training."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.framework import process_end
from mindrlhf_msprobe.capture.framework.memory import is_of_training
from mindrlhf_msprobe.capture.graph.folder import FOLDERS
from mindrlhf_msprobe.capture.graph.outline import UnknownOutline
from mindrlhf_msprobe.capture.opening.counters import StepCounters
from mindrlhf_msprobe.capture.opening.observer import ObserverOf
from mindrlhf_msprobe.capture.opening.opening import (
    DeviceEntries,
    GradientDirections,
    HostEntries,
    Opening,
)
from mindrlhf_msprobe.capture.opening.overflow import NotHeldError, Overflows, OverflowSink
from mindrlhf_msprobe.capture.recording.keydata import describe_key_data
from mindrlhf_msprobe.capture.recording.messages import (
    log_disk_room,
    log_fault,
    log_missing_ranks,
    log_start,
    log_texts,
    why_nothing,
)
from mindrlhf_msprobe.capture.recording.open_step import OpenStep, StepClock
from mindrlhf_msprobe.capture.settings.configurations import (
    error_in_words,
    named_configurations,
    reason_of,
)
from mindrlhf_msprobe.capture.settings.environment import (
    RandomStates,
    cann_version,
    initial_weights,
    settings_now,
)
from mindrlhf_msprobe.capture.tensors.summary import Summaries
from mindrlhf_msprobe.capture.words import counted
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, as_messages, message
from mindrlhf_msprobe.config import ProbeConfig, Selection
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import inform, logger, warn
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase, nearest_key, role_of
from mindrlhf_msprobe.storage.directory.job import DumpPathLostError
from mindrlhf_msprobe.storage.manifest.coverage import (
    KEY_DATA,
    LIVE,
    MINDSPORE,
    OPERATORS,
    OPTIMIZERS,
    PHASES,
)
from mindrlhf_msprobe.storage.manifest.run_file import FAILED, INTERRUPTED, Stop
from mindrlhf_msprobe.storage.reading.step_times import forget_times
from mindrlhf_msprobe.storage.step_lines import (
    benchmark_lines,
    finding_lines,
    generator_lines,
    opinion_lines,
)
from mindrlhf_msprobe.storage.writing.ledger import STEP, Ledger
from mindrlhf_msprobe.storage.writing.writer import RunWriter

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks
    from mindrlhf_msprobe.capture.graph.watched import GraphProbes
    from mindrlhf_msprobe.capture.pynative.optimizers import OptimizerHooks
    from mindrlhf_msprobe.capture.recording.phase_capture import JointCapture, PhaseCapture
    from mindrlhf_msprobe.capture.settings.generation import GenerateCalls, GenerationSettings
    from mindrlhf_msprobe.capture.settings.networks import NetworkSettings


class Recorder:
    """Records one rank of one run.

    Raises:
        RunError: the dump_path holds another run, or cannot be written.
    """

    def __init__(self, config: ProbeConfig, rank: int) -> None:
        self._config = config
        self.ledger = Ledger()
        # Cells run in any thread, files are written by one more. Held for moments only.
        self._lock = threading.RLock()
        self._logged: set[Hashable] = set()  # what is said once
        self._open_step = OpenStep(config.initial_step)
        self._clocks = {config.initial_step: StepClock()}  # of the open step, and of those that end
        self._entered_at = self._recorded_before = 0.0  # when the phases that are open were entered
        self._open_phases: dict[str, int | None] = {}  # which they are, and as what they count
        self._lost: dict[Message, int] = {}
        self._keys_saved: set[str] = set()
        self._raised: BaseException | None = None
        unknown: list[tuple[Message, BaseException]] = []
        settings: dict[str, Any] = settings_now(lambda *fault: unknown.append(fault))
        self._writer = RunWriter(
            Path(config.dump_path).expanduser().absolute(),
            rank=rank,
            config=config.to_json(),
            existing=config.existing,
            task=config.task_for_msprobe,
            settings={**settings, "versions": {"cann": cann_version()}},
            buffer_bytes=config.buffer_mb << 20,
            fault=self.fault,
            ledger=self.ledger,
            keep_bytes=config.keep_mb << 20,
        )
        self._begin(config.initial_step or self._writer.next_step())
        self._sequence = itertools.count()
        self._summaries = Summaries(md5=config.md5)
        self._overflows = self._overflows_of(config)
        self._counters: dict[str, StepCounters] = {}
        self._parameter_hooks: dict[str, ParameterHooks] = {}  # by role
        self._optimizer_hooks: OptimizerHooks | None = None
        self._openings: dict[str, Opening] = {}  # the last one of each role in the open step
        self._configurations: dict[str, Any] = {}
        # Phases that updated a network in the open step: two places in time after the last opening
        # ended, and its number.
        self._updated: dict[Phase, tuple[int, int, int]] = {}
        # Phases that are switched on: the first and the last step in which they ran.
        self._phases_run: dict[str, tuple[int, int]] = {}
        self._entered: Counter[str] = Counter()  # how often each phase was opened, recorded or not
        self._configurations_wanted = config.configurations_dump
        self._phases_entered: set[str] = set()
        # Whose initial weights were taken, by the name under which they stand: role and network.
        self._first_networks: dict[str, tuple[str, weakref.ref[Any]]] = {}
        self._settings_taken = False
        self._room_logged = self._ranks_logged = False
        self._steps_ended = 0
        self._failure: _Failure | None = None  # what passed through a phase, and was not the end
        self._closer: tuple[int, str, str] | None = None  # a cell whose elements are stored
        self._loop_end: _Failure | None = None  # the same, where it ends a loop as a rule
        self._begun: str | None = None  # the phase that was entered last in the open step
        self._ending: int | None = None  # the step whose end is waited for: what fails is of it
        self._observer_of: ObserverOf | None = None
        self._stand_in: Any = None
        self._graph_probes: GraphProbes | None = None
        self._network_settings: NetworkSettings | None = None
        self._generation: GenerationSettings | None = None
        self._generate_calls: GenerateCalls | None = None
        self._generates: str | None = None  # the phase that is open, if it generates
        self._random_states = RandomStates(self.fault)
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # that trained
        for what, error in unknown:
            self.fault(what, error)
        FOLDERS.begin(self._writer.root, rank, config.buffer_mb << 20)
        log_start(config, self._writer.root, self.step, continues=self._writer.continues)
        # The last: what is raised above, under `strict`, leaves no listener behind.
        process_end.listen(self.note_end)

    @property
    def step(self) -> int:
        """The number of the step that is open."""
        return self._open_step.number

    @property
    def root(self) -> Path:
        """The run's directory."""
        return self._writer.root

    @property
    def rank(self) -> int:
        """Which rank it records."""
        return self._writer.rank

    def note_changed_training(self, **settings: str) -> None:
        """Write down, and say, that the training goes on with results of a second run."""
        with self._lock:
            self._writer.note_changed_training(settings)
        warn("log.changes_training", **settings)

    def note_played(self, content: Mapping[str, Mapping[str, Any]]) -> None:
        """Write down which values another run gives to the training."""
        with self._lock:
            self._writer.note_played(content)

    def observe_calls(self, observer_of: ObserverOf | None) -> None:
        """Have the calls of each opening of a phase, from the next one on, looked at; or not."""
        self._observer_of = observer_of

    def note_not_observed(self, why: Message) -> None:
        """Write down that steps were recorded and not looked at while training."""
        with self._lock:
            self._writer.manifest.note_left_out(LIVE, "steps", why)

    def _begin(self, step: int) -> None:
        self._open_step.number = step
        self._clocks = {step: StepClock()}
        try:
            self._writer.manifest.begin(step)
            if self._writer.continues:
                place = self._writer.root, self._writer.rank
                forget_times(*place, step)
                for lines_of in (finding_lines, benchmark_lines, opinion_lines, generator_lines):
                    lines_of(*place).forget(step)
        except OSError as refused:
            path, why = self._config.dump_path, refused.strerror or str(refused)
            raise RunError.saying("error.left_of_step", path=path, step=step, why=why) from None

    def start_at(self, step: int) -> None:
        """Count the steps from `step` on, unless the configuration says from where.

        Raises:
            UsageError: something has been recorded already.
            RunError: what an earlier attempt left from there on cannot be removed.
        """
        if self._config.initial_step:
            return
        if self._phases_entered or self._open_step.has_saves or self._steps_ended:
            raise UsageError.saying("error.start_too_late", step=step, step2=self.step)
        self._begin(step)
        inform("log.resumes", step=step)

    def first_entry(self, phase: Phase, network: Any, *, own: bool = True) -> None:
        """Record the initial weights of a network, and what the process now runs with.

        Of each network that is the first of a phase, once. One that replaces it, by a later
        `watch()` or `phase(model=…)`, is no initial one, nor is one beside the role's that first
        runs behind an update. A network that serves two roles is recorded for both. By the first
        network of all, the trainer has set its seeds and its determinism, which is why they are
        looked at again.

        Args:
            own: whether it is the role's. The role's first one stands under the role, any other
                network under the phase's name.
        """
        of_role = own and phase.role not in self._first_networks
        if phase.name in self._phases_entered and not of_role:
            return
        self._phases_entered.add(phase.name)
        if any(of == phase.role and one() is network for of, one in self._first_networks.values()):
            return
        updates = (name for name in UPDATE_PHASES if role_of(name) == phase.role)
        trained = any(self._entered[name] > (name == phase.name) for name in updates)
        if trained and not of_role:
            return
        settings = self._settings_at_first_phase()
        name = phase.role if of_role else phase.name
        self._first_networks[name] = phase.role, weakref.ref(network)
        if self._writer.manifest.lost is not None:
            return
        with counted(self.fault, "lost.initial_weights", role=name):
            weights = initial_weights(network, self.fault) if self._config.fingerprint else None
            self._writer.save_first_entry(name, weights, settings, phase.name)

    def stand_in(self) -> Any:
        """Return what stands in for a network that was not watched; None where one is needed.

        Operators outside every cell are recorded without a network, but for graphs.
        """
        from mindrlhf_msprobe.capture.graph.watched import graph_mode

        if not self._config.records_operators or graph_mode():
            return None
        if self._stand_in is None:
            from mindspore import nn

            self._stand_in = nn.Cell()
        return self._stand_in

    def is_stand_in(self, network: Any) -> bool:
        """Return whether a network only stands in for one that was not watched."""
        return network is not None and network is self._stand_in

    def enter_without_network(self, phase: Phase) -> None:
        """Say once that a phase has no network, and note what the process runs with."""
        if self._first("no network", phase.name):
            inform("log.no_network", phase=phase.name, role=phase.role)
        settings = self._settings_at_first_phase()
        if settings is not None:
            with counted(self.fault, "lost.process"):
                self._writer.save_first_entry(phase.role, None, settings, phase.name)

    def _settings_at_first_phase(self) -> dict[str, Any] | None:
        """Return what the process runs with; None where that was taken in an earlier phase."""
        if self._settings_taken:
            return None
        self._settings_taken = True
        return settings_now(self.fault)

    def note_settings(self, phase: Phase, network: Any) -> None:
        """Note what a network is set to when a phase opens, recorded or not: mode, attributes.

        Where the first phase is switched off, what the process runs with is noted, too.
        """
        if not (self._settings_taken or self._config.records_phase(phase)):
            runs_with = self._settings_at_first_phase()
            with counted(self.fault, "lost.process"):
                self._writer.save_first_entry(phase.role, None, runs_with, phase.name)
        charged = phase.name if self._config.records_phase(phase) else STEP
        with self.ledger.charge(charged):
            settings = self._settings_of_networks()
            settings.enter(phase, network, self.step)
            self._write_network_settings(settings)
            if phase.counts_tokens:
                self._listen_to_generate(phase, network)

    def _listen_to_generate(self, phase: Phase, network: Any) -> None:
        self._generates = phase.name
        with counted(self.fault, "lost.generation_settings"):
            if self._generate_calls is None:
                from mindrlhf_msprobe.capture.settings.generation import GenerateCalls

                self._generate_calls = GenerateCalls(
                    self._note_open_generation, lambda: self._generates is not None, self.fault
                )
            self._generate_calls.listen(network)

    def _note_open_generation(self, settings: Mapping[str, Any]) -> None:
        if self._generates is not None:
            self._note_generation(self._generates, settings)

    def _note_generation(self, phase: str, settings: Mapping[str, Any]) -> None:
        from mindrlhf_msprobe.capture.settings.generation import GenerationSettings

        with self._lock:
            if self._generation is None:
                self._generation = GenerationSettings()
            news = self._generation.note(phase, self.step, settings)
            if news is not None:
                self._writer.note_generation(news)

    def note_generation(self, phase: Phase, settings: Mapping[str, Any]) -> None:
        """Note what a phase generates with: name → value; what is no plain value is left out."""
        with counted(self.fault, "lost.generation_settings"):
            from mindrlhf_msprobe.capture.settings.generation import plain_settings

            self._note_generation(phase.name, plain_settings(settings))

    def note_checkpoint(self, role: str, path: str, saved_after: int | None = None) -> None:
        """Note from what a role's network was loaded; "" where it began with random weights.

        Or what it was saved to, after so many steps.
        """
        with counted(self.fault, "lost.checkpoint"):
            self._writer.note_checkpoint(role, str(path), saved_after)

    def _settings_of_networks(self) -> NetworkSettings:
        if self._network_settings is None:
            from mindrlhf_msprobe.capture.settings.networks import NetworkSettings

            self._network_settings = NetworkSettings(self.fault)
        return self._network_settings

    def _write_network_settings(self, settings: NetworkSettings) -> None:
        with counted(self.fault, "lost.networks"):
            content = settings.take()
            if content is not None:
                self._writer.note_networks(content)

    def record_more(self, config: ProbeConfig) -> None:
        """Go on with another configuration."""
        self._config = config
        self._summaries = Summaries(md5=config.md5)
        self._overflows = self._overflows_of(config)
        if self._graph_probes is not None:
            self._graph_probes.config = config
        with counted(self.fault, "lost.configuration"):
            self._writer.record_more(config.to_json(), config.task_for_msprobe)

    def look_closer(self, phase: str, cell: str) -> None:
        """Store the elements of a cell and of all in it, in one phase of the next recorded step."""
        step = self._config.next_recorded(self.step)
        if step is None:
            warn("log.nothing_closer", phase=phase, cell=cell, step=self.step)
            return
        self._closer = step, phase, cell
        inform("log.closer", phase=phase, cell=cell, step=step)

    def enter(self, phases: Iterable[Phase]) -> None:
        """Note that phases begin: what passed through an earlier one did not end the training."""
        self._entered_at = self._clock_of(self.step).now()
        self._recorded_before = self.ledger.seconds_of_step()
        self._failure = self._loop_end = None
        self._threads.add(threading.current_thread())
        names = [phase.name for phase in phases]
        self._open_phases = dict.fromkeys(names)
        self._begun = names[0]
        self._entered.update(names)
        with self.ledger.charge(STEP), counted(self.fault, "lost.generators"):
            if self._random_states.note(self.step):  # the step's first phase
                self._writer.note_random_states(self._random_states.content)

    def leave(self) -> None:
        """Note that the phases which were open have ended."""
        self._generates = None
        phases, self._open_phases = self._open_phases, {}
        # Less than before where another thread has ended a step meanwhile.
        recording = self.ledger.seconds_of_step() - self._recorded_before
        known = recording if recording >= 0 else None
        self._clock_of(self.step).opened(phases, self._entered_at, known)

    def _clock_of(self, step: int) -> StepClock:
        return self._clocks.get(step) or StepClock()

    def _record_optimizers(self, step: int) -> None:
        """Record the state of the optimizers whose networks were updated in a step."""
        updated, self._updated = self._updated, {}
        for phase, (seq, end, opening) in updated.items():
            from mindrlhf_msprobe.capture.pynative.optimizers import lines_of

            with self.ledger.charge(phase.name), counted(self.fault, "lost.optimizer_state"):
                optimizers = self._settings_of_networks().optimizers_of(phase.role)
                if not optimizers:
                    why, what = "coverage.optimizer_not_watched", "lost.optimizer_state"
                    self._leave_out(OPTIMIZERS, phase.role, message(why), False, message(what))
                counters = StepCounters(Selection(self._config))
                entries = self._entries(phase.name, counters, step, of_cells=False)
                for line in lines_of(optimizers, entries, seq, end, opening):
                    entries.append(line)
                entries.flush()

    def wants(self, phase: Phase) -> bool:
        """Return whether a phase that is switched on is recorded in this step."""
        first, _ = self._phases_run.get(phase.name, (self.step, self.step))
        self._phases_run[phase.name] = first, self.step
        wanted = self._config.records_step(self.step)
        lost = self._writer.manifest.lost
        if wanted and lost is not None:
            self.fault(message("lost.phase", phase=phase.name), DumpPathLostError(lost))
            return False
        return wanted

    def watch(self, networks: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Put probes into the networks of the roles that are recorded, for where they are compiled.

        Raises:
            UsageError: a network or an optimizer has been compiled already, in graph mode.
        """
        phases = [p for p in self._config.phase_table().values() if self._config.records_phase(p)]
        roles = {phase.role for phase in phases}
        for role in sorted(roles & {*networks, *optimizers}):
            try:
                if optimizers.get(role) is not None and "backward" in self._config.directions:
                    self._probes().watch_optimizer(role, optimizers[role])
                    self._hook_optimizer(role, optimizers[role])
                if networks.get(role) is not None:
                    self._probes().watch(role, networks[role])
            except UsageError:
                raise
            except Exception as error:
                self.fault(message("lost.cells", role=role), error)
        settings = self._settings_of_networks()
        settings.watch(networks, optimizers)
        self._write_network_settings(settings)

    def _hook_optimizer(self, role: str, optimizer: Any) -> None:
        """Have gradients recorded where they enter an optimizer that Python calls (grad_probe)."""
        from mindrlhf_msprobe.capture.graph.watched import graph_mode

        if self._config.task != "grad_probe" or graph_mode():
            return
        if self._optimizer_hooks is None:
            from mindrlhf_msprobe.capture.pynative.optimizers import OptimizerHooks

            self._optimizer_hooks = OptimizerHooks(self._openings.get)
        self._optimizer_hooks.watch(role, optimizer)

    def put_into(self, phase: Phase, network: Any) -> None:
        """Put probes into a network that a phase names itself, before it is compiled."""
        with counted(self.fault, "lost.cells", role=phase.role):
            self._probes().put_into(phase.role, network)

    def leave_out(self, phase: Phase, why: str | Message, *, quiet: bool = False) -> None:
        """Write down, and say once, that a phase which is switched on is not recorded."""
        if self._config.records_phase(phase):
            self._leave_out(
                PHASES, phase.name, why, quiet, message("log.layers_of", phase=phase.name)
            )

    def leave_out_data(self, key: str, why: str | Message, *, quiet: bool = False) -> None:
        """Write down, and say once, that a key's data are not recorded."""
        if self._config.key_data_dump:
            self._leave_out(KEY_DATA, key, why, quiet, key)

    def _leave_out(
        self, kind: str, name: str, why: str | Message, quiet: bool, what: str | Message
    ) -> None:
        with self._lock:
            news = self._writer.manifest.note_left_out(kind, name, why)
        if news and not quiet:
            warn("log.left_out", what=what, why=[*as_messages(why)])

    def _probes(self) -> GraphProbes:
        if self._graph_probes is None:
            from mindrlhf_msprobe.capture.framework.private import missing
            from mindrlhf_msprobe.capture.graph.watched import GraphProbes

            for name, lost in missing().items():
                self._leave_out(
                    MINDSPORE, name, lost, False, message("log.needs_mindspore", name=name)
                )
            self._graph_probes = GraphProbes(
                self._config,
                self.fault,
                will_record=lambda: self._config.records_from(self.step),
                cost=self.ledger.graphs,
            )
        return self._graph_probes

    def open_phases(
        self, networks: Mapping[Phase, Any], token_range: tuple[int, int] | None = None
    ) -> JointCapture | None:
        """Begin to record phases, each of its network, that open and close together.

        None if that failed, which is counted, not raised.
        """
        with counted(self.fault, "lost.phase", phase=names_of(networks)):
            from mindrlhf_msprobe.capture.recording.phase_capture import JointCapture

            opening = JointCapture(
                {p: self._capture(p, networks[p], token_range) for p in networks}
            )
            opening.open()
            self._open_phases |= {p.name: self._counters[p.name].openings - 1 for p in networks}
            return opening
        return None

    def _capture(
        self, phase: Phase, network: Any, token_range: tuple[int, int] | None
    ) -> PhaseCapture:
        from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks
        from mindrlhf_msprobe.capture.recording.phase_capture import PhaseCapture

        counters = self._counters.setdefault(phase.name, StepCounters(Selection(self._config)))
        opening = Opening(
            number=counters.openings,
            root=network,
            counters=counters,
            sequence=self._sequence,
            entries=self._entries(phase.name, counters, self.step),
            is_recorded=self._config.records_cell
            if self._config.records_cells
            else lambda _: False,
            records_token=self._token_filter(phase, token_range),
            with_parameters=self._config.parameters,
            directions=self._config.directions,
            parameter_hooks=self._parameter_hooks.setdefault(phase.role, ParameterHooks()),
            at_optimizer=hooks.parameters(phase.role) if (hooks := self._optimizer_hooks) else (),
            buffer_bytes=self._config.buffer_mb << 20,
            fault=self.fault,
            operators=self._config.records_cell if self._config.records_operators else None,
            observer=None
            if self._observer_of is None
            else self._observer_of(phase, counters.openings),
        )
        self._openings[phase.role] = opening
        counters.openings += 1
        return PhaseCapture(opening, probes=self._probes(), role=phase.role)

    def _token_filter(
        self, phase: Phase, token_range: tuple[int, int] | None
    ) -> Callable[[int], bool] | None:
        if token_range is not None:
            first, last = token_range
            return lambda token: first <= token <= last
        return self._config.records_token if phase.counts_tokens else None

    def close_phases(self, opening: JointCapture, *, raised: bool = False) -> None:
        """End to record phases; says once of each in which no cell ran though nothing raised."""
        with counted(self.fault, "lost.phase", phase=names_of(opening.phases)):
            opening.close()
            for phase, capture in opening.phases.items():
                if self._config.optimizer_state and phase.name in UPDATE_PHASES:
                    number = self._counters[phase.name].openings - 1
                    self._updated[phase] = next(self._sequence), next(self._sequence), number
                gaps = capture.gaps()  # cells that could not be recorded whole, being compiled
                with self._lock:
                    new = self._writer.manifest.note_graph_gaps(phase.role, gaps)
                if new:
                    cells = [message("log.gap", cell=cell, why=[*why]) for cell, why in new.items()]
                    warn("log.gaps", role=phase.role, cells=cells)
                self._note_operators("held", capture.held_operators())
                self._note_operators("replaced", capture.replaced_operators())
            if self._config.strict:  # its faults are raised here, not in a later phase
                self._writer.wait()
        with self._lock:
            left_out = self._writer.manifest.content.coverage.get(PHASES, {})
        for phase, capture in opening.phases.items():
            expected = not (raised or phase.name in left_out)
            expected = expected and not self.is_stand_in(capture.network)
            if expected and not capture.cells_seen and self._first("silent", phase.name):
                warn("log.silent", phase=phase.name, step=self.step, role=phase.role)

    def _note_operators(self, how: str, found: Sequence[tuple[str, str]]) -> None:
        """Write down, and say once, which operators cannot be recorded where they are called.

        Args:
            how: `held`: by a program, at the place that is named first, the operator behind it; or
                `replaced`: the operator, and what stands in its place.
        """
        param = "operator" if how == "held" else "by"
        with self._lock:
            news = [
                f"{name} ({other})"
                for name, other in found[:_MOST_HELD]
                if self._writer.manifest.note_left_out(
                    OPERATORS, name, message(f"coverage.operator_{how}", **{param: other})
                )
            ]
        if news:
            listed = "places" if how == "held" else "operators"
            warn(f"log.operators_{how}", **{listed: news})

    def save_key_data(self, key: str, value: Any, at: tuple[int | None] | None = None) -> None:
        """Save one value under `key`, as the next micro-step of this step.

        What a recomputed cell saves is saved once: not when it runs again for its gradients.

        Args:
            at: the micro-step, if it is not the next one; (None,) for none at all, beside those
                that have one. What was saved there in this step is replaced.
        """
        self._threads.add(threading.current_thread())
        if self._failure is not None and self._failure.of_process:
            self._failure = None  # an exit that was on its way was none: something is recorded
        if _runs_again():
            return
        if key not in self._keys_saved:
            self._keys_saved.add(key)
            if near := nearest_key(key):
                warn("log.key_unknown", key=key, near=near)
        with self._open_step.saving(key, counted=at is None) as (step, next_one):
            clock = self._clock_of(step)
            saved_at = clock.now()
            micro_step = next_one if at is None else at[0]
            with counted(self.fault, "lost.key_data", key=key):
                if isinstance(value, UnknownOutline):  # saved in a graph that cannot hand it over
                    return self.leave_out_data(key, value.reason)
                if self._writer.manifest.lost is not None:
                    raise DumpPathLostError(self._writer.manifest.lost)
                numbered = self._config.numbered_key_data
                described = describe_key_data(
                    key, value, fingerprint=self._config.fingerprint, numbered=numbered
                )
                for path, reason in described.unsaved.items():
                    error = TypeError(message("unread.at", path=path, why=reason))
                    self.fault(message("lost.key_data", key=key), error)
                seq, phase = next(self._sequence), self._begun
                self._writer.save_key_data(
                    key,
                    step,
                    micro_step,
                    lambda: {"seq": seq, "phase": phase, "data": described.structure},
                    described.arrays,
                    numbered=numbered,
                )
                clock.saved(key, micro_step, saved_at)

    def save_configurations(self, configurations: Any) -> None:
        """Write configurations.json; what was saved under other names before stays in it.

        A value that raises when it is looked at is lost alone: a description stands in its place.
        """
        texts: dict[str, Any] = {}
        with counted(self.fault, "lost.configurations"):
            plain = named_configurations(configurations, texts.__setitem__, self._bad_configuration)
            with self._lock:
                self._configurations.update(plain)
            log_texts({path: v for path, v in texts.items() if self._first("text", path)})
            self._writer.save_configurations(self._configurations_now)

    def _bad_configuration(self, path: str, error: Exception) -> None:
        """Count one value of the configurations, of which only a description is written."""
        why = message("unread.at", path=path, why=reason_of(error))
        self.fault(message("lost.configurations"), ValueError(why))

    def _configurations_now(self) -> dict[str, Any]:
        """Return all that was saved so far, for the writing thread: no call is older than it."""
        with self._lock:
            return dict(self._configurations)

    def advance(self) -> int:
        """Open the next step, to which everything belongs that is begun from now on.

        Returns:
            the step that was open, which `end_step` is to end.
        """
        self._counters.clear()
        self._openings.clear()
        self._threads.add(threading.current_thread())
        self._failure = self._loop_end = None
        self._begun = None
        self._steps_ended += 1
        self._ending = step = self._open_step.number
        self._clocks[step + 1] = self._clock_of(step).end()
        return self._open_step.advance()

    def _note_compiled_without(self) -> None:
        """Write down, and say once, which keys are saved by graphs that hand nothing over."""
        missing = sorted(CURRENT.compiled_without - self._keys_saved)
        why = message("coverage.saved_without_probe")
        news = [key for key in missing if self._writer.manifest.note_left_out(KEY_DATA, key, why)]
        if news:
            warn("log.saved_without_probe", keys=", ".join(news), why=why)

    def end_step(self, step: int) -> None:
        """Make everything recorded in a step readable; saves on their way are waited for."""
        try:
            with counted(self.fault, "lost.end_of_step"):
                try:
                    if self._network_settings is not None:
                        self._network_settings.end_step()
                        self._write_network_settings(self._network_settings)
                    self._record_optimizers(step)
                    if self._config.key_data_dump:
                        self._note_compiled_without()
                    self._open_step.wait_for(step)
                finally:  # an interrupted wait ends the step too
                    clock, times = self._clocks.pop(step, None), None
                    if clock is not None and self._config.records_anything():
                        times = partial(clock.to_json, step, self._writer.rank)
                    self._writer.end_step(step, self._lost, times=times)
        finally:
            self._ending = None
            if self._writer.manifest.lost is None:
                self._log_first_step(step)

    def _log_first_step(self, step: int) -> None:
        """Say once what a step with layer data takes, and which ranks write elsewhere."""
        config, root = self._config, self._writer.root
        try:
            if self._writer.phases and not self._room_logged:
                self._room_logged = True
                log_disk_room(config, root, step, self.ledger.bytes_of_last_step())
            if not self._ranks_logged:
                self._ranks_logged = True
                log_missing_ranks(config, root, self._writer.rank)
        except OSError as error:  # a directory that was removed is a loss already
            logger.debug("%s", message("log.disk_unknown", why=error))

    def note_failure(self, phases: Sequence[Phase], error: BaseException) -> None:
        """Note that an exception passes through phases: unless training goes on, it ends there."""
        failure = _Failure(names_of(phases), error)
        if isinstance(error, _END_OF_A_LOOP):  # training goes on, as a rule
            self._loop_end = failure
        else:
            self._failure = failure

    def note_end(self, error: BaseException, thread: threading.Thread | None) -> None:
        """Note that the process, or a thread that trained, ends by an exception.

        Args:
            thread: None where it is the process.
        """
        if isinstance(error, _END_OF_A_LOOP) or (
            thread is not None and thread not in self._threads
        ):
            return
        passed = self._failure
        phase = passed.phase if passed is not None and passed.led_to(error) else None
        ended = _Failure(phase, error, of_process=thread is None)
        if not ended.quietly and not (thread is None and passed is not None):
            self._failure = ended

    def stop(
        self, phase: str | None, error: BaseException | None, *, at_exit: bool = False
    ) -> Stop | None:
        """Return where the run stops, if it is closed now; None if it has finished.

        Args:
            phase: the phase that is open, or None.
            error: the exception of which the run ends, if one is known.
            at_exit: whether nobody closed it before the process ends.
        """
        passed = self._passed(error, at_exit)
        ended = passed
        if error is not None and (at_exit or not isinstance(error, _END_OF_A_LOOP)):
            if passed is not None and passed.led_to(error):
                phase = phase or passed.phase
            ended = _Failure(phase, error)
        if ended is not None and not (ended.quietly and passed is None):
            state = INTERRUPTED if ended.quietly else FAILED
            return Stop(state, self.step, ended.phase, ended.error, ended.text)
        unasked = at_exit or error is not None
        if unasked and any((phase, self._begun, self._open_step.has_saves)):
            return Stop(INTERRUPTED, self.step, phase)
        return None

    def _passed(self, error: BaseException | None, at_exit: bool) -> _Failure | None:
        """Return the failure that went through a phase or a step, if it can be what ends the run.

        Args:
            error, at_exit: as for `stop`.
        """
        if at_exit and isinstance(error, _END_OF_A_LOOP):  # no loop took it: the process ends of it
            return self._loop_end
        passed = self._failure
        if passed is not None and passed.of_process and not at_exit and error is None:
            return None  # somebody caught it, and closes the run
        return passed

    def close(self, stop: Stop | None = None) -> None:
        """End the run; a step that was not ended stays readable and is marked unfinished."""
        process_end.forget(self.note_end)
        if self._graph_probes is not None:
            self._graph_probes.close()
        if self._optimizer_hooks is not None:
            self._optimizer_hooks.remove()
        if self._generate_calls is not None:
            self._generate_calls.close()
        FOLDERS.end(self._writer.root)
        with counted(self.fault, "lost.end_of_run"):
            step = self._open_step.close()
            try:
                try:
                    self._open_step.wait_for(step)
                finally:
                    self._writer.end_step(step, self._lost, complete=False)
            finally:
                self._writer.close(stop, self._lost)
        if self._lost:
            noted = self._writer.manifest.lost is None
            warn("log.lost", lost=[*self._lost.items()], noted=noted)
        if stop is None:
            self._log_forgotten()
        for name, (first, last) in self._phases_run.items():
            silent = ("silent", name) in self._logged
            if not (name in self._writer.phases or silent or self._lost):
                why = why_nothing(self._config, name, first, last)
                warn("log.nothing_recorded", phase=name, first=first, last=last, why=why)

    def _log_forgotten(self) -> None:
        """Say at the end which calls the trainer seems to have forgotten."""
        name, times = next(iter(self._entered.most_common(1)), ("", 0))
        if times > 1 and not self._steps_ended:
            warn("log.step_forgotten", phase=name, times=times, step=self.step)
        if self._configurations_wanted and not self._configurations:
            warn("log.configurations_forgotten")

    def abandon(self) -> None:
        """Record nothing more: called in a forked child, which leaves the run to its parent."""
        process_end.abandon()
        if self._generate_calls is not None:
            self._generate_calls.close()
        self._lock = threading.RLock()  # the old one may be held by a thread that is not here
        self._writer.abandon()

    def fault(self, what: Message, error: BaseException, count: int = 1) -> None:
        """Count a fault while recording and log it once per kind; raise it in strict mode.

        What an operator of the training met is raised in any mode: nobody else learns of it.
        """
        if error is self._raised:  # on its way out already, through another guard
            raise error
        why: str | Message = type(error).__name__
        if isinstance(error, (DumpPathLostError, NotHeldError)):
            why = error.kind
        kind = message("lost.kind", what=what, why=why)
        with self._lock:
            if len(self._lost) >= _MOST_KINDS and kind not in self._lost:
                kind = _FURTHER
            first = kind not in self._lost
            self._lost[kind] = self._lost.get(kind, 0) + count
        if self._config.strict or is_of_training(error):
            self._raised = error
            raise error
        step = self.step if self._ending is None else self._ending
        if isinstance(error, DumpPathLostError):
            if self._first("dump_path lost"):
                root, lost = str(self._writer.root), str(error.what)
                warn("log.dump_path_lost", root=root, what=lost, step=step)
        elif first:
            log_fault(what, step, error)

    def _first(self, *event: Hashable) -> bool:
        """Return whether an event has not been said, and note that it is."""
        known = event in self._logged
        self._logged.add(event)
        return not known

    def _overflows_of(self, config: ProbeConfig) -> Overflows | None:
        if config.task != "overflow_check":
            return None
        return Overflows(config.overflow_nums, config.buffer_mb << 20)

    def _entries(
        self, phase: str, counters: StepCounters, step: int, *, of_cells: bool = True
    ) -> HostEntries:
        """Return what describes the tensors of a phase in a step, and takes its entries.

        Args:
            of_cells: as the task says; else statistics alone.
        """
        config, fingerprint = self._config, self._config.fingerprint
        sketches = of_cells and config.task == "sketch"
        elements: bool | Callable[[str], bool] = of_cells and config.task == "tensor"
        if not elements and self._closer is not None and self._closer[:2] == (step, phase):
            elements = partial(_is_of_cell, self._closer[2])
        sink, overflows = self._writer.sink(phase, step), None
        if of_cells and self._overflows is not None:
            sink = overflows = OverflowSink(sink, self._overflows, counters, step, self.fault)
        shared: dict[str, Any] = {
            "sink": sink,
            "overflows": overflows,
            "summaries": self._summaries,
            "fingerprint": fingerprint,
            "charge": self.ledger.charge(phase),
            "fault": self.fault,
            "directions": self._directions(),
        }
        if sketches and (target := device_target()) != _HOST and self._first("sketches on host"):
            inform("log.sketches_on_host", target=target)
        if elements or sketches or not reduces_on_device(fingerprint, config.md5):
            return HostEntries(**shared, elements=elements, sketches=sketches)
        from mindrlhf_msprobe.capture.tensors.device import DeviceSummaries

        device = DeviceSummaries(fingerprint=fingerprint)
        return DeviceEntries(device, counters.parameters, **shared)

    def _directions(self) -> GradientDirections | None:
        """Return what counts the signs and sizes of gradients, where the task is that."""
        config = self._config
        if config.task != "grad_probe" or config.grad_level == "L0":
            return None
        bounds = tuple(config.bounds) if config.grad_level == "L2" else None
        return GradientDirections(frozenset(config.param_list), bounds)


def _is_of_cell(cell: str, record: str) -> bool:
    """Return whether a record is of a cell, or of one inside it."""
    return record.startswith(f"Cell.{cell}.")


_HOST = "CPU"  # among MindSpore's targets
_MOST_HELD = 32  # places that hold operators and are named
_MOST_KINDS = 1000  # of losses that are counted apart
_FURTHER = message("lost.further")
_END_OF_A_LOOP = (StopIteration, StopAsyncIteration, GeneratorExit)


class _Failure:
    """An exception of which the run may end, and the phase it passed through.

    The exception itself is not kept: its frames hold tensors.
    """

    def __init__(
        self, phase: str | None, error: BaseException, *, of_process: bool = False
    ) -> None:
        self.phase = phase
        self.of_process = of_process
        self.error, self.text = error_in_words(error)
        if (cause := _first_cause(error)) is not error:  # what a trainer wraps says where it was
            self.text = "{} ({}: {})".format(self.text, *error_in_words(cause))
        self.quietly = isinstance(error, SystemExit) and error.code in (None, 0)
        self._id = id(error)

    def led_to(self, error: BaseException) -> bool:
        """Return whether `error` is this one, or was raised because of it."""
        seen: set[int] = set()
        known: BaseException | None = error
        while known is not None and id(known) not in seen:
            if id(known) == self._id:
                return True
            seen.add(id(known))
            known = known.__cause__ or known.__context__
        return False


def _first_cause(error: BaseException) -> BaseException:
    """Return the exception at the root of one, which was raised from it."""
    seen: set[int] = set()
    while error.__cause__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__
    return error


def _runs_again() -> bool:
    """Return whether a recomputed cell saves what it saved when it ran first."""
    if "mindspore.nn" not in sys.modules:
        return False
    try:
        from mindrlhf_msprobe.capture.recompute import runs_again
    except (ImportError, AttributeError):  # MindSpore has moved it: nothing is known
        return False
    return runs_again()


def names_of(phases: Iterable[Phase]) -> str:
    """Return what phases that are open together are called in messages."""
    return " and ".join(phase.name for phase in phases)


def reduces_on_device(fingerprint: bool, md5: bool = False) -> bool:
    """Return whether statistics are computed where the tensors are: on an accelerator.

    Where fingerprints are wanted and MindSpore cannot compute them there (before 2.10), tensors are
    brought to the host instead; for msprobe's hash they always are.
    """
    from mindrlhf_msprobe.capture.tensors.device import can_fingerprint

    if md5 or device_target() == _HOST:
        return False
    return can_fingerprint() or not fingerprint


def device_target() -> str:
    """Return what MindSpore computes on: CPU, Ascend or GPU."""
    from mindspore import get_context

    return str(get_context("device_target"))


def current_rank(environment: Mapping[str, str]) -> int:
    """Return this process's rank: a launcher's, else MindSpore's if it is initialised, else 0."""
    for name in ("RANK_ID", "RANK", "OMPI_COMM_WORLD_RANK"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    if "mindspore" in sys.modules:
        try:
            from mindspore.communication import get_rank

            return int(get_rank())
        except Exception:
            return 0
    return 0
