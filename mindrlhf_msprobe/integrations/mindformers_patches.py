"""MindFormers without an edit of its source: its YAML may name the callback, or hold the section.

    from mindrlhf_msprobe.integrations import mindformers_patches
    mindformers_patches.install()

before the Trainer is built, or `mindrlhf-msprobe run run_mindformer.py …` with no line at all.
Nothing here imports MindFormers or MindSpore: modules are prepared when a script imports them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.integrations.patches import PREPARED, Part, Patches, when_imported
from mindrlhf_msprobe.integrations.session import settings_in

if TYPE_CHECKING:
    from mindrlhf_msprobe.integrations.mindformers import ProbeCallback

_CALLBACK = "ProbeCallback"
_HOME = "mindrlhf_msprobe.integrations.mindformers"
_REGISTER = "mindformers.tools.register.register"
_CALLBACKS = "mindformers.pynative.callback.callback"
_CHECKPOINTS = "mindformers.pynative.callback.checkpoint_callback"
_TRAINER = "mindformers.pynative.trainer.trainer"
_NAME = message("trainer.mindformers")
_patches = Patches(_NAME)
#: A callback that saves checkpoints → the probes' callbacks of the same training.
_beside: WeakKeyDictionary[Any, list[ProbeCallback]] = WeakKeyDictionary()


def plain(config: Any) -> Any:
    """Return a configuration of MindFormers as the mapping that its YAML had."""
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else config


def configurations_of(trainer_config: Any) -> dict[str, Any]:
    """Return the sections of a Trainer's configuration by name, without what is the probe's own."""
    found = plain(trainer_config)
    if not isinstance(found, Mapping):
        return {"trainer": found}
    sections = {name: section for name, section in found.items() if name != SECTION}
    if "callbacks" in sections:
        sections["callbacks"] = [
            callback
            for callback in sections["callbacks"] or ()
            if not (isinstance(callback, Mapping) and callback.get("type") == _CALLBACK)
        ]
    return sections


@cache
def install() -> None:
    """Prepare MindFormers' modules, now where they are there, else when they are imported."""
    when_imported("mindformers", _prepare)


def know_as_callback() -> None:
    """Let mindformers.pynative take a ProbeCallback for one of its TrainerCallbacks."""
    base = getattr(sys.modules.get(_CALLBACKS), "TrainerCallback", None)
    known = sys.modules.get(_HOME)
    if base is not None and hasattr(known, _CALLBACK):
        base.register(getattr(known, _CALLBACK))


def _prepare(module: ModuleType) -> None:
    names = vars(module)
    if module.__name__ == _REGISTER:
        kind = names["MindFormerModuleType"].CALLBACK
        names["MindFormerRegister"].register_cls(_made, kind, alias=_CALLBACK)
    elif module.__name__ == _CALLBACKS:
        know_as_callback()
    elif module.__name__ == _CHECKPOINTS:
        lost = message("trainer.no_saved_checkpoints")
        of = names["CheckpointCallback"]
        _patches.wrap(of, "_save_checkpoint", _around_saving, without=lost)
    elif module.__name__ == _TRAINER:
        trainer, raises = names["Trainer"], (MsprobeError,)
        for name, around, lost in (
            ("_create_callback_handler", _around_callbacks, message("trainer.no_callback_added")),
            ("train", _around_training, message("trainer.no_failure_noted")),
        ):
            _patches.wrap(trainer, name, around, without=lost, raises=raises)
    _patches.report(lambda _name, _why: None)


def _made(**settings: Any) -> ProbeCallback:
    """Return the callback that a YAML file names."""
    callback: type[ProbeCallback] = importlib.import_module(_HOME).ProbeCallback
    return callback(**settings)


_made.__name__ = _CALLBACK  # MindFormers begins what it says of an error with it


def _around_callbacks(_trainer: Any, _callbacks: Any = None, config: Any = None) -> Part:
    """Add the callback, where the configuration has the section, and nobody gave one."""
    handler = yield
    PREPARED.append("mindformers.pynative.trainer.Trainer")
    if _probes_among(handler.callbacks):
        return
    settings = settings_in(plain(getattr(config, SECTION, None)), _NAME)
    if settings is not None:
        handler.add_callback(_made(config=settings))


def _around_training(trainer: Any, *_args: Any, **_kwargs: Any) -> Part:
    """Know which checkpoints a run's training saves; end a run as failed whose training raises."""
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    probes = _probes_among(callbacks)
    for callback in callbacks if probes else ():
        if hasattr(callback, "_save_checkpoint"):
            _beside[callback] = probes
    try:
        yield
    except BaseException as error:
        for probe in probes:
            probe.__exit__(type(error), error, error.__traceback__)
        raise


def _around_saving(callback: Any, _args: Any, state: Any, **_given: Any) -> Part:
    """Note a checkpoint that was saved."""
    step, before = state.global_step, getattr(callback, "_last_triggered_step", None)
    yield
    if before != step == getattr(callback, "_last_triggered_step", None):
        found = Path(callback.save_path, f"iteration_{step:08d}")
        for probe in _beside.get(callback, ()):
            probe.note_saved(step, str(found if found.is_dir() else callback.save_path))


def _probes_among(callbacks: Any) -> list[ProbeCallback]:
    kind = getattr(sys.modules.get(_HOME), _CALLBACK, None)
    return [] if kind is None else [c for c in callbacks if isinstance(c, kind)]
