"""How what passes in a compiled graph reaches the host: by calls of host functions, or by files.

On Ascend by files, elsewhere by calls. The path for Ascend can be tried on CPU: with
`MSPROBE_GRAPH_FILES=1` in the environment, stand_in.py does there what TensorDump does.

By files only the statistics are handed over, unless the tensors themselves are recorded. With
`MSPROBE_GRAPH_REDUCE=0` tensors leave the graph whole, and the host makes statistics of them.
"""

from __future__ import annotations

import functools
import os

import mindspore

FILES = "MSPROBE_GRAPH_FILES"
REDUCE = "MSPROBE_GRAPH_REDUCE"


@functools.cache
def stands_in() -> bool:
    """Return whether TensorDump is stood in for on a device that does not have it."""
    return os.environ.get(FILES) == "1" and not _on_ascend()


def writes_files() -> bool:
    """Return whether compiled graphs hand over by files."""
    return _on_ascend() or stands_in()


@functools.cache
def reduces() -> bool:
    """Return whether statistics are reduced in the graph where nothing else is recorded."""
    return writes_files() and os.environ.get(REDUCE) != "0"


def _on_ascend() -> bool:
    return bool(mindspore.get_context("device_target") == "Ascend")
