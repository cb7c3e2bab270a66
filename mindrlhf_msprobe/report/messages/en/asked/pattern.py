"""Why a regular expression, or a pattern of names, cannot be used; it follows `cannot be used:`."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

_LINEAR = "which takes more than linear time"
_EXCLUDE = (
    "say what is not meant by a pattern of its own: under exclude, or as a rule that stands before "
    "this one"
)

TEXTS: dict[str, Text] = {
    "assert": (
        f"it looks ahead or behind ((?=…) or (?<=…)), {_LINEAR}; write what stands around it into "
        f"the pattern itself"
    ),
    "assert_not": f"it looks ahead or behind ((?!…) or (?<!…)), {_LINEAR}; {_EXCLUDE}",
    "groupref": (
        f"it refers back to a group (\\1 or (?P=name)), {_LINEAR}; write what it may stand for, "
        f"with | between"
    ),
    "groupref_exists": (
        f"it depends on whether a group matched ((?(1)…)), {_LINEAR}; write both cases, with | "
        f"between"
    ),
    "atomic_group": f"it has an atomic group ((?>…)), {_LINEAR}; write (?:…)",
    "possessive_repeat": (
        f"it has a possessive repeat (a++, a*+ or a?+), {_LINEAR}; leave the second + out"
    ),
    "name_taken": "the name 'inside' of a group is taken: call the group otherwise",
    "too_large": "it is too large: {why}. Write it shorter",
    "too_long": "it has {length} characters; expected at most {most}",
    "too_deep": "it is nested too deeply: more than {most} groups in each other",
    "nested": "it is nested too deeply",
    "too_deep_or_large": "it is nested too deeply, or a number in it is too large",
    "no_unicode": "it is not valid Unicode text",
    "no_expression": "it is not a regular expression: {error}",
    "unknown_part": "it has a part that is not known here ({name})",
    "surrogate": "it names a lone surrogate, which is no character",
    "wrong_target": "its target is wrong: {why}",
    "no_group": "its target is wrong: there is no group {group}",
}
