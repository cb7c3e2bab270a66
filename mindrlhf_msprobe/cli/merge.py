"""`merge`: the directories of nodes without shared storage → one run."""

from __future__ import annotations

import argparse

from mindrlhf_msprobe.cli.exit_codes import SAME, answer, complain
from mindrlhf_msprobe.cli.parsing import Command, Commands
from mindrlhf_msprobe.report.messages import say


def add_parser(commands: Commands) -> None:
    """Add the command."""
    merge = Command.add(commands, "merge", _merge)
    merge.add_argument("runs", nargs="*", metavar="RUN")
    merge.add_argument("-o", "--output_path", metavar="MERGED", required=True)
    merge.add_argument("--json", action="store_true")


def _merge(arguments: argparse.Namespace) -> int:
    import dataclasses

    from mindrlhf_msprobe.common.printable import spans
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.storage.manifest.merge import merge_runs

    if "" in (arguments.output_path, *arguments.runs):
        raise UsageError.saying("cli.empty_path_of_a_run")
    merged = merge_runs(arguments.runs, arguments.output_path)
    for remark in merged.remarks:
        complain("merge", remark)
    if merged.left_out:
        shown = ", ".join(map(str, merged.left_out[:3]))
        complain("merge", say("cli.merge_left_out", number=len(merged.left_out), shown=shown))
    if arguments.json:
        content = {**dataclasses.asdict(merged), "remarks": [*map(str, merged.remarks)]}
        return answer(content, SAME)
    lines = [
        say(
            "cli.merged",
            path=str(merged.path),
            directories=len(arguments.runs),
            ranks=spans(merged.ranks),
            steps=spans(merged.steps),
            files=merged.files,
            copied=merged.copied,
        )
    ]
    if merged.missing:
        lines.append(say("cli.merge_missing", ranks=spans(merged.missing)))
    return answer("\n".join(lines), SAME)
