"""What a training would run with → one file."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.capture.settings.configurations import to_plain
from mindrlhf_msprobe.capture.settings.environment import settings_of_process
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError, RunError, UsageError
from mindrlhf_msprobe.preflight.data import describe_data
from mindrlhf_msprobe.preflight.script import check_command, run_command
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_parts
from mindrlhf_msprobe.storage.foreign.checkpoints.opening import open_checkpoint
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError, StoredTensor
from mindrlhf_msprobe.storage.outputs import refuse
from mindrlhf_msprobe.storage.snapshot import (
    BY_ITSELF,
    output_of,
    without_secrets,
    write_collection,
)

_NAME = re.compile(r"([A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_MOST = 8 << 20  # bytes of a JSON file
_BLOCK = 4 << 20  # bytes that are read at once
_AT_ONCE = 1 << 20  # elements
_MOST_FILES = 10_000
_READ = (".ckpt", ".safetensors", ".json")


def collect(
    file: str | Path,
    *,
    configurations: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
    data: str | None = None,
    batches: int = 3,
    command: Sequence[str] = (),
    seconds: float | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Collect what a training would run with, write it into a file, and return what was written.

    Settings are those of the script's process where it says them, else of this one. What is wrong
    with an argument is found before anything takes time.

    Args:
        configurations, checkpoints: paths, each perhaps with a name: `NAME=PATH`.
        data: `module:function`; None for no data.
        batches: how many batches of it.
        command: of a script, with its arguments; empty if none is run.
        seconds: after how many the script is stopped; None: never.

    Raises:
        UsageError: an argument is wrong, or the data function or the script cannot be run.
        ConfigError: a configuration cannot be read.
        RunError: a checkpoint cannot be read; the file is there already, or cannot be written.
    """
    path = Path(file)
    _check_file(path, overwrite)
    to_read = named_paths("--config", configurations)
    to_describe = named_paths("--checkpoint", checkpoints)
    if command:
        check_command(command)
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    content: dict[str, Any] = {"collected": at, "taken": BY_ITSELF, **settings_of_process()}
    if to_read:
        content["configurations"] = read_configurations(to_read)
    if data is not None:
        content["data"] = describe_data(data, batches)
    for name, checkpoint in to_describe.items():
        files, parameters = describe_checkpoint(checkpoint)
        content.setdefault("checkpoints", {})[name] = files
        if parameters is not None:  # they stand where a run has its initial weights
            content.setdefault("initial_weights", {})[name] = parameters
    if command:
        python, sections = run_command(command, seconds)
        content |= sections
        if python is not None:
            content["versions"] = {**content["versions"], "python": python}
    write_collection(path, content, __version__)
    return content


def _check_file(path: Path, overwrite: bool) -> None:
    if str(path) in ("", ".") or "\0" in str(path) or path.is_dir():
        raise RunError.saying("collect.no_output", path=path)
    if os.path.lexists(path) and not overwrite:
        raise RunError.saying("collect.exists", path=path)
    refuse(output_of(path))
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise RunError.saying(
            "replay.unwritten", path=path, why=message("collect.above", above=above)
        )


def named_paths(option: str, given: Sequence[str]) -> dict[str, Path]:
    """Return the paths by their names: the one that is given, else the file's own.

    Raises:
        UsageError: a path is empty or not there, or two have one name.
    """
    found: dict[str, Path] = {}
    for text in given:
        named = None if Path(text).exists() else _NAME.fullmatch(text)
        path = Path(named[2] if named else text)
        if not text or "\0" in text or not path.exists():
            raise UsageError.saying("collect.no_path", option=option, path=text)
        name = named[1] if named else path.resolve().name
        if name in found:
            raise UsageError.saying(
                "collect.same_name", option=option, name=name, first=found[name], second=path
            )
        found[name] = path
    return found


def read_configurations(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return what YAML and JSON files hold, by their names; what could be a secret is withheld.

    Raises:
        ConfigError: one cannot be read, is not what its suffix says, or holds no mapping.
    """
    found = {}
    for name, path in paths.items():
        if path.is_dir():
            raise ConfigError.saying("collect.directory", path=path)
        if path.suffix.lower() == ".json":
            content = _read_json(path)
        else:
            content = read_yaml(path, message("collect.a_configuration"), apart=True)
        found[name] = without_secrets(to_plain(content, lambda *_: None))
    return found


def _read_json(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST + 1)
        if len(raw) > _MOST:
            raise ConfigError.saying("collect.too_large", path=path, most=f"{_MOST >> 20} MiB")
        content = json.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError.saying("collect.no_json_configuration", path=path, why=error) from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ConfigError.saying("collect.no_object", path=path, kind=kind)
    return content


def describe_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, str | None] | None]:
    """Return the parameters of a checkpoint, else its files by their path inside it.

    A checkpoint is a file, or a directory with all files below it; hidden ones are left out.
    Formats whose content would have to be executed are never opened as such.

    Returns:
        Its entry in the section `checkpoints`, with `why` where a format that is read could not be;
        and the fingerprint of each parameter as a run's initial weights have it, None of one that
        cannot be read; no parameters where the format is not read, or parts of them lie there.

    Raises:
        RunError: it cannot be read, is empty, or has too many files.
    """
    why = {}
    files = [path] if path.is_file() else [*path.glob("*"), *path.glob("rank_*/*")]
    if any(file.suffix in _READ for file in files):
        try:
            checkpoint = open_checkpoint(path)
            if checkpoint.whole and checkpoint.kind != "run":
                tensors = checkpoint.ranks[0]
                found = {name: _fingerprint(tensor) for name, tensor in tensors.items()}
                return {"format": checkpoint.kind, "parameters": len(found)}, found
        except CheckpointError as error:
            why = {"why": error.said.as_json()}
    return {"files": _files(path), **why}, None


def _fingerprint(tensor: StoredTensor) -> str | None:
    if tensor.why is not None:
        return None
    parts = (
        np.ascontiguousarray(tensor.read(at, min(at + _AT_ONCE, tensor.size)))
        for at in range(0, tensor.size, _AT_ONCE)
    )
    return fingerprint_of_parts(tensor.dtype, tensor.shape, parts)


def _files(root: Path) -> dict[str, dict[str, Any]]:
    """Return the size in bytes and the fingerprint of each file."""
    files = [root]
    if root.is_dir():
        files = []
        for directory, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = (Path(directory, name) for name in sorted(names) if not name.startswith("."))
            files += [path for path in paths if path.is_file()]  # no pipe, no link to nowhere
            if len(files) > _MOST_FILES:
                raise RunError.saying("collect.many_files", path=root, most=_MOST_FILES)
    if not files:
        raise RunError.saying("collect.empty_checkpoint", path=root)
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        digest, size = xxhash.xxh3_128(), 0
        try:
            if not file.is_file():
                raise RunError.saying("collect.no_regular_file", path=file)
            with open(file, "rb", buffering=0) as opened:
                while block := opened.read(_BLOCK):
                    digest.update(block)
                    size += len(block)
        except OSError as error:
            why = error.strerror or error
            raise RunError.saying("error.unread", path=file, why=why) from None
        name = file.name if file == root else file.relative_to(root).as_posix()
        found[name] = {"size": size, "fingerprint": f"xxh3_128:{digest.hexdigest()}"}
    return found
