"""How a command answers: results on stdout, messages on stderr, a page and Markdown in files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.printable import printable, printable_json, printable_lines
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.report.answer import Answer, Lines, as_text
from mindrlhf_msprobe.report.terminal import fitted

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.outputs import Output


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


def refuse_files(markdown: str | None, html: str | None, runs: Sequence[str]) -> None:
    """Refuse an answer's Markdown, or its page, that cannot be written, before anything is read.

    Raises:
        UsageError: what writes a page is not installed.
        RunError: a file is not what this tool wrote, or lies inside a run.
    """
    from mindrlhf_msprobe.storage.outputs import refuse

    files = [] if markdown is None else [_markdown_at(markdown)]
    refuse(*files, *([] if html is None else [_page_at(html)]), runs=runs)


def write_markdown(file: str, lines: Lines, runs: Sequence[str]) -> None:
    """Write an answer as Markdown.

    Raises:
        RunError: it cannot be written there.
    """
    from mindrlhf_msprobe.storage.outputs import write_all

    write_all(_markdown_at(file, lines), runs=runs)


def write_page(file: str, page: Callable[[], Mapping[str, Any]], runs: Sequence[str]) -> int:
    """Write the page of what was found; return its size in bytes.

    Args:
        page: makes what it shows: its `runs`, by their paths, what else a `Shown` has, and the
            `tokenizer` that decodes tokens.

    Raises:
        RunError: the file cannot be written.
    """
    from mindrlhf_msprobe.storage.outputs import write_all

    (path,) = write_all(_page_at(file, page), runs=runs)
    return path.stat().st_size


def _markdown_at(file: str, lines: Lines = ()) -> Output:
    from mindrlhf_msprobe.report.markdown import as_markdown, is_markdown
    from mindrlhf_msprobe.storage.outputs import Output

    def write(part: Path) -> None:
        part.write_bytes(as_markdown(lines).encode())

    return Output(Path(file), is_markdown, write)


def _page_at(file: str, page: Callable[[], Mapping[str, Any]] = dict) -> Output:
    from mindrlhf_msprobe.comparison.judging.status import load_decoder
    from mindrlhf_msprobe.report.page.page import Shown, is_page, require_libraries, write_page
    from mindrlhf_msprobe.storage.outputs import Output
    from mindrlhf_msprobe.storage.reading.reader import open_run

    require_libraries()
    path = Path(file)
    if "\0" in file or not path.name or path.is_dir():
        raise RunError.saying("report.no_file", file=file)

    def write(part: Path) -> None:
        shown = {"tokenizer": None, **page()}
        tokenizer, runs = shown.pop("tokenizer"), shown.pop("runs")
        decode = None if tokenizer is None else load_decoder(tokenizer)
        opened = tuple(open_run(run) for run in dict.fromkeys(runs))
        write_page(Shown(opened, decode=decode, **shown), part)

    return Output(path, is_page, write)


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
