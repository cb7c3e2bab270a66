"""msprobe's own names, for scripts that import them where msprobe is not installed.

`from msprobe.mindspore import save` then finds ours. A real msprobe always comes first.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mindrlhf_msprobe.common.message import message

_HERE = "mindrlhf_msprobe"
#: Module → the names in it, all of this package.
_MODULES: dict[str, tuple[str, ...]] = {
    "msprobe": ("GradComparator",),
    "msprobe.core": ("SingleComparator", "SingleSave"),
    "msprobe.mindspore": ("PrecisionDebugger", "save", "save_grad", "seed_all", "step"),
    "msprobe.pytorch": ("PrecisionDebugger", "compare", "compare_distributed", "seed_all"),
}


class MsprobeNames(Loader):
    """A finder and loader of the modules; it stands behind all others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of msprobe that nothing before has found."""
        if name not in _MODULES:
            return None
        around = None if name == "msprobe" else sys.modules["msprobe"].__spec__
        if name != "msprobe" and (around is None or not isinstance(around.loader, MsprobeNames)):
            return None  # another msprobe
        return ModuleSpec(name, self, origin=_HERE, is_package=name == "msprobe")

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the names into a module; they are loaded when they are asked for."""
        names = _MODULES[module.__name__]

        def load(name: str) -> Any:
            if name not in names:
                known = {"module": module.__name__, "name": name, "names": ", ".join(names)}
                raise AttributeError(message("error.no_msprobe_name", **known))
            return getattr(importlib.import_module(_HERE), name)

        vars(module).update(__all__=list(names), __getattr__=load)


def supply() -> None:
    """Let msprobe's names be found from now on, where msprobe is not installed."""
    if not any(isinstance(finder, MsprobeNames) for finder in sys.meta_path):
        sys.meta_path.append(MsprobeNames())
