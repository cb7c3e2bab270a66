"""A YAML file of rules, one a line: a pattern of names and what holds for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError


def read_rules(path: str | Path, kind: str, example: str) -> Mapping[Any, Any]:
    """Return the rules by their patterns, in the order of the file; there is at least one.

    Args:
        kind: what errors call one of them.
        example: a line of such a file.

    Raises:
        ConfigError: the file cannot be read, or holds none.
    """
    rules = read_yaml(Path(path), f"a YAML file of {kind}s", f"{kind}s")
    if not rules:
        raise ConfigError(f"{path}: holds no {kind}; expected lines such as {example!r}.")
    return rules
