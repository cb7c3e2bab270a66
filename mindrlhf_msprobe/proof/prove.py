"""`prove`: B runs again with A's tensors where it first differs, until everything agrees.

The claim is that the earliest place suffices and none before it does. Nothing before it can: each
record that was compared before the first difference agrees. That it suffices is an experiment: with
A's tensors there, all that is recorded behind it agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import NO_END, phases_of
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.findings.proof import Conclusion, Proof, ProvenCause, Round, Where
from mindrlhf_msprobe.findings.words import Outcome, Status
from mindrlhf_msprobe.proof.places import (
    OF_A_CELL,
    NoPlaceError,
    Place,
    alike,
    disagreeing,
    head_of,
    places_of,
)
from mindrlhf_msprobe.proof.trials import Trial, TrialError, Trials, takes, why_of
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances

#: What COMMAND has where it can run either side.
SIDE = "side"
PROOF_FILE = "proof.json"
_GIB = 1 << 30

#: Is told what begins: a round's kind and number.
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Experiment:
    """What is to be proven, and how.

    Attributes:
        a, b: the two runs.
        output: the directory for all rounds.
        command: what runs B again; with `{side}` in it, A too.
        tensors: a run of A with elements, where it was recorded already.
        again: how often B runs again as it is.
        rounds: how many grafts are tried at most.
        seconds: after how many a command is stopped.
        gib: how much A's tensors may take.
        tolerance: within which records agree.
    """

    a: Path
    b: Path
    output: Path
    command: Sequence[str]
    tensors: Path | None = None
    again: int = 1
    rounds: int = 8
    seconds: float | None = None
    gib: float = 20.0
    tolerance: Tolerances | None = None


def prove(experiment: Experiment, progress: Progress = lambda kind, number: None) -> Proof:
    """Find by experiments which places explain all of the difference of two runs.

    Writes proof.json and a directory for each round into the output. A call that was interrupted
    goes on where it was when it is made again.

    Raises:
        RunError, UsageError: a run cannot be read, the output holds something else, or the command
            cannot be started.
    """
    found = _Rounds(experiment, progress).conclude()
    write_json(experiment.output / PROOF_FILE, found.to_json())
    return found


class _UndecidedError(Exception):
    """No experiment could be made, or none can be trusted."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


class _Rounds:
    def __init__(self, experiment: Experiment, progress: Progress) -> None:
        self._of = experiment
        self._progress = progress
        what = {"a": str(experiment.a.resolve()), "b": str(experiment.b.resolve())}
        self._trials = Trials(experiment.output, what, experiment.command, experiment.seconds)
        self._rounds: list[Round] = []
        self._causes: list[ProvenCause] = []
        self._places: list[Place] = []
        self._evidence: list[Message] = []
        self._noise: Where | None = None
        self._shown: tuple[int, int] | None = None
        self._first: Where | None = None

    def conclude(self) -> Proof:
        """Make the rounds, and return what they show."""
        current = self._compare(self._of.a, self._of.b, "comparison")
        if current.verdict.status is Outcome.INCOMPARABLE:
            return self._end(Conclusion.NO_PROOF, message("proof.incomparable"))
        if current:
            return self._end(Conclusion.NOTHING_DIFFERS)
        first = current.verdict.first_divergence
        self._first = Where.of(first)
        try:
            tensors = self._tensors(current)
            self._run_again(current)
        except _UndecidedError as undecided:
            return self._end(Conclusion.NO_PROOF, undecided.why)
        if self._shown is not None and self._shown[0] < self._shown[1]:
            return self._end(Conclusion.NOT_REPRODUCIBLE)
        if first is not None:
            self._evidence.append(message("proof.before", records=first.agreed_before))
        if loosely := current.verdict.counts.get(Status.WITHIN_TOLERANCE.value, 0):
            self._evidence.append(message("proof.loosely", records=loosely))
        try:
            return self._graft(current, tensors)
        except _UndecidedError as undecided:
            return self._end(Conclusion.NO_PROOF, undecided.why)

    def _graft(self, current: Comparison, tensors: Run) -> Proof:
        """Put A's tensors in where the runs first differ, and again where they then do."""
        first = current
        phases = phases_of(tensors.config())
        for number in range(1, self._of.rounds + 1):
            divergence = current.verdict.first_divergence
            where = Where.of(divergence)
            assert where is not None
            try:
                places = places_of(current, tensors, phases)
            except NoPlaceError as nothing:
                return self._without_place(where, nothing)
            place = self._next_of(places, tensors)
            if place is None:
                return self._end(self._partly(), message("proof.still_there"), remaining=where)
            self._contained: ProvenCause | None = None
            self._replace_by(place)
            trial = self._make("graft", number, self._settings(tensors))
            put_in = _put_in(open_run(trial.run))
            after = self._compare(self._of.a, trial.run, f"graft{number}/comparison")
            self._note("graft", trial, after, put_in)
            if after.verdict.status is Outcome.INCOMPARABLE:
                raise _UndecidedError(message("proof.incomparable"))
            if place.entries and not put_in:
                return self._end(self._partly(), message("proof.not_put_in"), remaining=where)
            explained = self._behind(first) - self._behind(after)
            explained -= sum(cause.explained for cause in self._causes)
            parts = (place.entries, place.what, place.phases, max(0, explained), place.keys)
            reasons = divergence.reasons if divergence is not None else ()
            cause = ProvenCause(where, *parts, reasons)
            if (known := self._contained) is not None:  # it stays where it was found first
                cause = replace(cause, where=known.where, reasons=known.reasons)
            self._causes.append(cause)
            left = [f for f in disagreeing(after) if not self._is_result(f)]
            if not left:
                return self._end(Conclusion.PROVEN)
            current = after
        return self._end(
            self._partly(),
            message("proof.rounds", rounds=self._of.rounds),
            remaining=Where.of(current.verdict.first_divergence),
        )

    def _next_of(self, places: Sequence[Place], tensors: Run) -> Place | None:
        """Return the first place that has not been tried; None: all have."""
        whole = [self._widened(_of_network(place, tensors), tensors) for place in places]
        return next((place for place in whole if place not in self._places), None)

    def _without_place(self, where: Where, nothing: NoPlaceError) -> Proof:
        """Conclude where what differs cannot be put in."""
        if not self._causes and nothing.keys:
            return self._end(Conclusion.NO_PROOF, nothing.why, remaining=where)
        return self._end(self._partly(), nothing.why, remaining=where)

    def _partly(self) -> Conclusion:
        if any(cause.explained for cause in self._causes):
            return Conclusion.NOT_ALONE
        return Conclusion.NOT_THE_CAUSE if self._causes else Conclusion.NO_PROOF

    def _is_result(self, finding: Any) -> bool:
        """Return whether it is key data that were computed before what was put in."""
        return any(finding.key in place.keys for place in self._places)

    def _behind(self, comparison: Comparison) -> int:
        """Return how many records differ, but for those that are put in by now."""
        return sum(
            not any(place.holds(finding) for place in self._places)
            for finding in disagreeing(comparison)
        )

    def _widened(self, place: Place, tensors: Run) -> Place:
        """Return the same cell of all layers, where that of another layer was to blame before."""
        kinds = {alike(head) for head in place.entries}
        before = [p for p in self._places if kinds & {alike(head) for head in p.entries}]
        if place.what != OF_A_CELL or not before:
            return place
        phases = tuple(dict.fromkeys(name for one in (*before, place) for name in one.phases))
        heads = {
            head_of(entry.name)
            for at in tensors.layer_places(rank=tensors.ranks[0])
            if at.phase in phases
            for entry in tensors.each_entry(at)
        }
        entries = tuple(sorted(head for head in heads if alike(head) in kinds))
        return replace(place, entries=entries, phases=phases)

    def _replace_by(self, place: Place) -> None:
        """Take a place; those that it contains are given up, with the causes that they were."""
        for one in [*self._places]:
            if set(one.entries) <= set(place.entries) and one.what == place.what and one.entries:
                at = self._places.index(one)
                self._contained = self._contained or self._causes[at]
                del self._places[at], self._causes[at]
        self._places.append(place)

    def _settings(self, tensors: Run) -> dict[str, Any]:
        path = str(tensors.path)
        replaced = {place.replaces: path for place in self._places if place.replaces}
        grafts = [place.settings(path) for place in self._places if place.entries]
        return {
            **({"graft": grafts} if grafts else {}),
            **({"replace": replaced} if replaced else {}),
        }

    # --- the runs that are needed ----------------------------------------------------------------

    def _tensors(self, comparison: Comparison) -> Run:
        """Return a run of A with elements: a given one, A itself, or one that is made now."""
        first = comparison.verdict.first_divergence
        if self._of.tensors is not None:
            return self._same_as_a(self._of.tensors, "tensors/comparison")
        a = open_run(self._of.a)
        config = a.config()
        if config is not None and config.task == "tensor":
            return a
        settings = {
            "task": "tensor",
            "graft": [],
            "step_end": config.step_end if config else NO_END,
        }
        if not takes(self._of.command, SIDE):
            raise _UndecidedError(
                message("proof.needs_tensors", settings=_shown(settings), side=f"{{{SIDE}}}")
            )
        needed = _bytes_of(a, first.step if first else a.steps[0]) * len(a.steps)
        if needed > self._of.gib * _GIB:
            gib = f"{needed / _GIB:.1f}"
            raise _UndecidedError(message("proof.too_large", gib=gib, most=self._of.gib))
        trial = self._make("tensors", 1, settings, side="a")
        run = self._same_as_a(trial.run, "tensors1/comparison")
        self._rounds.append(Round("tensors", str(trial.directory), trial.seconds, trial.reused))
        return run

    def _same_as_a(self, path: Path, output: str) -> Run:
        """Open a run that is to be A's, and has to hold the same."""
        result = self._compare(self._of.a, path, output)
        if not result:
            self._noise = Where.of(result.verdict.first_divergence)
            raise _UndecidedError(message("proof.a_differs", path=str(path)))
        self._evidence.append(message("proof.a_again"))
        return open_run(path)

    def _run_again(self, comparison: Comparison) -> None:
        """Run B as it is, and see whether it differs from A at the same place, as before."""
        shown = 1
        for number in range(1, self._of.again + 1):
            trial = self._make("again", number, {})
            again = self._compare(self._of.a, trial.run, f"again{number}/comparison")
            self._note("again", trial, again)
            shown += Where.of(again.verdict.first_divergence) == self._first
            own = self._compare(self._of.b, trial.run, None)
            if not own and self._noise is None:
                self._noise = Where.of(own.verdict.first_divergence)
        if self._of.again:
            self._shown = shown, self._of.again + 1
            if self._noise is None:
                self._evidence.append(message("proof.b_again", runs=self._of.again))
        noise_is_there = self._noise is not None and self._noise == self._first
        if noise_is_there and message("proof.a_again") not in self._evidence:
            raise _UndecidedError(message("proof.noise"))

    def _make(self, kind: str, number: int, settings: Mapping[str, Any], side: str = "b") -> Trial:
        self._progress(kind, number)
        try:
            return self._trials.make(f"{kind}{number}", settings, {SIDE: side})
        except TrialError as error:
            raise _UndecidedError(why_of(error)) from None

    def _compare(self, a: Path, b: Path, output: str | None) -> Comparison:
        from mindrlhf_msprobe.api import compare_runs

        path = None if output is None else self._of.output / output
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if open_run(a).ranks != open_run(b).ranks:
            raise RunError.saying("proof.other_ranks", a=a, b=b)
        return compare_runs(a, b, output_path=path, tolerance=self._of.tolerance, all_rows=False)

    def _note(self, kind: str, trial: Trial, result: Comparison, put_in: int | None = None) -> None:
        counts = Where.of(result.verdict.first_divergence)
        different = sum(1 for _ in disagreeing(result))
        self._rounds.append(
            Round(
                *(kind, str(trial.directory), trial.seconds, trial.reused),
                *(different, counts, put_in),
            )
        )

    def _end(self, conclusion: Conclusion, *why: Message, remaining: Where | None = None) -> Proof:
        return Proof(
            *(str(self._of.a), str(self._of.b), str(self._of.output), conclusion, why),
            first=self._first,
            causes=tuple(self._causes),
            rounds=tuple(self._rounds),
            remaining=remaining,
            noise=self._noise,
            shown=self._shown,
            evidence=tuple(self._evidence),
        )


def _of_network(place: Place, tensors: Run) -> Place:
    """Return a place of parameters with all cells that have some in its phases."""
    if place.entries or place.replaces:
        return place
    heads = {
        head_of(entry.name)
        for at in tensors.layer_places(rank=tensors.ranks[0])
        if at.phase in place.phases
        for entry in tensors.each_entry(at)
        if any(record.io == "parameters" for record in entry.records)
    }
    return replace(place, entries=tuple(sorted(heads)))


def _put_in(run: Run) -> int:
    """Return how many records were put in on all ranks by the graft that was given last."""
    return sum(grafts[-1].put_in or 0 for file in run.run_files if (grafts := file.grafted))


def _bytes_of(run: Run, step: int) -> int:
    """Return how many bytes the tensors of one step take, with all ranks."""
    return sum(
        prod(record.leaf.shape) * _bytes_of_element(record.leaf.dtype)
        for at in run.layer_places(step=step)
        for entry in run.each_entry(at)
        for record in entry.records
        if record.leaf.dtype is not None and record.leaf.shape is not None
    )


def _bytes_of_element(dtype: str) -> int:
    """Return how many bytes an element takes, by its dtype's name: `Float32`, `Bool`."""
    bits = re.search(r"\d+$", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}: {value}" for name, value in settings.items() if value not in ([], NO_END)
    )
