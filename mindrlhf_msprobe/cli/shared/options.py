"""What several commands that read whole runs do alike: options, and the collector's threshold."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.shared.parsing import Command
from mindrlhf_msprobe.common.message import message

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
    from mindrlhf_msprobe.errors import UsageError

#: What --mapping takes in the place of a file.
SUGGEST = "suggest"
_OBJECTS_BETWEEN_COLLECTIONS = 200_000


def collect_rarely() -> None:
    """Let the garbage collector run less often.

    Records are many and hold no circles: looking for some after every 700 objects takes 6 % of a
    comparison of 2 000 records.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def add_tolerance(command: Command) -> None:
    """Add the options that say how far values may be apart."""
    command.add_argument("--rtol", type=float, default=0.0)
    command.add_argument("--atol", type=float, default=0.0)
    command.add_argument("--tolerance", metavar="FILE")


def tolerances_of(arguments: argparse.Namespace) -> Tolerances:
    """Return what these options say.

    Raises:
        UsageError: a number or the file is wrong.
    """
    from mindrlhf_msprobe.comparison import Tolerance
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances, load_rules

    file = arguments.tolerance
    rules = load_rules(file) if file is not None else ()
    return Tolerances(Tolerance(arguments.rtol, arguments.atol), rules)


def two_of(option: str, value: str | None, expected: str) -> tuple[str, str] | None:
    """Split the two values of an option; None where it is not given.

    Args:
        expected: the code of what was expected.

    Raises:
        UsageError: they are not two.
    """
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if len(parts) != 2 or not all(parts):
        raise unexpected(option, value, expected)
    return parts[0], parts[1]


def unexpected(option: str, value: str, expected: str) -> UsageError:
    """Return the error of an option; `expected` is the code of what was expected."""
    from mindrlhf_msprobe.errors import UsageError

    wanted = message(expected)
    return UsageError.saying("cli.option", option=option, value=repr(value), expected=wanted)
