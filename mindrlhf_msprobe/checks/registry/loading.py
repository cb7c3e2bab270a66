"""Where rules come from: this package, entry points of installed ones, and the command line.

Python named by a dump is never imported: names come from the command line, the caller and what is
installed alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from mindrlhf_msprobe.checks import rules as own
from mindrlhf_msprobe.checks.registry.rule import Rule, as_rule
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.health import NotChecked

GROUP = "mindrlhf_msprobe.checks"


def own_rules() -> list[Rule]:
    """Return the rules of this package: in each module, those that are defined in it."""
    found: list[Rule] = []
    for name in own.MODULES:
        module = importlib.import_module(f"{own.__name__}.{name}")
        found += [
            made
            for value in vars(module).values()
            if isinstance(made := getattr(value, "rule", None), Rule)
            and value.__module__.startswith(own.__name__)
        ]
    return found


def installed_rules() -> tuple[list[Rule], list[NotChecked]]:
    """Return the rules of entry points, and those that cannot be loaded, each with why."""
    found, broken = [], []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(as_rule(point.load(), point.name))
        except Exception as error:  # somebody else's package costs no check of ours
            broken.append(NotChecked(point.name, _not_loaded(point.value, error)))
    return found, broken


def given_rule(named: Any) -> Rule:
    """Return the rule `module:function` names, or that an object is.

    Raises:
        UsageError: there is none.
    """
    if not isinstance(named, str):
        return as_rule(named, getattr(named, "__name__", "rule"))
    module, _, function = named.partition(":")
    if not module or not function:
        raise UsageError.saying("checks.rule_form", given=named)
    if "" not in sys.path:  # a script's directory, as with python -m
        sys.path.insert(0, "")
    try:
        found = imported(named)
    except Exception as error:
        raise UsageError(_not_loaded(named, error)) from None
    return as_rule(found, f"{module.rpartition('.')[2]}.{function}")


def imported(named: str) -> Any:
    """Return what `module:function` names; what importing it raises passes through."""
    module, _, function = named.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def all_rules(given: Iterable[Any] = ()) -> tuple[list[Rule], list[NotChecked]]:
    """Return all rules, and those that cannot be loaded.

    Args:
        given: `module:function` texts, rules, functions or classes.

    Raises:
        UsageError: one of them is none, or two rules have one name.
    """
    installed, broken = installed_rules()
    rules = [*own_rules(), *installed, *map(given_rule, given)]
    names: set[str] = set()
    for rule in rules:
        if rule.name in names:
            raise UsageError.saying("checks.same_name", name=rule.name)
        names.add(rule.name)
    return rules, broken


def _not_loaded(named: str, error: Exception) -> Message:
    return message("checks.not_loaded", named=named, kind=type(error).__name__, error=str(error))
