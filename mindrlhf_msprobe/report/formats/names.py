"""The names of the files that are written: no two tables share one."""

from __future__ import annotations

from mindrlhf_msprobe.storage.layout import file_name


class Names:
    """Gives each table a file name of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, stem: str, suffix: str) -> str:
        """Return `stem` and `suffix` as a file name, marked if another table has that name."""
        name = file_name(stem, suffix)
        while name in self._taken:  # a key that is called like a phase's table
            suffix = "~" + suffix
            name = file_name(stem, suffix)
        self._taken.add(name)
        return name
