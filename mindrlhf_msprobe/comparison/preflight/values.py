"""Two JSON values of two runs, compared path by path; what could not be compared is noted."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.findings import ANOTHER_WITHHELD, OTHER_ON_EACH_RANK, Difference
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.snapshot import KINDS, Trait, without_secrets

#: The key of the directory that a run writes to.
DIRECTORY = "dump_path"

_MAX_DEPTH = 64
_MAX_PAIRS = 4  # of values of one setting, over the ranks
_MAX_UNKNOWN = 40
_MAX_TOGETHER = 20
_MAX_RANKS = 8
#: Stands for a value that a run has none of.
ABSENT: Any = object()

#: A setting's name and what both runs say.
Found = tuple[str, Any, Any]


class Notes:
    """What could not be compared: what shares its reason stands in one message.

    Args:
        not_expected: sections that a collection does not have, of which nothing is noted; with any,
            nor is it noted what neither side has.
    """

    def __init__(self, not_expected: Collection[str] = ()) -> None:
        self.not_expected = not_expected
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

    def both_know(self, section: str, a: Any, b: Any, *, neither: bool = True) -> bool:
        """Return whether both runs have a section, else note it; `neither`: if both lack it."""
        if a is None and b is None:
            if neither and not self.not_expected:
                self._neither.setdefault(section)
        elif a is None or b is None:
            self.about("only_one_side", section, side="B" if a is None else "A")
        return a is not None and b is not None

    def messages(self) -> Messages:
        """Return the messages in the order in which their reasons were noted."""
        found = []
        for reason, noted in self._names.items():
            of_side = reason.code == "preflight.only_one_side"
            several = [name for name in noted if not (of_side and name in self.not_expected)]
            if noted and not several:
                continue
            names, more = several[:_MAX_TOGETHER], max(0, len(several) - _MAX_TOGETHER)
            own = {"names": names, "more": more} if names else {}
            found.append(Message(reason.code, {**reason.params, **own}))
        left = len(found) - _MAX_UNKNOWN
        if left > 0:
            found[_MAX_UNKNOWN:] = [message("preflight.more", count=left)]
        if self._neither:
            found.append(message("preflight.neither", names=list(self._neither)))
        return tuple(found)


class Ranks:
    """The differences of so many ranks, the same ones brought together."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: dict[Difference, dict[tuple[str | None, str | None], list[int]]] = {}

    def add(self, rank: int, what: Difference, a: Any, b: Any) -> None:
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
        return () if len(ranks) == self._count else tuple(ranks)


@dataclass(frozen=True)
class RankPair:
    """The manifests of one rank of both runs, and where is noted what differs between them."""

    rank: int
    a: RunFile
    b: RunFile
    ranks: Ranks
    notes: Notes

    def add(self, what: Difference, a: Any, b: Any) -> None:
        """Add a difference: `what` says all of it but the values."""
        self.ranks.add(self.rank, what, a, b)

    def both_know(
        self, section: str, of: Callable[[RunFile], Any], *, neither: bool = True
    ) -> tuple[Any, Any] | None:
        """Return what both say of a section; None where one does not, which is noted."""
        a, b = of(self.a), of(self.b)
        return (a, b) if self.notes.both_know(section, a, b, neither=neither) else None

    @property
    def same_versions(self) -> bool:
        """Whether both say the same versions.

        Another version may have other settings; of the same one, the trainer gave what is there.
        """
        return self.a.versions is not None and self.a.versions == self.b.versions

    @property
    def begun_apart(self) -> tuple[int, int] | None:
        """The steps with which both began; None where it is the same one."""
        steps = first_step(self.a), first_step(self.b)
        return None if steps[0] == steps[1] else steps

    @property
    def last_step(self) -> float:
        """The last step that both have; infinity where they do not say."""
        ends = (
            [
                step
                for attempt in file.attempts
                for step in (attempt.last_completed_step, attempt.unfinished_step)
                if step is not None
            ]
            for file in (self.a, self.b)
        )
        return min(max(steps, default=math.inf) for steps in ends)


def first_step(file: RunFile) -> int:
    """Return the step with which a run began."""
    return file.config.initial_step or 0


def compare(section: str, a: Any, b: Any, notes: Notes) -> Iterator[Found]:
    """Yield the paths at which two JSON values differ, with both values, in the order of A."""
    absence_differs = Trait.ABSENCE_DIFFERS in KINDS[section]
    pending: list[tuple[tuple[str, ...], Any, Any]] = [((), a, b)]
    while pending:
        path, left, right = pending.pop()
        if path[-2:] == (SECTION, DIRECTORY):  # where the run itself lies
            continue
        inside: list[Found] | None = None
        if isinstance(left, dict) and isinstance(right, dict):
            keys = dict.fromkeys([*left, *right])
            inside = [(key, left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys]
        elif isinstance(left, list) and isinstance(right, list):
            items = itertools.zip_longest(left, right, fillvalue=ABSENT)
            inside = [(str(i), x, y) for i, (x, y) in enumerate(items)]
        if (left is ABSENT or right is ABSENT) and not absence_differs:
            notes.only_in(section, right is ABSENT, *path)
        elif inside is not None:
            if len(path) >= _MAX_DEPTH:
                notes.add("nested", section=section, levels=_MAX_DEPTH)
            elif isinstance(left, dict) or absence_differs or len(left) == len(right):
                pending += [((*path, key), x, y) for key, x, y in reversed(inside)]
            else:
                yield named(path), left, right
        elif section in ("environment", "configurations") and left == right == WITHHELD:
            notes.about("withheld", named(path), section=section)
        elif not same(left, right):
            yield named(path), *shown(section, path, left, right)


def shown(section: str, path: tuple[str, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """Return two values that differ as they may be shown: neither where one could be a secret."""
    if Trait.SECRET not in KINDS[section]:
        return a, b
    a, b = (
        value if value is ABSENT else without_secrets(value, path, deepest=4) for value in (a, b)
    )
    if WITHHELD in (a, b) and section == "configurations":
        # A container shows its kind and the names in it; nothing and a switch are no secrets.
        plain = (dict, list, bool, type(None))
        a, b = (v if v is ABSENT or isinstance(v, plain) else WITHHELD for v in (a, b))
    return a, ANOTHER_WITHHELD if a == b == WITHHELD else b


def named(path: tuple[str, ...]) -> str:
    """Return the name of a path, cut if it is long."""
    return cut(".".join(path), 300)


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


def differences_of(section: str, found: Iterator[Found]) -> Iterator[Difference]:
    """Yield the differences of a section that has no ranks."""
    for name, a, b in found:
        yield difference_of(Difference(section, name), a, b)


def difference_of(what: Difference, a: Any, b: Any) -> Difference:
    """Return a difference with both values as texts, None for what is not set."""
    texts = [None if v is ABSENT else text_of(v) for v in (a, b)]
    if texts[0] == texts[1]:  # "1" and 1
        texts = [None if v is ABSENT else shortened(repr(v)) for v in (a, b)]
    if Trait.NONE_IS_A_VALUE not in KINDS[what.section]:
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
    return cut(text, 200, with_length=True)


def some_ranks(ranks: list[int]) -> dict[str, Any]:
    """Return the numbers of ranks as parameters of a message: the first, and how many more."""
    return {"ranks": ranks[:_MAX_RANKS], "more": max(0, len(ranks) - _MAX_RANKS)}
