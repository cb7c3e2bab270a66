"""What `preflight collect` writes: one JSON file that says what a training would run with.

Its sections are those of run.json, and some that only it has. It is data from elsewhere: what is
not as this package writes it reads as nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    TOOL,
    RunFile,
    refuse_other_schema,
)
from mindrlhf_msprobe.storage.outputs import Output, written

KIND = "preflight"
SCHEMA = 1
#: Whose settings a file has: those of `collect` itself, or of the script that it ran.
BY_ITSELF, BY_SCRIPT = "collect", "script"


class PreflightFile:
    """A file of `preflight collect`; it offers what a comparison asks of a run, and more."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self.path = path
        self._content = dict(content)

    @classmethod
    def read(cls, path: str | Path) -> PreflightFile:
        """Read a file.

        Raises:
            RunError: it is missing, unreadable, cut off, no such file, or of another version.
        """
        path = Path(path)
        try:
            with open(path, "rb") as file:
                raw = file.read(bounds.METADATA + 1)
        except FileNotFoundError:
            raise RunError.saying("collect.no_file", path=path) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            why = getattr(error, "strerror", None) or error
            raise RunError.saying("collect.unread", path=path, why=why) from None
        if len(raw) > bounds.METADATA:
            most = bounds.in_bytes(bounds.METADATA)
            raise RunError.saying("collect.too_large", path=path, most=most)
        try:
            content = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise RunError.saying("collect.no_json", path=path, why=error) from None
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise RunError.saying("collect.other_file", path=path)
        refuse_other_schema(path, content, SCHEMA)
        return cls(path, content)

    def renamed(self, names: Mapping[str, str], *sections: str) -> PreflightFile:
        """Return the same with other names in some sections, old → new."""
        found = {
            section: {names.get(name, name): value for name, value in content.items()}
            for section in sections
            if (content := self.section(section)) is not None
        }
        return PreflightFile(self.path, {**self._content, **found})

    def has(self, section: str) -> bool:
        """Return whether a section was collected."""
        return section in self._content

    def without(self, sections: Sequence[str]) -> PreflightFile:
        """Return the same without some sections."""
        left = {name: value for name, value in self._content.items() if name not in sections}
        return PreflightFile(self.path, left)

    @property
    def run_files(self) -> list[RunFile]:
        """What a run's manifest would say; a script that has run had come to its networks."""
        by_script = self._content.get("taken") == BY_SCRIPT
        return [RunFile({**self._content, **({"taken": AT_FIRST_PHASE} if by_script else {})})]

    def configurations(self) -> dict[str, Any] | None:
        """Return the configuration files, by name; None if none was given."""
        found = self._content.get("configurations")
        return found if isinstance(found, dict) else None

    def section(self, name: str) -> dict[str, Any] | None:
        """Return a section that is an object; None if it was not collected."""
        found = self._content.get(name)
        return found if isinstance(found, dict) else None

    def listed(self, name: str) -> list[dict[str, Any]] | None:
        """Return a section that is a list of objects; None if it was not collected."""
        found = self._content.get(name)
        if not isinstance(found, list):
            return None
        return [item for item in found if isinstance(item, dict)]


def write_preflight(path: Path, content: Mapping[str, Any], version: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        RunError: it cannot be written there.
    """
    head = {"schema": SCHEMA, "tool": TOOL, "kind": KIND, "tool_version": version}
    with written(output_of(path)) as (part,):
        write_json(part, {**head, **content})


def output_of(path: Path) -> Output:
    """Return the file that is to be written, which may take the place of an earlier one."""
    return Output(path, lambda earlier: bool(PreflightFile.read(earlier)))
