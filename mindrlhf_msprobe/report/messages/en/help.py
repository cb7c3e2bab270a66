"""What `--help` says, and the command line beside the answers: wrong arguments, faults, `merge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _two_runs(runs: Sequence[str], hint: str) -> str:
    given = f": {' '.join(runs)}" if runs else ""
    return f"expected two runs to compare, got {len(runs)}{given}{hint}"


CLI: Mapping[str, Any] = {
    "code_of_entry": lambda name: (
        f"--code shows the code that called an entry: give the name of one"
        f"{f', not {name}' if name else ''} (show RUN PHASE lists them)"
    ),
    "two_runs": _two_runs,
    "merged": lambda path, directories, ranks, steps, files, copied: (
        f"{path}: {directories} directories, ranks {ranks}, steps {steps or 'none'}, {files} files "
        f"({copied} copied)"
    ),
}
