"""What training against inference concludes: where the same token first gets other values.

All that report/ knows of it; comparison/mismatch makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.errors import DIVERGED, SAME
from mindrlhf_msprobe.findings.words import SCHEMA, Keyword, Shown, as_json, by_fields, by_names
from mindrlhf_msprobe.storage.records import is_around


class Agreement(Keyword):
    """What a rollout network and a training network are to each other in one step."""

    IDENTICAL = "identical"  #: every aligned row is equal bit for bit
    WITHIN_ROUNDING = "within_rounding"  #: what the dtype explains
    PARTED = "parted"
    UNDECIDED = "undecided"

    @property
    def agrees(self) -> bool:
        """Whether both agree."""
        return self in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)


class Cause(Keyword):
    """What is to blame where they part."""

    WEIGHTS = "weights"  #: the rollout network has other parameters
    INPUT = "input"  #: it was given other positions, or what its code hands on differs
    DTYPE = "dtype"  #: one side computes in a lower precision
    COMPUTATION = "computation"  #: one cell makes another output of the same input
    GRADUAL = "gradual"  #: no single cell, but more than all their roundings explain
    SAMPLING = "sampling"  #: behind the network: temperature, masks, the log-probabilities


@dataclass(frozen=True, slots=True)
class Stage(Shown):
    """One value on its way through the network, its rows summarised.

    Distances are L2 distances of rows, relative to the training's row.

    Attributes:
        cell, io, path: the value, by the training network's names; `cell` is root for the network.
        nth: how many times the cell had run before in the same call of the network.
        entered: root mean square of the distances of what its cell was given; where none of that
            could be aligned, of what was furthest apart before.
        apart: the same of the value itself.
        most: the largest of a row.
        allowed: the distance of a row that rounding in its cell explains.
        rows: how many rows were compared.
        unequal: how many of them are not equal bit for bit.
        arising: how many rows are further apart than rounding and what entered explain.
        dtypes: of the rollout's value and of the training's.
        worst: tokens of the rows furthest apart, the worst first.
        lasting: whether the error that began is still there where the cells around it return.
    """

    _shown = (
        *("cell", "io", "path", "nth", "entered", "apart", "most", "allowed", "rows", "unequal"),
        *("born=arising", "dtypes", "worst", "lasting"),
    )

    cell: str
    io: str
    path: str
    nth: int
    entered: float
    apart: float
    most: float
    allowed: float
    rows: int
    unequal: int
    arising: int
    dtypes: tuple[str, str]
    worst: tuple[Token, ...] = ()
    lasting: bool = True

    @property
    def name(self) -> str:
        """The value's name: cell, input or output, and its place in it."""
        again = f"[{self.nth}]" if self.nth else ""
        return f"{self.cell}{again} {self.io}.{self.path}"

    @property
    def growth(self) -> float:
        """How many times further apart the value is than what entered, or than rounding."""
        return self.apart / max(self.entered, self.allowed)

    def is_around(self, cell: str) -> bool:
        """Return whether it is what a cell returns inside which another one is."""
        return self.io == "output" and is_around(self.cell, cell)


@dataclass(frozen=True, slots=True)
class Token(Shown):
    """One token of the rollout.

    Attributes:
        sample: the number of its sequence, in the order in which the rollout began them.
        position: its place in it, from 0.
        id: the token.
        text: what it stands for, with those before it; "" without a tokenizer.
        call: the rollout network's call that computed it, from 0.
        role: padding (the first of a prompt, behind padding), prompt, first (the first token
            behind the prompt), response, or block (of a response, the first in a block of a paged
            cache).
        apart: the relative distance of its row.
    """

    sample: int
    position: int
    id: int
    call: int
    role: str
    apart: float
    text: str = ""


@dataclass(frozen=True)
class TokenMap:
    """How far each token's row is apart on its way through the network: tokens by layers.

    Attributes:
        columns: the values, numbers of `Mismatch.stages`: what each layer returns, and what cells
            beside the layers do, in causal order.
        tokens: the rows, by sample and position; `apart` of one is the largest of its row.
        apart: relative distances, float32 [tokens, columns]; NaN where they were not compared.
        others: of samples whose tokens are not all among the rows: the sample (None: all further
            samples), how many tokens were left out, and the largest distance of these in each
            column, float32 [columns].
    """

    columns: tuple[int, ...]
    tokens: tuple[Token, ...]
    apart: np.ndarray
    others: tuple[tuple[int | None, int, np.ndarray], ...] = ()


@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities of the sampled tokens, as they were saved as key data.

    Attributes:
        rollout, training: natural logarithms, [samples, tokens].
        mask: which tokens count, not 0, of the same shape; None: all.
    """

    rollout: np.ndarray
    training: np.ndarray
    mask: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class SampledToken(Shown):
    """One token that was sampled, and its log-probabilities.

    Attributes:
        row: of the responses, from 0, through all saves of a step.
        place: in its response, from 0.
        id: the token; None where the responses were not saved as token ids.
        rollout, training: its log-probabilities, natural logarithms; not finite ones as they are.
    """

    row: int
    place: int
    id: int | None
    rollout: float
    training: float


@dataclass(frozen=True, slots=True)
class InFlight(Shown):
    """When a parameter of the rollout network got other values while it generated.

    Attributes:
        call: of the rollout network, from 0: the first with the new values.
        token: the place in its response of the last token that this call is given; None if it is
            given tokens of prompts alone.
        brought: whether it has the training network's values from then on; else until then.
    """

    call: int
    token: int | None
    brought: bool


@dataclass(frozen=True, slots=True)
class Weight(Shown):
    """One parameter of the rollout network that is not the training network's.

    Attributes:
        rollout: its name.
        training: the names of what it is in the training network; several, if it is fused.
        relative: the L2 distance relative to the training's norm; None where only fingerprints say
            that it differs.
        dtypes: of the rollout's and the training's.
        since: the first of the steps up to this one in which it differed; None where it is not
            known.
        stale: the earlier step whose weights of the training network it still has, or None.
        rounded: the lower dtype to which the training's values are rounded in it, where that is all
            they differ by; None where it is not, or is not known.
        in_flight: where it differs in some calls of the step alone: from which on, or until which.
        lacks: the adapters of the training network by which it differs, which others hold merged.
        moved: how its elements stand in other places than the training's, or whose they are; None
            where they do not.
    """

    _shown = (
        *("rollout", "training", "relative", "dtypes", "since", "stale", "rounded"),
        *("in_flight?", "lacks?", "moved?"),
    )

    rollout: str
    training: tuple[str, ...]
    relative: float | None
    dtypes: tuple[str, str]
    since: int | None = None
    stale: int | None = None
    rounded: str | None = None
    in_flight: InFlight | None = None
    lacks: tuple[str, ...] = ()
    moved: Message | None = None


@dataclass(frozen=True, slots=True)
class Experts(Shown):
    """Which experts one router chose for the aligned tokens; their order does not count.

    Attributes:
        cell, nth: the cell that returns the choice, or in which it is made.
        chosen: how many experts a token has.
        tokens: how many tokens were compared.
        others: how many of them have other experts.
        before: for how many of these the router was given something else already.
        by: for how many what it was given agrees; `others` less both: nothing says it.
    """

    cell: str
    nth: int
    chosen: int
    tokens: int
    others: int
    before: int
    by: int

    @property
    def counts(self) -> dict[str, Any]:
        """What messages say of it."""
        return by_names(self, "cell", "tokens", "others", "before", "by")


@dataclass(frozen=True)
class Mismatch:
    """What one step of one rank says.

    Attributes:
        rollout, training: the phases.
        cause: None unless they part.
        first: the value at which they part, in causal order; None where it lies behind the network.
        said: what is to be said of the cause, one sentence each.
        stages: all values that were compared, in causal order of the training network.
        weights: parameters that differ; how many were compared; how many of these could not be; and
            those of either network that the other has not, of the rollout and of the training.
        metrics: of the log-probabilities, by the names that verl uses.
        sampled: the sampled tokens whose log-probabilities are furthest apart, the worst first.
        rows, tokens: how many rows were aligned, of how many tokens of the rollout.
        saved_aligned, saved: how many tokens of the saved prompts and responses were aligned, of
            how many that both phases were to record; 0 of 0 where none were saved.
        sampled_aligned, sampled_rows: how many rows were aligned whose next token was sampled, of
            how many. Where less than half of them is aligned, nothing is said to agree.
        experts: of each router whose choices both recorded, in causal order.
        not_compared: values of both networks that could not be brought together, and why.
        notes: what else a reader must know.
        token_map: tokens by layers, of limited size; None where no row was compared.
        log_probs: what the metrics are of; None where they were not saved. Both are for the report
            page, and not in the JSON.
    """

    step: int
    rank: int
    rollout: str
    training: str
    status: Agreement
    cause: Cause | None = None
    first: Stage | None = None
    said: Messages = ()
    stages: tuple[Stage, ...] = ()
    weights: tuple[Weight, ...] = ()
    weights_compared: int = 0
    weights_unknown: tuple[str, ...] = ()
    weights_alone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    metrics: Mapping[str, float] = field(default_factory=dict)
    sampled: tuple[SampledToken, ...] = ()
    rows: int = 0
    tokens: int = 0
    saved_aligned: int = 0
    saved: int = 0
    experts: tuple[Experts, ...] = ()
    sampled_aligned: int = 0
    sampled_rows: int = 0
    not_compared: tuple[tuple[str, Message], ...] = ()
    notes: Messages = ()
    token_map: TokenMap | None = field(default=None, compare=False, repr=False)
    log_probs: LogProbs | None = field(default=None, compare=False, repr=False)

    @property
    def origins(self) -> tuple[Stage, ...]:
        """Where an error begins that lasts, in causal order; without the cells around these."""
        found: list[Stage] = []
        for stage in self.stages:
            if stage.arising and stage.lasting and not any(stage.is_around(s.cell) for s in found):
                found.append(stage)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        names = ("step", "rank", "rollout", "training", "status", "cause", "rows", "tokens")
        counts = ("saved_aligned", "saved", "sampled_aligned", "sampled_rows")
        values = ("first", "explanation=said!s", "codes=said", "births=origins", "stages")
        alone = dict(zip(("rollout", "training"), self.weights_alone))
        return {
            **by_names(self, *names, *counts, *values),
            "weights": {
                "compared": self.weights_compared,
                "unknown": [*self.weights_unknown],
                "alone": as_json(alone),
                "different": as_json(self.weights),
            },
            **by_names(self, "metrics", "sampled", "experts"),
            "not_compared": [{"value": name, "why": str(why)} for name, why in self.not_compared],
            **by_names(self, "notes!s"),
        }


@dataclass(frozen=True)
class ExactPlace:
    """What speaks for one computation in one step of one rank.

    Attributes:
        missing: the phases that it has not recorded.
        sampled, aligned: how many tokens were sampled, and how many of these are aligned in both
            phases and have both log-probabilities.
        compared, unequal, non_finite: how many log-probabilities of both sides were compared, are
            not one value of one dtype, and are not finite on either side. -0.0 equals 0.0.
        weights, weights_different, weights_unknown: how many parameters both sides have, how many
            of these differ or change within a phase, and how many are not known to be equal, are
            of one side alone, or of cells that were not recorded.
    """

    step: int
    rank: int
    missing: tuple[str, ...] = ()
    sampled: int = 0
    aligned: int = 0
    compared: int = 0
    unequal: int = 0
    non_finite: int = 0
    weights: int = 0
    weights_different: int = 0
    weights_unknown: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many of what, by name."""
        return {
            name: n
            for name, n in by_fields(self).items()
            if name not in ("step", "rank", "missing")
        }

    def __bool__(self) -> bool:
        """Return whether everything is there and equal."""
        there = not self.missing and 0 < self.sampled == self.aligned and self.compared > 0
        apart = self.unequal or self.non_finite or self.weights_different or self.weights_unknown
        return there and not apart and self.weights > 0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"exact": bool(self), **by_fields(self)}


@dataclass(frozen=True)
class Certificate:
    """Whether rollout and training are one computation, in all chosen steps and ranks.

    Attributes:
        places: by step and rank.
        reasons: what else speaks against it: networks that part, what the runs lost or lack, or
            cannot be read of.
    """

    places: tuple[ExactPlace, ...]
    reasons: Messages = ()

    @property
    def counts(self) -> dict[str, int]:
        """Those of all places together."""
        each = [place.counts for place in (*self.places, ExactPlace(0, 0))]
        return {name: sum(counts[name] for counts in each) for name in each[-1]}

    def __bool__(self) -> bool:
        """Return whether it is proved, and nothing left out."""
        return bool(self.places) and all(self.places) and not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"exact": bool(self), **self.counts, **by_names(self, "reasons!s", "places")}


@dataclass(frozen=True)
class Mismatches:
    """What all chosen steps say.

    Attributes:
        runs: the paths of the runs, that of the rollout first; one, if both phases are of one run.
        found: by step and rank.
        certificate: whether both are one computation; None where none was wanted.
    """

    runs: tuple[str, ...]
    found: tuple[Mismatch, ...]
    certificate: Certificate | None = None

    @property
    def status(self) -> Agreement:
        """The worst of all: parted, undecided, within rounding, identical."""
        seen = {one.status for one in self.found}
        order = (
            *(Agreement.PARTED, Agreement.UNDECIDED),
            *(Agreement.WITHIN_ROUNDING, Agreement.IDENTICAL),
        )
        return next((status for status in order if status in seen), Agreement.UNDECIDED)

    @property
    def first(self) -> Mismatch | None:
        """The first step and rank that part, or None."""
        return next((one for one in self.found if one.status is Agreement.PARTED), None)

    @property
    def exit_code(self) -> int:
        """The exit code that says whether they agree, or are proved to be one computation."""
        if self.certificate is None:
            return self.status.exit_code
        return SAME if self.certificate else DIVERGED

    def __bool__(self) -> bool:
        """Return whether they agree."""
        return self.status.agrees

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "schema": SCHEMA,
            **by_names(self, "runs", "status"),
            "steps": as_json(self.found),
            **({} if self.certificate is None else {"certificate": self.certificate.to_json()}),
        }
