"""How a good and a bad run are set up: settings, variables, interpreters, commits."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mindrlhf_msprobe.common.secret import is_secret_key
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.proof import Setting
from mindrlhf_msprobe.storage.layout import WITHHELD

CONFIG, PYTHON = "config", "python"
_SETTING_FILES = (".yaml", ".yml", ".json")
_VARIABLES = ".env"
_VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_ABSENT = object()
_MOST_SHOWN = 200  # characters of a value

#: The keys that lead to a setting.
Keys = tuple[Any, ...]


@dataclass(frozen=True)
class Files:
    """Two files of settings; what differs between them is tried one by one."""

    good: Mapping[str, Any]
    bad: Mapping[str, Any]
    suffix: str = ".yaml"

    def text(self, bad: Collection[Keys]) -> str:
        """Return the mixed settings as a file holds them."""
        if self.suffix == ".json":
            return json.dumps(self.mixed(bad), ensure_ascii=False, indent=1)
        return str(yaml.safe_dump(self.mixed(bad), allow_unicode=True, sort_keys=False))

    def differences(self) -> dict[Keys, Setting]:
        """Return what differs, by its keys."""
        sides = [dict(_leaves(side, ())) for side in (self.good, self.bad)]
        found = {}
        for keys in dict.fromkeys([*sides[0], *sides[1]]):
            good, bad = (side.get(keys, _ABSENT) for side in sides)
            if keys[0] != SECTION and repr(good) != repr(bad):  # not how runs are recorded
                name = ".".join(map(str, keys))
                texts = (_shown(keys[-1], value) for value in (good, bad))
                found[keys] = Setting("setting", name, *texts)
        return found

    def mixed(self, bad: Collection[Keys]) -> dict[str, Any]:
        """Return the good settings, with some from the bad file.

        Where one file has a value and the other a section, the bad side's takes the place.
        """
        good, other = (dict(_leaves(side, ())) for side in (self.good, self.bad))
        chosen = {keys: other[keys] for keys in bad if keys in other}
        mixed: dict[str, Any] = {}
        for keys, value in good.items():
            if keys not in bad and not any(_is_inside(keys, one) for one in chosen):
                _put(mixed, keys, value)
        for keys, value in chosen.items():
            _put(mixed, keys, value)
        return mixed


@dataclass(frozen=True)
class Variables:
    """Two sets of environment variables."""

    good: Mapping[str, str]
    bad: Mapping[str, str]

    def differences(self) -> dict[str, Setting]:
        """Return what differs, by its name."""
        return {
            name: Setting(
                *("environment", name),
                *(_shown(name, side.get(name, _ABSENT)) for side in (self.good, self.bad)),
            )
            for name in dict.fromkeys([*self.good, *self.bad])
            if self.good.get(name) != self.bad.get(name)
        }

    def mixed(self, bad: Collection[str]) -> dict[str, str | None]:
        """Return what is set, and what is not set, with some from the bad side."""
        names = dict.fromkeys([*self.good, *self.bad])
        return {name: (self.bad if name in bad else self.good).get(name) for name in names}


@dataclass(frozen=True)
class Interpreters:
    """Interpreters, each of an environment with other packages, the good one first."""

    paths: Sequence[str]


@dataclass(frozen=True)
class Commits:
    """Two commits of the repository of the working directory."""

    good: str
    bad: str


def read_between(texts: Sequence[str]) -> Files | Variables | Interpreters | Commits:
    """Return what GOOD … BAD are: files of settings, of variables, interpreters, or commits.

    Raises:
        ConfigError: a file cannot be read.
        UsageError: they are none of these, or of different kinds.
    """
    paths = [Path(text) for text in texts]
    if len(texts) == 2 and all(path.suffix in _SETTING_FILES for path in paths):
        good, bad = (read_yaml(path, unique="") for path in paths)
        return Files(good, bad, paths[0].suffix)
    if len(texts) == 2 and all(path.suffix == _VARIABLES or path.name == ".env" for path in paths):
        return Variables(*map(_variables, paths))
    if len(texts) > 1 and all(path.is_file() and os.access(path, os.X_OK) for path in paths):
        return Interpreters(tuple(str(path.absolute()) for path in paths))
    if len(texts) == 2 and not any(path.exists() for path in paths):
        return Commits(*map(_commit, texts))
    raise UsageError.saying("error.hunt_between", given=" ".join(texts))


def _is_inside(one: Keys, other: Keys) -> bool:
    """Return whether one of two settings would lie inside the other."""
    shorter = min(len(one), len(other))
    return one != other and one[:shorter] == other[:shorter]


def _put(settings: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
    settings[keys[-1]] = copy.deepcopy(value)


def _leaves(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """Yield the settings of a file, each with the keys that lead to it."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*keys, key))
    elif keys:
        yield keys, value


def _shown(name: Any, value: Any) -> str | None:
    if value is _ABSENT:
        return None
    return WITHHELD if is_secret_key(str(name)) else str(value)[:_MOST_SHOWN] or '""'


def _variables(path: Path) -> dict[str, str]:
    """Return the variables of a file of lines `NAME=value`."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError.saying("error.unread", path=path, why=error) from None
    found = {}
    for line in map(str.strip, lines):
        match = _VARIABLE.fullmatch(line)
        if match is not None:
            # As a shell would read it: without its quotes, and a comment behind it.
            quoted = re.match(r"""(['"])(.*?)\1(?:\s+#.*)?$""", match[2].strip())
            plain = re.split(r"\s+#", match[2], maxsplit=1)[0].strip()
            found[match[1]] = plain if quoted is None else quoted[2]
        elif line and not line.startswith("#"):
            raise UsageError.saying("error.hunt_variable", path=path, line=line[:_MOST_SHOWN])
    return found


def _commit(text: str) -> str:
    done = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if done.returncode:
        raise UsageError.saying("error.hunt_between", given=text)
    return done.stdout.strip()


def git(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run git; return how it ended and what it printed."""
    try:
        return subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, check=False
        )
    except OSError as error:
        why = error.strerror or error
        raise UsageError.saying("collect.not_started", program="git", why=why) from None
