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
from functools import cache
from types import ModuleType

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.compat.msprobe_names import supply
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
    supply()
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
