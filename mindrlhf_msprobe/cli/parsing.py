"""What the parsers of all commands have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.exit_codes import UNDECIDED

if TYPE_CHECKING:
    #: What a command adds its parser to.
    Commands = argparse._SubParsersAction["Command"]


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what to do; argparse already exits with 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what was wrong and exit with UNDECIDED."""
        self.exit(UNDECIDED, f"{self.prog}: {message}. See {self.prog} --help.\n")


class Command(Parser):
    """The parser of a command: what is no option may stand anywhere between the options."""

    _intermixed = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse does, options and the rest in any order."""
        if self._intermixed:  # which it calls for the options, then for the rest
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


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
