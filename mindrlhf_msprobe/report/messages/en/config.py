"""Settings that cannot be used: of `msprobe_config`, and of msprobe's config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import section_words


def _unknown_keys(items: Sequence[Sequence[str]], hints: Sequence[str], known: str) -> str:
    if len(items) == 1:
        ((key, value),) = items
        what = f"unknown key {key} (value {value}) in msprobe_config.{hints[0]}"
    else:
        each = (f"{key} (value {value}).{hint}" for (key, value), hint in zip(items, hints))
        what = f"unknown keys in msprobe_config: {' '.join(each)}"
    return f"{what} Valid keys: {known}."


TEXTS: Mapping[str, Any] = {
    "unknown_keys": _unknown_keys,
    "either": lambda choices: " or ".join(choices),
}

#: What `preflight` says of its arguments and of what it collected.
COLLECT: Mapping[str, Any] = {
    "holds": lambda section, count: f"  {section_words(section)}: {count}",
}
