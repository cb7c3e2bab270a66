"""The names of the files that are written: no two tables share one."""

from __future__ import annotations

from mindrlhf_msprobe.storage.layout import file_name


def take_name(taken: set[str], stem: str, suffix: str) -> str:
    """Return `stem` and `suffix` as a file name, marked if it is one of `taken`; add it to them."""
    while (name := file_name(stem, suffix)) in taken:  # a key that is called like a phase's table
        suffix = "~" + suffix
    taken.add(name)
    return name
