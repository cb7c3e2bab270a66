"""How a command answers: results on stdout, messages on stderr, a page and Markdown in files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mindrlhf_msprobe.common.printable import printable, printable_json, printable_lines
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.report.answer import Answer, Lines, as_text
from mindrlhf_msprobe.report.terminal import fitted

if TYPE_CHECKING:
    from mindrlhf_msprobe.common.message import Message
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.findings.health import CheckResult
    from mindrlhf_msprobe.findings.mismatch import Mismatches
    from mindrlhf_msprobe.findings.proof import Proof


def complain(command: str, message: object, *, lines: bool = False) -> list[str]:
    """Print a message on stderr, on one line unless it is meant to have several; return them."""
    shown = printable_lines(str(message)) if lines else printable(str(message))
    shown = f"mindrlhf-msprobe {command}: {shown}"
    print(shown, file=sys.stderr)
    return shown.split("\n")


def print_answer(found: Answer, *, as_json: bool) -> int:
    """Print an answer and return its exit code, also where nobody reads to the end."""
    if as_json:
        import json  # no text needs it

        content = json.dumps(found.content(), ensure_ascii=False, indent=1, default=str)
        shown = printable_json(content)
    else:
        shown = fitted(as_text(found.lines()), sys.stdout)
    try:
        print(shown, flush=True)
    except BrokenPipeError:
        close_stdout()
    return found.code


def runs_of(arguments: argparse.Namespace) -> list[str]:
    """Return the paths of the runs, or of what may be one, that a command is given."""
    given = vars(arguments)
    paths = [given.get("golden_path"), *given.get("runs", ()), given.get("target_path")]
    paths += [given.get("path"), *filter(None, given.get("what", ()))]
    return [path for path in paths if path is not None]


def refuse_markdown(file: str, runs: Iterable[str]) -> None:
    """Refuse a file for the answer that cannot be written, before anything is read.

    Raises:
        RunError: it is not what this tool wrote, or lies inside a run.
    """
    from mindrlhf_msprobe.report.markdown import is_markdown
    from mindrlhf_msprobe.storage.outputs import Output, refuse

    refuse(Output(Path(file), is_markdown), runs=runs)


def write_markdown(lines: Lines, file: str) -> None:
    """Write an answer as Markdown.

    Raises:
        RunError: it cannot be written there.
    """
    from mindrlhf_msprobe.report.markdown import as_markdown, is_markdown
    from mindrlhf_msprobe.storage.outputs import Output, write_all

    text = as_markdown(lines).encode()
    write_all(Output(Path(file), is_markdown, lambda part: part.write_bytes(text)))


def refuse_page(file: str, runs: Sequence[str]) -> None:
    """Refuse a page that cannot be written, before anything is read.

    Raises:
        UsageError: jinja2 or bokeh is not installed.
        RunError: the file is a directory, something else than a page, or lies inside a run.
    """
    from mindrlhf_msprobe.report.page.page import is_page, require_libraries
    from mindrlhf_msprobe.storage.outputs import Output, refuse

    require_libraries()
    path = Path(file)
    if "\0" in file or not path.name or path.is_dir():
        raise RunError.saying("report.no_file", file=file)
    refuse(Output(path, is_page), runs=runs)


def write_page(
    file: str,
    runs: Sequence[str],
    comparison: Comparison | None = None,
    checks: Sequence[CheckResult] = (),
    tokenizer: str | None = None,
    mismatches: Sequence[Mismatches | Message] = (),
    proof: Proof | None = None,
) -> int:
    """Write the page of what was found; return its size in bytes.

    Args:
        runs: the paths of A, and of B if it is another run.
        mismatches: training against inference of each run, or why there is nothing of it.
        proof: what experiments proved of the comparison.

    Raises:
        RunError: the file cannot be written.
    """
    from mindrlhf_msprobe.comparison.judging.status import load_decoder
    from mindrlhf_msprobe.report.page.page import Shown, is_page, write_page
    from mindrlhf_msprobe.storage.outputs import Output, written
    from mindrlhf_msprobe.storage.reading.reader import open_run

    decode = None if tokenizer is None else load_decoder(tokenizer)
    opened = tuple(open_run(run) for run in dict.fromkeys(runs))
    shown = Shown(opened, comparison, tuple(checks), decode, tuple(mismatches), proof)
    with written(Output(Path(file), is_page), runs=runs) as (part,):
        return write_page(shown, part)


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
