"""The files of compiled graphs → what the host functions of probes.py would hand over.

A file has the number of its probe, not that of a call: files come in the order in which they were
written, so a tensor belongs to the call of its cell that was opened last, and a gradient to the
last call of its cell that has had none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mindrlhf_msprobe.capture.graph.folder import FENCE
from mindrlhf_msprobe.capture.graph.keydata import VALUES
from mindrlhf_msprobe.capture.graph.probes import (
    SITES,
    Site,
    as_recorded,
    nothing_of,
)
from mindrlhf_msprobe.capture.graph.reduced import leaf_of
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays.npy import open_npy
from mindrlhf_msprobe.storage.directory.graph_files import GraphFile
from mindrlhf_msprobe.storage.leaves import Leaf

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.calls import Receiver

OPEN, TENSOR, CLOSE, GRADIENT = "open", "tensor", "close", "gradient"
OPEN_VALUE, CLOSE_VALUE = "open_value", "close_value"
VALUE, VALUE_GRADIENT = "value", "value_gradient"
#: What the kind of a file begins with that holds the statistics of a tensor, not its elements.
REDUCED = "reduced_"
_TENSORS, _GRADIENTS = {TENSOR, REDUCED + TENSOR}, {GRADIENT, REDUCED + GRADIENT}
_OF_PHASES = frozenset({OPEN, CLOSE, *_TENSORS, *_GRADIENTS})
_OF_KEY_DATA = frozenset({OPEN_VALUE, VALUE, CLOSE_VALUE, VALUE_GRADIENT})
_PAYLOAD = frozenset({*_TENSORS, *_GRADIENTS, VALUE, VALUE_GRADIENT})


class GraphReading:
    """Hands each file to the phase that is open, or to the current probe as key data."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        # The calls of a cell that are open, and those whose tensors have had no gradient yet.
        self._running: dict[int, list[int]] = {}
        self._without: dict[int, list[int]] = {}
        self._values: list[int] = []  # that are saved, and not yet closed

    @property
    def is_recording(self) -> bool:
        """Whether a phase is open."""
        return SITES.receiver is not None

    def wants(self, kind: str) -> bool:
        """Return whether files of a kind are read now; otherwise they are removed."""
        if kind in _OF_KEY_DATA:
            return CURRENT.probe is not None
        return kind == FENCE or (kind in _OF_PHASES and SITES.receiver is not None)

    def is_payload(self, kind: str) -> bool:
        """Return whether files of a kind hold what is recorded, and may be lost."""
        return kind in _PAYLOAD

    def take(self, file: GraphFile) -> None:
        """Hand over what a file holds."""
        self._hand_over(file, lost=False)

    def lose(self, file: GraphFile, error: Exception) -> None:
        """Count what a file held; what came before and after it stays in its place."""
        self._hand_over(file, lost=True)
        self._fault(file.kind, error)

    def fault(self, error: Exception) -> None:
        """Count a file that cannot be read."""
        self._fault("", error)

    def _fault(self, kind: str, error: Exception) -> None:
        if kind in _OF_KEY_DATA:
            VALUES.fault(error)
        elif SITES.receiver is not None:
            SITES.receiver.fault(message("lost.graph_file"), error)

    def _hand_over(self, file: GraphFile, *, lost: bool) -> None:
        if file.kind in _OF_KEY_DATA:
            try:
                self._hand_over_value(file, lost)
            except Exception as error:
                VALUES.fault(error)
            return
        receiver = SITES.receiver
        if receiver is not self._receiver:
            self._receiver = receiver
            self._running, self._without = {}, {}
        if receiver is None:
            return
        site = SITES[file.probe]
        if file.kind == OPEN:
            self._running.setdefault(site.cell, []).append(receiver.opened(site))
        elif file.kind == CLOSE:
            receiver.closed(self._running[site.cell].pop(), site)
        elif file.kind in _TENSORS:
            call = self._running[site.cell][-1]
            self._without.setdefault(file.probe, []).append(call)
            if not lost:
                receiver.tensor(call, site, _found(file, site))
        elif file.kind in _GRADIENTS:  # the last call of a cell has its gradient first
            call = self._without[file.probe].pop()
            if not lost:
                receiver.gradient(call, site, _found(file, site))

    def _hand_over_value(self, file: GraphFile, lost: bool) -> None:
        site = SITES[file.probe]
        if file.kind == OPEN_VALUE:
            self._values.append(VALUES.opened())
        elif file.kind == CLOSE_VALUE:
            VALUES.closed(self._values.pop(), site)
        elif lost:
            return
        elif file.kind == VALUE:
            VALUES.tensor(self._values[-1], site, _read(file, site))
        else:
            VALUES.gradient(site, _read(file, site))


def _found(file: GraphFile, site: Site) -> np.ndarray | Leaf:
    if file.kind.startswith(REDUCED):
        return leaf_of(site.outline, open_npy(file.path))
    return _read(file, site)


def _read(file: GraphFile, site: Site) -> np.ndarray:
    if 0 in site.outline.shape:  # the file says only that it was there
        return nothing_of(site.outline)
    elements = open_npy(file.path)
    return as_recorded(elements.reshape(site.outline.shape), site.outline)
