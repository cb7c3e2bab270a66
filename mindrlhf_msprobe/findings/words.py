"""The keywords of what is concluded, shown as they are; how conclusions become JSON and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

from mindrlhf_msprobe.common.message import Message, Messages, all_in_words
from mindrlhf_msprobe.errors import DIVERGED, SAME, UNDECIDED
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json

SCHEMA = 1

VERDICT_FILE = "verdict.json"
#: Who wrote a verdict.json.
TOOL = "mindrlhf_msprobe"


class Keyword(str, Enum):
    """A word of ours that is shown as it is, in any language."""

    def __str__(self) -> str:
        return str(self.value)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that concludes it."""
        return SAME if self.value in _WELL else DIVERGED if self.value in _NOT_WELL else UNDECIDED

    @property
    def tone(self) -> str:
        """Whether that is good, bad or unknown: the tone in which a page shows it."""
        return {SAME: "good", DIVERGED: "bad"}.get(self.exit_code, "unknown")


#: Conclusions by what they are to a command; of all others it is not decided.
_WELL = (
    *("identical", "within_tolerance", "within_rounding", "healthy", "ordinary"),
    *("proven", "nothing_differs"),
)
_NOT_WELL = (
    *("diverged", "parted", "unhealthy", "wrong"),
    *("not_alone", "not_the_cause", "not_reproducible", "not_separated"),
)


class Status(Keyword):
    """What the comparison of one pair of records says; where several fit, the first of these."""

    UNREADABLE = "unreadable"
    ONLY_IN_A = "only_in_a"
    ONLY_IN_B = "only_in_b"
    DTYPE_MISMATCH = "dtype_mismatch"
    SHAPE_MISMATCH = "shape_mismatch"
    NON_FINITE = "non_finite"
    DIFFERENT = "different"
    WITHIN_TOLERANCE = "within_tolerance"
    IDENTICAL = "identical"

    @property
    def agrees(self) -> bool:
        """Whether such a pair counts as the same."""
        return self in (Status.WITHIN_TOLERANCE, Status.IDENTICAL)


class Outcome(Keyword):
    """What a whole comparison says."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within_tolerance"
    DIVERGED = "diverged"
    INCOMPARABLE = "incomparable"


class CulpritCode(Keyword):
    """What beyond a record and its cell is to blame; see docs/en/comparing.md."""

    EARLIER_UPDATE = "earlier_update"
    OPTIMIZER = "optimizer"
    OPTIMIZER_OR_SYNCHRONISATION = "optimizer_or_synchronisation"
    UPDATE_CLOSE = "update_close"
    BEFORE_OPTIMIZER = "before_optimizer"
    GRADIENTS_NOT_RECORDED = "gradients_not_recorded"
    UPDATE_NOT_RECORDED = "update_not_recorded"
    NOT_SYNCHRONISED = "not_synchronised"
    SYNCHRONISATION = "synchronisation"
    FOLLOWS_TRAINED = "follows_trained"
    NOT_MOVED = "not_moved"
    CHANGED_BETWEEN = "changed_between"
    MOVED = "moved"
    WRITTEN = "written"
    MOVED_SINCE = "moved_since"
    SAMPLING = "sampling"
    SAMPLING_OR_LOGITS = "sampling_or_logits"
    LOSS = "loss"
    AGGREGATION = "aggregation"
    SCHEDULE = "schedule"


#: Of the remark of a comparison that left out layer data, as msprobe's SingleComparator does.
KEY_DATA_ONLY = "pairing.key_data_only"


class Cause(Keyword):
    """Why two runs first diverge; see docs/en/comparing.md."""

    COMPUTATION = "computation"
    PARAMETER = "parameter"
    INPUT = "input"
    DATA = "data"
    MISSING = "missing"
    SHAPE = "shape"
    DTYPE = "dtype"
    NON_FINITE = "non_finite"
    UNREADABLE = "unreadable"
    STOPPED = "stopped"
    FILE = "file"


class Nearness(Keyword):
    """How near what differs before any tensor lies to a finding."""

    CELL = "cell"
    PHASE = "phase"
    ROLE = "role"
    RUN = "run"


class Relation(Keyword):
    """How the first divergence stands to that of an earlier comparison."""

    SAME = "same"  #: the same cell, or the same key
    INSIDE = "inside"  #: a cell of the phase that the earlier key came of
    FOLLOWS = "follows"  #: a gradient, say, that is made behind the earlier key
    BEFORE = "before"  #: a cell of another phase of the same step
    ELSEWHERE = "elsewhere"  #: another place
    NEW = "new"  #: the earlier comparison found none
    NOT_SEEN = "not_seen"  #: only the earlier comparison found one
    AGREED = "agreed"  #: neither found one


class Shown:
    """What JSON holds: what `_shown` names as `by_names` has it, else all fields."""

    _shown: ClassVar[tuple[str, ...]] = ()
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return by_names(self, *self._shown) if self._shown else by_fields(self)


def by_fields(found: Any) -> dict[str, Any]:
    """Return the fields of a dataclass under their names, as JSON holds them."""
    return by_names(found, *(of.name for of in fields(found)))


def by_names(found: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of a conclusion under their names, as JSON holds them.

    Args:
        names: `code=said` is called code, and shows `said`; `why!s` shows it in words;
            `note?` stands only where there is something.
    """
    shown = {}
    for name, attribute, in_words, optional in map(_parts, names):
        value = attribute(found)
        if value or not optional:
            shown[name] = as_json(value, in_words=in_words)
    return shown


@cache
def _parts(name: str) -> tuple[str, Callable[[Any], Any], bool, bool]:
    bare = name.removesuffix("?")
    called, _, attribute = bare.removesuffix("!s").partition("=")
    return called, attrgetter(attribute or called), bare.endswith("!s"), bare != name


def as_json(value: Any, *, in_words: bool = False) -> Any:
    """Return what JSON holds of a value, and of those inside it; of messages code or words."""
    if isinstance(value, Message):
        return str(value) if in_words else value.as_json()
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(item, in_words=in_words) for item in value]
    return str(value) if in_words else number_to_json(value)


def words_of(messages: Messages) -> str:
    """Return what messages say, in the language that was chosen, else the locale's."""
    return all_in_words(messages) if messages else ""
