"""Supervised training by `mindspore.train.Model` or a Trainer of MindFormers, as a phase.

model = Model(network, loss_fn, optimizer)
model.train(epochs, dataset, callbacks=[ProbeCallback("sft.yaml")])

MindFormers' Trainer takes it as `Trainer(…, callbacks=ProbeCallback("sft.yaml"))`, that of
`mindformers.pynative` as `Trainer(…, callbacks=[ProbeCallback("sft.yaml")])`, and both from their
own YAML: `callbacks: [{type: ProbeCallback, config: sft.yaml}]`. For mindformers.pynative written
from MindFormers 1.9.0, 2.0.0 and 2.1.0; of these 2.0.0 runs on a CPU.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from mindspore import nn
from mindspore.train import Callback

from mindrlhf_msprobe.capture.cells import name_as_seen_from, named_cells
from mindrlhf_msprobe.capture.framework.private import (
    INNER,
    children_of,
    no_gradients,
    put_child,
    without_recompiling,
)
from mindrlhf_msprobe.capture.tensors.summary import is_tensor
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import SECTION, load_config
from mindrlhf_msprobe.errors import ConfigError, RunError, UsageError, nearest_of
from mindrlhf_msprobe.integrations import mindformers_patches as patches
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import LOSS_INPUTS, OVERFLOW
from mindrlhf_msprobe.probe import Probe


def as_one(networks: Mapping[str, nn.Cell], wanted: nn.Cell | None = None) -> nn.Cell | None:
    """Return the cell to watch: the only network, or one that holds all of them by name.

    Args:
        wanted: the cell from which names begin, of the only network.

    Raises:
        UsageError: that is no cell of it.
    """
    if len(networks) == 1:
        (network,) = networks.values()
        return _named_from(wanted or network, network)
    if not networks:
        return None
    together = nn.Cell(auto_prefix=False)  # it never runs; parameters keep their names
    for name, network in networks.items():
        put_child(together, name, network)
    return together


def _named_from(inner: nn.Cell, network: nn.Cell) -> nn.Cell:
    """Return a network whose cells are called what they are called in a cell of it."""
    try:
        name_as_seen_from(inner, network)
    except ValueError:
        names = {"name": type(inner).__name__, "name2": type(network).__name__}
        raise UsageError.saying("error.callback_network", **names) from None
    return network


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

        def save_batch(_cell: nn.Cell, _args: Any, kwargs: dict[str, Any]) -> None:
            """Save what a network is given by name: a micro-batch of the data."""
            batch = {name: value for name, value in kwargs.items() if value is not None}
            if batch:
                probe.save_data(LOSS_INPUTS, batch)

        with without_recompiling():
            self._hooks = [
                network.register_forward_pre_hook(save_batch, with_kwargs=True)
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
        if found["loss"] is None:
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


#: Modules whose cells stand around a network that is trained, and the name it has in them.
_WRAPPERS = ("mindspore.nn.wrap.", "mindspore.train.", "mindformers.wrapper.")


class ProbeCallback(Callback):
    """Records each training step as one phase of one step.

    For `Model.train` and `Model.fit`, and the Trainers of MindFormers: that of
    `mindformers.pynative` calls it as one of its TrainerCallbacks.

    Records are named as the network names its cells, whatever is put around it; cells around it
    that take part in the forward pass (a loss function) are recorded as `outer` and what it holds,
    e.g. `outer._loss_fn`. Of several networks (stages of a pipeline), each is named after its
    place: `stage0`, `stage1`, …. The loss is saved as key data `loss`, the steps of a training that
    is resumed are numbered on.

    Where MindSpore runs several steps in one call (`dataset_sink_mode` on a device, in graph mode),
    they are recorded as one step, which the log says.

    Args:
        source: what `Probe.from_config` takes: a run is begun when the training begins, and ended
            with it; where the same Model trains on, in a further call, it is continued. Or a Probe,
            which is left open: phases after the training may use it too. Without it, the section
            `msprobe_config` of the configuration of mindformers.pynative's Trainer.
        phase: the phase that a training step is, whose role the network plays.
        config: the same as `source`, under the name that it has in MindFormers' YAML.
        network: the network whose names the records have, where the one given to the Model is not
            it: a cell of that.
        configurations: what `Probe.save_configs` takes; saved when the training begins. Without
            it, those of mindformers.pynative's Trainer.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: the phase is not known, or `source` and `config` are both given.
    """

    def __init__(
        self,
        source: Any = None,
        phase: str = "actor_update",
        *,
        config: Any = None,
        network: nn.Cell | None = None,
        configurations: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if source is not None and config is not None:
            raise UsageError.saying("error.callback_two_sources")
        source = config if source is None else source
        self._given = source if isinstance(source, Probe) else None
        self._phase_name = phase
        self._network = network
        self._configurations = configurations
        self._probe: Probe | None = None
        self._trained: weakref.ref[Any] | None = None  # by the last run that was begun
        self._open: Any = None
        self._steps_done = 0
        self._sink_logged = False
        self._step: Step | None = None
        self._configured = False
        if source is not None:
            self._configure(source)

    def _configure(self, source: Any) -> None:
        self._config = self._given.config if self._given else load_config(source)
        phases, phase = self._config.phase_table(), self._phase_name
        if phase not in phases:
            hint, known = nearest_of(str(phase), phases), ", ".join(phases)
            call = f"ProbeCallback(phase={phase!r})"
            raise UsageError.saying("error.unknown_phase", call=call, nearest=hint, known=known)
        self._phase = phases[phase]
        self._configured = True

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
        if not self._configured:
            raise UsageError.saying("error.callback_no_source", section=SECTION)
        if self._probe is not None or not self._config.msprobe:
            return
        arguments = run_context.original_args()
        self._steps_done = arguments.get("cur_step_num") or 0
        train_cell = arguments["train_network"]
        network = recorded_network(train_cell, arguments.get("network"), self._network)
        inside = (children_of(cell).get("optimizer") for cell in named_cells(train_cell).values())
        found = next((one for one in inside if isinstance(one, nn.Cell)), None)
        optimizer = found or arguments.get("optimizer")
        probe = self._begin(train_cell, network, optimizer, _steps_before(arguments))
        if self._configurations is not None:
            probe.save_configs(self._configurations)

    def _begin(self, trained: Any, network: Any, optimizer: Any, steps_before: int) -> Probe:
        """Begin or continue a run, and watch what is trained.

        Args:
            trained: what stands for the training: the same again trains on.
            network: None where none is recorded.
        """
        probe = self._probe = self._given or self._begun(trained)
        self._trained = weakref.ref(trained)
        if steps_before and self._given is None:
            probe.start_at(steps_before)
        role = self._phase.role
        given = {role: optimizer} if isinstance(optimizer, nn.Cell) else {}
        probe.watch(optimizers=given, **{role: network})
        return probe

    def _begun(self, trained: Any) -> Probe:
        """Return a probe for a training: one that goes on with it, if it began with this one."""
        if self._trained is None:
            return Probe(self._config)
        if self._trained() is trained:
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
        self._enter_phase(self._probe)

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

    def on_train_begin(self, args: Any, state: Any = None, **given: Any) -> None:
        """Begin the run, where mindformers.pynative trains.

        Args:
            args: the Trainer's configuration; the run_context, where a Model trains.
            state: the Trainer's state.
            given: what it gives its callbacks: `model`, `optimizer`, `lr_scheduler`, ….

        Raises:
            ConfigError: the callback has no configuration and the Trainer's has no section, or a
                value in it is wrong.
            RunError: the dump_path already holds another run, or cannot be written.
        """
        if state is None:
            super().on_train_begin(args)
            return
        self._end(None, None, None)  # a training before, which raised
        if not self._configured:
            section = getattr(args, SECTION, None)
            if section is None:
                raise ConfigError.saying("error.callback_no_source", section=SECTION)
            self._configure(patches.plain(section))
        if not self._config.msprobe:
            return
        # Those that are trained on this rank: of a pipeline the stages of other ranks are None.
        model = given.get("model")
        stages = enumerate(model if isinstance(model, (list, tuple)) else [model])
        networks = {f"stage{n}": stage for n, stage in stages if isinstance(stage, nn.Cell)}
        network = as_one(networks, self._network)
        trained, optimizer = next(iter(networks.values()), self), given.get("optimizer")
        probe = self._begin(trained, network, optimizer, state.global_step)
        if network is None:
            probe.leave_out(self._phase.name, message("trainer.no_stage"))
        configurations = self._configurations
        probe.save_configs(
            patches.configurations_of(args) if configurations is None else configurations
        )
        self._step = Step(networks.values(), **given)

    def on_step_begin(self, args: Any, state: Any, **given: Any) -> None:
        """Open the phase."""
        if self._probe is not None and self._step is not None:
            self._step.begin(self._probe, state)
            self._enter_phase(self._probe)

    def on_step_end(self, args: Any, state: Any, **given: Any) -> None:
        """Close the phase, save what the step computed, end the step."""
        if self._probe is None or self._step is None or not self._step.open:
            return
        self._leave_phase()
        self._step.end(self._probe, state, given)
        self._probe.step()

    def on_epoch_begin(self, *args: Any, **given: Any) -> None:
        """Nothing begins or ends with an epoch, before a training, or after it."""

    on_epoch_end = on_begin = on_end = on_epoch_begin

    def on_train_end(self, run_context: Any, state: Any = None, **given: Any) -> None:
        """End the run."""
        self._end(None, None, None)

    def note_saved(self, step: int, path: str) -> None:
        """Note a checkpoint that the Trainer saved: after so many steps, at this path."""
        if self._probe is not None:
            self._probe.note_checkpoint(self._phase.role, path, saved_after=step)

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
        step, self._step = self._step, None
        try:
            if step is not None:
                step.close()
            self._leave_phase(*raised)
        finally:
            if probe is not None and self._given is None:
                probe.__exit__(*raised)

    def _enter_phase(self, probe: Probe) -> None:
        self._open = probe.phase(self._phase.name)
        self._open.__enter__()

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
    return _named_from(wanted or cell, forward)


def _trains(cell: nn.Cell) -> bool:
    return isinstance(cell, nn.TrainOneStepCell) or isinstance(
        children_of(cell).get("optimizer"), nn.Cell
    )


patches.install()
patches.know_as_callback()
