"""What `report`, `compare --html` and `check --html` have in common: the page they write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.health import CheckResult


def check_page(file: str, runs: Sequence[str]) -> None:
    """Refuse a page that cannot be written, before anything is read.

    Raises:
        UsageError: jinja2 or bokeh is not installed.
        RunError: the file is a directory, something else than a page, or lies inside a run.
    """
    from mindrlhf_msprobe.errors import RunError
    from mindrlhf_msprobe.report.page.page import is_page, require_libraries

    require_libraries()
    path = Path(file)
    if "\0" in file or not path.name or path.is_dir():
        raise RunError.saying("report.no_file", file=file)
    if os.path.lexists(path) and not is_page(path):
        raise RunError.saying("report.exists", file=file)
    target = Path(os.path.realpath(path))
    for run in runs:
        if target.is_relative_to(os.path.realpath(run)):
            raise RunError.saying("report.inside_run", file=file, run=run)


def write_page(
    file: str,
    runs: Sequence[str],
    comparison: Comparison | None = None,
    checks: Sequence[CheckResult] = (),
    tokenizer: str | None = None,
    lang: str | None = None,
) -> int:
    """Write the page of what was found; return its size in bytes.

    Args:
        runs: the paths of A, and of B if it is another run.

    Raises:
        RunError: the file cannot be written.
    """
    from mindrlhf_msprobe.comparison.judging.texts import load_decoder
    from mindrlhf_msprobe.errors import RunError
    from mindrlhf_msprobe.report.page.page import Shown, write_page
    from mindrlhf_msprobe.storage.reading.reader import open_run

    decode = None if tokenizer is None else load_decoder(tokenizer)
    opened = tuple(open_run(run) for run in dict.fromkeys(runs))
    path = Path(file)
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        return write_page(Shown(opened, comparison, tuple(checks), decode), path, lang)
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("report.unwritten", file=file, error=why) from None
