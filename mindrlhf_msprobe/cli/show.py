"""`show`: what a run holds."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.answers import SAME, answer

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    show = commands.add_parser(
        "show",
        help="list what a run holds, or show one record",
        description="List a run's phases, steps, ranks, keys and sizes; with a name, show that "
        "record's statistics and first values. An entry's or a key's name shows all its records.",
    )
    show.add_argument("path", metavar="RUN", help="the dump_path of a run")
    show.add_argument("name", nargs="?", metavar="NAME", help="a record, an entry or a key")
    show.add_argument("--json", action="store_true", help="print JSON instead of text")
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.listing import render_holdings, render_records
    from mindrlhf_msprobe.report.wording import spans
    from mindrlhf_msprobe.storage.inventory import find_records, inventory
    from mindrlhf_msprobe.storage.reader import open_run

    if not arguments.path:
        raise UsageError("the path of the run is empty; expected the dump_path of a run")
    run = open_run(arguments.path)
    if arguments.name is None:
        holdings = inventory(run)
        content = [holding.to_json() for holding in holdings]
        problems = [*map(str, run.problems), *run.lost]
        if run.missing_ranks:
            problems.append(f"recorded nothing here: rank(s) {spans(run.missing_ranks)} of the job")
        text = render_holdings(run.path, run.state, holdings, problems, run.cost)
    else:
        records = find_records(run, arguments.name)
        content = [record.to_json() for record in records]
        text = render_records(records)
    shown = json.dumps(content, ensure_ascii=False, indent=1) if arguments.json else text
    return answer(shown, SAME)
