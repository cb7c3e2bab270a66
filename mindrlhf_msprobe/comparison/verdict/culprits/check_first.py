"""Which of the differences before any tensor can explain a finding: to be checked first.

A difference is named where it could have this effect, never as the cause: a learning rate after an
update of its role, an attribute of the cell that computed otherwise, the mode of the phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from mindrlhf_msprobe.comparison.preflight.generation import SEEDS, OwnStep, states_differ
from mindrlhf_msprobe.comparison.preflight.networks import CELLS, MODES, OPTIMIZERS
from mindrlhf_msprobe.comparison.preflight.remark import GENERATOR_STATES
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.comparison.verdict.operators import cell_of
from mindrlhf_msprobe.findings import Cause, CheckFirst, Difference, Nearness, Preflight
from mindrlhf_msprobe.phases import (
    INPUT_KEYS,
    PROMPTS,
    ROLES,
    UPDATE_PHASES,
    Phase,
    key_data_home,
    phase_table,
    role_of,
)

MAX_CHECKS = 20


def check_first(
    preflight: Preflight,
    first: FirstDifference,
    cause: Cause,
    origin: str | None,
    sides: tuple[OwnStep, OwnStep],
) -> tuple[CheckFirst, ...]:
    """Return what to check before looking closer at the first difference, the nearest first.

    Args:
        cause, origin: what the explanation says of it.
        sides: its step and rank in each of both runs.
    """
    if cause is Cause.UNREADABLE:
        return ()
    reached = _Reached(first, cause, origin, sides)
    found = list(reached.weights(preflight))
    for difference in preflight.differences:
        near = reached.nearness(difference)
        if near is not None:
            found.append(CheckFirst(near, difference))
    found.sort(key=lambda check: tuple(Nearness).index(check.near))
    return tuple(found[:MAX_CHECKS])


class _Reached:
    """A finding, and what could have reached it."""

    def __init__(
        self,
        first: FirstDifference,
        cause: Cause,
        origin: str | None,
        sides: tuple[OwnStep, OwnStep],
    ) -> None:
        finding = first.finding
        self._cause = cause
        self._step = finding.step
        self._key = finding.key
        self._sides = sides
        self._cell = cell_of(first, origin) or None
        self._backward = first.entry is not None and first.entry.direction != "forward"
        config = sides[0].run.config(sides[0].rank)
        self._table = config.phase_table() if config else phase_table({})
        self._phase: Phase | None = self._table.get(finding.phase or "")
        self._updated = self._roles_updated(first, config.initial_step if config else 0)

    def _roles_updated(self, first: FirstDifference, initial_step: int) -> set[str]:
        """Return the roles of which an update ran before."""
        if self._step > initial_step:
            return {phase.role for phase in self._table.values()}
        ran = {pair.event.phase for pair, f in first.before if f is not None}
        return {p.role for p in self._table.values() if p.name in ran and p.name in UPDATE_PHASES}

    def weights(self, preflight: Preflight) -> Iterator[CheckFirst]:
        """Yield the initial weights that differ and are those of the finding's role."""
        for weights in preflight.weights:
            # With the cells at hand whose parameters agree, it is not the weights.
            if (
                weights.differ
                and self._concerns(role_of(weights.role))
                and self._cause is not Cause.COMPUTATION
            ):
                yield CheckFirst(Nearness.ROLE, weights)

    def nearness(self, difference: Difference) -> Nearness | None:
        """Return how near a setting is to the finding; None if it cannot explain it."""
        if difference.is_of_recording:
            return None
        if difference.step is not None and difference.step > self._step:
            return None
        if difference.section == MODES:
            return self._of_mode(difference)
        if difference.section == CELLS:
            return self._of_cells(difference)
        if difference.section == "generation":
            return Nearness.PHASE if self._draws and self._concerns(difference.role) else None
        if difference.section == OPTIMIZERS:
            role = difference.role or ""
            after = role in self._updated and self._cause is not Cause.COMPUTATION
            return Nearness.ROLE if after and self._concerns(role) else None
        return Nearness.RUN if self._of_run(difference) else None

    def _of_mode(self, difference: Difference) -> Nearness | None:
        if difference.phase is None:
            return Nearness.ROLE if self._concerns(difference.role) else None
        if self._phase is not None and difference.phase == self._phase.name:
            return Nearness.PHASE if self._in_origin(difference) else None
        return Nearness.ROLE if self._came_of_update(difference) else None

    def _of_cells(self, difference: Difference) -> Nearness | None:
        if difference.phases and self._phase is not None:
            if self._phase.name not in difference.phases:
                return Nearness.ROLE if self._came_of_update(difference) else None
        elif not self._concerns(difference.role):
            return None
        if not self._in_origin(difference):
            return None
        return Nearness.CELL if self._cause is Cause.COMPUTATION else Nearness.ROLE

    def _came_of_update(self, difference: Difference) -> bool:
        """Return whether it can have changed an update of the role before the finding."""
        role = difference.role
        return (
            (not difference.phases or any(p in UPDATE_PHASES for p in difference.phases))
            and role in self._updated
            and self._concerns(role)
            and self._cause is not Cause.COMPUTATION
        )

    def _in_origin(self, difference: Difference) -> bool:
        """Return whether the cells of a setting are among those that the finding blames."""
        if self._cause is Cause.INPUT and self._key is None and not self._backward:
            return False  # it came from outside the cells
        if self._cause is Cause.PARAMETER:
            return (difference.role or "") in self._updated
        if self._cause is not Cause.COMPUTATION or self._cell is None or self._cell == "root":
            return True
        own = f"{self._cell}."
        if difference.section == MODES:  # a mode holds for all cells inside, too
            around = {"root", *accumulate(self._cell.split("."), "{}.{}".format)}
            if not difference.cells or around.intersection(difference.cells):
                return True
        cells = difference.cells or ("root",)
        return any(cell == self._cell or cell.startswith(own) for cell in cells)

    def _concerns(self, role: str | None) -> bool:
        """Return whether a role's network can have made what the finding shows."""
        if self._phase is not None:
            return role == self._phase.role and self._key not in PROMPTS
        home = key_data_home(self._key) if self._key is not None else None
        if home is not None:  # rewards, advantages, returns: from what agrees already
            return role not in ROLES
        return True

    def _of_run(self, difference: Difference) -> bool:
        if difference.section == "determinism":
            return self._cause is Cause.COMPUTATION
        if difference.section == SEEDS:
            if difference.setting in GENERATOR_STATES:
                # Tokens may be drawn from a generator that was in other states then.
                drawn = self._draws and difference.setting != "random_state"
                return drawn and states_differ(*self._sides, difference.setting) is not False
            return True
        if difference.section != "configurations" or difference.is_place:
            return False
        if self._phase is None or self._key in PROMPTS:
            return True
        named = {role for role in ROLES if role in difference.setting.split(".")}
        return not named or self._phase.role in named

    @property
    def _draws(self) -> bool:
        """Whether the finding is of what generation chose: responses, or a pass of its phase."""
        if self._key in PROMPTS:
            return False
        return self._key in INPUT_KEYS or bool(self._phase and self._phase.counts_tokens)
