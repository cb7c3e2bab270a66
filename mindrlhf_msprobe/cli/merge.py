"""`merge`: the directories of nodes without shared storage → one run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import SAME, answer, complain
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    merge = commands.add_parser(
        "merge",
        help=say("help.merge"),
        description=say("help.merge_describes"),
    )
    merge.add_argument("runs", nargs="*", metavar="RUN", help=say("help.merge_runs"))
    merge.add_argument(
        "-o", "--output_path", metavar="MERGED", required=True, help=say("help.merge_output_path")
    )
    merge.add_argument("--json", action="store_true", help=say("help.merge_json"))
    merge.set_defaults(run=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    import dataclasses

    from mindrlhf_msprobe.common.numbers import spans
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.storage.manifest.merge import merge_runs

    if "" in (arguments.output_path, *arguments.runs):
        raise UsageError(message("cli.empty_path_of_a_run"))
    merged = merge_runs(arguments.runs, arguments.output_path)
    for remark in merged.remarks:
        complain("merge", remark)
    if merged.left_out:
        shown = ", ".join(map(str, merged.left_out[:3]))
        complain("merge", say("cli.merge_left_out", number=len(merged.left_out), shown=shown))
    if arguments.json:
        content = {**dataclasses.asdict(merged), "remarks": [*map(str, merged.remarks)]}
        return answer(json.dumps(content, default=str, indent=1), SAME, as_json=True)
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
