"""`merge`: the directories of nodes without shared storage → one run."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.answering import complain
from mindrlhf_msprobe.cli.parsing import Command, Commands, refuse_empty
from mindrlhf_msprobe.errors import SAME
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

    refuse_empty(arguments.output_path, *arguments.runs)
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
