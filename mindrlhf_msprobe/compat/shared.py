"""The probe behind the older tools: found by its directory, its phases opened and closed by calls.

The older tools are set up one by one and may write into one directory; here that is one run.
"""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
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
        self._close("log.still_open_start", call=call, phase=phase)
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
                    self._close("log.still_open_start", call=call, phase=phase)
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
            self._close("log.still_open_step", call=tool)
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

    def _close(self, code: str, **event: str) -> None:
        if self._open is not None:
            self.warn_once(message(code, open=self.open, **event))
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
