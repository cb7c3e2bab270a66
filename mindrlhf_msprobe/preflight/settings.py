"""What this process runs with: versions, packages, device, seeds, determinism, environment.

It is looked at in the processes of a script, too: child/sitecustomize.py imports this by its name.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from mindrlhf_msprobe.capture.settings.environment import cann_version, settings_now

_VERSIONS = ("mindspore", "mindformers", "numpy")
_MOST_PACKAGES = 5000
_LONGEST = 200  # characters of a name, of a version
# States of generators: of a script that has ended they say how much it drew, of another process
# nothing.
_STATES = ("numpy_state", "random_state")


def settings_of_process() -> dict[str, dict[str, Any]]:
    """Return what this process runs with, by section; what cannot be asked is left out.

    MindSpore is asked where it was imported. Secrets are withheld, as in run.json.
    """
    found: dict[str, dict[str, Any]] = {"versions": _versions(), "packages": packages()}
    found |= settings_now(_ignored)
    for name in _STATES:
        found.get("seeds", {}).pop(name, None)
    return found


def _ignored(what: Any, error: BaseException) -> None:
    """Leave out what cannot be asked."""


def _versions() -> dict[str, Any]:
    installed = {name: _version(name) for name in _VERSIONS}
    own: dict[str, Any] = {"python": platform.python_version(), "platform": sys.platform}
    return {**own, **installed, "cann": _or_none(cann_version)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _or_none(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except Exception:
        return None


def packages() -> dict[str, str]:
    """Return every installed package with its version; the first of two with one name."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        try:
            name, version = str(package.metadata["Name"]), str(package.version)
        except Exception:  # a package whose files are damaged
            continue
        if len(found) < _MOST_PACKAGES:
            found.setdefault(name.lower().replace("_", "-")[:_LONGEST], version[:_LONGEST])
    return dict(sorted(found.items()))
