"""How a command answers: results on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys

from mindrlhf_msprobe.common.printable import printable, printable_json, printable_lines
from mindrlhf_msprobe.report.answer import Answer, as_text
from mindrlhf_msprobe.report.terminal import fitted


def complain(command: str, message: object, *, lines: bool = False) -> None:
    """Print a message on stderr, on one line unless it is meant to have several."""
    shown = printable_lines(str(message)) if lines else printable(str(message))
    print(f"mindrlhf-msprobe {command}: {shown}", file=sys.stderr)


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


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
