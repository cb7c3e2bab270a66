"""What a training runs with: the snapshot of it that a recorded run or `preflight collect` wrote.

`KINDS` says for each kind of setting who writes it and what a difference means. A collection is one
JSON file; its sections are those of run.json, and some that only it has. It is data from others:
what is not as this package writes it reads as nothing.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    TOOL,
    RunFile,
    refuse_other_schema,
)
from mindrlhf_msprobe.storage.outputs import Output, written

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.reading.reader import Run

KIND = "preflight"
SCHEMA = 1
#: Whose settings a file has: those of `collect` itself, or of the script that it ran.
BY_ITSELF, BY_SCRIPT = "collect", "script"


class Trait(enum.Flag):
    """What holds for a kind of setting."""

    #: A difference in it can explain a divergence, whatever is drawn.
    EXPLAINS = enum.auto()
    #: A setting that one side alone has differs; else it is unknown.
    ABSENCE_DIFFERS = enum.auto()
    #: None is a value; else it means that the setting is not set.
    NONE_IS_A_VALUE = enum.auto()
    #: A value could be a secret, and is not shown then.
    SECRET = enum.auto()
    #: Paths in it are other ones in any two runs.
    PATHS = enum.auto()
    #: A further attempt at a run notes it where it differs.
    OF_ATTEMPTS = enum.auto()
    #: It is taken when a run starts, and again at its first phase.
    TAKEN_TWICE = enum.auto()
    #: A collection does not have it, or no run has it.
    OF_RUNS = enum.auto()
    OF_COLLECTIONS = enum.auto()
    #: A pack of msprobe's says it in its own way: statistics for fingerprints, other functions.
    OTHER_IN_PACKS = enum.auto()


_EXPLAINS, _NONE, _SECRET = Trait.EXPLAINS, Trait.NONE_IS_A_VALUE, Trait.SECRET
_ABSENCE, _ATTEMPTS, _TWICE = Trait.ABSENCE_DIFFERS, Trait.OF_ATTEMPTS, Trait.TAKEN_TWICE
_RUNS, _COLLECTIONS = Trait.OF_RUNS, Trait.OF_COLLECTIONS

#: Every kind by its section in run.json and in a collection; what changes numbers comes first.
KINDS: dict[str, Trait] = {
    "seeds": _TWICE,
    "random_calls": _COLLECTIONS | Trait.OTHER_IN_PACKS,
    "determinism": _ATTEMPTS | _TWICE,
    "modes": _EXPLAINS | _ATTEMPTS,
    "networks": _ATTEMPTS | _RUNS,
    "cells": _EXPLAINS | _NONE | _SECRET,  # in `networks`
    "optimizers": _EXPLAINS | _NONE | _SECRET | _ATTEMPTS,
    "generation": _EXPLAINS | _NONE | _ATTEMPTS,
    "versions": _EXPLAINS | _NONE | _ATTEMPTS,
    "configurations": _EXPLAINS | _ABSENCE | _NONE | _SECRET | Trait.PATHS,
    "checkpoints": _COLLECTIONS,
    "data": _COLLECTIONS | Trait.OTHER_IN_PACKS,
    "initial_weights": Trait.OTHER_IN_PACKS,
    "script": _COLLECTIONS | Trait.PATHS,
    "device": _EXPLAINS | _ATTEMPTS | _TWICE,
    "world": _EXPLAINS | _RUNS,
    "packages": _ABSENCE | _COLLECTIONS,
    "environment": _EXPLAINS | _ABSENCE | _SECRET | Trait.PATHS | _ATTEMPTS | _TWICE,
    "msprobe_config": _NONE | _RUNS,
}


def kinds_with(trait: Trait, among: Collection[str] = KINDS) -> tuple[str, ...]:
    """Return the sections for which a trait holds, in the order of the table or of `among`."""
    return tuple(name for name in among if trait in KINDS.get(name, Trait(0)))


@dataclass(frozen=True)
class Snapshot:
    """What one side of a comparison says that a training runs with.

    Attributes:
        path: where it lies.
        run_files: the manifests, one a rank; of a collection its sections as one manifest.
        configurations: the trainer's, by name; None if there are none that can be read.
        collected: the content of a collection; None of a run.
        is_pack: whether it is a pack of msprobe's config_check.
    """

    path: Path
    run_files: Sequence[RunFile]
    configurations: dict[str, Any] | None
    collected: Mapping[str, Any] | None = None
    is_pack: bool = False

    @classmethod
    def of(cls, run: Run) -> Snapshot:
        """Return what a recorded run says."""
        try:
            configurations = run.configurations()
        except OSError:
            configurations = None
        return cls(run.path, run.run_files, configurations)

    @classmethod
    def of_collection(
        cls, path: Path, content: Mapping[str, Any], *, is_pack: bool = False
    ) -> Snapshot:
        """Return what a collection says; a script that has run had come to its networks."""
        configurations = content.get("configurations")
        at_phase = {"taken": AT_FIRST_PHASE} if content.get("taken") == BY_SCRIPT else {}
        return cls(
            path=path,
            run_files=(RunFile({**content, **at_phase}),),
            configurations=configurations if isinstance(configurations, dict) else None,
            collected=content,
            is_pack=is_pack,
        )

    @classmethod
    def read(cls, path: str | Path) -> Snapshot:
        """Read a file of `preflight collect`.

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
            raise RunError.saying("error.unread", path=path, why=why) from None
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
        return cls.of_collection(path, content)

    def section(self, name: str) -> dict[str, Any] | None:
        """Return a section of a collection that is an object; None if it was not collected."""
        found = (self.collected or {}).get(name)
        return found if isinstance(found, dict) else None

    def with_content(self, content: Mapping[str, Any]) -> Snapshot:
        """Return a collection with another content."""
        return Snapshot.of_collection(self.path, content, is_pack=self.is_pack)


def write_collection(path: Path, content: Mapping[str, Any], version: str) -> None:
    """Write a file of `preflight collect`, whole or not at all.

    Raises:
        RunError: it cannot be written there.
    """
    head = {"schema": SCHEMA, "tool": TOOL, "kind": KIND, "tool_version": version}
    with written(output_of(path)) as (part,):
        write_json(part, {**head, **content})


def output_of(path: Path) -> Output:
    """Return the file that is to be written, which may take the place of an earlier one."""
    return Output(path, lambda earlier: bool(Snapshot.read(earlier)))


def without_secrets(value: Any, path: Sequence[str] = (), *, deepest: int | None = None) -> Any:
    """Return a JSON value as it may be shown or written: what could be a secret is withheld.

    Nothing, a switch and an empty text are no secrets.

    Args:
        path: the keys under which the value stands; places in lists count for nothing.
        deepest: how many containers deep it is shown; those below are empty.
    """
    if isinstance(value, (dict, list)):
        if deepest == 0:
            return type(value)()
        inner = None if deepest is None else deepest - 1
        if isinstance(value, list):
            return [without_secrets(item, path, deepest=inner) for item in value]
        return {
            key: without_secrets(item, (*path, key), deepest=inner) for key, item in value.items()
        }
    if value is None or isinstance(value, bool) or value == "":
        return value
    # Its patterns take long to compile, and few comparisons show a setting.
    from mindrlhf_msprobe.common.secret import could_be_secret, could_name_text, is_secret_key

    names = [name for name in path if not name.isdecimal()]
    if any(map(is_secret_key, names)):
        return WITHHELD
    if not isinstance(value, str):
        return value
    own = names[-1] if names else ""
    suspicious = could_name_text(own) or could_be_secret(value)
    return WITHHELD if suspicious else value
