"""Trainers that are not installed here, in whose place a folder of `stand_ins` is imported."""

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mindspore as ms

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.integrations import mindrlhf
from mindrlhf_msprobe.integrations.patches import PREPARED

STAND_INS = Path(__file__).parents[1] / "stand_ins"


def forget(packages: tuple[str, ...]) -> None:
    """Leave no module of these packages, and nothing that waits for one."""
    for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "_Watch"]
    atexit.unregister(mindrlhf._say_if_nothing_was_prepared)
    mindrlhf._install.cache_clear()
    PREPARED.clear()
    CURRENT.compiled_without.clear()


@contextmanager
def stand_in(name: str, *packages: str) -> Iterator[None]:
    """Let packages be imported from a folder, as if nothing of them had been so far."""
    folder = str(STAND_INS / name)
    sys.path.insert(0, folder)
    forget(packages)
    before = ms.get_context("mode")
    try:
        yield
    finally:
        sys.path.remove(folder)
        ms.set_context(mode=before)
        forget(packages)
