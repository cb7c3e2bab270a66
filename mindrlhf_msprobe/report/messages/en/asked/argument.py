"""What argparse says of a command line; %-signs are its own."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "usage": "usage: ",
    "positional": "positional arguments",
    "options": "options",
    "help": "show this help message and exit",
    "of_argument": "argument %(argument_name)s: %(message)s",
    "unrecognized": "unrecognized arguments: %s",
    "ambiguous": "ambiguous option: %(option)s could match %(matches)s",
    "choice": "invalid choice: %(value)r (choose from %(choices)s)",
    "command": "unknown command %(parser_name)r (choose from %(choices)s)",
    "one": "expected one argument",
    "at_most_one": "expected at most one argument",
    "at_least_one": "expected at least one argument",
    "several": "expected %s arguments",
    "kind": "invalid %(type)s value: %(value)r",
    "required": "the following arguments are required: %s",
    "one_of": "one of the arguments %s is required",
    "not_with": "not allowed with argument %s",
    "takes_none": "ignored explicit argument %r",
}
