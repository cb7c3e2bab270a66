"""MindRLHF, without an edit of its source.

    from mindrlhf_msprobe.integrations import mindrlhf
    mindrlhf.install()

before the trainer is built, or `mindrlhf-msprobe run main.py …` with no line at all, records the
trainings whose YAML file has a `msprobe_config` section: GRPO of the newest MindRLHF, PPO of the
older one. Without the section, or with `msprobe: false`, nothing is recorded.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.integrations.patches import (
    CALLS_MSPROBE,
    PREPARED,
    has_trainer,
    when_imported,
)
from mindrlhf_msprobe.log import logger, warn

_HOME = "mindrlhf_msprobe.integrations.mindrlhf"

#: A class that MindRLHF defines → what is called with the module that defines it.
_INSTALLERS = {
    "GRPOConfig": (f"{_HOME}.grpo", "allow_section"),
    "GRPOTrainer": (f"{_HOME}.grpo", "install_grpo"),
    "PPOTrainer": (f"{_HOME}.ppo", "install_ppo"),
}


def install() -> None:
    """Record the trainings of MindRLHF from now on, if their configuration says so.

    MindRLHF is not imported by this; its trainers are prepared when the script imports them, or
    now where it has. Called again, it does nothing.
    """
    if _install.cache_info().currsize:
        logger.debug("%s", message("log.installed_before"))
    _install()


@cache
def _install() -> None:
    # Let msprobe's names be found, where msprobe is not installed.
    if not any(isinstance(finder, MsprobeNames) for finder in sys.meta_path):
        sys.meta_path.append(MsprobeNames())
    CURRENT.expected = True  # the trainer's configuration decides whether there is a probe
    when_imported("mindrlhf", _prepare)
    atexit.register(_say_if_nothing_was_prepared)


def _prepare(module: ModuleType) -> None:
    names = vars(module)
    if names.get(CALLS_MSPROBE) is False and "save" not in names:
        # A module that was imported before msprobe's names were supplied calls msprobe's `save` in
        # a construct: without it none compiles.
        from mindrlhf_msprobe import save

        names["save"], names[CALLS_MSPROBE] = save, True
    for name, (home, function) in _INSTALLERS.items():
        defined = names.get(name)
        if isinstance(defined, type) and defined.__module__ == module.__name__:
            PREPARED.append(name)
            getattr(importlib.import_module(home), function)(module)


def _say_if_nothing_was_prepared() -> None:
    if not (has_trainer() or CURRENT.recorded):
        imported = sys.modules.get("mindrlhf")
        where = "" if imported is None else repr(imported)
        known = ", ".join(name for name in _INSTALLERS if name.endswith("Trainer"))
        warn("log.no_trainer", where=where, known=known)


_PACKAGE = "mindrlhf_msprobe"
#: Module → the names in it, all of this package.
_MODULES: dict[str, tuple[str, ...]] = {
    "msprobe": ("GradComparator",),
    "msprobe.core": ("SingleComparator", "SingleSave"),
    "msprobe.mindspore": ("PrecisionDebugger", "save", "save_grad", "seed_all", "step"),
    "msprobe.pytorch": ("PrecisionDebugger", "compare", "compare_distributed", "seed_all"),
}


class MsprobeNames(Loader):
    """A finder and loader of msprobe's modules, for scripts that import msprobe's own names.

    `from msprobe.mindspore import save` then finds ours. It stands behind all others: a real
    msprobe always comes first.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of msprobe that nothing before has found."""
        if name not in _MODULES:
            return None
        around = None if name == "msprobe" else sys.modules["msprobe"].__spec__
        if name != "msprobe" and (around is None or not isinstance(around.loader, MsprobeNames)):
            return None  # another msprobe
        return ModuleSpec(name, self, origin=_PACKAGE, is_package=name == "msprobe")

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the names into a module; they are loaded when they are used."""
        names = _MODULES[module.__name__]

        def load(name: str) -> Any:
            if name not in names:
                known = {"module": module.__name__, "name": name, "names": ", ".join(names)}
                raise AttributeError(message("error.no_msprobe_name", **known))
            return getattr(importlib.import_module(_PACKAGE), name)

        vars(module).update(__all__=list(names), __getattr__=load)
