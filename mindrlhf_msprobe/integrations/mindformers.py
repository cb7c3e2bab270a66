"""Supervised training by `mindspore.train.Model` or the MindFormers Trainer, as a phase.

model = Model(network, loss_fn, optimizer)
model.train(epochs, dataset, callbacks=[ProbeCallback("sft.yaml")])

The MindFormers Trainer takes it as `Trainer(…, callbacks=ProbeCallback("sft.yaml"))`.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from mindspore import nn
from mindspore.train import Callback

from mindrlhf_msprobe.capture.framework.private import INNER, children_of
from mindrlhf_msprobe.capture.networks.cells import name_as_seen_from, named_cells
from mindrlhf_msprobe.config import load_config
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.probe import Probe

#: Modules whose cells stand around a network that is trained, and the name it has in them.
_WRAPPERS = ("mindspore.nn.wrap.", "mindspore.train.", "mindformers.wrapper.")


class ProbeCallback(Callback):
    """Records each training step of `Model.train` or `Model.fit` as one phase of one step.

    Records are named as the network names its cells, whatever is put around it; cells around it
    that take part in the forward pass (a loss function) are recorded as `outer` and what it holds,
    e.g. `outer._loss_fn`. The loss is saved as key data `loss`, the steps of a training that is
    resumed are numbered on.

    Where MindSpore runs several steps in one call (`dataset_sink_mode` on a device, in graph mode),
    they are recorded as one step, which the log says.

    Args:
        source: what `Probe.from_config` takes: a run is begun when the training begins, and ended
            with it; where the same Model trains on, in a further call, it is continued. Or a Probe,
            which is left open: phases after the training may use it too.
        phase: the phase that a training step is, whose role the network plays.
        network: the network whose names the records have, where the one given to the Model is not
            it: a cell of that.
        configurations: what `Probe.save_configs` takes; saved when the training begins.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: the phase is not known.
    """

    def __init__(
        self,
        source: Any,
        phase: str = "actor_update",
        *,
        network: nn.Cell | None = None,
        configurations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._given = source if isinstance(source, Probe) else None
        self._config = self._given.config if self._given else load_config(source)
        phases = self._config.phase_table()
        if phase not in phases:
            hint, known = nearest_of(str(phase), phases), ", ".join(phases)
            raise UsageError.saying(
                "error.callback_phase", phase=repr(phase), nearest=hint, known=known
            )
        self._phase = phases[phase]
        self._network = network
        self._configurations = configurations
        self._probe: Probe | None = None
        self._trained: weakref.ref[nn.Cell] | None = None  # by the last run that was begun
        self._open: Any = None
        self._steps_done = 0
        self._sink_logged = False

    @property
    def probe(self) -> Probe | None:
        """The probe that records; None before the training begins and after it ended."""
        return self._probe

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Begin the run, before the first epoch: networks are built, nothing is compiled yet.

        Raises:
            RunError: the dump_path already holds another run, or cannot be written.
            UsageError: in graph mode, the network has been compiled already.
        """
        if self._probe is not None or not self._config.msprobe:
            return
        arguments = run_context.original_args()
        self._steps_done = arguments.get("cur_step_num") or 0
        train_cell = arguments["train_network"]
        self._probe = self._given or self._begun(train_cell)
        self._trained = weakref.ref(train_cell)
        steps_before = _steps_before(arguments)
        if steps_before and self._given is None:
            self._probe.start_at(steps_before)
        network = recorded_network(train_cell, arguments.get("network"), self._network)
        optimizer = _optimizer(train_cell) or arguments.get("optimizer")
        role = self._phase.role
        given = {role: optimizer} if isinstance(optimizer, nn.Cell) else {}
        self._probe.watch(optimizers=given, **{role: network})
        if self._configurations is not None:
            self._probe.save_configs(self._configurations)

    def _begun(self, train_cell: nn.Cell) -> Probe:
        """Return a probe for a training: one that goes on with it, if it began with this one."""
        if self._trained is None:
            return Probe(self._config)
        if self._trained() is train_cell:
            return Probe(dataclasses.replace(self._config, existing="resume"))
        try:
            return Probe(self._config)
        except RunError as error:
            raise RunError.saying("error.callback_again", error=error) from None

    def on_train_step_begin(self, run_context: Any) -> None:
        """Open the phase."""
        if self._probe is None:
            return
        count = run_context.original_args().get("cur_step_num", self._steps_done + 1)
        steps, self._steps_done = count - self._steps_done, count
        if steps > 1 and not self._sink_logged:
            self._sink_logged = True
            warn("log.sink_mode", steps=steps)
        self._open = self._probe.phase(self._phase.name)
        self._open.__enter__()

    def on_train_step_end(self, run_context: Any) -> None:
        """Close the phase, save the loss, end the step."""
        if self._probe is None or self._open is None:
            return
        self._leave_phase()
        outputs = run_context.original_args().get("net_outputs")
        loss = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
        if loss is not None:
            self._probe.save_data(loss=loss)
        self._probe.step()

    def on_train_end(self, run_context: Any) -> None:
        """End the run."""
        self._end(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End the run where the training raised: what was recorded stays, marked as failed."""
        if error is not None:  # an evaluation between two epochs leaves it, too
            self._end(kind, error, trace)

    def _end(self, *raised: Any) -> None:
        probe, self._probe = self._probe, None
        try:
            self._leave_phase(*raised)
        finally:
            if probe is not None and self._given is None:
                probe.__exit__(*raised)

    def _leave_phase(self, *raised: Any) -> None:
        context, self._open = self._open, None
        if context is not None:
            context.__exit__(*(raised or (None, None, None)))


def _steps_before(arguments: Mapping[str, Any]) -> int:
    """Return how many steps a training that is resumed had done."""
    dataset = arguments.get("train_dataset")
    per_epoch = arguments.get("batch_num") or 0
    if dataset is not None and not arguments.get("dataset_sink_mode"):
        per_epoch = dataset.get_dataset_size()
    skipped = getattr(dataset, "get_init_step", int)() or 0
    epochs = (arguments.get("cur_epoch_num") or 1) - 1
    return max(arguments.get("cur_step_num") or 0, epochs * per_epoch, skipped)


def recorded_network(
    train_cell: nn.Cell, given: nn.Cell | None = None, wanted: nn.Cell | None = None
) -> nn.Cell:
    """Return the forward pass of a cell that trains, with the names of the network in it.

    Args:
        train_cell: what a Model calls for each step.
        given: the network that was given to the Model, if it is known.
        wanted: the network whose names are wanted, if it is another one.

    Raises:
        UsageError: the network that is wanted takes no part in the forward pass.
    """
    cell = forward = train_cell
    while cell is not given or _trains(cell):
        names = [name for name in INNER if isinstance(children_of(cell).get(name), nn.Cell)]
        if not names or not (_trains(cell) or type(cell).__module__.startswith(_WRAPPERS)):
            break
        inner = children_of(cell)[names[0]]
        if _trains(cell):
            forward = inner
        cell = inner
    try:
        name_as_seen_from(wanted or cell, forward)
    except ValueError:
        raise UsageError.saying(
            "error.callback_network", name=type(wanted).__name__, name2=type(forward).__name__
        ) from None
    return forward


def _trains(cell: nn.Cell) -> bool:
    return isinstance(cell, nn.TrainOneStepCell) or isinstance(
        children_of(cell).get("optimizer"), nn.Cell
    )


def _optimizer(train_cell: nn.Cell) -> nn.Cell | None:
    """Return the optimizer inside a cell that trains."""
    found = (children_of(cell).get("optimizer") for cell in named_cells(train_cell).values())
    return next((optimizer for optimizer in found if isinstance(optimizer, nn.Cell)), None)
