"""`merge`: the directories of nodes without shared storage → one run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import SAME, answer, complain

if TYPE_CHECKING:
    from mindrlhf_msprobe.cli.parsing import Commands


def add_parser(commands: Commands) -> None:
    """Add the command."""
    merge = commands.add_parser(
        "merge",
        help="put the directories of one run together, which nodes recorded apart",
        description="Put together what the nodes of one job recorded into directories of their "
        "own, as if they had shared one. Files are hard-linked, or copied where they cannot be; "
        "MERGED appears whole or not at all. Exit codes: 0 merged, 2 refused.",
    )
    merge.add_argument(
        "runs", nargs="*", metavar="RUN", help="the dump_path of a node; two or more"
    )
    merge.add_argument(
        "-o", "--output_path", metavar="MERGED", required=True, help="the directory to make"
    )
    merge.add_argument("--json", action="store_true", help="print JSON instead of text")
    merge.set_defaults(run=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    import dataclasses

    from mindrlhf_msprobe.common.spans import spans
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.storage.manifest.merge import merge_runs

    if "" in (arguments.output_path, *arguments.runs):
        raise UsageError("the path of a run is empty; expected the dump_path of a run")
    merged = merge_runs(arguments.runs, arguments.output_path)
    for remark in merged.remarks:
        complain("merge", remark)
    if merged.left_out:
        shown = ", ".join(map(str, merged.left_out[:3]))
        complain(
            "merge",
            f"{len(merged.left_out)} file(s) or directories belong to no "
            f"run and were left out: {shown}",
        )
    if arguments.json:
        return answer(
            json.dumps(dataclasses.asdict(merged), default=str, indent=1), SAME, as_json=True
        )
    lines = [
        f"{merged.path}: {len(arguments.runs)} directories, ranks {spans(merged.ranks)}, steps "
        f"{spans(merged.steps) or 'none'}, {merged.files} files ({merged.copied} copied)"
    ]
    if merged.missing:
        lines.append(f"ranks {spans(merged.missing)} of the job are in none of them")
    return answer("\n".join(lines), SAME)
