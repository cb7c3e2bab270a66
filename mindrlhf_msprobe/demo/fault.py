"""What goes wrong in the demo: a small numerical error in one cell, the demo's wrong kernel, and
what makes inference part from training in real trainers, planted into the demo's rollout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.demo.trainer import PPOTrainer
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.findings import Cause
from mindrlhf_msprobe.phases import GENERATE

RELATIVE_ERROR = 1e-3


@dataclass(frozen=True)
class Fault:
    """A cell that computes slightly wrong values in one phase, from one training step on.

    Args:
        phase: the name of the phase.
        cell_name: the cell as `cells_and_names()` of the phase's network names it; "root" is the
            network itself.
        from_step: the first training step in which it is wrong.
    """

    phase: str
    cell_name: str
    from_step: int

    first_token = 0
    """The generated token that it changes first, in a phase that counts tokens."""

    def __str__(self) -> str:
        return f"{self.phase}:{self.cell_name}"

    def is_named_by(self, cell: str | None, cause: Cause) -> bool:
        """Return whether a verdict that blames this cell names the fault."""
        return cell == self.cell_name

    def plant(self, network: nn.Cell, is_active: Callable[[], bool]) -> None:
        """Make the cell of `network` return wrong values whenever `is_active()` is true.

        That is called each time the cell has computed.

        The cell's own `construct` is replaced, so that whoever watches the cell from outside sees
        right inputs, right parameters and a wrong output, now or later; gradients flow as before.

        Raises:
            UsageError: the network has no such cell.
        """
        cell = find_cell(network, self.cell_name)
        right_construct = cell.construct

        def construct(*args: Any, **kwargs: Any) -> Any:
            output = right_construct(*args, **kwargs)
            return disturb(output) if is_active() else output

        cell.construct = construct


def find_cell(network: nn.Cell, name: str) -> nn.Cell:
    """Return the cell of that name, "root" being the network itself.

    Raises:
        UsageError: the network has no such cell.
    """
    cells = dict(network.cells_and_names())
    cells["root"] = network
    if name not in cells:
        known = [cell for cell in cells if cell]
        network_name, hint = type(network).__name__, nearest_of(name, known)
        raise UsageError.saying(
            "demo.no_cell",
            network=network_name,
            name=repr(name),
            nearest=hint,
            cells=", ".join(known),
        )
    return cells[name]


def disturb(output: Any) -> Any:
    """Return a cell's output with an error in its first floating tensor, else in its first tensor.

    Tuples, lists and dicts are searched in order; everything but that tensor stays the same object.

    Raises:
        TypeError: if there is no tensor in the output.
    """
    tensors = list(tensors_of(output))
    if not tensors:
        raise TypeError(message("demo.no_tensor", kind=type(output).__name__))
    chosen = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
    return replace(output, chosen, disturb_tensor(chosen))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def replace(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return nested tuples, lists and dicts with `new` wherever the object `old` was."""
    if value is old:
        return new
    if isinstance(value, (tuple, list)):
        return type(value)([replace(item, old, new) for item in value])
    if isinstance(value, dict):
        return {key: replace(item, old, new) for key, item in value.items()}
    return value


def disturb_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor with an error in channel 0, the first place of its last axis.

    There a floating value x becomes x * (1 + RELATIVE_ERROR), but 0 becomes RELATIVE_ERROR;
    integers grow by 1, booleans flip. The gradient is that of the identity.
    """
    values = tensor.asnumpy()
    channel = np.zeros_like(values, bool)
    np.atleast_1d(channel)[..., :1] = True
    if not tensor.is_floating_point():
        wrong = values ^ channel if values.dtype == bool else values + channel
        return Tensor(wrong.astype(values.dtype))
    error = RELATIVE_ERROR * np.where(values == 0, 1, values)
    return tensor + Tensor(np.where(channel, error, 0), tensor.dtype)


TEMPERATURE = 0.8
"""By what the sampler divides the logits without the training's knowledge."""


#: Returns whether a fault is there by now.
Strikes: TypeAlias = Callable[[], bool]


@dataclass(frozen=True)
class RolloutFault:
    """A fault of the rollout network or of what surrounds it, from one training step on.

    Args:
        name: one of PLANTERS.
        from_step: the first training step whose answers it changes.
        last_layer: the number of the network's last layer.
    """

    name: str
    from_step: int
    last_layer: int

    phase = GENERATE

    def __str__(self) -> str:
        return self.name

    @property
    def cell_name(self) -> str | None:
        """The cell that differs first, or one around it; None where no cell computes wrongly."""
        cell = PLANTERS[self.name].cell
        return None if cell is None else cell.format(last_layer=self.last_layer)

    @property
    def first_token(self) -> int:
        """The generated token that it changes first."""
        return PLANTERS[self.name].first_token

    def is_named_by(self, cell: str | None, cause: Cause) -> bool:
        """Return whether a verdict with this cell and cause names the fault."""
        if self.cell_name is None:
            return cause in (Cause.INPUT, Cause.DATA)
        return cell is not None and f"{cell}.".startswith(f"{self.cell_name}.")

    def plant(self, trainer: PPOTrainer) -> None:
        """Plant it into a trainer that has not begun to train."""
        PLANTERS[self.name].plant(trainer, lambda: trainer.global_step >= self.from_step)


def not_synchronised(trainer: PPOTrainer, strikes: Strikes) -> None:
    """Let the last layer keep its weights when the others are brought up to date."""
    right = trainer.synchronise
    parameters = list(trainer.rollout.model.layers[-1].get_parameters())

    def synchronise() -> None:
        before = [parameter.asnumpy().copy() for parameter in parameters]
        right()
        if strikes():
            for parameter, weights in zip(parameters, before, strict=True):
                parameter.set_data(Tensor(weights))

    trainer.synchronise = synchronise  # type: ignore[method-assign]


def rotary_off_by_one(trainer: PPOTrainer, strikes: Strikes) -> None:
    """Rotate the tokens that are decoded as if they stood one place later."""
    model = trainer.rollout.model

    def positions(position_ids: Tensor) -> tuple[Tensor]:
        decodes = bool(model.layers[0].attention.cache)
        return (position_ids + 1 if decodes and strikes() else position_ids,)

    change_inputs(model.freqs_mgr, positions)


def lm_head_dtype(trainer: PPOTrainer, strikes: Strikes) -> None:
    """Compute the logits in float16; a CPU multiplies no matrices of bfloat16."""
    head = trainer.rollout.lm_head
    usual = head.dtype

    def inputs(hidden: Tensor) -> tuple[Tensor]:
        head.dtype = ms.float16 if strikes() else usual
        return (hidden,)

    change_inputs(head, inputs)


def mask_padding(trainer: PPOTrainer, strikes: Strikes) -> None:
    """Let every token see the padding in front of its prompt."""
    mask = trainer.rollout.model.casual_mask

    def lengths(tokens: Tensor, batch_valid_length: Tensor) -> tuple[Tensor, Tensor]:
        if strikes():
            _, cached = mask.past or (None, 0)
            batch_valid_length = ops.full_like(batch_valid_length, cached + tokens.shape[1])
        return tokens, batch_valid_length

    change_inputs(mask, lengths)


def temperature(trainer: PPOTrainer, strikes: Strikes) -> None:
    """Sample at a temperature that training knows nothing of."""
    right = trainer.sample

    def sample(logits: Tensor, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return right(logits / TEMPERATURE if strikes() else logits, ended)

    trainer.sample = sample  # type: ignore[method-assign]


def change_inputs(cell: nn.Cell, changed: Callable[..., tuple[Any, ...]]) -> None:
    """Let a cell compute with other inputs than it is given, and than is recorded of it."""
    right = cell.construct
    cell.construct = lambda *inputs: right(*changed(*inputs))


@dataclass(frozen=True)
class Planter:
    """One kind of fault.

    Args:
        plant: changes a trainer; is given what tells whether the fault is there by now.
        cell: the cell of the rollout network that differs first, or one around it; None where no
            cell computes wrongly.
        first_token: the generated token that it changes first.
    """

    plant: Callable[[PPOTrainer, Strikes], None]
    cell: str | None
    first_token: int = 0


PLANTERS = {
    "not-synchronised": Planter(not_synchronised, "model.layers.{last_layer}"),
    "rotary-off-by-one": Planter(rotary_off_by_one, "model.freqs_mgr", first_token=1),
    "lm-head-dtype": Planter(lm_head_dtype, "lm_head"),
    "mask-padding": Planter(mask_padding, "model.casual_mask"),
    "temperature": Planter(temperature, None),
}
