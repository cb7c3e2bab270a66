"""In which state the process's random generators are when a step begins.

Only asked for: reading a state does not advance its generator. A state is kept as eight digits of
a hash; equal digits mean equal states.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe.capture.words import FaultSink, counted
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN, with_state

_OFFSET = 8  # the bytes of MindSpore's state from here on say how much was drawn


def states_now(fault: FaultSink) -> dict[str, str]:
    """Return the state of each generator, by the names that `seeds` in run.json has for them.

    MindSpore's default generator is asked where it was seeded or drawn from: until then its state
    is another one in each process.
    """
    found: dict[str, str] = {}
    for name, read in (
        ("numpy_state", _numpy),
        ("random_state", _python),
        ("mindspore_state", _mindspore),
    ):
        with counted(fault, "lost.generator", of=name.removesuffix("_state")):
            state = read()
            found[name] = UNKNOWN if state is None else f"{xxhash.xxh32_intdigest(state):08x}"
    return found


class RandomStates:
    """The states of the steps so far, for the manifest."""

    def __init__(self, fault: FaultSink) -> None:
        self._fault = fault
        self._step: int | None = None
        self.content: dict[str, Any] = {}

    def note(self, step: int) -> bool:
        """Note the states in which a step begins, once a step; return whether it is news."""
        if step == self._step:
            return False
        self._step = step
        for name, state in states_now(self._fault).items():
            self.content = with_state(self.content, name, step, state)
        return True


def _numpy() -> bytes:
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    rest = (state["bit_generator"], state["has_gauss"], state["gauss"])
    if isinstance(inner.get("key"), np.ndarray):
        return bytes(inner["key"].tobytes()) + repr((inner["pos"], *rest)).encode()
    return repr((sorted(inner.items()), *rest)).encode()


def _python() -> bytes:
    return repr(random.getstate()).encode()


def _mindspore() -> bytes | None:
    mindspore = sys.modules.get("mindspore")
    get_state = getattr(mindspore, "get_rng_state", None)
    if mindspore is None or get_state is None:
        return None
    state: np.ndarray = get_state().asnumpy()
    from mindrlhf_msprobe.capture.framework.private import default_generator_was_seeded

    if not state[_OFFSET:].any() and not default_generator_was_seeded():
        return None
    return bytes(state.tobytes())
