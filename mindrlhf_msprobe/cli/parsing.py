"""What the parsers of all commands have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.cli.exit_codes import UNDECIDED
from mindrlhf_msprobe.common.language import LANGUAGES
from mindrlhf_msprobe.report.messages import say

if TYPE_CHECKING:
    #: What a command adds its parser to.
    Commands = argparse._SubParsersAction["Command"]

#: The option that every command has.
LANG = "--lang"


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what to do; argparse already exits with 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what was wrong and exit with UNDECIDED."""
        self.exit(UNDECIDED, say("cli.see_help", prog=self.prog, error=message) + "\n")


class Command(Parser):
    """The parser of a command: what is no option may stand anywhere between the options."""

    _intermixed = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument(
            LANG,
            choices=LANGUAGES,
            help=say("help.lang"),
        )

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse does, options and the rest in any order."""
        if self._intermixed:  # which it calls for the options, then for the rest
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


def language_of(arguments: Sequence[str]) -> str | None:
    """Return the language that a command line names, before it is parsed; None if it names none."""
    for index, argument in enumerate(arguments):
        option, is_joined, value = argument.partition("=")
        if option == "--":
            break
        if option == LANG:
            value = value if is_joined else "".join(arguments[index + 1 : index + 2])
            return value if value in LANGUAGES else None
    return None


def joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--option -1…` as `--option=-1…`: no option begins with a digit."""
    result: list[str] = []
    for index, argument in enumerate(arguments):
        before = arguments[index - 1] if index else ""
        takes = before.startswith("--") and before != "--" and "=" not in before
        if takes and re.match(r"-\d", argument) and "--" not in arguments[:index]:
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result
