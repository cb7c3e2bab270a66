"""What the tests of recording share: something runs in a phase, and what it left is opened."""

import itertools

import pytest


@pytest.fixture
def run_phase(layer_probe, recorded, tmp_path):
    """Return a function that runs something inside a phase and opens what was recorded.

    Its first run is in `tmp_path/run`, the next ones are in run1, run2, …

    Args (of that function):
        openings: how often a step opens the phase.
    """
    from helpers.small_networks import hook_count, in_mode, ms

    numbers = itertools.count()

    def run(
        network,
        body,
        *,
        phase="actor_update",
        optimizer=None,
        steps=1,
        openings=1,
        mode=ms.PYNATIVE_MODE,
        **settings,
    ):
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
