"""What the tests of recording share: something runs in a phase, and what it left is opened."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.storage.reading.reader import Run


@pytest.fixture
def run_phase(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], tmp_path: Path
) -> Callable[..., Run]:
    """Return a function that runs something inside a phase and opens what was recorded.

    Its first run is in `tmp_path/run`, the next ones are in run1, run2, …

    Args (of that function):
        openings: how often a step opens the phase.
    """
    from helpers.small_networks import hook_count, in_mode, ms

    numbers = itertools.count()

    def run(
        network: Any,
        body: Callable[[], Any],
        *,
        phase: str = "actor_update",
        optimizer: Any = None,
        steps: int = 1,
        openings: int = 1,
        mode: int = ms.PYNATIVE_MODE,
        **settings: Any,
    ) -> Run:
        path = tmp_path / f"run{next(numbers) or ''}"
        probe = layer_probe(**{"dump_path": str(path), **settings})
        with in_mode(mode):
            probe.watch(actor=network, optimizers={"actor": optimizer} if optimizer else None)
            for _ in range(steps):
                for _ in range(openings):
                    with probe.phase(phase):
                        body()
                probe.step()
        assert hook_count(network) == 0
        return recorded(probe)

    return run
