"""Two JSON values of two runs, compared path by path; what could not be compared is noted."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
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
_MAX_RANKS = 8
#: Stands for a value that a run has none of.
ABSENT: Any = object()

#: A setting's name and what both runs say.
Found = tuple[str, Any, Any]


class Notes:
    """What could not be compared: what shares its reason stands in one message."""

    def __init__(self) -> None:
        self._names: dict[Message, dict[str, None]] = {}
        self._neither: dict[str, None] = {}

    def add(self, code: str, **params: Any) -> None:
        """Note something by itself."""
        self._names.setdefault(message(f"preflight.{code}", **params), {})

    def about(self, code: str, name: str, **params: Any) -> None:
        """Note a reason for a name: it stands once, with the `names` of all that it holds for."""
        self._names.setdefault(message(f"preflight.{code}", **params), {}).setdefault(name)

    def neither(self, section: str) -> None:
        """Note a section that neither run recorded."""
        self._neither.setdefault(section)

    def messages(self) -> Messages:
        """Return the messages in the order in which their reasons were noted."""
        found = [_with_names(reason, list(names)) for reason, names in self._names.items()]
        left = len(found) - _MAX_UNKNOWN
        if left > 0:
            found[_MAX_UNKNOWN:] = [message("preflight.more", count=left)]
        if self._neither:
            found.append(message("preflight.neither", names=list(self._neither)))
        return tuple(found)


def _with_names(reason: Message, names: list[str]) -> Message:
    if not names:
        return reason
    more = max(0, len(names) - _MAX_TOGETHER)
    return Message(reason.code, {**reason.params, "names": names[:_MAX_TOGETHER], "more": more})


def section_of(manifest: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a section of a manifest, None if there is none that can be read."""
    section = manifest.get(name)
    return section if isinstance(section, dict) else None


def is_known(section: str, a: Any, b: Any, notes: Notes) -> bool:
    """Tell whether both runs have a section, and note it otherwise."""
    if a is None and b is None:
        notes.neither(section)
    elif a is None or b is None:
        notes.about("only_one_side", section, side="B" if a is None else "A")
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
                notes.about("only_in", named(path), section=section, side=side)
        elif isinstance(left, dict) and isinstance(right, dict):
            if len(path) >= _MAX_DEPTH:
                notes.add("nested", section=section, levels=_MAX_DEPTH)
                continue
            keys = dict.fromkeys([*left, *right])
            children = [
                ((*path, key), left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys
            ]
            pending += reversed(children)
        elif isinstance(left, list) and isinstance(right, list):
            if len(path) >= _MAX_DEPTH:
                notes.add("nested", section=section, levels=_MAX_DEPTH)
                continue
            items = itertools.zip_longest(left, right, fillvalue=ABSENT)
            children = [((*path, str(i)), x, y) for i, (x, y) in enumerate(items)]
            if section not in _ABSENCE_COUNTS and len(left) != len(right):
                yield named(path), left, right
                continue
            pending += reversed(children)
        elif section == "environment" and left == right == WITHHELD:
            notes.about("withheld", named(path), section=section)
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
    shown = ", ".join(map(str, ranks[:_MAX_RANKS]))
    more = len(ranks) - _MAX_RANKS
    return f"{shown} and {more} more" if more > 0 else shown


def some_ranks(ranks: list[int]) -> dict[str, Any]:
    """Return the numbers of ranks as parameters of a message: the first, and how many more."""
    return {"ranks": ranks[:_MAX_RANKS], "more": max(0, len(ranks) - _MAX_RANKS)}
