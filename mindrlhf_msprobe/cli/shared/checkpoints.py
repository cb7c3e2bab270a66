"""`compare` of checkpoints: which options it takes, and what it answers."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from mindrlhf_msprobe.cli.shared.exit_codes import (
    DIVERGED,
    SAME,
    answer,
    of_checkpoints,
)
from mindrlhf_msprobe.cli.shared.options import SUGGEST, tolerances_of
from mindrlhf_msprobe.report.messages import say

#: Options that say something of runs alone, and what they are when they are not given.
_OF_RUNS = {
    **dict.fromkeys(("cell_mapping", "api_mapping", "data_mapping", "layer_mapping")),
    **dict.fromkeys(("tokenizer", "phases", "ranks", "keys", "after", "address", "html")),
    **dict.fromkeys(("first_only", "replay", "all_rows"), False),
    "network": None,
    "engine": "local",
}
_SUFFIXES = (".ckpt", ".safetensors", ".safetensors.index.json")


def are_checkpoints(paths: list[str]) -> bool:
    """Return whether two paths are to be compared as checkpoints: one is, or is called so."""
    from mindrlhf_msprobe.storage.foreign.checkpoints.opening import is_checkpoint

    if len(paths) != 2:
        return False
    if any(path.endswith(_SUFFIXES) and not Path(path).is_dir() for path in paths):
        return True
    try:
        return any(is_checkpoint(Path(path)) for path in paths)
    except (OSError, ValueError):  # compare_runs says what is wrong with them
        return False


def compare(arguments: argparse.Namespace, paths: list[str]) -> int:
    """Compare two checkpoints as the command line wants it; return the exit code.

    Raises:
        MsprobeError: a side cannot be read, an option is wrong, or the output cannot be written.
    """
    from mindrlhf_msprobe.comparison.checkpoints import compare_checkpoints
    from mindrlhf_msprobe.errors import UsageError
    from mindrlhf_msprobe.report.console.analysis.checkpoints import render
    from mindrlhf_msprobe.report.console.shared.progress import progress_bar

    for name, default in _OF_RUNS.items():
        if getattr(arguments, name) not in (default, None):
            raise UsageError.saying("checkpoint.option", option=f"--{name.replace('_', '-')}")
    if arguments.mapping == SUGGEST:
        raise UsageError.saying("checkpoint.option", option=f"--mapping {arguments.mapping}")
    if arguments.steps is not None and not re.fullmatch("[0-9]{1,9}", arguments.steps):
        raise UsageError.saying("checkpoint.one_step", value=arguments.steps)
    began = time.perf_counter()
    with progress_bar(say("console.comparing")) as advance:
        found = compare_checkpoints(
            *paths,
            output_path=arguments.output_path,
            tolerance=tolerances_of(arguments),
            noise=arguments.noise,
            mapping=arguments.mapping,
            include=arguments.include,
            exclude=arguments.exclude,
            common=arguments.common,
            step=None if arguments.steps is None else int(arguments.steps),
            workers=arguments.workers,
            csv=arguments.csv,
            lang=arguments.lang,
            progress=advance,
        )
    code = of_checkpoints(found)
    if code == SAME and arguments.fail_on == "suspicious" and found.suspicious:
        code = DIVERGED
    if arguments.json:
        return answer(found.to_json(), code)
    return answer(render(found, time.perf_counter() - began), code)
