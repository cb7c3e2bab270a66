"""Rules in one order: each declares what it needs, and is called only where that is there.

@rule(event(DATA))
def moved_since(first: FirstDifference) -> Culprit | None: ...

culprit = first_answer((sampling, before_optimizer, moved_since), first)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Generic, TypeVar

Case = TypeVar("Case")
Answer = TypeVar("Answer")


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
