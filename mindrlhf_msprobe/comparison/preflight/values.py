"""Two JSON values of two runs, compared path by path; what could not be compared is noted."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.findings import ANOTHER_WITHHELD, OTHER_ON_EACH_RANK, Difference
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.run_file import RunFile

#: The key of the directory that a run writes to.
DIRECTORY = "dump_path"

# A variable that is not set is not recorded; in the other sections it is unknown.
_ABSENCE_COUNTS = ("environment", "configurations", "packages")
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
        self._names: dict[Message, dict[str | Message, None]] = {}
        self._neither: dict[str, None] = {}

    def add(self, code: str, **params: Any) -> None:
        """Note something by itself."""
        self._names.setdefault(message(f"preflight.{code}", **params), {})

    def about(self, code: str, name: str | Message, **params: Any) -> None:
        """Note a reason for a name: it stands once, with the `names` of all that it holds for."""
        self._names.setdefault(message(f"preflight.{code}", **params), {}).setdefault(name)

    def only_in(self, section: str, in_a: bool, *path: str) -> None:
        """Note a setting that one run alone recorded: A if `in_a`, else B."""
        self.about("only_in", named(path), section=section, side="A" if in_a else "B")

    def neither(self, section: str) -> None:
        """Note a section that neither run recorded."""
        self._neither.setdefault(section)

    def messages(self) -> Messages:
        """Return the messages in the order in which their reasons were noted."""
        found = []
        for reason, several in self._names.items():
            names, more = [*several][:_MAX_TOGETHER], max(0, len(several) - _MAX_TOGETHER)
            own = {"names": names, "more": more} if names else {}
            found.append(Message(reason.code, {**reason.params, **own}))
        left = len(found) - _MAX_UNKNOWN
        if left > 0:
            found[_MAX_UNKNOWN:] = [message("preflight.more", count=left)]
        if self._neither:
            found.append(message("preflight.neither", names=list(self._neither)))
        return tuple(found)


def is_known(section: str, a: Any, b: Any, notes: Notes, *, neither: bool = True) -> bool:
    """Return whether both runs have a section, else note it; `neither`: of none as well."""
    if a is None and b is None:
        if neither:
            notes.neither(section)
    elif a is None or b is None:
        notes.about("only_one_side", section, side="B" if a is None else "A")
    return a is not None and b is not None


def same_versions(a: RunFile, b: RunFile) -> bool:
    """Return whether two manifests say the same versions.

    Another version may have other settings; of the same one, the trainer gave what is there.
    """
    return a.versions is not None and a.versions == b.versions


def compare(section: str, a: Any, b: Any, notes: Notes) -> Iterator[Found]:
    """Yield the paths at which two JSON values differ, with both values, in the order of A."""
    pending: list[tuple[tuple[str, ...], Any, Any]] = [((), a, b)]
    while pending:
        path, left, right = pending.pop()
        if path[-2:] == (SECTION, DIRECTORY):  # where the run itself lies
            continue
        if (left is ABSENT or right is ABSENT) and section not in _ABSENCE_COUNTS:
            notes.only_in(section, right is ABSENT, *path)
        elif (inside := _items(left, right)) is not None:
            if len(path) >= _MAX_DEPTH:
                notes.add("nested", section=section, levels=_MAX_DEPTH)
            elif isinstance(left, dict) or section in _ABSENCE_COUNTS or len(left) == len(right):
                pending += [((*path, key), x, y) for key, x, y in reversed(inside)]
            else:
                yield named(path), left, right
        elif section in ("environment", "configurations") and left == right == WITHHELD:
            notes.about("withheld", named(path), section=section)
        elif not same(left, right):
            yield named(path), *shown(section, path, left, right)


def _items(a: Any, b: Any) -> list[Found] | None:
    """Return the keys of two dicts, or the places of two lists, with both values; else None."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [(key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in dict.fromkeys([*a, *b])]
    if isinstance(a, list) and isinstance(b, list):
        pairs = itertools.zip_longest(a, b, fillvalue=ABSENT)
        return [(str(i), x, y) for i, (x, y) in enumerate(pairs)]
    return None


def shown(section: str, path: tuple[str, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """Return two values that differ as they may be shown: neither where one could be a secret."""
    if section not in _MAY_HOLD_SECRETS:
        return a, b
    a, b = (value if value is ABSENT else _masked(path, value) for value in (a, b))
    if WITHHELD in (a, b) and section == "configurations":
        # A container shows its kind and the names in it; nothing and a switch are no secrets.
        plain = (dict, list, bool, type(None))
        a, b = (v if v is ABSENT or isinstance(v, plain) else WITHHELD for v in (a, b))
    return a, ANOTHER_WITHHELD if a == b == WITHHELD else b


def _masked(path: tuple[str, ...], value: Any, depth: int = 0) -> Any:
    if isinstance(value, (dict, list)):
        if depth == _MAX_SHOWN_DEPTH:
            return type(value)()  # it is not shown that deep
        if isinstance(value, list):
            return [_masked(path, item, depth + 1) for item in value]
        return {key: _masked((*path, key), item, depth + 1) for key, item in value.items()}
    plain = value is None or isinstance(value, bool) or value == ""
    return value if plain or not _is_secret(path, value) else WITHHELD


def _is_secret(path: tuple[str, ...], value: Any) -> bool:
    # Its patterns take long to compile, and few comparisons show a setting.
    from mindrlhf_msprobe.common.secret import could_be_secret, could_name_text, is_secret_key

    names = [name for name in path if not name.isdecimal()]
    if any(map(is_secret_key, names)):
        return True
    own = names[-1] if names else ""
    is_text = isinstance(value, str)
    return is_text and (could_name_text(own) or could_be_secret(value[:_MAX_CHECKED]))


def named(path: tuple[str, ...]) -> str:
    """Return the name of a path, cut if it is long."""
    name = ".".join(path)
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"


def same(a: Any, b: Any) -> bool:
    """Return whether two scalars are the same value: 1 and 1.0, two NaNs; not 1 and True."""
    a, b = number_from_json(a), number_from_json(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or (a != a and b != b)
    if isinstance(a, (dict, list)) or isinstance(b, (dict, list)):
        return False  # of unlike kinds, or they would have been followed
    return bool(a == b)


def difference_of(what: Difference, a: Any, b: Any) -> Difference:
    """Return a difference with both values as texts, None for what is not set."""
    texts = [None if v is ABSENT else text_of(v) for v in (a, b)]
    if texts[0] == texts[1]:  # "1" and 1
        texts = [None if v is ABSENT else shortened(repr(v)) for v in (a, b)]
    if what.section not in _NONE_IS_A_VALUE:  # None: not set
        texts = [None if v is None else text for v, text in zip((a, b), texts)]
    return replace(what, a=texts[0], b=texts[1])


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
    _found: dict[Difference, dict[tuple[str | None, str | None], list[int]]] = field(
        default_factory=dict
    )

    def add(self, section: str, rank: int, found: Iterable[Found]) -> None:
        """Add what one rank has."""
        for name, a, b in found:
            self.add_one(Difference(section, name, None, None), rank, a, b)

    def add_one(self, what: Difference, rank: int, a: Any, b: Any) -> None:
        """Add one difference of a rank: `what` says all of it but the values."""
        one = difference_of(what, a, b)
        self._found.setdefault(what, {}).setdefault((one.a, one.b), []).append(rank)

    def differences(self) -> Iterator[Difference]:
        """Yield the differences, with their ranks where they are not all."""
        for what, pairs in self._found.items():
            left = [rank for ranks in list(pairs.values())[_MAX_PAIRS:] for rank in ranks]
            for (a, b), ranks in itertools.islice(pairs.items(), _MAX_PAIRS):
                yield replace(what, a=a, b=b, ranks=self._named(ranks))
            if left:
                text = OTHER_ON_EACH_RANK
                yield replace(what, a=text, b=text, ranks=self._named(sorted(left)))

    def _named(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return () if len(ranks) == self.count else tuple(ranks)


def some_ranks(ranks: list[int]) -> dict[str, Any]:
    """Return the numbers of ranks as parameters of a message: the first, and how many more."""
    return {"ranks": ranks[:_MAX_RANKS], "more": max(0, len(ranks) - _MAX_RANKS)}
