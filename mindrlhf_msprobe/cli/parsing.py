"""What the parsers of all commands have in common, and options of those that read whole runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from mindrlhf_msprobe.common.language import LANGUAGES
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.errors import UNDECIDED, UsageError
from mindrlhf_msprobe.report.answer import Answer
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.terminal import wrapped

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
#: What a command adds its parser to.
Commands: TypeAlias = "argparse._SubParsersAction[Command]"

#: The option that every command has.
LANG = "--lang"

#: argparse's own words → the code of ours for them.
WORDS = {
    "usage: ": "usage",
    "positional arguments": "positional",
    "options": "options",
    "optional arguments": "options",
    "show this help message and exit": "help",
    "argument %(argument_name)s: %(message)s": "of_argument",
    "unrecognized arguments: %s": "unrecognized",
    "ambiguous option: %(option)s could match %(matches)s": "ambiguous",
    "invalid choice: %(value)r (choose from %(choices)s)": "choice",
    "invalid choice: %(value)r, maybe you meant %(closest)r? (choose from %(choices)s)": "choice",
    "unknown parser %(parser_name)r (choices: %(choices)s)": "command",
    "expected one argument": "one",
    "expected at most one argument": "at_most_one",
    "expected at least one argument": "at_least_one",
    "expected %s argument": "several",
    "expected %s arguments": "several",
    "invalid %(type)s value: %(value)r": "kind",
    "the following arguments are required: %s": "required",
    "one of the arguments %s is required": "one_of",
    "not allowed with argument %s": "not_with",
    "ignored explicit argument %r": "takes_none",
}


@contextmanager
def in_our_words() -> Iterator[None]:
    """Let argparse speak the language that is spoken, for as long as the block runs.

    It looks its words up by gettext, which knows a process's language alone and needs a file of
    them; the script that `run` starts has an argparse of its own.
    """
    module: Any = argparse
    names = [name for name in ("_", "ngettext") if hasattr(module, name)]
    before = {name: getattr(module, name) for name in names}

    def spoken(text: str) -> str:
        return say(f"argument.{WORDS[text]}") if text in WORDS else text

    ours = {"_": spoken, "ngettext": lambda one, more, n: spoken(one if n == 1 else more)}
    try:
        vars(module).update({name: ours[name] for name in names})
        yield
    finally:
        vars(module).update(before)


class _Help(argparse.HelpFormatter):
    """Breaks texts by the columns that they take; what a `\n` begins is a line of its own."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [part.strip() for line in text.split("\n") for part in wrapped(line, width)]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for line in text.split("\n"):  # one that is indented is a command, which stays whole
            lines += [line] if line.startswith(" ") else self._split_lines(line, width)
        return "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what to do; argparse already exits with 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **options})

    def error(self, message: str) -> None:  # type: ignore[override]
        """Say what was wrong and exit with UNDECIDED."""
        self.exit(UNDECIDED, say("cli.see_help", prog=self.prog, error=printable(message)) + "\n")


class _HelpAll(argparse.Action):
    """Prints the help with the arguments that few need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(argparse.ArgumentParser.format_help(parser), end="")  # which leaves out none
        parser.exit()


class Command(Parser):
    """The parser of a command: what is no option may stand anywhere between the options.

    The help of an argument is the text of the command's name and its own, `help.show_step`, else of
    its own alone, `help.json`. What stands in a named group is shown by `--help-all` alone.
    """

    _intermixed = False

    def __init__(self, *, has_groups: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        if has_groups:
            shows: dict[str, Any] = {"action": _HelpAll, "nargs": 0, "dest": argparse.SUPPRESS}
            self.add_argument("--help-all", help=say("help.all"), **shows)
        self.add_argument(LANG, choices=LANGUAGES, help=say("help.lang"))

    @classmethod
    def add(
        cls,
        commands: Commands,
        name: str,
        run: Callable[[argparse.Namespace], Answer] | Callable[[argparse.Namespace], int],
        of: str = "",
        *,
        answers: bool = True,
        **options: Any,
    ) -> Command:
        """Add a command to those that there are, and return its parser.

        Args:
            run: answers it.
            of: the command that it belongs to, if it is one of another's.
            answers: whether it has an answer to show; else it prints what there is, and returns
                the exit code.
            options: what else argparse takes, and whether it `has_groups` of arguments.
        """
        command = cls._added(commands, name, f"{of}_{name}" if of else name, **options)
        command.set_defaults(run=run)
        if answers:
            command.add_argument("--markdown", metavar="FILE", help=say("help.markdown"))
        return command

    @classmethod
    def add_group(cls, commands: Commands, name: str) -> Commands:
        """Add a command that has commands of its own, and return what those are added to."""
        group = cls._added(commands, name, name)
        group._intermixed = True  # argparse takes commands in their order only
        return group.add_subparsers(
            dest="action", required=True, metavar="COMMAND", parser_class=Command
        )

    @classmethod
    def _added(cls, commands: Commands, name: str, code: str, **options: Any) -> Command:
        described = say(f"help.{code}_describes")
        return commands.add_parser(name, help=say(f"help.{code}"), description=described, **options)

    def add_argument(self, *names: str, group: str = "", **options: Any) -> argparse.Action:
        """Add an argument as argparse does; its help need not be given.

        Args:
            group: of the arguments that few need, under whose title `--help-all` shows it; "": it
                is one of those that `--help` shows.
        """
        adds = super().add_argument
        if group:
            if group not in self._groups:
                self._groups[group] = self.add_argument_group(say(f"help.group_{group}"))
            adds = self._groups[group].add_argument
        action = adds(*names, **options)
        if action.help is None:
            code = f"help.{'_'.join(self.prog.split()[1:])}_{action.dest}"
            own = say(code)  # a code without a text is said as it is
            action.help = say(f"help.{action.dest}") if own == code else own
        return action

    def format_usage(self) -> str:
        """Return the usage, without the arguments that few need."""
        with self._without_groups():
            return super().format_usage()

    def format_help(self) -> str:
        """Return the help, without the arguments that few need."""
        with self._without_groups():
            return super().format_help()

    @contextmanager
    def _without_groups(self) -> Iterator[None]:
        actions = [each for group in self._groups.values() for each in group._group_actions]
        before = [action.help for action in actions]
        try:
            for action in actions:
                action.help = argparse.SUPPRESS
            yield
        finally:
            for action, text in zip(actions, before):
                action.help = text

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse does, options and the rest in any order."""
        if self._intermixed:  # which it calls for the options, then for the rest
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        if self.usage is None:  # which argparse takes of its own words, by their length
            self.usage = self.format_usage().removeprefix(say("argument.usage"))
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


def refuse_empty(*paths: str | None) -> None:
    """Refuse an empty path: a variable of a shell that is not set, probably.

    Raises:
        UsageError: one is empty.
    """
    if "" in paths:
        raise UsageError.saying("cli.empty_path")


#: The commands that run another one, which stands behind `--`.
_RUN_OTHERS = (("preflight", "collect"), ("prove",), ("hunt",))


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is for this command line, and the command behind `--`."""
    own = list(arguments)
    if "--" in own and any(tuple(own[: len(names)]) == names for names in _RUN_OTHERS):
        at = own.index("--")
        return own[:at], own[at + 1 :] or [""]  # which no program is called
    return own, []


#: What --mapping takes in the place of a file.
SUGGEST = "suggest"


def add_tolerance(command: Command, *, noise: bool = True) -> None:
    """Add the options that say how far values may be apart, by number, rules or further runs."""
    for option in ("--rtol", "--atol"):
        by = say("help.tolerance_by", relative=option == "--rtol")
        command.add_argument(option, type=float, default=0.0, help=by)
    command.add_argument("--tolerance", metavar="FILE", group="tolerance")
    if noise:
        repeated: Any = {"action": "append", "default": [], "group": "tolerance"}
        command.add_argument("--noise", metavar="RUN", **repeated)


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


def unexpected(option: str, value: object, expected: str, **params: Any) -> UsageError:
    """Return the error of an option; `expected` is the code of what was expected."""
    wanted = message(expected, **params)
    return UsageError.saying("error.expected", name=option, value=value, what=wanted)
