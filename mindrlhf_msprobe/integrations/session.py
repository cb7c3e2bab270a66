"""One training of a trainer that knows nothing of the probe."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.config import SECTION, ProbeConfig, load_config
from mindrlhf_msprobe.errors import InUseError, UsageError
from mindrlhf_msprobe.log import inform, warn
from mindrlhf_msprobe.probe import Probe


def begin(config: Any, trainer: Message, apart: str = "") -> Session | None:
    """Begin to record a training; None if its configuration does not say so on this rank.

    Args:
        config: the trainer's configuration, with the section as the attribute `msprobe_config`.
        trainer: what the training is called in messages.
        apart: the role of this process, where it is one of several that do not share ranks.

    Raises:
        ConfigError: a value in the section is wrong.
        RunError: the dump_path holds another run, or cannot be written.
    """
    settings = settings_in(getattr(config, SECTION, None), trainer)
    if settings is None:
        return None
    probe = _apart(settings, trainer, apart) if apart and in_ray_actor() else Probe(settings)
    if not probe.enabled:
        CURRENT.why_not = message("log.not_this_rank", section=SECTION, ranks=spans(settings.ranks))
    return Session(probe) if probe.enabled or probe.plays else None


def settings_in(section: Any, trainer: Message) -> ProbeConfig | None:
    """Return the settings of a training's section; None where it says nothing, which is noted.

    Raises:
        ConfigError: a value in the section is wrong.
    """
    if section is None or inspect.isroutine(section) or isinstance(section, type):
        # What stands there where the file has no section.
        inform("log.no_section", trainer=trainer, section=SECTION)
        CURRENT.why_not = message("log.not_without_section", trainer=trainer, section=SECTION)
        return None
    settings = load_config(section, ignore=ignored_by(trainer))
    if not settings.msprobe:
        CURRENT.why_not = message("log.not_switched_on", trainer=trainer, section=SECTION)
        return None
    return settings


def ignored_by(trainer: Message) -> Callable[[Message], None]:
    """Return what says that unknown keys of the section are ignored: no training ends for them."""
    return lambda what: warn("log.ignored", trainer=trainer, what=what)


def _apart(settings: ProbeConfig, trainer: Message, role: str) -> Probe:
    """Return a probe of a Ray actor, with a directory of its own.

    Actors without a name are told apart by a number, in the order in which they begin.
    """
    name = sys.modules["ray"].get_runtime_context().get_actor_name() or ""
    name = re.sub(r"[^\w.-]", "_", name).lstrip(".") or role
    for number in itertools.count():
        place = Path(settings.dump_path) / (f"{name}-{number}" if number else name)
        try:
            probe = Probe(dataclasses.replace(settings, dump_path=str(place)))
        except InUseError:
            continue
        break
    warn("log.ray_actor", trainer=trainer, role=role, place=str(place))
    return probe


def in_ray_actor() -> bool:
    """Return whether this process is an actor of Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


class Session:
    """What is recorded of one training.

    Args:
        probe: a probe that is switched on.

    Attributes:
        configurations: what is known of them so far, by name.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.configurations: dict[str, Any] = {}
        self._phases = probe.config.phase_table()
        self._networks: dict[str, Any] = {}
        self._not_recorded: dict[str, Any] = {}  # of which the settings alone are noted

    def watch(
        self, phase: str, owner: Any, path: str, *, inner: str = "", optimizer: Any = None
    ) -> None:
        """Watch the network that runs in a phase; of a phase that is switched off, its settings.

        A network that is not where it should be, or is compiled already, is not recorded, which is
        said.

        Args:
            owner, path: the network is `owner.path`, or `owner` where the path is empty.
            inner: the cell in it, from there, as which its cells are named.
            optimizer: its optimizer.
        """
        role = self._phases[phase].role
        recorded = self.records(phase)
        try:
            network = attrgetter(path)(owner) if path else owner
            if network is None:
                raise AttributeError(message("trainer.is_none", path=path))
            if inner:
                from mindrlhf_msprobe.capture.cells import name_as_seen_from

                name_as_seen_from(attrgetter(inner)(network), network)
            if not recorded:
                self._not_recorded[phase] = network
                return
            optimizers = None if optimizer is None else {role: optimizer}
            self.probe.watch(optimizers=optimizers, **{role: network})
        except (AttributeError, ValueError, UsageError) as error:
            where = f"{type(owner).__name__}.{path}".rstrip(".")
            self.probe.leave_out(phase, message("trainer.no_network", where=where, error=error))
        else:
            self._networks[phase] = network
            checkpoint = _checkpoint_of(owner, role)
            if checkpoint is not None:
                self.probe.note_checkpoint(role, checkpoint)

    def records(self, phase: str) -> bool:
        """Return whether a phase is switched on."""
        return self.probe.config.records_phase(self._phases[phase])

    def watch_optimizer(self, phases: Sequence[str], optimizer: Any) -> None:
        """Watch the optimizer of the networks that are trained in phases, built after them."""
        roles = [self._phases[phase].role for phase in phases if phase in self._networks]
        try:
            if optimizer is not None and roles:
                self.probe.watch(optimizers=dict.fromkeys(roles, optimizer))
        except UsageError as error:
            warn("log.no_parameter_gradients", why=error)

    def note_lost(self, name: str, why: str | Message) -> None:
        """Write down that a phase or a key of key data is not recorded; it was said before."""
        is_phase = name in self._phases
        leave_out = self.probe.leave_out if is_phase else self.probe.leave_out_data
        leave_out(name, why, quiet=True)

    def phase(self, *names: str) -> AbstractContextManager[Any]:
        """Return a phase, or several at once; those whose network is not watched are left out."""
        watched = [name for name in names if name in self._networks]
        if not watched:
            for name in names:
                if name in self._not_recorded:
                    return self.probe.phase(name, model=self._not_recorded[name])
            return nullcontext()
        if len(watched) == 1:
            return self.probe.phase(watched[0], model=self._networks[watched[0]])
        return self.probe.phase(watched)


#: What MindRLHF's workers and trainers call the checkpoints of roles; the others are the actor's.
_CHECKPOINTS = {"reference": "ref", "critic": "critic", "reward": "reward"}


def _checkpoint_of(owner: Any, role: str) -> str | None:
    """Return the path that an owner loads a role's network from, "" for none; None: not known."""
    found = {name: path for name, path in vars(owner).items() if "ckpt_path" in name}
    words = _CHECKPOINTS.values()
    own = [
        path
        for name, path in found.items()
        if (_CHECKPOINTS.get(role) == next((word for word in words if word in name), None))
    ]
    return next((str(path) for path in own if path), "") if own else None


def sections(config: Any) -> dict[str, Any]:
    """Return the sections of a trainer's configuration, by name, without that of the probe."""
    names = {name: None for of in (type(config), config) for name in vars(of)}
    found = {name: getattr(config, name) for name in names if not name.startswith("_")}
    return {
        name: _instance(value)
        for name, value in found.items()
        if name != SECTION and not inspect.isroutine(value)
    }


def _instance(value: Any) -> Any:
    """Return a section; one that the file leaves out is a class, whose defaults count."""
    if not dataclasses.is_dataclass(value):
        return value
    return {f.name: _instance(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
