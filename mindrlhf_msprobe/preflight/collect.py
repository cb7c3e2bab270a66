"""What a training would run with → one file."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.capture.settings.configurations import reason_of, to_plain
from mindrlhf_msprobe.capture.settings.environment import settings_of_process
from mindrlhf_msprobe.capture.tensors.summary import (
    is_tensor,
    is_torch_tensor,
    summarise,
    to_host,
    unread,
)
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber, described_leaves
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.common.processes import run_to_end
from mindrlhf_msprobe.common.secret import could_be_secret, is_secret_key
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError, RunError, UsageError
from mindrlhf_msprobe.preflight.child.sitecustomize import DIRECTORY
from mindrlhf_msprobe.storage.arrays.npy import fingerprint, fingerprint_of_parts
from mindrlhf_msprobe.storage.foreign.checkpoints.opening import open_checkpoint
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError, StoredTensor
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.outputs import refuse
from mindrlhf_msprobe.storage.snapshot import (
    BY_ITSELF,
    BY_SCRIPT,
    output_of,
    without_secrets,
    write_collection,
)

_STDERR = 2  # the descriptor; stdout is for our answer
_CHILD = Path(__file__).parent / "child"


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started.

    Raises:
        UsageError: there is no such program, or none is named.
    """
    if not command[0]:
        raise UsageError.saying("collect.no_command")
    if shutil.which(command[0]) is None:
        python = command[0].endswith(".py")
        raise UsageError.saying("collect.no_program", program=command[0], python=python)


def run_command(command: Sequence[str], seconds: float | None) -> tuple[str | None, dict[str, Any]]:
    """Run a command, and return how it ended, what it drew and what it ran with.

    What it prints goes to stderr; it reads from no terminal.

    Args:
        seconds: after how many it is stopped; None: it runs to its end.

    Returns:
        Its version of Python, None if no process said any; and the sections of a collection:
        `script`, with the exit code, negative of a signal, None where it was stopped; the random
        calls, if a Python process said something; the settings of the process of the lowest rank.

    Raises:
        UsageError: it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="msprobe_preflight_") as notes:
        began = time.monotonic()
        paths = [str(_CHILD), *filter(None, [os.environ.get("PYTHONPATH")])]
        added = {"PYTHONPATH": os.pathsep.join(paths), DIRECTORY: notes}
        exit_code = run_to_end(command, seconds, env={**os.environ, **added}, stdout=_STDERR)
        took = time.monotonic() - began
        processes = _read(Path(notes))
    processes.sort(key=lambda found: (found["rank"] is None, found["rank"] or 0))
    settings = [found for found in processes if isinstance(found.get("settings"), dict)]
    sections: dict[str, Any] = {}
    if settings:
        sections = {**settings[0]["settings"], "taken": BY_SCRIPT}
    sections["script"] = {
        "command": without_secrets_of(command),
        "exit_code": exit_code,
        "stopped": exit_code is None,
        "seconds": round(took, 1),
        "processes": len(processes),
    }
    if processes:
        sections["random_calls"] = _together(processes)
    first = (settings or processes or [{}])[0]
    return first.get("python"), sections


def _read(notes: Path) -> list[dict[str, Any]]:
    """Return what the processes noted; half a file is that of one that was killed."""
    found = []
    for path in sorted(notes.glob("*.json"))[:10_000]:
        with suppress(OSError, ValueError):
            content = json.loads(path.read_text(encoding="utf-8"))
            rank = str(content.get("rank") or "")
            found.append({**content, "rank": int(rank) if rank.isdecimal() else None})
    return found


def _together(processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of all processes, those of one rank and place as one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, process in enumerate(processes):
        for call in process["calls"]:
            file = os.path.relpath(call["file"])  # where it lies below the working directory
            file = call["file"] if file.startswith(os.pardir) else file
            own = {**call, "file": file, "seeds": [*call["seeds"]]}
            own = {"rank": process["rank"], **own, "complete": bool(process["ended"])}
            own["process"] = number
            key = tuple(own[name] for name in ("rank", "function", "file", "line", "in"))
            one = found.setdefault(key, {**own, "count": 0})
            one["count"] += own["count"]
            one["seeds"] += [seed for seed in own["seeds"] if seed not in one["seeds"]]
            one["complete"] = one["complete"] and own["complete"]
            one["process"] = number if one["process"] == number else None
    return list(found.values())


def without_secrets_of(command: Sequence[str]) -> list[str]:
    """Return a command as it may be written down: what could be a secret is withheld."""
    shown, before = [], ""
    for argument in command:
        option, is_joined, value = argument.partition("=")
        if is_secret_key(before.lstrip("-")) and before.startswith("-"):
            shown.append(WITHHELD)
        elif is_joined and value and is_secret_key(option.lstrip("-")):
            shown.append(f"{option}={WITHHELD}")
        else:
            shown.append(WITHHELD if could_be_secret(argument) else argument)
        before = argument
    return shown


_MOST_VALUES = 1000  # of a batch that are listed


def describe_data(source: str, batches: int) -> dict[str, Any]:
    """Return the first batches of what a function returns, each value by its path.

    What the function prints goes to stderr. No more batches are taken than are described.

    Args:
        source: `module:function`; the module is looked for in the working directory, too.
        batches: how many.

    Raises:
        UsageError: it has another form, there is no such module or function, it raises, or what it
            returns cannot be iterated over or has no batch.
    """
    with contextlib.redirect_stdout(sys.stderr):
        function = _function(source)
        found = _result_of(source, "collect.data_raised", function)
        if found is None:
            raise UsageError.saying("collect.data_nothing", source=source)
        kind = type(found).__name__
        if isinstance(found, (str, bytes)):
            raise UsageError.saying("collect.data_kind", source=source, kind=kind)
        try:
            # A mapping is one batch: iterated over, it would be its keys alone.
            iterator = iter([found] if isinstance(found, Mapping) else found)
        except TypeError:
            raise UsageError.saying("collect.data_kind", source=source, kind=kind) from None
        described: list[dict[str, dict[str, Any]]] = []
        ended = object()
        for _ in range(batches):
            batch = _result_of(source, "collect.data_raised", lambda: next(iterator, ended))
            if batch is ended:
                break
            described.append(_describe(batch))
    if not described:
        raise UsageError.saying("collect.data_empty", source=source)
    return {
        "source": source,
        "asked": batches,
        "exhausted": len(described) < batches,
        "batches": described,
    }


def _function(source: str) -> Callable[[], Any]:
    name, _, function = source.partition(":")
    if not (name and function) or not all(p.isidentifier() for p in name.split(".")):
        raise UsageError.saying("collect.data_form", source=source)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _result_of(source, "collect.data_import", lambda: importlib.import_module(name))
    for part in function.split("."):
        if not hasattr(found, part):
            raise UsageError.saying("collect.no_function", source=source, name=part, module=name)
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise UsageError.saying("collect.data_not_callable", source=source, kind=kind)
    function_found: Callable[[], Any] = found
    return function_found


def _result_of(source: str, code: str, ask: Callable[[], Any]) -> Any:
    """Return what the user's code returns.

    Raises:
        UsageError: it raises, or would end this process.
    """
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError.saying(code, source=source, why=reason_of(error)) from error


def _describe(batch: Any) -> dict[str, dict[str, Any]]:
    """Return the values of a batch by their paths; of one that is no structure the path is ""."""
    described = TreeDescriber(
        lambda value: is_tensor(value) or is_torch_tensor(value), _tensor, _text
    ).describe(batch, "")
    values = described_leaves(described)
    found = dict(islice(values, _MOST_VALUES))
    return {**found, **_in_one(values)}


def _in_one(values: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return further values as one: how many there are, and their fingerprint.

    Those of which only the type is known are another one, which is not compared.
    """
    counts = [0, 0]
    digest = xxhash.xxh3_128()
    for path, leaf in values:
        known = not leaf.get("opaque") and ("fingerprint" in leaf or "value" in leaf)
        counts[known] += 1
        said = repr((path, leaf if known else leaf.get("type")))
        digest.update(said.encode("utf-8", errors="backslashreplace"))
    at, found = f"[{_MOST_VALUES}:]", {}
    if any(counts):
        known_by = f"{sum(counts)} #{digest.hexdigest()[:24]}"
        found[at] = {"type": "values", "value": known_by}
    if counts[False]:
        found[f"{at} {counts[False]}"] = {"type": "values"}
    return found


def _tensor(value: Any, path: str) -> Any:
    try:
        return summarise(to_host(value))
    except Exception as error:
        return unread(value, error)


def _text(value: str, path: str) -> Any:
    letters = np.frombuffer(value.encode("utf-8", errors="surrogatepass"), np.uint8)
    return {
        "type": "str",
        "length": len(value),
        "fingerprint": fingerprint("UInt8", letters),
        "value": cut(value, 80),
    }


_NAME = re.compile(r"([A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_MOST = 8 << 20  # bytes of a JSON file
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
        why = message("collect.above", above=above)
        raise RunError.saying("error.file_unwritten", path=path, why=why)


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
                while block := opened.read(4 << 20):
                    digest.update(block)
                    size += len(block)
        except OSError as error:
            why = error.strerror or error
            raise RunError.saying("error.unread", path=file, why=why) from None
        name = file.name if file == root else file.relative_to(root).as_posix()
        found[name] = {"size": size, "fingerprint": f"xxh3_128:{digest.hexdigest()}"}
    return found
