"""The phases of a step: what runs in them is recorded from when they open until they close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.opening.observer import ObserverOf
from mindrlhf_msprobe.capture.opening.opening import (
    GradientDirections,
    HostEntries,
    Opening,
    StepCounters,
)
from mindrlhf_msprobe.capture.opening.overflow import OverflowEntries, Overflows
from mindrlhf_msprobe.capture.tensors.summary import Summaries
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import Selection
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import inform, warn
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase, names_of
from mindrlhf_msprobe.storage.manifest.coverage import MINDSPORE, OPERATORS, OPTIMIZERS, PHASES
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError
from mindrlhf_msprobe.storage.writing.ledger import Counted

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks
    from mindrlhf_msprobe.capture.graph.watched import GraphProbes
    from mindrlhf_msprobe.capture.playback.graft import Grafts
    from mindrlhf_msprobe.capture.pynative.gradients import OptimizerHooks
    from mindrlhf_msprobe.capture.recording.phase_capture import JointCapture, PhaseCapture
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


class Phases:
    """Opens and closes the phases of a run.

    Attributes:
        begun: the phase that was entered last in the open step.
        entered: how often each phase was opened, recorded or not.
        ran: phases that are switched on, with the first and the last step in which they ran.
        observer_of: looks at the calls of each opening from the next one on; None: nothing does.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder
        self.begun: str | None = None
        self.entered: Counter[str] = Counter()
        self.ran: dict[str, tuple[int, int]] = {}
        self._entered_at = self._recorded_before = 0.0  # when the phases that are open were entered
        self._open: dict[str, int | None] = {}  # which they are, and as what they count
        self._counters: dict[str, StepCounters] = {}
        self._parameter_hooks: dict[str, ParameterHooks] = {}  # by role
        self._optimizer_hooks: OptimizerHooks | None = None
        self._openings: dict[str, Opening] = {}  # the last one of each role in the open step
        # Phases that updated a network in the open step: two places in time after the last opening
        # ended, and its number.
        self._updated: dict[Phase, tuple[int, int, int]] = {}
        self._graph_probes: GraphProbes | None = None
        self._stand_in: Any = None
        self._closer: tuple[int, str, str] | None = None  # a cell whose elements are stored
        self.observer_of: ObserverOf | None = None
        self._grafts: Grafts | None = None
        self._set_up()

    def _set_up(self) -> None:
        """Make what depends on the configuration."""
        config = self._run.config
        self._summaries = Summaries(md5=config.md5)
        self._overflows: Overflows | None = None
        if config.task == "overflow_check":
            self._overflows = Overflows(config.overflow_nums, config.buffer_mb << 20)

    def record_more(self) -> None:
        """Go on with the recorder's other configuration."""
        self._set_up()
        if self._graph_probes is not None:
            self._graph_probes.config = self._run.config

    def end_step(self) -> None:
        """Forget what is counted and opened in a step."""
        self._counters.clear()
        self._openings.clear()
        self.begun = None

    def end_run(self) -> None:
        """Take out the probes and the hooks."""
        if self._graph_probes is not None:
            self._graph_probes.close()
        if self._optimizer_hooks is not None:
            self._optimizer_hooks.remove()

    def graft(self, grafts: Grafts) -> None:
        """Have records of another run take the place of this one's own."""
        self._grafts = grafts

    def look_closer(self, phase: str, cell: str) -> None:
        """Store the elements of a cell and of all in it, in one phase of the next recorded step."""
        step = self._run.config.next_recorded(self._run.step)
        if step is None:
            warn("log.nothing_closer", phase=phase, cell=cell, step=self._run.step)
            return
        self._closer = step, phase, cell
        inform("log.closer", phase=phase, cell=cell, step=step)

    def _enter(
        self, phases: Sequence[Phase], watched: Mapping[str, Any], model: Any
    ) -> dict[Phase, Any]:
        """Note that phases begin, and what they run with; return the network to record in each.

        What passed through an earlier phase did not end the training.
        """
        run = self._run
        self._entered_at = run.clock_of(run.step).now()
        self._recorded_before = run.ledger.seconds_of_step()
        run.ending.goes_on()
        names = [phase.name for phase in phases]
        self._open = dict.fromkeys(names)
        self.begun = names[0]
        self.entered.update(names)
        run.settings.note_random_states(run.step)
        networks = {phase: self._network_of(phase, watched, model) for phase in phases}
        for phase in phases:
            set_up = model if model is not None else watched.get(phase.role)
            if set_up is not None:
                run.settings.enter(phase, set_up)
        found = {phase: one for phase, one in networks.items() if one is not None}
        for phase, network in found.items():
            if network is self._stand_in:
                run.settings.enter_without_network(phase)
                continue
            with run.ledger.charge(phase.name):
                if network is model:  # it has not been watched: before it is compiled
                    with Counted(run.fault, "lost.cells", role=phase.role):
                        self._probes().put_into(phase.role, network)
                of_role = watched.get(phase.role)
                own = of_role is None or of_role is network
                run.settings.first_entry(phase, network, own=own)
        return {phase: one for phase, one in found.items() if self._wants(phase)}

    def _network_of(self, phase: Phase, watched: Mapping[str, Any], model: Any) -> Any:
        """Return the network that runs in a phase, None if nothing of it is recorded.

        Where operators are recorded, an empty one stands in for a network that was not watched: but
        for graphs, those outside every cell need none.
        """
        if not self._run.config.records_phase(phase):
            return None
        if model is not None or phase.role in watched:
            return model if model is not None else watched[phase.role]
        from mindrlhf_msprobe.capture.graph.watched import graph_mode

        if not self._run.config.records_operators or graph_mode():
            raise UsageError.saying("error.no_network", name=phase.name, role=phase.role)
        if self._stand_in is None:
            from mindspore import nn

            self._stand_in = nn.Cell()
        return self._stand_in

    def leave(self) -> None:
        """Note that the phases which were open have ended."""
        self._run.settings.generates = None
        phases, self._open = self._open, {}
        # Less than before where another thread has ended a step meanwhile.
        recording = self._run.ledger.seconds_of_step() - self._recorded_before
        known = recording if recording >= 0 else None
        self._run.clock_of(self._run.step).opened(phases, self._entered_at, known)

    def _wants(self, phase: Phase) -> bool:
        """Return whether a phase that is switched on is recorded in this step."""
        first, _ = self.ran.get(phase.name, (self._run.step, self._run.step))
        self.ran[phase.name] = first, self._run.step
        wanted = self._run.config.records_step(self._run.step)
        lost = self._run.writer.manifest.lost
        if wanted and lost is not None:
            self._run.fault(message("lost.phase", phase=phase.name), DumpPathLostError(lost))
            return False
        return wanted

    def watch(self, networks: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Put probes into the networks of the roles that are recorded, for where they are compiled.

        Raises:
            UsageError: a network or an optimizer has been compiled already, in graph mode.
        """
        config = self._run.config
        phases = [p for p in config.phase_table().values() if config.records_phase(p)]
        roles = {phase.role for phase in phases}
        for role in sorted(roles & {*networks, *optimizers}):
            try:
                if optimizers.get(role) is not None and "backward" in config.directions:
                    self._probes().watch_optimizer(role, optimizers[role])
                    from mindrlhf_msprobe.capture.graph.watched import graph_mode
                    from mindrlhf_msprobe.capture.pynative.gradients import OptimizerHooks

                    if config.task == "grad_probe" and not graph_mode():
                        if self._optimizer_hooks is None:
                            self._optimizer_hooks = OptimizerHooks(self._openings.get)
                        self._optimizer_hooks.watch(role, optimizers[role])
                if networks.get(role) is not None:
                    self._probes().watch(role, networks[role])
            except UsageError:
                raise
            except Exception as error:
                self._run.fault(message("lost.cells", role=role), error)
        self._run.settings.watch(networks, optimizers)

    def _probes(self) -> GraphProbes:
        if self._graph_probes is None:
            from mindrlhf_msprobe.capture.framework.private import missing
            from mindrlhf_msprobe.capture.graph.watched import GraphProbes

            for name, lost in missing().items():
                self._run.leave_out(MINDSPORE, name, lost)
            self._graph_probes = GraphProbes(
                self._run.config,
                self._run.fault,
                will_record=lambda: self._run.config.steps_from(self._run.step) != 0,
                cost=self._run.ledger.graphs,
            )
        return self._graph_probes

    def open(
        self,
        phases: Sequence[Phase],
        watched: Mapping[str, Any],
        model: Any = None,
        token_range: tuple[int, int] | None = None,
    ) -> JointCapture | None:
        """Enter phases that open and close together; begin to record those that are recorded now.

        None if there is none, or that failed, which is counted, not raised.

        Args:
            watched: the networks by role.
            model: the one that the trainer named for the phase, or None.

        Raises:
            UsageError: no network was watched for a phase that is recorded.
        """
        networks = self._enter(phases, watched, model)
        if not networks:
            return None
        charge = self._run.ledger.charge(next(iter(networks)).name)
        with Counted(self._run.fault, "lost.phase", charge=charge, phase=names_of(networks)):
            from mindrlhf_msprobe.capture.recording.phase_capture import JointCapture

            opening = JointCapture(
                {p: self._capture(p, networks[p], token_range) for p in networks}
            )
            opening.open()
            self._open |= {p.name: self._counters[p.name].openings - 1 for p in networks}
            return opening
        return None

    def _capture(
        self, phase: Phase, network: Any, token_range: tuple[int, int] | None
    ) -> PhaseCapture:
        from mindrlhf_msprobe.capture.framework.hooks import ParameterHooks
        from mindrlhf_msprobe.capture.recording.phase_capture import PhaseCapture

        config = self._run.config
        records_token: Callable[[int], bool] | None
        records_token = config.records_token if phase.counts_tokens else None
        if token_range is not None:
            records_token = range(token_range[0], token_range[1] + 1).__contains__
        counters = self._counters.setdefault(phase.name, StepCounters(Selection(config)))
        opening = Opening(
            number=counters.openings,
            root=network,
            counters=counters,
            sequence=self._run.sequence,
            entries=self._entries(phase.name, counters, self._run.step),
            is_recorded=config.records_cell if config.records_cells else lambda _: False,
            records_token=records_token,
            with_parameters=config.parameters,
            directions=config.directions,
            parameter_hooks=self._parameter_hooks.setdefault(phase.role, ParameterHooks()),
            at_optimizer=hooks.parameters(phase.role) if (hooks := self._optimizer_hooks) else (),
            buffer_bytes=config.buffer_mb << 20,
            fault=self._run.fault,
            operators=config.records_cell if config.records_operators else None,
            observer=self.observer_of and self.observer_of(phase, counters.openings),
            graft=None
            if self._grafts is None
            else self._grafts.of_phase(phase, self._run.step, counters.openings),
        )
        self._openings[phase.role] = opening
        counters.openings += 1
        return PhaseCapture(opening, probes=self._probes(), role=phase.role)

    def close(self, opening: JointCapture, *, raised: bool = False) -> None:
        """End to record phases; says once of each in which no cell ran though nothing raised."""
        charge = self._run.ledger.charge(next(iter(opening.phases)).name)
        what = names_of(opening.phases)
        with Counted(self._run.fault, "lost.phase", charge=charge, phase=what):
            opening.close()
            for phase, capture in opening.phases.items():
                if self._run.config.optimizer_state and phase.name in UPDATE_PHASES:
                    number = self._counters[phase.name].openings - 1
                    places = next(self._run.sequence), next(self._run.sequence)
                    self._updated[phase] = *places, number
                gaps = capture.gaps()  # cells that could not be recorded whole, being compiled
                with self._run.lock:
                    new = self._run.writer.manifest.note_graph_gaps(phase.role, gaps)
                if new:
                    cells = [message("log.gap", cell=cell, why=[*why]) for cell, why in new.items()]
                    warn("log.gaps", role=phase.role, cells=cells)
                for how, operators in capture.unseen_operators().items():
                    self._note_operators(how, operators)
            if self._run.config.strict:  # its faults are raised here, not in a later phase
                self._run.writer.wait()
        with self._run.lock:
            left_out = self._run.writer.manifest.content.coverage.get(PHASES, {})
        for phase, capture in opening.phases.items():
            expected = not (raised or phase.name in left_out)
            expected = expected and capture.opening.root is not self._stand_in
            if expected and not capture.cells_seen and self._run.once("silent", phase.name):
                warn("log.silent", phase=phase.name, step=self._run.step, role=phase.role)

    def _note_operators(self, how: str, found: Sequence[tuple[str, str]]) -> None:
        """Write down, and say once, which operators cannot be recorded where they are called.

        Args:
            how: `held`: by a program, at the place that is named first, the operator behind it; or
                `replaced`: the operator, and what stands in its place.
        """
        param = "operator" if how == "held" else "by"
        with self._run.lock:
            news = [
                f"{name} ({other})"
                for name, other in found[:32]
                if self._run.writer.manifest.note_left_out(
                    OPERATORS, name, message(f"coverage.operator_{how}", **{param: other})
                )
            ]
        if news:
            listed = "places" if how == "held" else "operators"
            warn(f"log.operators_{how}", **{listed: news})

    def record_optimizers(self, step: int) -> None:
        """Record the state of the optimizers whose networks were updated in a step."""
        updated, self._updated = self._updated, {}
        for phase, (seq, end, opening) in updated.items():
            from mindrlhf_msprobe.capture.pynative.gradients import lines_of

            with (
                self._run.ledger.charge(phase.name),
                Counted(self._run.fault, "lost.optimizer_state"),
            ):
                optimizers = self._run.settings.of_networks().optimizers_of(phase.role)
                if not optimizers:
                    why = message("coverage.optimizer_not_watched")
                    self._run.leave_out(OPTIMIZERS, phase.role, why)
                counters = StepCounters(Selection(self._run.config))
                entries = self._entries(phase.name, counters, step, of_cells=False)
                for line in lines_of(optimizers, entries, seq, end, opening):
                    entries.append(line)
                entries.flush()

    def _entries(
        self, phase: str, counters: StepCounters, step: int, *, of_cells: bool = True
    ) -> HostEntries:
        """Return what describes the tensors of a phase in a step, and takes its entries.

        Args:
            of_cells: as the task says; else statistics alone.
        """
        config, fingerprint = self._run.config, self._run.config.fingerprint
        sketches = of_cells and config.task == "sketch"
        elements: bool | Callable[[str], bool] = of_cells and config.task == "tensor"
        if not elements and self._closer is not None and self._closer[:2] == (step, phase):
            elements = methodcaller("startswith", f"Cell.{self._closer[2]}.")  # and what is in it
        sink, overflows = self._run.writer.sink(phase, step), None
        if of_cells and self._overflows is not None:
            overflows = OverflowEntries(sink, self._overflows, counters, step, self._run.fault)
        shared: dict[str, Any] = {
            "sink": sink,
            "overflows": overflows,
            "summaries": self._summaries,
            "fingerprint": fingerprint,
            "charge": self._run.ledger.charge(phase),
            "fault": self._run.fault,
            "directions": None,
        }
        if config.task == "grad_probe" and config.grad_level != "L0":
            bounds = tuple(config.bounds) if config.grad_level == "L2" else None
            shared["directions"] = GradientDirections(frozenset(config.param_list), bounds)
        if sketches and (target := device_target()) != _HOST and self._run.once("sketches on host"):
            inform("log.sketches_on_host", target=target)
        if elements or sketches or not reduces_on_device(fingerprint, config.md5):
            return HostEntries(**shared, elements=elements, sketches=sketches)
        from mindrlhf_msprobe.capture.opening.device import DeviceEntries, DeviceSummaries

        device = DeviceSummaries(fingerprint=fingerprint)
        return DeviceEntries(device, counters.parameters, **shared)


def reduces_on_device(fingerprint: bool, md5: bool = False) -> bool:
    """Return whether statistics are computed where the tensors are: on an accelerator.

    Where fingerprints are wanted and MindSpore cannot compute them there (before 2.10), tensors are
    brought to the host instead; for msprobe's hash they always are.
    """
    from mindrlhf_msprobe.capture.opening.device import can_fingerprint

    if md5 or device_target() == _HOST:
        return False
    return can_fingerprint() or not fingerprint


def device_target() -> str:
    """Return what MindSpore computes on: CPU, Ascend or GPU."""
    from mindspore import get_context

    return str(get_context("device_target"))


_HOST = "CPU"  # among MindSpore's targets
