"""Which entries of a phase and step are recorded, by their names and their place in time."""

from __future__ import annotations

from mindrlhf_msprobe.config import ProbeConfig


class Selection:
    """What `entries`, `scope` and `parts` leave of the entries of one phase and step.

    A scope reaches from the moment its first entry begins to the moment its last one ends. An
    entry that begins meanwhile is recorded.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._first, self._last = config.scope or ("", "")
        self._inside = not config.scope
        self._traced: set[str] = set()  # cells of which a backward entry is recorded
        self._limited = bool(config.scope or config.entries)
        self.inputs = "input" in config.parts
        self.outputs = "output" in config.parts

    def may_begin(self, entry: str) -> bool:
        """Tell whether an entry may be recorded; if so, or not, `begin` says when it begins."""
        return self._config.records_entry(entry) or entry in (self._first, self._last)

    def begin(self, entry: str) -> bool:
        """Take note that an entry begins and tell whether it is recorded."""
        if entry == self._first:
            self._inside = True
        recorded = self._inside and self._config.records_entry(entry)
        if recorded and self._limited and ".backward." in entry:
            self._traced.add(entry.rpartition(".backward.")[0])
        return recorded

    def end(self, entry: str) -> None:
        """Take note that an entry ended."""
        if entry == self._last:
            self._inside = False

    def takes_part(self, part: str) -> bool:
        """Tell whether a part of entries is recorded, by its name in an entry's JSON."""
        return self.inputs if part.startswith("input") else self.outputs

    def takes_parameter_gradient(self, head: str, entry: str) -> bool:
        """Tell whether the gradient of a cell's parameter is recorded, when it comes.

        Args:
            head: the cell's part of its entries' names.
        """
        return head in self._traced or (self._inside and self._config.records_entry(entry))
