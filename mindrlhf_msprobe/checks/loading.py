"""Which rules run: where they come from, and what `--rules FILE` says of them.

They come from this package, entry points of installed ones, and the command line. Python named by a
dump is never imported: names come from the command line, the caller and what is installed alone.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.checks import rules as own
from mindrlhf_msprobe.checks.rule import Rule, as_rule
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import Pattern, PatternError
from mindrlhf_msprobe.common.rules import installed, not_loaded
from mindrlhf_msprobe.common.yaml_file import line_of, read_yaml
from mindrlhf_msprobe.config import MOST_PATTERNS
from mindrlhf_msprobe.errors import ConfigError, UsageError, nearest_of
from mindrlhf_msprobe.findings.health import NotChecked, Severity

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
        raise UsageError(not_loaded(named, error)) from None
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
    others, broken = installed(GROUP, as_rule)
    rules = [*own_rules(), *others, *map(given_rule, given)]
    names: set[str] = set()
    for rule in rules:
        if rule.name in names:
            raise UsageError.saying("checks.same_name", name=rule.name)
        names.add(rule.name)
    return rules, [NotChecked(name, why) for name, why in broken]


_SEVERITY, _PATTERNS = "severity", ("include", "exclude")


@dataclass(frozen=True)
class Setting:
    """How one rule runs.

    Attributes:
        on: whether it does.
        thresholds: name → value, those that are not the rule's own defaults.
        severity: of all its findings; None: as the rule says.
        include, exclude: findings count where the name of their place matches one of `include` (if
            there are any) and none of `exclude`.
    """

    on: bool = True
    thresholds: Mapping[str, float] = field(default_factory=dict)
    severity: Severity | None = None
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()

    def counts(self, name: str) -> bool:
        """Return whether a finding at a place of this name counts."""
        included = not self.include or any(one.search(name) for one in self.include)
        return included and not any(one.search(name) for one in self.exclude)


def settings_of(given: str | Path | Mapping[Any, Any], rules: Iterable[Rule]) -> dict[str, Setting]:
    """Return rule → setting of a rule file, or of its content.

    Its top is a mapping from a rule's name, or an area's (`history`), to `off`, `on`, or a mapping
    of `severity`, `include`, `exclude` and thresholds. What is said of a rule goes before what is
    said of its area.

    Raises:
        ConfigError: it cannot be read, or names what there is not; the message names the key, the
            value, what was expected, and the nearest.
    """
    if isinstance(given, Mapping):
        content: Mapping[Any, Any] = given
    else:
        path = Path(given)
        content = read_yaml(path, message("checks.rule_file"), message("checks.settings_of_rules"))

    def where(*place: Any) -> Message | str:
        """Return what an error says in front, given the keys from the top."""
        if isinstance(given, Mapping):
            return ""
        return message("checks.in_file", path=str(path), line=line_of(path, *place))

    known = {rule.name: rule for rule in rules}
    areas = {rule.area for rule in known.values()}
    found: dict[str, dict[str, Any]] = {}
    # Areas first: what is said of a rule replaces what is said of its area.
    for name in sorted(content, key=lambda name: (name in known, str(name))):
        of = [rule for rule in known.values() if name in (rule.name, rule.area)]
        if not of:
            hint = nearest_of(str(name), [*known, *sorted(areas)])
            raise ConfigError.saying(
                "checks.no_such_rule", where=where(name), name=str(name), hint=hint
            )
        for key, value in _values(name, content[name], of, where).items():
            of_all = key in ("on", _SEVERITY, *_PATTERNS)
            for one in of:
                if of_all or key in one.thresholds:
                    found.setdefault(one.name, {})[key] = value
    settings = {}
    for name, values in found.items():
        kept = {key: values.pop(key) for key in (_SEVERITY, *_PATTERNS, "on") if key in values}
        settings[name] = Setting(thresholds=values, **kept)
    return settings


def _values(
    name: str, value: Any, of: list[Rule], where: Callable[..., Message | str]
) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"on": value}
    if not isinstance(value, Mapping):
        raise ConfigError.saying(
            "checks.bad_setting", where=where(name), name=name, value=repr(value)
        )
    thresholds = {key for rule in of for key in rule.thresholds}
    checked: dict[str, Any] = {}
    for key, one in value.items():
        at, called = where(name, key), f"{name}.{key}"
        if key == _SEVERITY:
            severities = [severity.value for severity in Severity]
            if one not in severities:
                hint = nearest_of(str(one), severities)
                raise _bad(called, one, at, ", ".join(severities), hint)
            checked[key] = Severity(one)
        elif key in _PATTERNS:
            checked[key] = _patterns(called, one, at)
        elif key == "on" and isinstance(one, bool):
            checked[key] = one
        elif key in thresholds:
            number = isinstance(one, (int, float)) and not isinstance(one, bool)
            if not (number and math.isfinite(one) and one >= 0):
                raise _bad(called, one, at, message("checks.a_number"))
            checked[key] = float(one)
        else:
            names = [*sorted(thresholds), _SEVERITY, *_PATTERNS, "on"]
            hint = nearest_of(str(key), names)
            shown = {"value": repr(one), "expected": ", ".join(names), "hint": hint}
            raise ConfigError.saying("checks.no_such_key", where=at, name=called, **shown)
    return checked


def _bad(
    name: str, value: Any, where: Message | str, expected: Message | str, hint: Any = ""
) -> ConfigError:
    shown = {"value": repr(value)[:200], "expected": expected, "hint": hint}
    return ConfigError.saying("checks.bad_value", where=where, name=name, **shown)


def _patterns(name: str, value: Any, where: Message | str) -> tuple[Pattern, ...]:
    several = [value] if isinstance(value, str) else value
    good = isinstance(several, list) and all(isinstance(one, str) for one in several)
    if not good or len(several) > MOST_PATTERNS:
        raise _bad(name, value, where, message("checks.patterns", most=MOST_PATTERNS))
    made = []
    for text in several:
        try:
            made.append(Pattern(text))
        except PatternError as error:
            raise ConfigError.saying(
                "error.rule_pattern", where=f"{where}{name}", pattern=text[:200], why=str(error)
            ) from None
    return tuple(made)
