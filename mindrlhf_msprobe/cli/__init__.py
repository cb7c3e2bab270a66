"""mindrlhf-msprobe: the command line; one file a command.

Results go to stdout, messages to stderr. Exit codes: 0 the same, 1 diverged, 2 could not decide.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.cli import compare, demo, estimate, merge, run, show
from mindrlhf_msprobe.cli.answers import UNDECIDED, close_stdout
from mindrlhf_msprobe.cli.parsing import Command, Parser, joined
from mindrlhf_msprobe.errors import MsprobeError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    parser = _parser()
    own, for_script = run.split(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(joined(own))
    if arguments.command == run.NAME:
        arguments.arguments = for_script
        return run.run_script(arguments)  # what the script raises is Python's to report
    try:
        return int(arguments.run(arguments))
    except MsprobeError as error:
        print(f"mindrlhf-msprobe {arguments.command}: {error}", file=sys.stderr)
        return UNDECIDED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        close_stdout()
        return UNDECIDED
    except OSError as error:
        print(f"mindrlhf-msprobe {arguments.command}: {error}", file=sys.stderr)
        return UNDECIDED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mindrlhf-msprobe",
        description="Find where two trainings on MindSpore first part, and why.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Command
    )
    for command in (compare, show, merge, estimate, run, demo):
        command.add_parser(commands)
    return parser
