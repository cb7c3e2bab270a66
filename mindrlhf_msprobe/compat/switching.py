"""Phases that are opened by one call and closed by another, as the older tools have them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.probe import PhaseContext, Probe


class PhaseSwitch:
    """Opens and closes the phases of one probe.

    Starting a phase while another is open, and ending the step inside one, closes the open one
    with a warning: scripts of the older tools do so.

    Args:
        probe: a probe that records.
        caller: how the older tool is called in messages.
    """

    def __init__(self, probe: Probe, caller: str) -> None:
        self._probe = probe
        self._caller = caller
        self._open: PhaseContext | None = None
        self._networks: dict[str, Any] = {}
        self._watched: list[tuple[str, weakref.ref[Any]]] = []
        self._told: set[str] = set()

    @property
    def open(self) -> str | None:
        """The phase that is open."""
        return None if self._open is None else self._open.name

    def start(
        self, phase: str, role: str, model: Any, token_range: tuple[int, int] | None = None
    ) -> None:
        """Open a phase.

        Args:
            model: a network or a list of networks; None: the one the role was last given.
            token_range: see `Probe.phase`.

        Raises:
            UsageError: there is no network, it is no cell, or, in graph mode, it has been
                compiled already.
        """
        network = self._network(role, model)
        if self._open is not None:
            self.warn_once(
                f"{phase} in {self.open}",
                "%s: %s is started while %s is still open, which ends here.",
                self._caller,
                phase,
                self.open,
            )
            self.stop()
        context = self._probe.phase(phase, model=network, token_range=token_range)
        assert isinstance(context, PhaseContext)
        context.__enter__()
        self._open = context

    def stop(self) -> None:
        """Close the open phase, if one is."""
        context, self._open = self._open, None
        if context is not None:
            context.end()

    def step(self) -> None:
        """End the step, and the open phase with it."""
        if self._open is not None:
            self.warn_once(
                f"step in {self.open}",
                "%s: step() while %s is still open, which ends here.",
                self._caller,
                self.open,
            )
            self.stop()
        self._probe.step()

    def warn_once(self, kind: str, message: str, *arguments: Any) -> None:
        """Log a warning, once for each kind."""
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(message, *arguments)

    def _network(self, role: str, model: Any) -> Any:
        if model is None:
            if role not in self._networks:
                raise UsageError(
                    f"{self._caller} was started without a model; expected a mindspore.nn.Cell, or "
                    f"a list of them, at the first start."
                )
            return self._networks[role]
        network = _joined(model) if isinstance(model, (list, tuple)) else model
        known = self._networks.get(role)
        if isinstance(model, (list, tuple)) and _same_cells(known, network):
            network = known
        if not any(at == role and ref() is network for at, ref in self._watched):
            self._watch_optimizers(role, network)
            self._probe.watch(**{role: network})
            self._watched.append((role, weakref.ref(network)))
        self._networks[role] = network
        return network

    def _watch_optimizers(self, role: str, network: Any) -> None:
        """Find the optimizers of a network that will be compiled: parameter gradients enter there.

        The older interfaces are given networks only.
        """
        from mindspore import nn

        from mindrlhf_msprobe.capture.graph import graph_mode

        if not graph_mode() or not isinstance(network, nn.Cell):
            return
        own = {id(parameter) for parameter in network.get_parameters()}
        # By its type: isinstance would ask a weak proxy for what may no longer exist.
        for found in gc.get_objects():
            if issubclass(type(found), nn.Optimizer) and any(
                id(parameter) in own for parameter in getattr(found, "parameters", ())
            ):
                try:
                    self._probe.watch(optimizers={role: found})
                except UsageError as error:
                    logger.warning("%s: gradients of parameters: %s", self._caller, error)


def _joined(models: Any) -> Any:
    """Return a cell that holds others under their numbers and leaves their names alone."""
    from mindspore import nn

    holder = nn.Cell(auto_prefix=False)
    for number, model in enumerate(models):
        if not isinstance(model, nn.Cell):
            raise UsageError(
                f"model[{number}] is a {type(model).__name__}; expected a mindspore.nn.Cell."
            )
        holder._cells[str(number)] = model
    if not models:
        raise UsageError("model is an empty list; expected a mindspore.nn.Cell, or a list of them.")
    return holder


def _same_cells(a: Any, b: Any) -> bool:
    if a is None or len(a._cells) != len(b._cells):
        return False
    return all(x is y for x, y in zip(a._cells.values(), b._cells.values()))
