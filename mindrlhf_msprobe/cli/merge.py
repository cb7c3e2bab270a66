"""`merge`: the directories of nodes without shared storage → one run; `export`: a run → columns.

Columns are for queries, and for the other commands.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands, refuse_empty
from mindrlhf_msprobe.errors import SAME, RunError, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    merge = Command.add(commands, "merge", _merge)
    merge.add_argument("runs", nargs="*", metavar="RUN")
    merge.add_argument("-o", "--output_path", metavar="MERGED", required=True)
    merge.add_argument("--json", action="store_true")


def _merge(arguments: argparse.Namespace) -> Answer:
    import dataclasses

    from mindrlhf_msprobe.common.printable import spans
    from mindrlhf_msprobe.storage.manifest.merge import merge_runs

    refuse_empty(arguments.output_path)
    merged = merge_runs(arguments.runs, arguments.output_path)
    for remark in merged.remarks:
        complain("merge", remark)
    if merged.left_out:
        shown = ", ".join(map(str, merged.left_out[:3]))
        complain("merge", say("cli.merge_left_out", number=len(merged.left_out), shown=shown))
    said = say(
        "cli.merged",
        path=str(merged.path),
        directories=len(arguments.runs),
        ranks=spans(merged.ranks),
        steps=spans(merged.steps),
        files=merged.files,
        copied=merged.copied,
    )
    missing = [say("cli.merge_missing", ranks=spans(merged.missing))] if merged.missing else []
    content = {**dataclasses.asdict(merged), "remarks": [*map(str, merged.remarks)]}
    return Answer(SAME, lambda: [said, *missing], lambda: content)


_SHOWN = 3  # places that are named


def add_export(commands: Commands) -> None:
    """Add `export`."""
    export = Command.add(commands, "export", _export)
    export.add_argument("path", metavar="RUN")
    export.add_argument("-o", "--output_path", metavar="DIR")
    export.add_argument("--json", action="store_true")


def _export(arguments: argparse.Namespace) -> Answer:
    from mindrlhf_msprobe.common.printable import size
    from mindrlhf_msprobe.storage.columns.export import export_run
    from mindrlhf_msprobe.storage.reading.reader import open_run

    refuse_empty(arguments.output_path)
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
