"""Settings that cannot be used: of `msprobe_config`, and of msprobe's config.json."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text


def _unknown_keys(items: Sequence[Sequence[str]], hints: Sequence[str], known: str) -> str:
    if len(items) == 1:
        ((key, value),) = items
        what = f"unknown key {key} (value {value}) in msprobe_config.{hints[0]}"
    else:
        each = (f"{key} (value {value}).{hint}" for (key, value), hint in zip(items, hints))
        what = f"unknown keys in msprobe_config: {' '.join(each)}"
    return f"{what} Valid keys: {known}."


TEXTS: dict[str, Text] = {
    "wrong": "{setting} is {shown} ({kind}); expected {expected}.{hint}",
    "unusable": "{wrong} It cannot be used: {error}.",
    "unknown_key": "{where}: unknown key {name!r} (value {value}).{hint}",
    "unknown_keys": _unknown_keys,
    "no_section": (
        "there is no section 'msprobe_config' in this file. Add\nmsprobe_config:\n  msprobe: true\n"
        "  dump_path: ./msprobe_dump\n  key_data_dump: true"
    ),
    "no_mapping": (
        "msprobe_config must be a mapping or an object with the settings as attributes, got "
        "{shown} ({kind})."
    ),
    "no_backward": (
        "msprobe_config.directions is {directions}, but task: grad_probe records gradients; "
        "expected a list with backward. Remove directions, or set directions: [backward]."
    ),
    "inverted_range": (
        "msprobe_config.{last} is {end}, before {first} {start}; ranges are inclusive, so expected "
        "{last} of at least {start} (for that one alone: {first}: {start}, {last}: {start})."
    ),
    "steps_outside": (
        "msprobe_config.steps is {steps}, of which none lies in the step window, step_start "
        "{first} … step_end {last}: nothing would be recorded. Set step_end: {needed}."
    ),
    "steps_and_interval": (
        "msprobe_config.steps and step_interval {interval} both choose steps; expected one of "
        "them. Leave out steps, or step_interval."
    ),
    "too_many_patterns": (
        "{setting} has {count} patterns; expected at most {most}. Join some with |."
    ),
    "section": (
        "{path}: the section msprobe_config is {shown}; expected a mapping, with `msprobe: true` "
        "or `msprobe: false` as its first line."
    ),
    "keys": (
        "{path}: keys of msprobe_config must be texts, found {found}. YAML reads on, off, yes and "
        "no as true and false, and digits as numbers: put quotes around them."
    ),
    # what was expected
    "true_or_false": "true or false",
    "whole_number": "a whole number, {least} or larger",
    "file": "the path of a rule file",
    "on_finding": "warn, stop, or module:function",
    "no_such_function": "on_finding: {named} cannot be imported: {kind}: {error}",
    "number_or_all": "a whole number, 1 or larger, or -1 for all",
    "directory": "the path of a directory",
    "seconds": "a number of seconds, 0 or larger (0: no bound)",
    "one_of": "one of {choices}",
    "either": lambda choices: " or ".join(choices),
    "this": "{value!r}",
    "list_of": "a list of {choices}",
    "one_at_least": "a list of {choices}: one of them at least",
    "list_of_ranks": "a list of ranks, [] for all",
    "list_of_steps": "a list of steps, [] for all",
    "list_of_texts": "a list of texts",
    "patterns": "a list of regular expressions on cell names",
    "pattern": "a regular expression on cell names",
    "texts": "a list of texts that occur in the names of entries",
    "text": "a text that occurs in the names of entries",
    "positive": "a number above 0",
    "thresholds": (
        "a mapping of float16, bfloat16, float32 or float64 to numbers above 0, e.g. "
        "{{float16: 0.002}}"
    ),
    "for_fix": "{value}, which alone goes with handler_type: fix",
    "bounds": "numbers in ascending order, at least one, each within ±2**63",
    "scope": "[], or the names of two entries, the first and the last to be recorded",
    "entry": "the name of an entry, such as {example}",
    "phases": "a mapping of phase name to role, e.g. {{reward_compute: reward}}",
    "step_window": "[], or the first and the last step, e.g. [0, 9]",
    "replace": "a mapping of a value's name to a run's directory, e.g. {{advantages: ./run_a}}",
    "value_name": "names of letters, digits and underscores",
    "phase_name": "phase names of letters, digits and underscores",
    "free_name": "a name that is not already taken",
    "role": "the name of a role",
    "section_of_task": "an object with scope, list and data_mode",
    "all_or_others": '["all"], or a list of the others',
    "numbers_and_ranges": 'a list of whole numbers and ranges such as "3-5", [] for all',
    "is_none": "{expected}; {item} is none",
    "empty_section": "empty",
}
