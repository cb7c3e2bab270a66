"""Rules in one order: each declares what it needs, and is asked only where that is there.

@rule(is_of_key_data)
def sampling(first: FirstDifference) -> Culprit | None: ...

CULPRITS = (sampling, before_optimizer, moved_since)
culprit = first_answer(CULPRITS, first)
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
        yields: tells of its answer whether another rule's goes before it.
    """

    def __init__(
        self,
        answer: Callable[[Case], Answer | None],
        needs: tuple[Callable[[Case], object], ...] = (),
        yields: Callable[[Answer], bool] = lambda answer: False,
    ) -> None:
        self._answer, self.needs, self.yields = answer, needs, yields
        update_wrapper(self, answer)

    def __call__(self, case: Case) -> Answer | None:
        """Return the answer; None without one, or where something that it needs is not there."""
        return self._answer(case) if all(need(case) for need in self.needs) else None


def rule(
    *needs: Callable[[Case], object], yields: Callable[[Answer], bool] = lambda answer: False
) -> Callable[[Callable[[Case], Answer | None]], Rule[Case, Answer]]:
    """Make a rule of a function; see `Rule` for the arguments."""
    return lambda answer: Rule(answer, needs, yields)


def first_answer(rules: Iterable[Rule[Case, Answer]], case: Case) -> Answer | None:
    """Return the first answer that yields to no other; without one, the first that yields."""
    held: Answer | None = None
    for one in rules:
        answer = one(case)
        if answer is not None and not one.yields(answer):
            return answer
        held = answer if held is None else held
    return held
