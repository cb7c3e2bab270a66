"""What checks say whatever the rule, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted

_LACKS = {
    "numbers": "the run holds no statistics of tensors",
    "layers": "the run holds no layer data",
    "parameters": "the run holds no parameters (record with parameters: true)",
    "gradients": "the run holds no gradients of parameters",
    "backward": "the run holds no backward entries",
    "fingerprints": "the run holds no fingerprints (record with fingerprint: true)",
    "healthy": "no healthy run was given (--healthy RUN)",
}


def _lacks(kind: str, names: str, count: int) -> str:
    if kind == "key":
        return f"none of these key data were saved: {names}"
    if kind == "phase":
        return f"none of these phases was recorded: {names}"
    if kind == "ranks":
        return f"it needs {count} ranks at least"
    if kind == "steps":
        return f"it needs {count} steps at least"
    return _LACKS.get(kind, kind)


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "error"), (warning, "warning"), (note, "note")]
    return f"UNHEALTHY {path}: " + ", ".join(counted(n, what) for n, what in found if n)


def _healthy(path: str, error: int, warning: int, note: int) -> str:
    notes = f", {counted(note, 'note')}" if note else ""
    return f"HEALTHY {path}: no error and no warning{notes}"


def _not_checked(path: str, error: int, warning: int, note: int) -> str:
    return f"NOT CHECKED {path}: no rule could run"


def _again(times: int, last: int, ranks: str) -> str:
    on = f", on ranks {ranks}" if ranks else ""
    return f"found {times} times, up to step {last}{on}"


def _scope(rules: int, steps: int, ranks: int, entries: int, saves: int) -> str:
    return (
        f"Checked by {counted(rules, 'rule')}: {counted(steps, 'step')}, {counted(ranks, 'rank')}, "
        f"{entries} entries, {saves} saved key data"
    )


def _took(runs: int, seconds: float) -> str:
    return f"{counted(runs, 'run')} in {seconds:.1f} s"


def _in_file(path: str, line: int | None) -> str:
    return f"{path}, line {line}: " if line else f"{path}: "


TEXTS: dict[str, Text] = {
    "lacks": _lacks,
    "failed": "the rule failed: {kind}: {error}",
    "too_many": "{count} more findings were left out: at most {most} are kept",
    "no_rule": "{name} is a {found}; expected a function or class, or what @rule makes of one",
    "rule_form": "--rule {given!r}: expected MODULE:FUNCTION, e.g. my_checks:reward_in_range",
    "not_loaded": "the rule {named} cannot be loaded: {kind}: {error}",
    "same_name": "two rules are called {name}; give one of them another name",
    "no_run": "no run was given; expected the directory of at least one",
    "rule_file": "a rule file",
    "settings_of_rules": "rules to their settings",
    "in_file": _in_file,
    "no_such_rule": "{where}there is no rule or area {name!r}.{hint}",
    "bad_setting": "{where}{name} is {value}; expected on, off, or a mapping of settings",
    "no_such_key": (
        "{where}{name} is {value}, and there is no such key; expected one of {expected}.{hint}"
    ),
    "bad_value": "{where}{name} is {value}; expected {expected}.{hint}",
    "a_number": "a number that is finite and not negative",
    "patterns": "a regular expression, or a list of at most {most} of them",
    "bad_pattern": "{where}{name}: the pattern {value!r} cannot be used: {error}",
    "not_written": "{path} cannot be written: {why}",
    "checking": "Checking",
    "unit_steps": "steps",
    "run_healthy": _healthy,
    "run_unhealthy": _unhealthy,
    "run_not_checked": _not_checked,
    "at_step": "step {step}",
    "at_rank": "rank {rank}",
    "at_micro_step": "micro-step {micro_step}",
    "comma": ", ",
    "again": _again,
    "more": "… and {count} more",
    "not_read": "Not read ({count}):",
    "not_checked": "Not checked ({count}):",
    "scope": _scope,
    "took": _took,
    "severity_error": "ERROR",
    "severity_warning": "WARNING",
    "severity_note": "NOTE",
    "causes": "likely causes: {causes}",
    "stack": "call stack:",
    "look_closer": "look closer: msprobe_config: {settings}",
    "followed_by": "follows from it ({count}):",
}
