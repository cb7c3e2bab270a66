"""What a trainer's loss computes on the way and keeps in local variables, as key data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mindrlhf_msprobe.capture.local_values import SavedLocals, Variable
from mindrlhf_msprobe.current import CURRENT
from mindrlhf_msprobe.integrations.session import Session, runs_in_python
from mindrlhf_msprobe.log import logger


class LossValues:
    """The values of a loss cell that are saved while it trains.

    Args:
        session: whose key data they are; what is not found is noted there.
        loss: the cell; nothing of it has been compiled.
        variables: method of the cell → its variables; for a key the first one that is there counts.

    Attributes:
        keys: what is saved, by the loss itself too.
    """

    def __init__(
        self, session: Session, loss: Any, variables: Mapping[str, Sequence[Variable]]
    ) -> None:
        self._session = session
        self._saved: list[SavedLocals] = []
        compiled = not runs_in_python(loss)
        reasons: dict[str, str] = {}
        keys: set[str] = set()
        for method, wanted in variables.items():
            try:
                saved = SavedLocals(loss, method, wanted, compiled=compiled)
            except LookupError as error:
                for variable in wanted:
                    reasons.setdefault(variable.key, str(error))
                continue
            self._saved.append(saved)
            keys |= saved.keys | saved.saved_already
            where = f"{type(loss).__name__}.{method}"
            for variable in wanted:
                reasons.setdefault(variable.key, f"{where} has no variable {variable.name}")
        self.keys = frozenset(keys)
        for reason, lost in _by_reason(reasons, keys).items():
            logger.warning("%s are not recorded as key data: %s", " and ".join(lost), reason)
            for key in lost:
                session.note_lost(key, reason)

    @contextmanager
    def of_one_update(self) -> Iterator[None]:
        """Save what the loss computes in one call of the train cell, once."""
        always = next((key for saved in self._saved for key in sorted(saved.keys)), None)
        with CURRENT.once_each_run(always) as values:
            yield
        for name, data in values:
            CURRENT.save(self._session.probe, name, data)

    def remove(self) -> None:
        """Give the loss its own methods back."""
        for saved in self._saved:
            saved.remove()


def _by_reason(reasons: Mapping[str, str], found: Iterable[str]) -> dict[str, list[str]]:
    lost: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        if key not in found:
            lost.setdefault(reason, []).append(key)
    return lost


def variables(*pairs: tuple[str, str]) -> list[Variable]:
    """Return variables from (name, key) pairs."""
    return [Variable(name, key) for name, key in pairs]


def named(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """Return values by name, as far as there are both."""
    return dict(zip(names, values))
