"""What a training would run with → one file."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.preflight.checkpoints import Described, describe_checkpoint
from mindrlhf_msprobe.preflight.configurations import read_configurations
from mindrlhf_msprobe.preflight.data import describe_data
from mindrlhf_msprobe.preflight.named import named_paths
from mindrlhf_msprobe.preflight.script import check_command, run_command
from mindrlhf_msprobe.preflight.settings import settings_of_process
from mindrlhf_msprobe.storage.preflight_file import BY_ITSELF, BY_SCRIPT, write_preflight


@dataclass(frozen=True)
class Asked:
    """What is to be collected.

    Attributes:
        configurations, checkpoints: paths, each perhaps with a name: `NAME=PATH`.
        data: `module:function`, or None.
        batches: how many batches of it.
        command: of a script, with its arguments; empty if none is run.
        seconds: after how many the script is stopped; None: never.
    """

    configurations: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    data: str | None = None
    batches: int = 3
    command: Sequence[str] = ()
    seconds: float | None = None


def collect(asked: Asked, file: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Collect all that was asked for, write it into a file, and return what was written.

    Settings are those of the script's process where it says them, else of this one. What is wrong
    with an argument is found before anything takes time.

    Raises:
        UsageError: an argument is wrong, or the data function or the script cannot be run.
        ConfigError: a configuration cannot be read.
        RunError: a checkpoint cannot be read; the file is there already, or cannot be written.
    """
    path = Path(file)
    _check_file(path, overwrite)
    configurations = named_paths("--config", asked.configurations)
    checkpoints = named_paths("--checkpoint", asked.checkpoints)
    if asked.command:
        check_command(asked.command)
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    content: dict[str, Any] = {"collected": at, "taken": BY_ITSELF, **settings_of_process()}
    if configurations:
        content["configurations"] = read_configurations(configurations)
    if asked.data is not None:
        content["data"] = describe_data(asked.data, asked.batches)
    if checkpoints:
        content |= _described(checkpoints)
    if asked.command:
        script = run_command(asked.command, asked.seconds)
        if script.settings is not None:
            content |= {**script.settings, "taken": BY_SCRIPT}
        if script.python is not None:
            content["versions"] = {**content["versions"], "python": script.python}
        content["script"] = script.to_json()
        if script.calls is not None:
            content["random_calls"] = script.calls
    write_preflight(path, content, __version__)
    return content


def _described(checkpoints: Mapping[str, Path]) -> dict[str, Any]:
    """Return the sections of checkpoints; parameters stand where a run has its initial weights."""
    found = {name: describe_checkpoint(path) for name, path in checkpoints.items()}
    weights = {name: one.parameters for name, one in found.items() if one.parameters is not None}
    files = {name: _with_reason(one) for name, one in found.items()}
    return {"checkpoints": files, **({"initial_weights": weights} if weights else {})}


def _with_reason(found: Described) -> dict[str, Any]:
    return found.content if found.why is None else {**found.content, "why": found.why.as_json()}


def _check_file(path: Path, overwrite: bool) -> None:
    if str(path) in ("", ".") or "\0" in str(path) or path.is_dir():
        raise RunError.saying("collect.no_output", path=path)
    if os.path.lexists(path) and not overwrite:
        raise RunError.saying("collect.exists", path=path)
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise RunError.saying(
            "collect.unwritten", path=path, why=message("collect.above", above=above)
        )
