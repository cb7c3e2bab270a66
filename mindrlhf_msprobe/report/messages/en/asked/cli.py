"""What the command line says beside the answers: wrong arguments, faults, `merge`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _two_runs(runs: Sequence[str], hint: str) -> str:
    given = f": {' '.join(runs)}" if runs else ""
    return f"expected two runs to compare, got {len(runs)}{given}{hint}"


TEXTS: dict[str, Any] = {
    "see_help": "{prog}: {error}. See {prog} --help.",
    "interrupted": "interrupted",
    "fault": (
        "could not go on, by a fault of this tool: {kind}: {text}{where}. Please report it with "
        "its traceback{advice}."
    ),
    "missing": (
        "{name} cannot be imported here ({error}), and this command needs it. Install it where "
        "this tool runs: pip install {package}"
    ),
    "fault_where": " ({file}, line {line})",
    "fault_advice": "; {variable}=0 in the environment shows it",
    "no_tables": "no tables were written: {error} The answer is printed here.",
    "empty_path_of_a_run": "the path of a run is empty; expected the dump_path of a run",
    "code_of_entry": lambda name: (
        f"--code shows the code that called an entry: give the name of one"
        f"{f', not {name}' if name else ''} (show RUN PHASE lists them)"
    ),
    "empty_path": "the path of the run is empty; expected the dump_path of a run",
    "two_runs": _two_runs,
    "one_run_hint": "; one run is enough with --phases, --ranks or --keys X=Y",
    "two_names": "two names with a comma between them",
    "two_ranks": "two rank numbers with a comma between them, e.g. 0,1",
    "option": "{option} is {value}; expected {expected}",
    "address": "--address is of a Ray cluster; give --engine ray with it",
    "at_least_1": "--{option} is {number}; expected a whole number, 1 or larger",
    "beside_config": (
        "--{options} cannot stand beside --config, whose file says it already; give either, or "
        "change a copy of the file"
    ),
    "nothing_on": (
        "{file} switches nothing on, so it takes no room; expected msprobe: true and a phase's "
        "switch or key_data_dump: true"
    ),
    "merge_left_out": (
        "{number} file(s) or directories belong to no run and were left out: {shown}"
    ),
    "merged": lambda path, directories, ranks, steps, files, copied: (
        f"{path}: {directories} directories, ranks {ranks}, steps {steps or 'none'}, {files} files "
        f"({copied} copied)"
    ),
    "merge_missing": "ranks {ranks} of the job are in none of them",
}
