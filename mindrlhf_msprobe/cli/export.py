"""`export`: the records of a run as columns, for queries and for the other commands."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands, refuse_empty
from mindrlhf_msprobe.errors import SAME, RunError, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say

_SHOWN = 3  # places that are named


def add_parser(commands: Commands) -> None:
    """Add the command."""
    export = Command.add(commands, "export", _export)
    export.add_argument("path", metavar="RUN")
    export.add_argument("-o", "--output_path", metavar="DIR")
    export.add_argument("--json", action="store_true")


def _export(arguments: argparse.Namespace) -> Answer:
    from pathlib import Path

    from mindrlhf_msprobe.common.printable import size
    from mindrlhf_msprobe.storage.columns.export import export_run
    from mindrlhf_msprobe.storage.reading.reader import open_run

    refuse_empty(arguments.path, arguments.output_path)
    run = open_run(arguments.path)
    if run.foreign:
        raise RunError.saying("error.no_journals", path=run.path)
    directory = Path(arguments.output_path or run.path)
    try:
        found = export_run(run, directory)
    except ModuleNotFoundError as error:
        needs = {"package": "pyarrow", "extra": "columns"}
        raise UsageError.saying("error.no_package", error=error, **needs) from None
    if found.left_out:
        shown = [f"{phase}/step{step}/rank{rank}" for phase, step, rank in found.left_out]
        more = ", ..." if len(shown) > _SHOWN else ""
        text = ", ".join(shown[:_SHOWN]) + more
        complain("export", say("cli.export_left_out", count=len(shown), shown=text))
    left_out = [dict(zip(("phase", "step", "rank"), at)) for at in found.left_out]
    content = {"files": [*map(str, found.files)], "records": found.records}
    content |= {"bytes": found.size, "journal_bytes": found.journals, "left_out": left_out}
    said = {"directory": directory, "files": len(found.files), "records": found.records}
    sizes = {"size": size(found.size), "journals": size(found.journals)}
    return Answer(SAME, lambda: [say("cli.exported", **said, **sizes)], lambda: content)
