"""What checks say whatever the rule, in English."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.checks import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.en.words import count, counted
from mindrlhf_msprobe.report.messages.lists import named

_LACKS = {
    "numbers": "the run holds no statistics of tensors",
    "layers": "the run holds no layer data",
    "parameters": "the run holds no parameters (record with parameters: true)",
    "gradients": "the run holds no gradients of parameters",
    "backward": "the run holds no backward entries",
    "fingerprints": "the run holds no fingerprints (record with fingerprint: true)",
    "elements": "the run holds no full tensors of activations (record with task: tensor)",
    "opinions": "nothing was computed a second time (record with task: accuracy_check)",
    "healthy": "no healthy run was given (--healthy RUN)",
    "key": "none of these key data were saved: {names}",
    "phase": "none of these phases was recorded: {names}",
    "ranks": "it needs {count} ranks at least",
    "steps": "it needs {count} steps at least",
}


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "error"), (warning, "warning"), (note, "note")]
    return f"UNHEALTHY {path}: " + ", ".join(counted(n, what) for n, what in found if n)


_PIECES: Mapping[str, Text] = {
    "n_notes": ", {all_notes}",
    "all_notes": count("note", "note"),
    "on_these_ranks": ", on ranks {ranks}",
    "line_of_file": ", line {line}",
    "n_rules": count("rules", "rule"),
    "n_steps": count("steps", "step"),
    "n_ranks": count("ranks", "rank"),
    "n_runs": count("runs", "run"),
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "lacks": named("kind", _LACKS),
        "failed": "the rule failed: {kind}: {error}",
        "cut_off": "step {step} was not ended: the run was cut off in it, or still runs",
        "too_many": "{count} more findings were left out: at most {most} are kept",
        "no_rule": "{name} is a {found}; expected a function or class, or what @rule makes of one",
        "rule_form": "--rule {given!r}: expected MODULE:FUNCTION, e.g. my_checks:reward_in_range",
        "not_loaded": "the rule {named} cannot be loaded: {kind}: {error}",
        "same_name": "two rules are called {name}; give one of them another name",
        "no_run": "no run was given; expected the directory of at least one",
        "rule_file": "a rule file",
        "settings_of_rules": "rules to their settings",
        "in_file": "{path}{of_line}: ",
        "no_such_rule": "{where}there is no rule or area {name!r}.{hint}",
        "bad_setting": "{where}{name} is {value}; expected on, off, or a mapping of settings",
        "no_such_key": (
            "{where}{name} is {value}, and there is no such key; expected one of {expected}.{hint}"
        ),
        "bad_value": "{where}{name} is {value}; expected {expected}.{hint}",
        "a_number": "a number that is finite and not negative",
        "patterns": "a regular expression, or a list of at most {most} of them",
        "bad_pattern": "{where}{name}: the pattern {value!r} cannot be used: {error}",
        "checking": "Checking",
        "unit_steps": "steps",
        "run_healthy": "HEALTHY {path}: no error and no warning{notes}",
        "run_unhealthy": _unhealthy,
        "run_not_checked": "NOT CHECKED {path}: no rule could run",
        "at_step": "step {step}",
        "at_rank": "rank {rank}",
        "at_micro_step": "micro-step {micro_step}",
        "comma": ", ",
        "again": "found {times} times, up to step {last}{on_ranks}",
        "more": "… and {count} more",
        "not_read": "Not read ({count}):",
        "not_checked": "Not checked ({count}):",
        "scope": (
            "Checked by {n_rules}: {n_steps}, {n_ranks}, {entries} entries, {saves} saved key data"
        ),
        "took": "{n_runs} in {seconds:.1f} s",
        "severity_error": "ERROR",
        "severity_warning": "WARNING",
        "severity_note": "NOTE",
        "causes": "likely causes: {causes}",
        "stack": "call stack:",
        "look_closer": "look closer: msprobe_config: {settings}",
        "followed_by": "follows from it ({count}):",
    },
)
