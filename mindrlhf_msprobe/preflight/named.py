"""`NAME=PATH` and `PATH`: what files that are given on the command line are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mindrlhf_msprobe.errors import UsageError

_NAME = re.compile(r"([A-Za-z_][\w.-]*)=(.+)", re.DOTALL)


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
