"""Two JSON values of two runs, compared path by path; what could not be compared is noted."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.findings import Difference
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json
from mindrlhf_msprobe.storage.manifest.manifest import WITHHELD

#: The directory a run was told to lie in, which stands in its configuration.
DIRECTORY = "dump_path"

# A variable that is not set is not recorded; in the other sections that is an older version.
_ABSENCE_COUNTS = ("environment", "configurations")
_MAY_HOLD_SECRETS = ("environment", "configurations", "cells", "optimizers")
_NONE_IS_A_VALUE = (
    *("configurations", "msprobe_config", "versions", "cells", "optimizers"),
    "generation",
)

_MAX_DEPTH = 64
_MAX_TEXT = 200
_MAX_CHECKED = 1000  # of a text of which 200 characters are shown
_MAX_SHOWN_DEPTH = 4
_MAX_NAME = 300
_MAX_PAIRS = 4  # of values of one setting, over the ranks
_MAX_UNKNOWN = 40
_MAX_TOGETHER = 20
#: Stands for a value that a run has none of.
ABSENT: Any = object()

#: A setting's name and what both runs say.
Found = tuple[str, Any, Any]


class Notes:
    """What could not be compared: what shares its reason stands in one line."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, None]] = {}
        self._neither: dict[str, None] = {}

    def add(self, line: str) -> None:
        """Note a line as it is."""
        self._lines.setdefault(line.replace("{", "{{").replace("}", "}}"), {})

    def about(self, reason: str, name: str) -> None:
        """Note a reason: `{}` in it stands for the names of all that it holds for.

        `{was}` and `{it}` become `were` and `them` if they are several.
        """
        self._lines.setdefault(reason, {}).setdefault(name)

    def neither(self, section: str) -> None:
        """Note a section that neither run recorded."""
        self._neither.setdefault(section.replace("_", " "))

    def lines(self) -> tuple[str, ...]:
        """Return the lines in the order in which their reasons were noted."""
        lines = [_filled(reason, list(names)) for reason, names in self._lines.items()]
        left = len(lines) - _MAX_UNKNOWN
        if left > 0:
            lines[_MAX_UNKNOWN:] = [f"… {left} more things that could not be compared"]
        if self._neither:
            lines.append(f"{', '.join(self._neither)}: neither run recorded them")
        return tuple(lines)


def _filled(reason: str, names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_TOGETHER])
    left = len(names) - _MAX_TOGETHER
    was, it = ("were", "them") if len(names) > 1 else ("was", "it")
    return reason.format(f"{shown} and {left} more" if left > 0 else shown, was=was, it=it)


def section_of(manifest: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a section of a manifest, None if there is none that can be read."""
    section = manifest.get(name)
    return section if isinstance(section, dict) else None


def is_known(section: str, a: Any, b: Any, notes: Notes) -> bool:
    """Tell whether both runs have a section, and note it otherwise."""
    if a is None and b is None:
        notes.neither(section)
    elif a is None or b is None:
        reason = f"{{}}: only run {'B' if a is None else 'A'} recorded {{it}}"
        notes.about(reason, section.replace("_", " "))
    return a is not None and b is not None


def compare(section: str, a: Any, b: Any, notes: Notes) -> Iterator[Found]:
    """Yield the paths at which two JSON values differ, with both values, in the order of A."""
    pending: list[tuple[tuple[str, ...], Any, Any]] = [((), a, b)]
    while pending:
        path, left, right = pending.pop()
        if _is_own_directory(path):
            continue
        if left is ABSENT or right is ABSENT:
            if section in _ABSENCE_COUNTS:
                yield named(path), *shown(section, path, left, right)
            else:
                side = "B" if left is ABSENT else "A"
                reason = f"{section.replace('_', ' ')}: only run {side} recorded {{}}"
                notes.about(reason, named(path))
        elif isinstance(left, dict) and isinstance(right, dict):
            if len(path) >= _MAX_DEPTH:
                notes.add(f"{section}: nested deeper than {_MAX_DEPTH} levels, not compared there")
                continue
            keys = dict.fromkeys([*left, *right])
            children = [
                ((*path, key), left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys
            ]
            pending += reversed(children)
        elif isinstance(left, list) and isinstance(right, list):
            if len(path) >= _MAX_DEPTH:
                notes.add(f"{section}: nested deeper than {_MAX_DEPTH} levels, not compared there")
                continue
            items = itertools.zip_longest(left, right, fillvalue=ABSENT)
            children = [((*path, str(i)), x, y) for i, (x, y) in enumerate(items)]
            if section not in _ABSENCE_COUNTS and len(left) != len(right):
                yield named(path), left, right
                continue
            pending += reversed(children)
        elif section == "environment" and left == right == WITHHELD:
            reason = "environment: {} {was} withheld in both runs, possibly secret"
            notes.about(reason, named(path))
        elif not same(left, right):
            yield named(path), *shown(section, path, left, right)


def shown(section: str, path: tuple[str, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """Return two values that differ as they may be shown: neither where one could be a secret."""
    if section not in _MAY_HOLD_SECRETS:
        return a, b
    a, b = (value if value is ABSENT else _masked(path, value) for value in (a, b))
    if WITHHELD not in (a, b):
        return a, b
    if section == "configurations":
        # A container shows its kind and the names in it; nothing and a switch are no secrets.
        plain = (dict, list, bool, type(None))
        a, b = (v if v is ABSENT or isinstance(v, plain) else WITHHELD for v in (a, b))
    return a, f"{WITHHELD}, another value" if a == b == WITHHELD else b


def _masked(path: tuple[str, ...], value: Any, depth: int = 0) -> Any:
    if isinstance(value, (dict, list)):
        if depth == _MAX_SHOWN_DEPTH:
            return type(value)()  # it is not shown that deep
        if isinstance(value, list):
            return [_masked(path, item, depth + 1) for item in value]
        return {key: _masked((*path, key), item, depth + 1) for key, item in value.items()}
    if value is None or isinstance(value, bool) or value == "":
        return value
    # Its patterns take long to compile, and few comparisons show a setting.
    from mindrlhf_msprobe.common.secret import could_be_secret, could_name_text, is_secret_key

    names = [name for name in path if not name.isdecimal()]
    if any(map(is_secret_key, names)):
        return WITHHELD
    if isinstance(value, str):
        own = names[-1] if names else ""
        if could_name_text(own) or could_be_secret(value[:_MAX_CHECKED]):
            return WITHHELD
    return value


def _is_own_directory(path: tuple[str, ...]) -> bool:
    return path[-2:] == (SECTION, DIRECTORY)


def named(path: tuple[str, ...]) -> str:
    """Return the name of a path, cut if it is long."""
    name = ".".join(path)
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"


def same(a: Any, b: Any) -> bool:
    """Tell whether two scalars are the same value: 1 and 1.0 are, two NaNs too, 1 and True not."""
    a, b = number_from_json(a), number_from_json(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or (a != a and b != b)
    if isinstance(a, (dict, list)) or isinstance(b, (dict, list)):
        return False  # of unlike kinds, or they would have been followed
    return bool(a == b)


def difference_of(section: str, name: str, a: Any, b: Any) -> Difference:
    """Return a difference with both values as texts, None for what is not set."""
    texts = [None if v is ABSENT else text_of(v) for v in (a, b)]
    if texts[0] == texts[1]:  # "1" and 1
        texts = [None if v is ABSENT else shortened(repr(v)) for v in (a, b)]
    if section not in _NONE_IS_A_VALUE:  # None: not set
        texts = [None if v is None else text for v, text in zip((a, b), texts)]
    return Difference(section, name, texts[0], texts[1])


def text_of(value: Any) -> str:
    """Return any JSON value as a short text."""
    if isinstance(value, str):
        return shortened(value)
    if value is None or isinstance(value, (bool, int, float)):
        return shortened(repr(value))
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring = 3, 4, 8, 60
    try:
        return shortened(short.repr(value))
    except Exception:
        return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    """Return a text, cut if it is long."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


@dataclass
class Ranks:
    """The differences of several ranks, the same ones brought together."""

    count: int
    #: (section, name) → role, phase and step of a difference, for those that have them.
    places: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _found: dict[tuple[str, str], dict[tuple[str | None, str | None], list[int]]] = field(
        default_factory=dict
    )

    def add(self, section: str, rank: int, found: Iterable[Found]) -> None:
        """Add what one rank has."""
        for name, a, b in found:
            one = difference_of(section, name, a, b)
            pairs = self._found.setdefault((section, name), {})
            pairs.setdefault((one.a, one.b), []).append(rank)

    def differences(self) -> Iterator[tuple[str, Difference]]:
        """Yield the section and the difference, with its ranks where they are not all."""
        for (section, name), pairs in self._found.items():
            place = self.places.get((section, name), {})
            some = list(pairs.items())[:_MAX_PAIRS]
            left = [rank for _, ranks in list(pairs.items())[_MAX_PAIRS:] for rank in ranks]
            for (a, b), ranks in some:
                yield section, Difference(section, self._of(name, ranks), a, b, **place)
            if left:
                text = "other values on each rank"
                left.sort()
                yield section, Difference(section, self._of(name, left), text, text, **place)

    def _of(self, name: str, ranks: list[int]) -> str:
        where = "" if len(ranks) == self.count else f"rank {numbers(ranks)}"
        return f"{name} ({where})" if name and where else name or where


def numbers(ranks: list[int]) -> str:
    """Return the numbers of ranks, the first ones if they are many."""
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
