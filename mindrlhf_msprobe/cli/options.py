"""What several commands that read whole runs do alike: options and the collector's threshold."""

from __future__ import annotations

import argparse
import gc
from typing import TYPE_CHECKING

from mindrlhf_msprobe.cli.parsing import Command

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances

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
