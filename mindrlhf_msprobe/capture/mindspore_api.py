"""MindSpore's module of graphs and of the PyNative executor, which has moved in 2.9."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

_NEW, _OLD = "mindspore.graph.api", "mindspore.common.api"

#: The module; the old name of a new MindSpore would log a warning.
API: Any = importlib.import_module(_NEW if find_spec("mindspore.graph") else _OLD)
#: What differentiates functions in PyNative mode.
EXECUTOR: Any = API._pynative_executor
