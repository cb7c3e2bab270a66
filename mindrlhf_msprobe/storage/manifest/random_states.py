"""The states of random generators by step, as the manifest holds them.

generator → [[first step, the states of the steps from there on, eight digits each], …]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Of a generator whose state says nothing: it is not there, or neither seeded nor drawn from.
UNKNOWN = "--------"
#: Steps of which states are kept.
MAX_STEPS = 1 << 16

_DIGITS = len(UNKNOWN)
_STATES = re.compile(rf"(?:[0-9a-f]{{{_DIGITS}}}|-{{{_DIGITS}}})+")


def with_state(known: Mapping[str, Any], name: str, step: int, state: str) -> dict[str, Any]:
    """Return what is known with the state of one more step; beyond `MAX_STEPS`, without it."""
    spans = list(known.get(name, ()))
    if sum(len(states) for _, states in spans) >= MAX_STEPS * _DIGITS:
        return dict(known)
    if spans and spans[-1][0] + len(spans[-1][1]) // _DIGITS == step:
        spans[-1] = [spans[-1][0], spans[-1][1] + state]
    else:
        spans.append([step, state])
    return {**known, name: spans}


def without_steps_from(known: Any, step: int) -> dict[str, Any]:
    """Return what is known of the steps before `step`."""
    found: dict[str, Any] = {}
    for name, states in by_step(known).items():
        for at in sorted(states):
            if at < step:
                found = with_state(found, name, at, states[at])
    return found


def joined(first: Any, then: Any) -> dict[str, Any]:
    """Return the states of both; of a step that both have, those of `then`."""
    sides = by_step(first), by_step(then)
    found: dict[str, Any] = {}
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        states = {**sides[0].get(name, {}), **sides[1].get(name, {})}
        for at in sorted(states):
            found = with_state(found, name, at, states[at])
    return found


def by_step(known: Any) -> dict[str, dict[int, str]]:
    """Return generator → step → state, as far as it can be read."""
    found: dict[str, dict[int, str]] = {}
    for name, spans in known.items() if isinstance(known, Mapping) else ():
        for span in spans if isinstance(spans, list) else ():
            match span:
                case [int(first), str(states)] if type(first) is int and _STATES.fullmatch(states):
                    of_name = found.setdefault(str(name), {})
                    for i in range(min(len(states) // _DIGITS, MAX_STEPS - len(of_name))):
                        of_name[first + i] = states[i * _DIGITS : (i + 1) * _DIGITS]
    return found
