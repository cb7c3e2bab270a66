"""YAML files that users write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.errors import ConfigError


def read_yaml(
    path: Path,
    file: str = "the trainer's YAML file",
    of: str = "settings",
    unique: str | None = None,
) -> Mapping[str, Any]:
    """Read a YAML file whose top is a mapping.

    Args:
        file, of: what errors call the file, and what it is a mapping of.
        unique: the section in which no key may stand twice; None, or without it, the top of the
            file. YAML takes the last of them and says nothing about the others.

    Raises:
        ConfigError: it is missing, unreadable, not YAML, not a mapping, or holds a key twice.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file. Give the path of {file}.") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL in it
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        loader = yaml.SafeLoader(text)
        top = loader.get_single_node()
        content = None if top is None else loader.construct_document(top)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2024-13-45
        raise ConfigError(f"{path}: is not valid YAML: {error}") from None
    if not isinstance(content, Mapping):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigError(
            f"{path}: expected a mapping of {of} at the top of the file, found {kind}."
        )
    _refuse_repeated(path, top, unique)
    return content


def _refuse_repeated(path: Path, top: Any, section: str | None) -> None:
    """Refuse a section that stands twice, or a key that stands twice in it.

    Raises:
        ConfigError: there is one.
    """
    sections = [pair for pair in top.value if pair[0].value == section]
    _refuse_twice(path, [key for key, _ in sections])
    for node in [value for _, value in sections] or [top]:
        pairs = node.value if isinstance(node.value, list) else []
        _refuse_twice(path, [pair[0] for pair in pairs if isinstance(pair, tuple)])


def _refuse_twice(path: Path, keys: Sequence[Any]) -> None:
    lines: dict[str, int] = {}
    for key in keys:
        line = key.start_mark.line + 1
        if key.value in lines and key.value != "<<":
            raise ConfigError(
                f"{path}: line {line}: {key.value!r} stands there once more, after line "
                f"{lines[key.value]}. YAML would take the last and lose the other; keep one."
            )
        lines[str(key.value)] = line
