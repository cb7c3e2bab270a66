"""What `report`, `compare --html` and `check --html` have in common: the page they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindrlhf_msprobe.common.message import Message
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.findings.health import CheckResult
    from mindrlhf_msprobe.findings.mismatch import Mismatches

_STEPS = 4  # of which a report says where training and inference part


def check_page(file: str, runs: Sequence[str]) -> None:
    """Refuse a page that cannot be written, before anything is read.

    Raises:
        UsageError: jinja2 or bokeh is not installed.
        RunError: the file is a directory, something else than a page, or lies inside a run.
    """
    from mindrlhf_msprobe.errors import RunError
    from mindrlhf_msprobe.report.page.page import is_page, require_libraries
    from mindrlhf_msprobe.storage.outputs import Output, refuse

    require_libraries()
    path = Path(file)
    if "\0" in file or not path.name or path.is_dir():
        raise RunError.saying("report.no_file", file=file)
    refuse(Output(path, is_page), runs=runs)


def mismatch_of(path: str, tokenizer: str | None = None) -> Mismatches | Message:
    """Return where training and inference part in some steps of a run, or why that is not known.

    The first step, the last, and some between: a command of its own looks at all.
    """
    from mindrlhf_msprobe.common.message import message
    from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
    from mindrlhf_msprobe.errors import MsprobeError
    from mindrlhf_msprobe.findings.mismatch import Agreement
    from mindrlhf_msprobe.storage.reading.reader import open_run

    run = open_run(path)
    if all((config := run.config(rank)) and not config.keeps_rows for rank in run.ranks):
        return message("report.mismatch_no_tokens")
    steps = sorted({s for s, r in run.places if {*PHASES} <= {*run.phases_at(s, r)}})
    if not steps:
        return message("report.mismatch_no_phases", rollout=PHASES[0], training=PHASES[1])
    last = len(steps) - 1
    some = {steps[round(n * last / (_STEPS - 1))] for n in range(_STEPS)}
    try:
        found = find_mismatch(run, steps=sorted(some), tokenizer=tokenizer)
    except MsprobeError as error:
        return error.said
    undecided = [one for one in found.found if one.status is Agreement.UNDECIDED]
    if len(undecided) == len(found.found) and undecided[0].said:
        return undecided[0].said[0]
    return found


def write_page(
    file: str,
    runs: Sequence[str],
    comparison: Comparison | None = None,
    checks: Sequence[CheckResult] = (),
    tokenizer: str | None = None,
    lang: str | None = None,
    mismatches: Sequence[Mismatches | Message] = (),
) -> int:
    """Write the page of what was found; return its size in bytes.

    Args:
        runs: the paths of A, and of B if it is another run.
        mismatches: training against inference of each run, or why there is nothing of it.

    Raises:
        RunError: the file cannot be written.
    """
    from mindrlhf_msprobe.comparison.judging.status import load_decoder
    from mindrlhf_msprobe.report.page.page import Shown, is_page, write_page
    from mindrlhf_msprobe.storage.outputs import Output, written
    from mindrlhf_msprobe.storage.reading.reader import open_run

    decode = None if tokenizer is None else load_decoder(tokenizer)
    opened = tuple(open_run(run) for run in dict.fromkeys(runs))
    shown = Shown(opened, comparison, tuple(checks), decode, tuple(mismatches))
    with written(Output(Path(file), is_page), runs=runs) as (part,):
        return write_page(shown, part, lang)
