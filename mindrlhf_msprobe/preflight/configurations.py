"""Configuration files → plain JSON values without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.settings.configurations import to_plain
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.secret import could_be_secret, could_name_text, is_secret_key
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.storage.layout import WITHHELD

_MOST = 8 << 20  # bytes of a JSON file
_CHECKED = 1000  # characters of a text


def read_configurations(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return what YAML and JSON files hold, by their names; what could be a secret is withheld.

    Raises:
        ConfigError: one cannot be read, is not what its suffix says, or holds no mapping.
    """
    return {name: _without_secrets(_read(path), ()) for name, path in paths.items()}


def _read(path: Path) -> Any:
    if path.is_dir():
        raise ConfigError.saying("collect.directory", path=path)
    if path.suffix.lower() == ".json":
        content = _read_json(path)
    else:
        content = read_yaml(path, message("collect.a_configuration"), apart=True)
    return to_plain(content, lambda *_: None)


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


def _without_secrets(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, path) for item in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    if any(map(is_secret_key, path)):
        return WITHHELD
    if not isinstance(value, str):
        return value
    own = path[-1] if path else ""
    return WITHHELD if could_name_text(own) or could_be_secret(value[:_CHECKED]) else value
