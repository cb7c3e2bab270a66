"""Which language answers are given in."""

from __future__ import annotations

import os
from collections.abc import Mapping

LANGUAGES = ("en", "zh")
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set counts, as in a shell


def language(environment: Mapping[str, str] = os.environ) -> str:
    """Return `zh` where the locale is Chinese, else `en`."""
    chosen = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    return "zh" if chosen.lower().startswith("zh") else "en"
