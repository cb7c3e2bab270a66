"""The Trainer of mindformers.pynative (MindFormers 1.9 and later): what its callback records.

Written from MindFormers 1.9.0, 2.0.0 and 2.1.0; of these 2.0.0 runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import name_as_seen_from
from mindrlhf_msprobe.capture.framework.private import no_gradients, put_child, without_recompiling
from mindrlhf_msprobe.capture.tensors.summary import is_tensor
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.phases import LOSS_INPUTS, OVERFLOW
from mindrlhf_msprobe.probe import Probe


def networks_of(model: Any) -> dict[str, nn.Cell]:
    """Return the networks that a Trainer trains on this rank, by their places: `stage0`, ….

    Args:
        model: a cell, or a list of them: the stages of a pipeline; those of other ranks are None.
    """
    stages = model if isinstance(model, (list, tuple)) else [model]
    return {f"stage{n}": stage for n, stage in enumerate(stages) if isinstance(stage, nn.Cell)}


def as_one(networks: Mapping[str, nn.Cell], wanted: nn.Cell | None = None) -> nn.Cell | None:
    """Return the cell to watch: the only network, or one that holds all of them by name.

    Args:
        wanted: the cell from which names begin, of the only network.

    Raises:
        UsageError: that is no cell of it.
    """
    if len(networks) == 1:
        (network,) = networks.values()
        try:
            name_as_seen_from(wanted or network, network)
        except ValueError:
            names = {"name": type(wanted).__name__, "name2": type(network).__name__}
            raise UsageError.saying("error.callback_network", **names) from None
        return network
    if not networks:
        return None
    together = nn.Cell(auto_prefix=False)  # it never runs; parameters keep their names
    for name, network in networks.items():
        put_child(together, name, network)
    return together


class Step:
    """What one training step is given and computes, beside its cells.

    Args:
        networks: those that run in it.
        optimizer, lr_scheduler: what sets the learning rate; others are ignored.
    """

    def __init__(
        self,
        networks: Iterable[nn.Cell],
        *,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_others: Any,
    ) -> None:
        self.open = False
        self._networks = list(networks)
        self._optimizer, self._scheduler = optimizer, lr_scheduler
        self._hooks: list[Any] = []
        self._rate: Any = None
        self._skipped = 0
        self._no_loss_noted = False

    def begin(self, probe: Probe, state: Any) -> None:
        """Note the learning rate and how many steps were skipped; listen to the batches."""
        self.close()  # a step before, which raised
        self.open = True
        if not (probe.enabled and probe.config.key_data_dump):
            return
        self._skipped = getattr(state, "skipped_steps", 0)
        try:
            with no_gradients():
                self._rate = self._learning_rate(state)
        except Exception as error:
            self._rate = None
            probe.leave_out_data("lr", message("trainer.no_rate", error=error))
        with without_recompiling():
            self._hooks = [
                network.register_forward_pre_hook(_saves_batch(probe), with_kwargs=True)
                for network in self._networks
            ]

    def _learning_rate(self, state: Any) -> Any:
        """Return the learning rate that this step's update uses: of each group, where they differ.

        The optimizer counts its updates itself: what the Trainer logs at the end of a step is the
        next one's.
        """
        get = getattr(self._optimizer, "get_lr", None)
        if callable(get):
            rate = get()
        elif callable(self._scheduler):
            rate = self._scheduler(state.global_step)
        else:
            return None
        rates = rate if isinstance(rate, (tuple, list)) else [rate]
        numbers = [float(each.asnumpy() if is_tensor(each) else each) for each in rates]
        return numbers[0] if len(set(numbers)) == 1 else numbers

    def end(self, probe: Probe, state: Any, given: Mapping[str, Any]) -> None:
        """Save what the Trainer says of the step.

        Args:
            given: what it gives its callbacks: `loss`, `grad_norm`, ….
        """
        self.close()
        found = {
            "loss": given.get("loss"),
            "grad_norm": given.get("grad_norm"),
            "lr": self._rate,
            "loss_scale": getattr(state, "loss_scale", None),
        }
        if hasattr(state, "skipped_steps"):
            found[OVERFLOW] = state.skipped_steps > self._skipped
        if found["loss"] is None and not self._no_loss_noted:
            self._no_loss_noted = True
            probe.leave_out_data("loss", message("trainer.no_loss"), quiet=True)
        for name, value in found.items():
            if value is not None:
                probe.save_data(name, value)

    def close(self) -> None:
        """Listen no longer."""
        self.open = False
        hooks, self._hooks = self._hooks, []
        with without_recompiling():
            for hook in hooks:
                hook.remove()


def _saves_batch(probe: Probe) -> Any:
    """Return a hook that saves what a network is given by name: a micro-batch of the data."""

    def save(_cell: nn.Cell, _args: Any, kwargs: dict[str, Any]) -> None:
        batch = {name: value for name, value in kwargs.items() if value is not None}
        if batch:
            probe.save_data(LOSS_INPUTS, batch)

    return save
