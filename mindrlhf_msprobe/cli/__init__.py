"""mindrlhf-msprobe: the command line; one file a command.

Results go to stdout, messages to stderr. Exit codes: 0 the same, 1 diverged, 2 could not decide.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.cli import run
from mindrlhf_msprobe.cli.answering import (
    close_stdout,
    complain,
    print_answer,
    refuse_files,
    runs_of,
    write_markdown,
    write_page,
)
from mindrlhf_msprobe.cli.parsing import (
    Command,
    Parser,
    in_our_words,
    joined,
    language_of,
    refuse_empty,
    split_command,
)
from mindrlhf_msprobe.common.language import speak, speaking
from mindrlhf_msprobe.common.printable import printable_lines
from mindrlhf_msprobe.errors import BISECT_SKIPS, UNDECIDED, ConfigError, MsprobeError
from mindrlhf_msprobe.report.messages import say

#: The commands in the order of the help, each a module of this room, or in that of another one.
_COMMANDS = (
    *("compare", "check", "mismatch", "show", "trend", "report", "merge", "estimate", "export"),
    *("run", "accuracy", "replay", "prove", "hunt", "preflight", "demo"),
)
_IN = {"accuracy": "check", "export": "merge", "hunt": "prove", "demo": "run"}
#: What this package needs, as it is imported, and what is installed for that.
_PACKAGES = {
    **{name: name for name in ("numpy", "openpyxl", "orjson", "rich", "xxhash")},
    **{"yaml": "pyyaml", "re2": "google-re2"},
}
#: Commands that train, in this process or another one.
_TRAIN = ("demo", "replay", "prove", "hunt")
#: Commands that leave nothing behind but files which are closed.
_ENDED_AT_ONCE = (
    *("compare", "check", "show", "estimate", "trend", "report", "merge", "accuracy", "export"),
)


def command() -> NoReturn:
    """Run one command as this process, and end it.

    Freeing what a comparison holds, object by object, takes as long as writing its tables: the
    system does it at once. What a framework has to do at the end it does.
    """
    arguments = _arguments(None)
    speak(arguments.lang)  # also of other threads, and of what is said when the process ends
    code = _run(arguments)
    if arguments.command in _ENDED_AT_ONCE and "ray" not in sys.modules:
        with suppress(OSError, ValueError):  # nobody reads any more, or it is closed
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return _run(_arguments(argv))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8
    own, for_script = run.split(sys.argv[1:] if argv is None else argv)
    own, command = split_command(own)
    named = [name for name in _COMMANDS if own[:1] == [name]]
    with (
        speaking(language_of(own)),
        in_our_words(),
    ):  # also --help and what is wrong with an argument
        arguments = _parser(named or _COMMANDS).parse_args(joined(own))
    arguments.lang = arguments.lang or language_of(own)  # it may stand before a group's own command
    if arguments.command == run.NAME:
        arguments.arguments = for_script
    elif command:
        arguments.arguments = command
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    with speaking(arguments.lang):
        code = _code_of(arguments)
    return BISECT_SKIPS if code == UNDECIDED and getattr(arguments, "bisect", False) else code


def _code_of(arguments: argparse.Namespace) -> int:
    if arguments.command == run.NAME:
        return run.run_script(arguments)  # what the script raises is Python's to report
    file, html = (getattr(arguments, name, None) for name in ("markdown", "html"))
    runs = runs_of(arguments)
    if arguments.command not in _TRAIN:
        # Records are many and hold no circles: looking for some after every 700 objects takes 6 %
        # of a comparison of 2 000 records.
        gc.set_threshold(200_000)
    if arguments.command == "compare":
        # Read when numpy is imported. No sum is long enough for OpenBLAS's threads, which spin.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        refuse_empty(*runs, *getattr(arguments, "healthy", ()))
        if file is not None or html is not None:
            refuse_files(file, html, runs)
        found = arguments.run(arguments)
        if isinstance(found, int):
            return found
        if html is not None:
            lines = found.lines
            write_page(html, found.page, runs)
            found = replace(found, lines=lambda: [*lines(), say("report.file", file=html)])
        code = print_answer(found, as_json=getattr(arguments, "json", False))
        if file is not None:
            write_markdown(file, found.lines(), runs)
        return code
    except BaseException as error:
        code, said = _failed(arguments.command, error)
        # Else an earlier answer would look like that of this command.
        if file is not None:
            with suppress(MsprobeError, OSError):
                write_markdown(file, [*said], [*filter(None, runs)])
        return code


def _failed(command: str, error: BaseException) -> tuple[int, list[str]]:
    """Say on stderr what went wrong; return the exit code, and the lines that say it.

    A fault of this package is undecided, too: 1 would say that the runs differ.
    """
    if isinstance(error, KeyboardInterrupt):
        print(said := say("cli.interrupted"), file=sys.stderr)
        return 130, [said]
    if isinstance(error, MsprobeError):
        return UNDECIDED, complain(command, error.said, lines=isinstance(error, ConfigError))
    if isinstance(error, BrokenPipeError):
        close_stdout()
        return UNDECIDED, [str(error)]
    if isinstance(error, OSError):
        return UNDECIDED, complain(command, error)
    if not isinstance(error, Exception):
        raise error
    package = None
    if isinstance(error, ImportError):
        package = _PACKAGES.get((error.name or "").partition(".")[0])
    if package is None:
        return UNDECIDED, _fault(command, error)
    text = say("cli.missing", name=getattr(error, "name", ""), package=package, error=error)
    return UNDECIDED, complain(command, text)


def _fault(command: str, error: Exception) -> list[str]:
    """Say in one line what went wrong inside this package, and how to report it."""
    import traceback  # slow to import, as logging is; nothing else here needs them

    from mindrlhf_msprobe.log import VARIABLE

    traced = os.environ.get(VARIABLE, "").strip() == "0"
    frames = traceback.extract_tb(error.__traceback__)
    where = ""
    if frames:
        file = os.path.basename(frames[-1].filename)
        where = say("cli.fault_where", file=file, line=frames[-1].lineno)
    advice = "" if traced else say("cli.fault_advice", variable=VARIABLE)
    kind, text = type(error).__name__, str(error)[:300]
    said = complain(command, say("cli.fault", kind=kind, text=text, where=where, advice=advice))
    if traced:
        lines = "".join(traceback.format_exception(error))
        print(printable_lines(lines), file=sys.stderr)
    return said


def _parser(commands: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of these commands: where one is given, the others are not looked at."""
    parser = Parser(prog="mindrlhf-msprobe", description=say("help.describes"))
    told = say("help.version")
    parser.add_argument("--version", action="version", version=__version__, help=told)
    parsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Command
    )
    for name in commands:
        module = importlib.import_module(f"{__name__}.{_IN.get(name, name)}")
        getattr(module, f"add_{name}" if name in _IN else "add_parser")(parsers)
    return parser
