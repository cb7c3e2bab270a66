"""What a switched-on probe records: opens phases, saves key data, and never stops the training."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.configurations import as_text, to_plain
from mindrlhf_msprobe.capture.entries import DeviceEntries, Entries, HostEntries
from mindrlhf_msprobe.capture.environment import cann_version, initial_weights, settings_now
from mindrlhf_msprobe.capture.keydata import describe_key_data
from mindrlhf_msprobe.capture.room import tell_missing_ranks, tell_room
from mindrlhf_msprobe.capture.summary import HostTensor, Summaries
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.ledger import Ledger
from mindrlhf_msprobe.storage.records import Leaf
from mindrlhf_msprobe.storage.writer import RunWriter

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.eager import StepCounters
    from mindrlhf_msprobe.capture.graph import GraphProbes, PhaseCapture
    from mindrlhf_msprobe.capture.hooks import ParameterHooks


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
        self._lost: dict[str, int] = {}
        self._raised: BaseException | None = None
        unknown: list[tuple[str, BaseException]] = []
        settings: dict[str, Any] = settings_now(lambda *fault: unknown.append(fault))
        self._writer = RunWriter(
            Path(config.dump_path).expanduser().absolute(),
            rank=rank,
            config=config.to_json(),
            existing=config.existing,
            task=config.task,
            settings={**settings, "versions": {"cann": cann_version()}},
            buffer_bytes=config.buffer_mb << 20,
            fault=self.fault,
            ledger=self.ledger,
        )
        self.step = config.initial_step or self._writer.next_step()
        try:
            self._writer.begin(self.step)
        except OSError as refused:
            raise RunError(
                f"dump_path {config.dump_path}: what an interrupted attempt left of step "
                f"{self.step} cannot be removed: {refused.strerror or refused}."
            ) from None
        self._sequence = itertools.count()
        self._summaries = Summaries()
        self._counters: dict[str, StepCounters] = {}
        self._parameter_hooks: ParameterHooks | None = None
        self._micro_steps: dict[str, int] = {}
        self._configurations: dict[str, Any] = {}
        self._silent_phases: set[str] = set()
        # Phases that are switched on: the first and the last step in which they ran.
        self._phases_run: dict[str, tuple[int, int]] = {}
        self._phases_recorded: set[str] = set()
        self._roles_entered: set[str] = set()
        self._room_told = self._ranks_told = False
        self._graph_probes: GraphProbes | None = None
        for what, error in unknown:
            self.fault(what, error)

    def first_entry(self, role: str, network: Any) -> None:
        """Record the initial weights of a role's network, and what the process now runs with.

        Only the first network that a role enters counts: one that replaces it, by a later
        `watch()` or `phase(model=…)`, is no initial one. A network that serves two roles is
        recorded for both. By the first network of all, the trainer has set its seeds and its
        determinism, which is why they are looked at again.
        """
        if role in self._roles_entered:
            return
        settings = None if self._roles_entered else settings_now(self.fault)
        self._roles_entered.add(role)
        try:
            weights = initial_weights(network, self.fault) if self._config.fingerprint else None
            self._writer.save_first_entry(role, weights, settings)
        except Exception as error:
            self.fault(f"the initial weights of {role}", error)

    def wants(self, phase: Phase) -> bool:
        """Tell whether a phase that is switched on is recorded in this step."""
        first, _ = self._phases_run.get(phase.name, (self.step, self.step))
        self._phases_run[phase.name] = first, self.step
        return self._config.records_step(self.step)

    def watch(self, networks: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Put probes into the networks of the roles that are recorded, for where they are compiled.

        Raises:
            UsageError: a network or an optimizer has been compiled already, in graph mode.
        """
        phases = [p for p in self._config.phase_table().values() if self._config.records_phase(p)]
        roles = {phase.role for phase in phases}
        for role in sorted(roles & {*networks, *optimizers}):
            try:
                if networks.get(role) is not None:
                    self._probes().watch(role, networks[role])
                if optimizers.get(role) is not None and "backward" in self._config.directions:
                    self._probes().watch_optimizer(role, optimizers[role])
            except UsageError:
                raise
            except Exception as error:
                self.fault(f"the cells of {role} where they are compiled", error)

    def _probes(self) -> GraphProbes:
        if self._graph_probes is None:
            from mindrlhf_msprobe.capture.graph import GraphProbes

            self._graph_probes = GraphProbes(self._config)
        return self._graph_probes

    def open_phase(self, phase: Phase, network: Any) -> PhaseCapture | None:
        """Begin to record a phase; None if that failed, which is counted, not raised."""
        try:
            from mindrlhf_msprobe.capture.eager import StepCounters
            from mindrlhf_msprobe.capture.graph import PhaseCapture
            from mindrlhf_msprobe.capture.hooks import ParameterHooks

            counters = self._counters.setdefault(phase.name, StepCounters())
            if self._parameter_hooks is None:
                self._parameter_hooks = ParameterHooks()
            capture = PhaseCapture(
                network,
                probes=self._probes(),
                role=phase.role,
                counters=counters,
                sequence=self._sequence,
                entries=self._entries(phase.name, counters),
                is_recorded=self._config.records_cell,
                records_token=self._config.records_token if phase.counts_tokens else None,
                with_parameters=self._config.parameters,
                directions=self._config.directions,
                parameter_hooks=self._parameter_hooks,
                buffer_bytes=self._config.buffer_mb << 20,
                fault=self.fault,
            )
            capture.open()
        except Exception as error:
            self.fault(f"phase {phase.name}", error)
            return None
        return capture

    def close_phase(self, phase: Phase, capture: PhaseCapture) -> None:
        """End to record a phase; says once if no cell ran inside it."""
        try:
            capture.close()
            self._note_graph_gaps(phase.role, capture.gaps())
            if self._config.strict:  # its faults are raised here, not in a later phase
                self._writer.wait()
        except Exception as error:
            self.fault(f"phase {phase.name}", error)
        if not capture.cells_seen and phase.name not in self._silent_phases:
            self._silent_phases.add(phase.name)
            logger.warning(
                "phase %s, step %d: no cell of the %s network that was watched ran inside it, so "
                "nothing was recorded. Check that the phase is wrapped around the right call, that "
                "the network that runs is the one given to watch(), that include and exclude leave "
                "cells of it, and that watch() was called before it was first compiled.",
                phase.name,
                self.step,
                phase.role,
            )

    def note_exception(self, phase: Phase, error: BaseException) -> None:
        """Say what to try where MindSpore could not compile cells that hold probes."""
        frames = traceback.walk_tb(error.__traceback__)
        codes = (frame.f_code for frame, _ in frames)
        if any(c.co_name == "compile" and "mindspore" in c.co_filename for c in codes):
            logger.warning(
                "%s passed through phase %s while MindSpore compiled cells that hold probes. If it "
                "does not happen with msprobe: false, leave out the cell that the error names "
                "(exclude), or its gradients (directions: [forward]), and report it.",
                type(error).__name__,
                phase.name,
            )

    def _note_graph_gaps(self, role: str, gaps: Mapping[str, str]) -> None:
        """Write down, and say once, which cells could not be recorded whole, being compiled."""
        with self._lock:
            new = self._writer.note_graph_gaps(role, gaps)
        if new:
            cells = "; ".join(f"{cell}: {reason}" for cell, reason in new.items())
            logger.warning(
                "the %s network is compiled, and of these cells something cannot be recorded (see "
                "coverage.graph_mode in run.json): %s",
                role,
                cells,
            )

    def save_key_data(self, key: str, value: Any) -> None:
        """Save one value under `key`, as the next micro-step of this step."""
        with self._lock:
            micro_step = self._micro_steps.get(key, 0)
            self._micro_steps[key] = micro_step + 1
        try:
            described = describe_key_data(key, value, fingerprint=self._config.fingerprint)
            for path, reason in described.unsaved.items():
                self.fault(f"key data {key}", TypeError(f"{path}: {reason}"))
            seq = next(self._sequence)
            self._writer.save_key_data(
                key,
                self.step,
                micro_step,
                lambda: {"seq": seq, "data": described.structure},
                described.arrays,
            )
        except Exception as error:
            self.fault(f"key data {key}", error)

    def save_configurations(self, configurations: Mapping[Any, Any]) -> None:
        """Write configurations.json; what was saved under other names before stays in it."""

        def note(path: str, value: Any) -> None:
            logger.warning(
                "configurations: %s is a %s, written as the text %.80s",
                path,
                type(value).__name__,
                as_text(value),
            )

        try:
            with self._lock:
                self._configurations.update(to_plain(configurations, note))
                content = dict(self._configurations)
            self._writer.save_configurations(content)
        except Exception as error:
            self.fault("configurations", error)

    def end_step(self) -> None:
        """Make everything recorded in this step readable and begin the next."""
        try:
            self._writer.end_step(self.step, self._lost)
        except Exception as error:
            self.fault(f"the end of step {self.step}", error)
        finally:  # an interrupted wait ends the step too: the writer was told already
            self._tell_room()
            self._tell_ranks()
            self.step += 1
            self._counters.clear()
            self._micro_steps.clear()

    def _tell_room(self) -> None:
        """Say once, after the first step with layer data, what a step takes on the disk."""
        if self._room_told or not self._phases_recorded:
            return
        self._room_told = True
        try:
            tell_room(self._config, self._writer.root, self.step, self.ledger.bytes_of_last_step())
        except OSError as error:  # a directory that was removed is a loss already
            logger.debug("the free room is not known: %s", error)

    def _tell_ranks(self) -> None:
        """Say once, after the first step, which ranks of the job write elsewhere."""
        if self._ranks_told:
            return
        self._ranks_told = True
        try:
            tell_missing_ranks(self._config, self._writer.root, self._writer.rank)
        except OSError as error:
            logger.debug("the ranks that write here are not known: %s", error)

    def close(self, *, failed: bool) -> None:
        """End the run; a step that was not ended stays readable and is marked unfinished."""
        try:
            try:
                self._writer.end_step(self.step, self._lost, complete=False)
            finally:
                self._writer.close(failed=failed)
        except Exception as error:
            self.fault("the end of the run", error)
        if self._lost:
            lost = ", ".join(f"{what}: {count}" for what, count in self._lost.items())
            logger.warning("records lost while recording (see run.json): %s", lost)
        for name, (first, last) in self._phases_run.items():
            if name not in self._phases_recorded | self._silent_phases and not self._lost:
                logger.warning(
                    "phase %s is switched on and ran in steps %d to %d, but nothing of it was "
                    "recorded: %s",
                    name,
                    first,
                    last,
                    self._why_nothing(first, last),
                )

    def _why_nothing(self, first: int, last: int) -> str:
        config = self._config
        if "forward" not in config.directions:
            return "directions leaves out forward, and no gradients were computed in it"
        if last < config.step_start or first > config.step_end:
            return f"step_start {config.step_start} … step_end {config.step_end} meets none of them"
        return (
            f"look at token_range_start {config.token_range_start} … token_range_end "
            f"{config.token_range_end}, include and exclude"
        )

    def abandon(self) -> None:
        """Record nothing more: called in a forked child, which leaves the run to its parent."""
        self._lock = threading.RLock()  # the old one may be held by a thread that is not here
        self._writer.abandon()

    def fault(self, what: str, error: BaseException, count: int = 1) -> None:
        """Count a fault while recording and log it once per kind; raise it in strict mode."""
        if error is self._raised:  # on its way out already, through another guard
            raise error
        kind = f"{what}: {type(error).__name__}"
        with self._lock:
            first = kind not in self._lost
            self._lost[kind] = self._lost.get(kind, 0) + count
        if self._config.strict:
            self._raised = error
            raise error
        if first:
            logger.warning(
                "could not record %s (step %d): %s: %s. Training goes on; further losses of this "
                "kind are counted in run.json.",
                what,
                self.step,
                type(error).__name__,
                error,
            )

    def _entries(self, phase: str, counters: StepCounters) -> Entries:
        """Return what describes the tensors of a phase that opens, and takes its entries."""
        step = self.step

        def write(values: dict[str, Any], frames: tuple[str, ...]) -> None:
            self._writer.append_entry(phase, step, values, frames)
            self._phases_recorded.add(phase)

        def store(record: str, host: HostTensor, leaf: Leaf) -> str:
            return self._writer.save_tensor(phase, step, record, host.values(), leaf.fingerprint)

        charge, fingerprint = self.ledger.charge(phase), self._config.fingerprint
        if self._config.task == "tensor" or not reduces_on_device(fingerprint):
            return HostEntries(
                self._summaries,
                store if self._config.task == "tensor" else None,
                fingerprint=fingerprint,
                charge=charge,
                write=write,
                fault=self.fault,
            )
        from mindrlhf_msprobe.capture.device import DeviceSummaries

        return DeviceEntries(
            DeviceSummaries(fingerprint=fingerprint),
            counters.parameters,
            self._summaries,
            fingerprint=fingerprint,
            charge=charge,
            write=write,
            fault=self.fault,
        )


def reduces_on_device(fingerprint: bool) -> bool:
    """Tell whether statistics are computed where the tensors are: on an accelerator.

    Where fingerprints are wanted and MindSpore cannot compute them there (before 2.10), tensors are
    brought to the host instead.
    """
    from mindspore import get_context

    from mindrlhf_msprobe.capture.device import can_fingerprint

    return get_context("device_target") != "CPU" and (can_fingerprint() or not fingerprint)


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
