"""How a command answers: results on stdout, messages on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mindrlhf_msprobe.common.printable import printable, printable_json, printable_lines
from mindrlhf_msprobe.report.answer import Answer, Lines, as_text
from mindrlhf_msprobe.report.terminal import fitted


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


def check_markdown(arguments: argparse.Namespace) -> None:
    """Refuse a file for the answer that cannot be written, before anything is read.

    Raises:
        RunError: it is not what this tool wrote, or lies inside a run.
    """
    from mindrlhf_msprobe.report.markdown import is_markdown
    from mindrlhf_msprobe.storage.outputs import Output, refuse

    given = vars(arguments)
    runs = [*given.get("runs", ()), given.get("path"), given.get("golden_path")]
    runs += [given.get("target_path"), *given.get("what", ())]
    refuse(Output(Path(arguments.markdown), is_markdown), runs=filter(None, runs))


def write_markdown(lines: Lines, file: str) -> None:
    """Write an answer as Markdown.

    Raises:
        RunError: it cannot be written there.
    """
    from mindrlhf_msprobe.report.markdown import as_markdown, is_markdown
    from mindrlhf_msprobe.storage.outputs import Output, written

    text = as_markdown(lines)
    with written(Output(Path(file), is_markdown)) as (part,):
        part.write_text(text, encoding="utf-8")


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
