"""What a run is set to: the process, its networks and optimizers, what it generates with."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.settings.environment import (
    RandomStates,
    initial_weights,
    settings_now,
)
from mindrlhf_msprobe.log import inform
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase, role_of
from mindrlhf_msprobe.storage.manifest.manifest import (
    FirstEntry,
    Generated,
    Networks,
    StepStates,
    Written,
)
from mindrlhf_msprobe.storage.manifest.run_file import Change, Generation
from mindrlhf_msprobe.storage.writing.ledger import STEP, Counted

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder
    from mindrlhf_msprobe.capture.settings.generation import GenerateCalls
    from mindrlhf_msprobe.capture.settings.networks import NetworkSettings


class RunSettings:
    """Finds what a run is set to, and notes it.

    Attributes:
        phases_entered: those whose first network was looked at.
        generates: the phase that is open, if it generates.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder
        self.phases_entered: set[str] = set()
        # Whose initial weights were taken, by the name under which they stand: role and network.
        self._first_networks: dict[str, tuple[str, weakref.ref[Any]]] = {}
        self._taken = False  # what the process runs with
        self._networks: NetworkSettings | None = None
        self._networks_noted = False
        self._generation: dict[str, Generation] = {}  # by phase, as the manifest has it
        self._generated_with: dict[str, dict[str, Any]] = {}  # by phase, in its last call
        self._generate_calls: GenerateCalls | None = None
        self.generates: str | None = None
        self._random_states = RandomStates(recorder.fault)

    def note_random_states(self, step: int) -> None:
        """Note the states of random generators in which a step begins, at its first phase."""
        with self._run.ledger.charge(STEP), Counted(self._run.fault, "lost.generators"):
            if self._random_states.note(step):
                self._run.note(StepStates(self._random_states.content))

    def watch(self, networks: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Take what watched networks and optimizers are set to."""
        settings = self.of_networks()
        settings.watch(networks, optimizers)
        self._write_networks(settings)

    def end_step(self) -> None:
        """Note what changed since the networks ran."""
        if self._networks is not None:
            self._networks.end_step()
            self._write_networks(self._networks)

    def end_run(self) -> None:
        """Listen to no further calls of `generate`."""
        if self._generate_calls is not None:
            self._generate_calls.close()

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
        if phase.name in self.phases_entered and not of_role:
            return
        self.phases_entered.add(phase.name)
        if any(of == phase.role and one() is network for of, one in self._first_networks.values()):
            return
        updates = (name for name in UPDATE_PHASES if role_of(name) == phase.role)
        trained = any(self._run.phases.entered[name] > (name == phase.name) for name in updates)
        if trained and not of_role:
            return
        settings = None if self._taken else settings_now(self._run.fault)
        self._taken = True
        name = phase.role if of_role else phase.name
        self._first_networks[name] = phase.role, weakref.ref(network)
        if self._run.writer.manifest.lost is not None:
            return
        with Counted(self._run.fault, "lost.initial_weights", role=name):
            weights = None
            if self._run.config.fingerprint:
                weights = initial_weights(network, self._run.fault)
            if weights is not None or settings is not None:
                self._run.note(FirstEntry(name, weights, settings, phase.name))

    def enter_without_network(self, phase: Phase) -> None:
        """Say once that a phase has no network, and note what the process runs with."""
        if self._run.once("no network", phase.name):
            inform("log.no_network", phase=phase.name, role=phase.role)
        self._note_process(phase)

    def _note_process(self, phase: Phase) -> None:
        """Note what the process runs with, unless that was taken in an earlier phase."""
        if not self._taken:
            self._taken = True
            settings = settings_now(self._run.fault)
            self._run.note(FirstEntry(phase.role, None, settings, phase.name))

    def enter(self, phase: Phase, network: Any) -> None:
        """Note what a network is set to when a phase opens, recorded or not: mode, attributes.

        Where the first phase is switched off, what the process runs with is noted, too.
        """
        recorded = self._run.config.records_phase(phase)
        if not recorded:
            self._note_process(phase)
        charged = phase.name if recorded else STEP
        with self._run.ledger.charge(charged):
            settings = self.of_networks()
            settings.enter(phase, network, self._run.step)
            self._write_networks(settings)
            if phase.counts_tokens:
                self.generates = phase.name
                with Counted(self._run.fault, "lost.generation_settings"):
                    if self._generate_calls is None:
                        from mindrlhf_msprobe.capture.settings.generation import GenerateCalls

                        self._generate_calls = GenerateCalls(self, self._run.fault)
                    self._generate_calls.listen(network)

    def note_call(self, settings: Mapping[str, Any]) -> None:
        """Note what a call of `generate` was given, if the phase that generates is still open."""
        if self.generates is not None:
            self._note_generation(self.generates, settings)

    def _note_generation(self, phase: str, settings: Mapping[str, Any]) -> None:
        """Note what a phase generates with; what is as it was before is noted once."""
        step = self._run.step
        with self._run.lock:
            known = self._generated_with.setdefault(phase, {})
            before = self._generation.get(phase)
            if before is None:
                content = Generation.make(step=step, settings=dict(settings))
            else:
                new = [
                    Change.make(step=step, name=name, value=value)
                    for name, value in settings.items()
                    if name not in known or (type(known[name]), known[name]) != (type(value), value)
                ]
                changes = [*before.changes, *new][:4000]
                if len(changes) == len(before.changes):
                    return
                content = Generation({**before.json})
                content.changes = changes
            known.update(settings)
            self._generation = {**self._generation, phase: content}
            self._run.note(Generated(self._generation))

    def note_generation(self, phase: Phase, settings: Mapping[str, Any]) -> None:
        """Note what a phase generates with: name → value; what is no plain value is left out."""
        with Counted(self._run.fault, "lost.generation_settings"):
            from mindrlhf_msprobe.capture.settings.generation import plain_settings

            self._note_generation(phase.name, plain_settings(settings))

    def of_networks(self) -> NetworkSettings:
        """Return what networks and optimizers are set to, as far as they were watched or ran."""
        if self._networks is None:
            from mindrlhf_msprobe.capture.settings.networks import NetworkSettings

            self._networks = NetworkSettings(self._run.fault)
        return self._networks

    def _write_networks(self, settings: NetworkSettings) -> None:
        with Counted(self._run.fault, "lost.networks"):
            content = settings.take()
            if content is not None:
                written = Written.WITH_THE_STEP if self._networks_noted else Written.SOON
                self._networks_noted = True
                self._run.note(Networks(content, written))
