"""Rules in one order: each declares what it needs, and is called only where that is there.

@rule(event(DATA))
def moved_since(first: FirstDifference) -> Culprit | None: ...

EXPLANATIONS = Rules("mindrlhf_msprobe.explanations", Culprit, sampling, moved_since)
culprit, failed = EXPLANATIONS.answer(first)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, Generic, TypeVar

from mindrlhf_msprobe.common.message import Message, Messages, message

Case = TypeVar("Case")
Answer = TypeVar("Answer")
Made = TypeVar("Made")


class Rule(Generic[Case, Answer]):
    """A function of a case that is called only where all that it needs is there.

    Attributes:
        needs: what must hold of a case.
        yields: tells of its answer whether that of a later rule goes before it.
    """

    def __init__(
        self,
        answer: Callable[[Case], Answer | None],
        needs: tuple[Callable[[Case], object], ...],
        yields: Callable[[Answer], bool] | None = None,
    ) -> None:
        self._answer, self.needs, self.yields = answer, needs, yields
        update_wrapper(self, answer)

    def __call__(self, case: Case) -> Answer | None:
        """Return the answer; None without one, or where something that it needs is not there."""
        return self._answer(case) if all(need(case) for need in self.needs) else None


def rule(
    *needs: Callable[[Case], object], yields: Callable[[Answer], bool] | None = None
) -> Callable[[Callable[[Case], Answer | None]], Rule[Case, Answer]]:
    """Make a rule of a function; see `Rule`. A function alone is a rule that needs nothing."""
    return lambda answer: Rule(answer, needs, yields)


def first_answer(rules: Iterable[Callable[[Case], Answer | None]], case: Case) -> Answer | None:
    """Return the first answer that yields to no other; without one, the first that yields."""
    held: Answer | None = None
    for one in rules:
        answer = one(case)
        yields = one.yields if isinstance(one, Rule) else None
        if answer is not None and not (yields and yields(answer)):
            return answer
        held = answer if held is None else held
    return held


class Rules(Generic[Case, Answer]):
    """All rules of one kind in their order: those of other packages by name, then our own.

    A rule of another package knows more of its trainer than ours do; with `yields` it lets ours go
    before it. One that cannot be loaded, raises, or gives another kind of answer has no answer.
    """

    def __init__(
        self, group: str, kind: type[Answer], *own: Callable[[Case], Answer | None]
    ) -> None:
        self._group, self._kind, self._own = group, kind, own

    @cached_property
    def _installed(self) -> tuple[list[tuple[str, Any]], list[tuple[str, Message]]]:
        return installed(self._group, lambda found, name: (name, found))

    def answer(self, case: Case) -> tuple[Answer | None, Messages]:
        """Return the first answer; and a sentence for each rule of another package that failed."""
        found, broken = self._installed
        failed = [why for _, why in broken]

        def guarded(name: str, function: Any, kind: type) -> Callable[[Any], Any]:
            def call(given: Any) -> Any:
                try:
                    answer = function(given)
                    if isinstance(answer, (kind, type(None))):
                        return answer
                    known = {"kind": type(answer).__name__, "expected": kind.__name__}
                    failed.append(message("checks.wrong_kind", named=name, **known))
                except Exception as error:  # somebody else's package costs no answer of ours
                    known = {"kind": type(error).__name__, "error": str(error)[:300]}
                    failed.append(message("checks.failed", named=name, **known))
                return None

            return call

        rules = list(self._own)
        for name, one in reversed(found):
            yields = getattr(one, "yields", None)
            yields = yields and guarded(name, yields, object)
            rules.insert(0, Rule(guarded(name, one, self._kind), (), yields))
        answer = first_answer(rules, case)
        return answer, tuple(message("remark.sentence", what=why) for why in failed)


def installed(
    group: str, made: Callable[[Any, str], Made]
) -> tuple[list[Made], list[tuple[str, Message]]]:
    """Return what other packages offer as entry points of a group, in the order of their names.

    Args:
        made: makes a rule of what an entry point names, and its name.

    Returns:
        The rules; and the entry points that cannot be loaded, each with why.
    """
    found: list[Made] = []
    broken: list[tuple[str, Message]] = []
    if not _is_named(group):
        return found, broken
    from importlib import metadata

    for point in sorted(metadata.entry_points(group=group), key=lambda point: point.name):
        try:
            found.append(made(point.load(), point.name))
        except Exception as error:  # somebody else's package costs no rule of ours
            broken.append((point.name, not_loaded(point.value, error)))
    return found, broken


def _is_named(group: str) -> bool:
    """Return whether a package on the path may have entry points of a group.

    What reads entry points loads much that a comparison has no use for.
    """
    if "importlib.metadata" in sys.modules:
        return True
    for place in sys.path:
        for points in Path(place).glob("*.*-info/entry_points.txt"):
            with suppress(OSError):
                if f"[{group}]".encode() in points.read_bytes():
                    return True
    return False


def not_loaded(named: str, error: Exception) -> Message:
    """Say that the rule `module:function` names cannot be loaded."""
    return message("checks.not_loaded", named=named, kind=type(error).__name__, error=str(error))
