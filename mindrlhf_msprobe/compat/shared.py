"""The probe behind the older tools, and MsProbe: the class MindRLHF and MindSpeed-RL call.

A probe is found by its directory, its phases are opened and closed by calls. The older tools are
set up one by one and may write into one directory; here that is one run.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from mindrlhf_msprobe.capture.arguments import MISSING
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig, load_config
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.log import logger, warn
from mindrlhf_msprobe.probe import PhaseContext, Probe, recording_probes

_PathLike = str | os.PathLike[str]

_shared: dict[Probe, SharedProbe] = {}


def real_path(dump_path: _PathLike) -> str:
    """Return the directory itself, however it is called."""
    return os.path.realpath(os.path.expanduser(dump_path))


def probe_at(dump_path: _PathLike) -> Probe | None:
    """Return the probe of this process that records into a directory, or None."""
    place = real_path(dump_path)
    found = (p for p in recording_probes() if real_path(p.config.dump_path) == place)
    return next(found, None)


class SharedProbe:
    """A probe that several of the older tools may use.

    Starting a phase while another is open, and ending the step inside one, closes the open one
    with a warning: scripts of the older tools do so.

    Each tool counts its own steps: the step ends when the first of them ends it.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._steps: dict[str, int] = {}
        self._open: PhaseContext | None = None
        self._networks: dict[str, Any] = {}
        self._watched: list[tuple[str, weakref.ref[Any]]] = []
        self._logged: set[Message] = set()

    @classmethod
    def for_tool(cls, probe: Probe, tool: str) -> SharedProbe:
        """Return the one of a probe, which `tool` uses from now on."""
        shared = _shared.get(probe)
        if shared is None:
            shared = _shared[probe] = cls(probe)
        shared._steps[tool] = probe.current_step
        return shared

    @property
    def open(self) -> str | None:
        """The phase that is open."""
        return None if self._open is None else self._open.name

    def start(
        self,
        call: str,
        phase: str,
        role: str,
        model: Any,
        token_range: tuple[int, int] | None = None,
    ) -> None:
        """Open a phase.

        Args:
            call: the older tool's, for messages.
            model: a network or a list of networks; None: the one the role was last given.
            token_range: see `Probe.phase`.

        Raises:
            UsageError: there is no network, it is no cell, or, in graph mode, it has been
                compiled already.
        """
        network = self._network(call, role, model)
        self._close(call=call, phase=phase)
        self._enter(phase, model=network, token_range=token_range)

    def monitor(self, call: str, phase: str, role: str, optimizer: Any) -> None:
        """Record what enters an optimizer, each call of it as a step unless a phase was started.

        Raises:
            UsageError: as `Probe.watch`.
        """
        from mindrlhf_msprobe.capture.arguments import checked_cell
        from mindrlhf_msprobe.capture.cells import Parameters
        from mindrlhf_msprobe.capture.framework.hooks import CellHooks
        from mindrlhf_msprobe.capture.graph.watched import graph_mode

        checked_cell(call, optimizer)
        if graph_mode():
            if not self._networks:
                self.warn_once(message("log.monitor_in_graph", call=call))
        else:
            holder = Parameters(getattr(optimizer, "parameters", ()))
            self._steps[call] = self.probe.current_step

            def counts() -> bool:
                return not self._networks and self.probe in recording_probes()

            def before(*_: Any) -> None:
                if counts():
                    self._close(call=call, phase=phase)
                    self._enter(phase, model=holder)

            def after(*_: Any) -> None:
                if counts():
                    self.stop()
                    self.step(call)

            # Before those of the probe, which record into the phase that is opened here.
            CellHooks(before, after).add(optimizer)
        self.probe.watch(optimizers={role: optimizer})

    def stop(self) -> None:
        """Close the open phase, if one is."""
        context, self._open = self._open, None
        if context is not None:
            context.end()

    def step(self, tool: str) -> None:
        """End the step, and the open phase with it, unless another tool has ended it already."""
        own = self._steps[tool]
        self._steps[tool] = own + 1
        if own == self.probe.current_step:
            self._close(call=tool, phase=None)
            self.probe.step()

    def start_at(self, step: int, tool: str) -> None:
        """Number the steps from `step` on, for a tool that begins with it."""
        self.probe.start_at(step)
        self._steps[tool] = self.probe.current_step

    def warn_once(self, said: Message) -> None:
        """Log a warning, once."""
        if said not in self._logged:
            self._logged.add(said)
            logger.warning("%s", said)

    def _enter(self, phase: str, **how: Any) -> None:
        context = self.probe.phase(phase, **how)
        assert isinstance(context, PhaseContext)
        context.__enter__()
        self._open = context

    def _close(self, call: str, phase: str | None) -> None:
        if self._open is not None:
            self.warn_once(message("log.still_open", open=self.open, call=call, phase=phase))
            self.stop()

    def _network(self, call: str, role: str, model: Any) -> Any:
        if model is None:
            if role not in self._networks:
                raise UsageError.saying("error.no_model", call=call)
            return self._networks[role]
        known = self._networks.get(role)
        network = model
        if isinstance(model, (list, tuple)):
            from mindrlhf_msprobe.capture.framework.private import children_of

            network = _joined(call, model)
            own = [*map(id, children_of(network).values())]
            is_known = known is not None and own == [*map(id, children_of(known).values())]
            network = known if is_known else network
        if not any(at == role and ref() is network for at, ref in self._watched):
            self._watch_optimizers(call, role, network)
            self.probe.watch(**{role: network})
            self._watched.append((role, weakref.ref(network)))
        self._networks[role] = network
        return network

    def _watch_optimizers(self, call: str, role: str, network: Any) -> None:
        """Find the optimizers of a network that will be compiled: parameter gradients enter there.

        The older interfaces are given networks only.
        """
        from mindspore import nn

        from mindrlhf_msprobe.capture.graph.watched import graph_mode

        if not isinstance(network, nn.Cell) or not graph_mode():
            return
        own = {id(parameter) for parameter in network.get_parameters()}
        # By its type: isinstance would ask a weak proxy for what may no longer exist.
        optimizers = [found for found in gc.get_objects() if issubclass(type(found), nn.Optimizer)]
        for optimizer in optimizers:
            if any(id(parameter) in own for parameter in getattr(optimizer, "parameters", ())):
                try:
                    self.probe.watch(optimizers={role: optimizer})
                except UsageError as error:
                    warn("log.of_gradients", call=call, why=error)


def _joined(call: str, models: Any) -> Any:
    """Return a cell that holds others under their numbers and leaves their names alone."""
    from mindspore import nn

    from mindrlhf_msprobe.capture.framework.private import put_child

    if not models:
        raise UsageError.saying("error.empty_list", call=call)
    holder = nn.Cell(auto_prefix=False)
    for number, model in enumerate(models):
        if not isinstance(model, nn.Cell):
            raise UsageError.saying(
                "error.model_item", call=call, number=number, name=type(model).__name__
            )
        put_child(holder, str(number), model)
    return holder


_START = "MsProbe.debugger_start"


class MsProbe:
    """One probe for the whole process, called through the class.

        MsProbe.config_init(config.msprobe_config)
        MsProbe.debugger_start(model, tag="actor_update")
        MsProbe.save_data({"loss": loss})
        MsProbe.debugger_stop(tag="actor_update")
        MsProbe.step()

    Until `config_init` was given a configuration with `msprobe: true`, every call does nothing.

    Attributes:
        enabled: whether this process records anything.
        config: what is recorded.
    """

    enabled: ClassVar[bool] = False
    config: ClassVar[ProbeConfig | None] = None
    _shared: ClassVar[SharedProbe | None] = None

    @classmethod
    def config_init(cls, msprobe_config: Any) -> None:
        """Begin to record, if the configuration says so.

        Called again with an equal configuration, or a switched-off one, it changes nothing; with
        another one it ends the run and begins the next.

        Args:
            msprobe_config: as for `Probe.from_config`; also MindSpeed-RL's MsprobeConfig.

        Raises:
            ConfigError: the configuration is wrong; the message names key, value and expectation.
            RunError: the dump_path already holds another run, or cannot be written.
        """
        attributes = getattr(msprobe_config, "__dict__", {})
        if "role" in attributes:  # MindSpeed-RL's
            others = {name: attributes[name] for name in attributes if name != "role"}
            msprobe_config = SimpleNamespace(**others)
        config = load_config(msprobe_config)
        if not config.msprobe or (cls.enabled and config == cls.config):
            return
        if cls._shared is not None:
            warn("log.config_init_again")
            cls._shared.probe.close()
            cls.enabled, cls.config, cls._shared = False, None, None
        probe = Probe(config)
        cls.config, cls.enabled = config, probe.enabled
        if probe.enabled:
            cls._shared = SharedProbe.for_tool(probe, "MsProbe")

    @classmethod
    def save_configs(cls, data: Any) -> None:
        """Write configurations.json; see `Probe.save_configs`."""
        if cls._shared is not None:
            cls._shared.probe.save_configs(data)

    @classmethod
    def save_data(cls, name: Any = MISSING, data: Any = MISSING) -> None:
        """Save key data: `save_data("loss", loss)` or `save_data({"loss": loss})`.

        The mapping may also be given as `data`, as MindSpeed-RL's trainers do.

        Raises:
            UsageError: a name cannot name a directory; the other names of the call are saved.
        """
        if cls._shared is None:
            return
        given = [value for value in (name, data) if value is not MISSING]
        cls._shared.probe.save_data(*given)

    @classmethod
    def save_string_list(cls, name: str, string_list: Iterable[str]) -> None:
        """Save texts under one name, as one micro-step; each stays readable as text.

        Raises:
            UsageError: a single text was given, or the name cannot name a directory.
        """
        if cls._shared is None or not cls._shared.probe.config.key_data_dump:
            return
        alone = isinstance(string_list, (str, bytes, Mapping))
        if alone or not isinstance(string_list, Iterable):
            raise UsageError.saying("error.string_list", name=name, string_list=string_list)
        cls._shared.probe.save_data(name, list(string_list))

    @classmethod
    def debugger_start(cls, model: Any = None, tag: str | None = None) -> None:
        """Begin to record what the cells of `model` compute, as the phase `tag`.

        Does nothing where the phase is switched off. A tag that is no phase is ignored, with a
        warning; phases of your own are declared in `msprobe_config.phases`.

        Args:
            model: a network or a list of networks; None: the one the phase's role was last given.

        Raises:
            UsageError: there is no network, it is no cell, or, in graph mode, it has been compiled
                already.
        """
        if cls._shared is None or cls.config is None:
            return
        table = cls.config.phase_table()
        phase = table.get(tag) if isinstance(tag, str) else None
        if phase is None:
            known = {"nearest": nearest_of(str(tag), table), "phases": ", ".join(table)}
            cls._shared.warn_once(message("log.no_phase", call=_START, tag=repr(tag), **known))
        elif cls.config.records_phase(phase):
            cls._shared.start(_START, phase.name, phase.role, model)

    @classmethod
    def debugger_stop(cls, tag: str | None = None) -> None:
        """End the phase `tag`, or whichever is open; does nothing if it is not open."""
        if cls._shared is not None and (tag is None or tag == cls._shared.open):
            cls._shared.stop()

    @classmethod
    def step(cls) -> None:
        """End the training step: when this returns, all it recorded is readable on disk."""
        if cls._shared is not None:
            cls._shared.step("MsProbe")
