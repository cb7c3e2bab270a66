"""What differs between two runs before any tensor: settings, versions, weights."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, in_words, message
from mindrlhf_msprobe.config import SECTION
from mindrlhf_msprobe.findings.words import SCHEMA, TOOL, Shown
from mindrlhf_msprobe.storage.layout import WITHHELD

#: Values of a difference that stand for others: see `layout.WITHHELD`.
ANOTHER_WITHHELD = f"{WITHHELD}, another value"

OTHER_ON_EACH_RANK = "other values on each rank"

#: Values that stand for others, and what they are called.
STAND_INS = {
    WITHHELD: message("console.withheld"),
    ANOTHER_WITHHELD: message("console.another_withheld"),
    OTHER_ON_EACH_RANK: message("console.other_on_each_rank"),
}


#: Sections of MindFormers' configuration that change nothing of what is computed, and settings of
#: its datasets.
_OF_SAVING = frozenset(
    ("monitor", "monitor_config", "profile", "profiler", "tensorboard", "swanlab")
)
_OF_READING = frozenset(
    ("num_parallel_workers", "prefetch_size", "numa_enable", "python_multiprocessing")
)


@dataclass(frozen=True)
class Difference:
    """Something about two runs that differs before any tensor is looked at.

    Attributes:
        section: what it belongs to: schema, versions, device, world, seeds, determinism, modes,
            cells, optimizers, environment, configurations, msprobe_config or initial_weights; of
            `preflight compare` also packages, checkpoints, data, script and random_calls.
        setting: by its path inside the section, e.g. `actor.model.num_layers`; "" where it is the
            mode of a phase, or the section as a whole.
        a, b: what each run says, as text; None where it says nothing.
        role, phases: of modes, cells and optimizers, whose network it is, and the phases if it does
            not hold for all of that role.
        step: the step from which on they differ, if not from the first.
        cells, kind: of modes and cells, the cells it holds for, and their class.
        ranks: those it holds for, if not for all.
    """

    section: str
    setting: str
    a: str | None = None
    b: str | None = None
    role: str | None = None
    phases: tuple[str, ...] = ()
    step: int | None = None
    cells: tuple[str, ...] = field(default=(), repr=False)
    kind: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def label(self) -> Message:
        """What it is called: the setting, and for what it holds where that is not everything."""
        where = {"phases": list(self.phases) if self.section in ("modes", "cells") else []}
        of_cells = {"more": max(0, len(self.cells) - 1), "kind": self.kind}
        which = {"of_phase": self.section == "modes", "step": self.step, "ranks": list(self.ranks)}
        return Message("preflight.name", {"setting": self.setting, **of_cells, **where, **which})

    @property
    def name(self) -> str:
        """What it is called, in English: a name in verdict.json stays in any language."""
        return in_words(self.label, "en")

    @property
    def phase(self) -> str | None:
        """The phase, if it holds for one alone."""
        return self.phases[0] if len(self.phases) == 1 else None

    @property
    def is_place(self) -> bool:
        """Whether both say where a file lies, which each run has to say in its own words."""
        return os.sep in (self.a or "") and os.sep in (self.b or "")

    @property
    def is_of_saving(self) -> bool:
        """Whether it says what a trainer saves, logs or measures, or how its data are read.

        By the names that MindFormers' configuration has for these; not what is loaded.
        """
        first, _, rest = self.setting.partition(".")
        last = rest.rpartition(".")[2]
        if first == "checkpoint":
            return not last.startswith(("load", "no_load")) or last == "load_worker_number"
        return first in _OF_SAVING or last in _OF_READING

    @property
    def is_of_recording(self) -> bool:
        """Whether it says what was recorded, which a second round has to change."""
        return self.section == SECTION or SECTION in self.setting.split(".")

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        several = list(self.phases) if len(self.phases) > 1 else None
        name = self.name
        more = {
            **{"role": self.role, "phase": self.phase, "phases": several, "step": self.step},
            "setting": self.setting if name != self.setting else None,
            "ranks": list(self.ranks) or None,
        }
        return {
            **{"section": self.section, "name": name, "a": self.a, "b": self.b},
            **{key: value for key, value in more.items() if value is not None},
        }


@dataclass(frozen=True)
class Weights(Shown):
    """The parameters of one role's network when it was first entered, by their fingerprints.

    Attributes:
        compared: how many parameters both runs have.
        different: the names of those whose bytes, dtype or shape differ.
        only_in_a, only_in_b: the names that one run has alone.
    """

    role: str
    compared: int
    different: tuple[str, ...] = ()
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether both runs started with the same parameters, and at least one was compared."""
        return self.compared > 0 and not self.differ

    @property
    def differ(self) -> bool:
        """Whether any parameter is another one, or one run's alone."""
        return bool(self.different or self.only_in_a or self.only_in_b)


@dataclass(frozen=True)
class Preflight(Shown):
    """What differs between two runs before any tensor: settings, versions, weights.

    Attributes:
        differences: in the order of the sections.
        weights: one for each role whose initial parameters both runs recorded.
        unknown: what could not be compared, and why.
    """

    _shown = ("differences", "initial_weights=weights", "unknown", "unknown_codes=not_compared")

    differences: tuple[Difference, ...] = ()
    weights: tuple[Weights, ...] = ()
    not_compared: Messages = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """What `not_compared` says, each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.not_compared))

    @property
    def differ(self) -> bool:
        """Whether anything that both sides say differs."""
        return bool(self.differences) or any(weights.differ for weights in self.weights)

    def as_result(self, a: str, b: str) -> dict[str, Any]:
        """Return what `preflight compare` writes of two sides."""
        status = "different" if self.differ else "same"
        head = {"schema": SCHEMA, "tool": TOOL, "kind": "preflight_comparison", "status": status}
        return {**head, "a": a, "b": b, **self.to_json()}
