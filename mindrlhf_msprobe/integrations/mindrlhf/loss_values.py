"""What a trainer's loss computes on the way and keeps in local variables, as key data."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import NotThere
from mindrlhf_msprobe.integrations.session import Session
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import LOSS_INPUTS

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.local_values import SavedLocals


#: MindSpore's cells that run a network on parts of a batch, one after the other.
_CUT_BATCHES = {"PipelineCell", "MicroBatchInterleaved", "GradAccumulationCell"}


class LossValues:
    """The values of a loss cell that are saved while it trains: what it is given and computes.

    Args:
        session: whose key data they are; what is not found is noted there.
        loss: the cell; nothing of it has been compiled.
        variables: method of the cell → its variables; for a key the first one that is there counts.

    Attributes:
        keys: what is saved of what it computes, by the loss itself too.
    """

    def __init__(
        self, session: Session, loss: Any, variables: Mapping[str, Sequence[tuple[str, str]]]
    ) -> None:
        import mindspore

        from mindrlhf_msprobe.capture.framework.private import JITTED
        from mindrlhf_msprobe.capture.local_values import SavedLocals

        self._session = session
        self._arguments = list(inspect.signature(type(loss).construct).parameters)[1:]
        self._cuts: dict[Any, bool] = {}  # of each train cell
        self._saved: list[SavedLocals] = []
        # What runs as Python code alone can be listened to.
        pynative = mindspore.get_context("mode") == mindspore.PYNATIVE_MODE
        compiled = not pynative or hasattr(type(loss).construct, JITTED)
        reasons: dict[str, Message] = {}
        keys: set[str] = set()
        for method, wanted in variables.items():
            try:
                saved = SavedLocals(loss, method, wanted, compiled=compiled)
            except NotThere as error:
                for _, key in wanted:
                    reasons.setdefault(key, error.said)
                continue
            self._saved.append(saved)
            keys |= saved.keys | saved.saved_already
            where = f"{type(loss).__name__}.{method}"
            for name, key in wanted:
                reasons.setdefault(key, message("trainer.no_variables", of=where, names=[name]))
        self.keys = frozenset(keys)
        lost_by_reason: dict[Message, list[str]] = {}
        for key, reason in reasons.items():
            if key not in keys:
                lost_by_reason.setdefault(reason, []).append(key)
        for reason, lost in lost_by_reason.items():
            warn("log.no_key_data", keys=lost, why=reason)
            for key in lost:
                session.note_lost(key, reason)

    @contextmanager
    def of_one_update(
        self, train_cell: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[None]:
        """Save what the loss is given and what it computes in one call of a train cell, once.

        It runs the loss for its value, and may run it once more for the gradients: what the last
        run gave counts. One that cuts the batch runs the loss for each part: all of it counts.

        Args:
            args, kwargs: what the train cell is called with, which it hands on to the loss.
        """
        given = {**dict(zip(self._arguments, args)), **kwargs}
        self._session.probe.save_data(LOSS_INPUTS, given)
        held: list[tuple[str, Any]] = []
        try:
            with CURRENT.hold() as held:
                yield
        finally:
            always = next((key for saved in self._saved for key in sorted(saved.keys)), None)
            for name, data in held if self._cuts_batch(train_cell) else _of_last_run(held, always):
                CURRENT.save(self._session.probe, name, data)

    def _cuts_batch(self, train_cell: Any) -> bool:
        """Return whether a train cell holds one that runs the loss on parts of the batch."""
        if train_cell not in self._cuts:
            cells = [cell for _, cell in train_cell.cells_and_names()]
            kinds = {kind.__name__ for cell in cells for kind in type(cell).mro()}
            self._cuts[train_cell] = bool(kinds & _CUT_BATCHES)
        return self._cuts[train_cell]

    def remove(self) -> None:
        """Give the loss its own methods back."""
        for saved in self._saved:
            saved.remove()
        self._cuts.clear()


def _of_last_run(held: list[tuple[str, Any]], always: str | None) -> list[tuple[str, Any]]:
    """Return what the last run saved, if every run saves `always` once."""
    runs = max(1, sum(name == always for name, _ in held))
    times = Counter(name for name, _ in held)
    seen: Counter[str] = Counter()
    last = []
    for name, data in held:
        seen[name] += 1
        if times[name] % runs or seen[name] > times[name] - times[name] // runs:
            last.append((name, data))
    return last


def returned_by_name(names: Sequence[str], result: Any) -> dict[str, Any]:
    """Return what a train cell returned by name; where there are not as many, the first alone.

    What is None is left out.
    """
    values = result if isinstance(result, (tuple, list)) else (result,)
    known = names if len(values) == len(names) else names[:1]
    return {name: value for name, value in zip(known, values) if value is not None}
