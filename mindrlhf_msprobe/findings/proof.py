"""What experiments conclude: all that report knows of `prove` and `hunt`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.findings.comparison import Divergence
from mindrlhf_msprobe.findings.words import SCHEMA, TOOL, Keyword, Shown, as_json, by_fields


class Conclusion(Keyword):
    """What the rounds of `prove` show."""

    PROVEN = "proven"  #: with A's tensors at the places named, everything agrees
    NOT_SEPARATED = (
        "not_separated"  #: the same, but faults of the trainer's own code are not told apart
    )
    NOT_ALONE = "not_alone"  #: they explain a part; something still differs
    NOT_THE_CAUSE = "not_the_cause"  #: what follows differs with A's tensors there as without
    NOT_REPRODUCIBLE = "not_reproducible"  #: B run again differs at another place, or not at all
    NO_PROOF = "no_proof"  #: no experiment could be made, or none can be trusted
    NOTHING_DIFFERS = "nothing_differs"


@dataclass(frozen=True)
class Where(Shown):
    """Where two runs first differ.

    Attributes:
        phase: None for key data.
        cause: what a comparison calls it.
        entry, key: the entry of the record, or the name of key data.
    """

    step: int
    rank: int
    phase: str | None
    record: str
    cause: str
    entry: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, first: Divergence | None) -> Where | None:
        """Return the place of a first divergence; None without one."""
        if first is None:
            return None
        place = (first.step, first.rank, first.phase, first.record)
        return cls(*place, first.cause.value, first.entry, first.key)

    def is_at(self, other: Where | None) -> bool:
        """Return whether it is the same record, whatever it is called the cause of."""
        return other is not None and replace(self, cause=other.cause) == other


#: What the trainer hands to a network, or makes of what that returned.
OF_TRAINER = frozenset({"input", "gradient"})
#: Weights: before a phase, and behind an update.
OF_WEIGHTS = frozenset({"parameters", "updated_parameters"})


@dataclass(frozen=True)
class ProvenCause(Shown):
    """One place that was given A's tensors.

    Attributes:
        where: where it first differed.
        entries, what, phases, steps: what was put in, as `graft` has it; no steps: in all.
        replaces: the names of values that were put in by `probe.replace` instead.
        explained: how many records behind it agree with A since.
        keys: key data that still differ: what the trainer computed before what was put in.
        reasons: what the comparison says of it.
        between: of a cell's own code, the cells between which it first computed something else;
            "" for its own beginning or end.
    """

    where: Where
    entries: tuple[str, ...]
    what: tuple[str, ...]
    phases: tuple[str, ...]
    steps: tuple[int, ...] = ()
    replaces: tuple[str, ...] = ()
    explained: int = 0
    keys: tuple[str, ...] = ()
    reasons: Messages = ()
    between: tuple[str, ...] = ()

    @property
    def of_weights(self) -> bool:
        """Whether weights were put in."""
        return bool(self.what) and OF_WEIGHTS.issuperset(self.what)

    @property
    def of_updates(self) -> bool:
        """Whether weights were put in behind updates."""
        return "updated_parameters" in self.what

    @property
    def of_trainer(self) -> bool:
        """Whether nothing of a network was put in."""
        return bool(self.what) and OF_TRAINER.issuperset(self.what)


@dataclass(frozen=True)
class Round(Shown):
    """One run of the command, and what the comparison with A said of it.

    Attributes:
        kind: `tensors`: of A, for its tensors; `again`: B as it is; `graft`: B with A's tensors.
        path: the directory of the round.
        seconds: how long the command ran.
        reused: whether an earlier, interrupted call had made it.
        different: how many records are not the same as A's.
        first: the first of them.
        put_in: of a graft, how many records were put in.
        tried: of a graft, what was put in beside that of the rounds before, and what it explained.
        tensors: of a graft, the run of which the tensors are.
    """

    kind: str
    path: str
    seconds: float
    reused: bool
    different: int = 0
    first: Where | None = None
    put_in: int | None = None
    tried: tuple[ProvenCause, ...] = ()
    tensors: str | None = None


@dataclass(frozen=True)
class Proof:
    """What `prove` concludes.

    Attributes:
        why: of a conclusion that could not be reached, why not.
        causes: the places, in the order in which they were found.
        remaining: what still differs first.
        noise: where B run again first differs from B.
        noisy: how many records then do, and of how many that were compared.
        shown: in how many of all runs of B the first difference was at this place, and of how many.
        evidence: what the claim rests on.
    """

    run_a: str
    run_b: str
    output: str
    conclusion: Conclusion
    why: Messages = ()
    first: Where | None = None
    causes: tuple[ProvenCause, ...] = ()
    rounds: tuple[Round, ...] = ()
    remaining: Where | None = None
    noise: Where | None = None
    noisy: tuple[int, int] | None = None
    shown: tuple[int, int] | None = None
    evidence: Messages = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of proof.json."""
        return {"schema": SCHEMA, "tool": TOOL, "kind": "proof", **by_fields(self)}


@dataclass(frozen=True)
class Setting(Shown):
    """One thing in which a good and a bad run are set up differently.

    Attributes:
        kind: `setting` of a file, `environment` variable, `interpreter` or `commit`.
        name: of it.
        good, bad: its two values, as text; None where it is not there.
    """

    kind: str
    name: str
    good: str | None
    bad: str | None


@dataclass(frozen=True)
class Trial(Shown):
    """One run of the command with some of the bad values.

    Attributes:
        bad: the names of what had its bad value.
        result: `good`, `bad`, or `undecided`.
        why: of an undecided one.
    """

    path: str
    bad: tuple[str, ...]
    result: str
    seconds: float
    reused: bool
    why: Message | None = None


@dataclass(frozen=True)
class Hunt:
    """What `hunt` concludes.

    Attributes:
        settings: all that differs between good and bad.
        sets: the smallest sets that make the difference, each by itself.
        commit: the first bad commit, with its subject; None where none was looked for, or found.
        candidates: where it is one of several, those.
        why: why it could not be decided.
        rest_is_good: whether all the other differences together make none; None where there are
            none, or that is not known.
    """

    output: str
    settings: tuple[Setting, ...]
    sets: tuple[tuple[Setting, ...], ...] = ()
    commit: Setting | None = None
    candidates: tuple[Setting, ...] = ()
    trials: tuple[Trial, ...] = ()
    rest_is_good: bool | None = None
    why: Messages = ()

    @property
    def found(self) -> bool:
        """Whether what makes the difference is known."""
        return not self.why and bool(self.sets or self.commit)

    def to_json(self) -> dict[str, Any]:
        """Return the content of hunt.json."""
        known = {"found": self.found, **by_fields(self)}
        return {"schema": SCHEMA, "tool": TOOL, "kind": "hunt", **as_json(known)}
