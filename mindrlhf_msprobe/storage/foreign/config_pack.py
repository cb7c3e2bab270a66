"""msprobe's `config_check_pack.zip` → what a file of `preflight collect` says.

Members are read one by one and up to a bound; nothing is unpacked onto the disk. Of tensors a pack
has max, min, mean and norm alone.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.manifest.variables import (
    PACKAGES,
    recordable,
    variables_of_determinism,
    variables_of_field,
)
from mindrlhf_msprobe.storage.snapshot import BY_ITSELF, Snapshot

_ZIP = b"PK\x03\x04"
_LARGEST = 256 << 20  # bytes of a pack
_ENV, _PIP = "env", "pip"
_HYPERPARAMETERS = re.compile(r"hyperparameters/(?P<name>hyperparameters_\w{1,40})\.json")
_RANDOM = re.compile(r"random/rank(?P<rank>[0-9]{1,6})\.json")
_DATASET = re.compile(r"dataset/step(?P<step>[0-9]{1,9})/rank(?P<rank>[0-9]{1,6})/dataset\.json")
_WEIGHTS = re.compile(r"weights/step(?P<step>[0-9]{1,9})/rank(?P<rank>[0-9]{1,6})/weight\.json")
_FRAME = re.compile(
    r"File (?P<file>.*), line (?P<line>[0-9]+), in (?P<in>[^,]*), (?P<code>.*)", re.S
)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")
_STATISTICS = ("max", "min", "mean", "norm")


def is_config_pack(path: Path) -> bool:
    """Return whether a file is a zip archive."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except (OSError, ValueError):
        return False


def read_config_pack(path: Path) -> Snapshot:
    """Read a pack.

    Raises:
        RunError: it is damaged, too large, or another archive.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise RunError.saying("collect.too_large", path=path, most=bounds.in_bytes(_LARGEST))
        with zipfile.ZipFile(path) as archive:
            content = _content(_Members(archive, path))
    except (
        *(OSError, ValueError, RecursionError, EOFError, zlib.error, zipfile.BadZipFile),
        *(NotImplementedError, RuntimeError),  # a way to compress, a password
    ) as error:
        if isinstance(error, RunError):
            raise
        raise RunError.saying("collect.no_pack", path=path, why=error) from None
    if not content:
        raise RunError.saying("collect.other_archive", path=path)
    return Snapshot.of_collection(path, {"taken": BY_ITSELF, **content}, is_pack=True)


class _Members:
    """The files of a pack, which together may not be larger than a bound."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        self._left = _LARGEST
        self.names = archive.namelist()[:10_000]

    def text(self, name: str) -> str:
        """Return the text of a file."""
        with self._archive.open(name) as file:
            found = file.read(self._left + 1)
        self._left -= len(found)
        if self._left < 0:
            most = bounds.in_bytes(_LARGEST)
            raise RunError.saying("collect.too_large", path=self._path, most=most)
        return found.decode("utf-8", "replace")

    def object(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file."""
        found = json.loads(self.text(name))
        if not isinstance(found, dict):
            where, kind = f"{self._path}: {name}", type(found).__name__
            raise RunError.saying("collect.no_object", path=where, kind=kind)
        return found

    def of_ranks(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield step, rank and content of the files of a kind, in their order."""
        found = []
        for name in dict.fromkeys(self.names):
            match = pattern.fullmatch(name)
            if match:
                found.append((int(match.groupdict().get("step", 0)), int(match["rank"]), name))
        for step, rank, name in sorted(found):
            yield step, rank, self.object(name)


def _content(members: _Members) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if _ENV in members.names:
        variables = {k: v for k, v in members.object(_ENV).items() if isinstance(v, str)}
        found["environment"] = variables_of_field(variables)
        found["determinism"] = variables_of_determinism(variables)
        found["seeds"] = {"PYTHONHASHSEED": recordable(variables.get("PYTHONHASHSEED"))}
    if _PIP in members.names:
        packages: dict[str, str] = {}
        for line in members.text(_PIP).splitlines():
            name, _, version = line.strip().partition("=")
            if name:
                packages.setdefault(name.lower().replace("_", "-"), version)
        found["packages"] = packages
        found["versions"] = {name: packages[name] for name in PACKAGES if name in packages}
    hyperparameters = {
        match["name"]: members.object(name)
        for name in dict.fromkeys(members.names)
        if (match := _HYPERPARAMETERS.fullmatch(name))
    }
    if hyperparameters:
        found["configurations"] = hyperparameters
    calls = [_calls(rank, of) for _, rank, of in members.of_ranks(_RANDOM)]
    if calls:
        found["random_calls"] = [call for of in calls for call in of]
    found |= _data(members)
    # The parameters before the first step, by rank; statistics stand for fingerprints.
    for _, rank, parameters in members.of_ranks(_WEIGHTS):
        weights = {name: f"statistics:{_shown(leaf)}" for name, leaf in _tensors(parameters)}
        found.setdefault("initial_weights", {}).setdefault(f"rank{rank}", weights)
    return found


def _calls(rank: int, stacks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the random calls of a rank: of each stack the last frame in no installed package.

    Where every frame is in one, it is the last.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for operation, entries in stacks.items():
        function = re.sub(r"^np\.", "numpy.", operation)
        for entry in entries if isinstance(entries, list) else []:
            count = entry.get("count") if isinstance(entry, dict) else None
            stack = entry.get("stack") if type(count) is int else None
            lines = [f for f in stack if isinstance(f, str)] if isinstance(stack, list) else []
            known = [frame for line in lines if (frame := _FRAME.fullmatch(line))]
            if not known:
                continue
            own = [f for f in known if not any(part in f["file"] for part in _LIBRARIES)]
            frame = (own or known)[-1]
            where = {name: frame[name] for name in ("file", "in", "code")}
            key = function, *where.values(), frame["line"]
            place = found.setdefault(
                key,
                {
                    **{"rank": rank, "function": function, "count": 0, "seeds": []},
                    **{**where, "line": int(frame["line"][:9]), "complete": True},
                },
            )
            place["count"] += count
    return [*found.values()]


def _data(members: _Members) -> dict[str, Any]:
    """Return what the network was called with, the calls as batches."""
    batches: dict[int, dict[str, Any]] = {}
    for step, rank, inputs in members.of_ranks(_DATASET):
        batch = batches.setdefault(step, {})
        for path, leaf in _tensors(inputs):
            batch[f"rank{rank}.{path}"] = {"type": "tensor", "value": _shown(leaf)}
    if not batches:
        return {}
    listed = [batch for _, batch in sorted(batches.items())]
    return {"data": {"asked": len(listed), "exhausted": False, "batches": listed}}


def _tensors(structure: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statistics of each tensor with its path."""
    pending: list[tuple[str, Any]] = [*structure.items()][::-1]
    while pending:
        path, value = pending.pop()
        if not isinstance(value, dict):
            continue
        if {*value} == {*_STATISTICS}:
            yield path, value
        else:
            pending += [(f"{path}.{key}", item) for key, item in reversed(value.items())]


def _shown(leaf: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {leaf[name]}" for name in _STATISTICS)
