"""`show`: what a run holds."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.answers import SAME, answer

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    show = commands.add_parser(
        "show",
        help="list what a run holds, or show one phase, key, entry or record",
        description="List a run's phases, steps, ranks, keys and sizes. With a phase, list its "
        "entries; with a key, one row a save; with an entry or a record, show the statistics and "
        "first values, and with --step so of a key.",
    )
    show.add_argument("path", metavar="RUN", help="the dump_path of a run")
    show.add_argument("name", nargs="?", metavar="NAME", help="a phase, a key, an entry, a record")
    show.add_argument("--step", type=int, metavar="N", help="of this step only")
    show.add_argument("--rank", type=int, metavar="N", help="of this rank only")
    show.add_argument("--json", action="store_true", help="print JSON instead of text")
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report import listing
    from mindrlhf_msprobe.report.wording import spans
    from mindrlhf_msprobe.storage.inventory import find_records, inventory
    from mindrlhf_msprobe.storage.reader import open_run

    if not arguments.path:
        raise UsageError("the path of the run is empty; expected the dump_path of a run")
    run, name = open_run(arguments.path), arguments.name
    at = {"step": arguments.step, "rank": arguments.rank}
    for what, number, held in (("step", at["step"], run.steps), ("rank", at["rank"], run.ranks)):
        if number is not None and number not in held:
            raise UsageError(f"{run.path} holds no {what} {number}; it holds {what} {spans(held)}.")
    content: list[dict[str, Any]]
    if name is None:
        holdings = inventory(run, **at)
        content = [holding.to_json() for holding in holdings]
        problems = [*map(str, run.problems), *run.lost]
        if run.missing_ranks:
            problems.append(f"recorded nothing here: rank(s) {spans(run.missing_ranks)} of the job")
        text = listing.render_holdings(run.path, run.state, holdings, problems, run.cost)
        text = "\n".join([text, *listing.render_stops(run.stops)])
    elif entries := run.entries(name, **at) if name in run.phases else []:
        content = [
            {
                **{"step": entry.step, "rank": entry.rank, "phase": entry.phase},
                **{"entry": entry.name, "token": entry.token, "parent": entry.parent},
                "records": [record.name for record in entry.records],
            }
            for entry in entries
        ]
        text = listing.render_entries(entries)
    else:
        records = find_records(run, name, **at)
        content = [record.to_json() for record in records]
        saves = run.key_data(name, **at) if arguments.step is None else []
        text = listing.render_saves(saves, records) if saves else listing.render_records(records)
    shown = json.dumps(content, ensure_ascii=False, indent=1) if arguments.json else text
    return answer(shown, SAME, as_json=arguments.json)
