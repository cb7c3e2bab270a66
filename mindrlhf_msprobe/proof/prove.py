"""`prove`: B runs again with A's tensors where it first differs, until everything agrees.

The claim is that the earliest place suffices and none before it does. Nothing before it can: each
record that was compared before the first difference agrees. That it suffices is an experiment: with
A's tensors there, all that is recorded behind it agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import NO_END, phases_of
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.findings.proof import Conclusion, Proof, ProvenCause, Round, Where
from mindrlhf_msprobe.findings.words import Cause, Outcome, Status
from mindrlhf_msprobe.phases import REPLACED
from mindrlhf_msprobe.proof.places import (
    OF_A_CELL,
    NoPlaceError,
    Place,
    disagreeing,
    head_of,
    of_layers,
    places_of,
    without_layer,
)
from mindrlhf_msprobe.proof.trials import MadeRun, TrialError, Trials, takes
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances

#: What COMMAND has where it can run either side.
SIDE = "side"
PROOF_FILE = "proof.json"
_GIB = 1 << 30

_UPDATED = ("updated_parameters",)
#: Says that key data were left out of a comparison; what became of them is said apart.
_LEFT_OUT = "explanation.left_out"
#: The records of cells, by their names.
_CELLS = (r"^Cell\.",)

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
        runs = {"a": experiment.a, "b": experiment.b, "tensors": experiment.tensors}
        what = {name: _identity(run) for name, run in runs.items() if run is not None}
        self._trials = Trials(experiment.output, what, experiment.command, experiment.seconds)
        self._rounds: list[Round] = []
        self._causes: list[ProvenCause] = []
        self._places: list[Place] = []
        self._given_up: list[Place] = []
        self._contained: ProvenCause | None = None
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
        """Put A's tensors in where cells first differ, and again where they then do."""
        phases = phases_of(tensors.config())
        first, run = current, self._of.b
        for number in count(1):
            if not any(map(of_layers, disagreeing(current))):
                return self._with_keys(first, current)
            layers = self._layers(run, current)
            divergence = layers.verdict.first_divergence
            where = Where.of(divergence)
            assert where is not None
            if number > self._of.rounds:
                why = message("proof.rounds", rounds=self._of.rounds)
                return self._end(self._partly(), why, remaining=where)
            try:
                places = places_of(layers, tensors, phases)
            except NoPlaceError as nothing:
                return self._end(self._partly(), nothing.why, remaining=where)
            place = self._replaced_of(current, tensors) or self._next_of(places, tensors)
            if place is None:
                why = message("proof.still_there")
                return self._end(self._partly(), why, remaining=where)
            if place.entries and _is_compiled(open_run(self._of.b)):
                return self._end(self._partly(), message("proof.compiled"), remaining=where)
            self._put_in(place)
            trial = self._make("graft", number, self._settings(tensors))
            after = self._compare(self._of.a, trial.run, f"graft{number}/comparison")
            if after.verdict.status is Outcome.INCOMPARABLE:
                self._note("graft", trial, after)
                raise _UndecidedError(message("proof.incomparable"))
            put_in = _put_in(open_run(trial.run)) if place.entries else None
            explained = self._behind(first) - self._behind(after)
            explained -= sum(cause.explained for cause in self._causes)
            reasons = () if divergence is None else divergence.reasons
            tried = ProvenCause(
                *(where, place.entries, place.what, place.phases, place.steps),
                replaces=(place.replaces,) if place.replaces else (),
                explained=max(0, explained),
                reasons=tuple(said for said in reasons if said.code != _LEFT_OUT),
            )
            of_graft = {"put_in": put_in, "tried": tried, "tensors": str(tensors.path)}
            self._note("graft", trial, after, **of_graft)
            if put_in == 0:
                why = message("proof.not_put_in")
                return self._end(self._partly(), why, remaining=where)
            self._take_cause(tried, place)
            current, run = after, trial.run
        raise AssertionError

    def _layers(self, run: Path, current: Comparison) -> Comparison:
        """Return what a comparison says of the cells' records alone: where they differ, and why."""
        first = current.verdict.first_divergence
        if first is not None and first.key is None:
            return current
        return self._compare(self._of.a, run, None, include=_CELLS)

    def _replaced_of(self, current: Comparison, tensors: Run) -> Place | None:
        """Return a value to be replaced that differs and has not been, if there is one."""
        for finding in disagreeing(current):
            name = (finding.key or "").removeprefix(f"{REPLACED}.")
            if name != (finding.key or "") and finding.key in tensors.keys:
                place = Place(replaces=name)
                if place not in self._places:
                    return place
        return None

    def _with_keys(self, first: Comparison, last: Comparison) -> Proof:
        """Conclude where all cells agree; key data may still differ, which cannot be put in.

        Where nothing of the trainer was put in, none of them changed what the networks computed:
        the trainer's own code computes each of them from what agrees.
        """
        left = list(dict.fromkeys(f.key for f in disagreeing(last) if f.key is not None))
        of_trainer = [cause for cause in self._causes if cause.of_trainer]
        if left and of_trainer:
            at = self._causes.index(of_trainer[0])
            self._causes[at] = replace(of_trainer[0], keys=tuple(left))
            if len(left) > 1:
                return self._end(Conclusion.NOT_SEPARATED)
        elif left:
            if not any(map(of_layers, last.findings)) and not last.agreements:
                return self._end(Conclusion.NO_PROOF, message("proof.keys_alone", keys=left))
            for key in left:
                finding = next(f for f in disagreeing(last) if f.key == key)
                place = (finding.step, finding.rank, None, finding.record)
                where = Where(*place, Cause.DATA.value, key=key)
                self._causes.append(ProvenCause(where, (), (), (), keys=(key,)))
        return self._end(Conclusion.PROVEN)

    def _next_of(self, places: Sequence[Place], tensors: Run) -> Place | None:
        """Return the first place that has not been tried; None: all have."""
        whole = [self._widened(_of_network(place, tensors), tensors) for place in places]
        tried = [*self._places, *self._given_up]
        return next((place for place in whole if place not in tried), None)

    def _partly(self) -> Conclusion:
        """Return what is concluded where something of the cells still differs."""
        if any(cause.explained for cause in self._causes):
            return Conclusion.NOT_ALONE
        return Conclusion.NOT_THE_CAUSE if self._causes else Conclusion.NO_PROOF

    def _behind(self, comparison: Comparison) -> int:
        """Return how many records differ, but for those that are put in by now."""
        return sum(
            not any(place.holds(finding) for place in self._places)
            for finding in disagreeing(comparison)
        )

    def _widened(self, place: Place, tensors: Run) -> Place:
        """Return the same cell of all layers, where that of another layer was to blame before."""
        kinds = {without_layer(head) for head in place.entries}
        before = [
            one
            for one in self._places
            if one.what == OF_A_CELL
            and one.phases == place.phases
            and kinds & {without_layer(head) for head in one.entries}
        ]
        if place.what != OF_A_CELL or not before:
            return place
        phases = tuple(dict.fromkeys(name for one in (*before, place) for name in one.phases))
        heads = {
            head_of(entry.name)
            for at in tensors.layer_places()
            if at.phase in phases
            for entry in tensors.each_entry(*at)
        }
        entries = tuple(sorted(head for head in heads if without_layer(head) in kinds))
        return replace(place, entries=entries, phases=phases)

    def _take_cause(self, cause: ProvenCause, place: Place) -> None:
        """Note what a place explains, as a cause or as a part of one that is known.

        Key data that cannot be put in still differ in the trainer: what it makes of them, for one
        phase after another, is one cause.
        """
        if not cause.explained and place.what == _UPDATED:
            self._places.remove(place)  # the trainer writes the weights later
            self._given_up.append(place)
            return
        known = self._contained
        if known is None and place.of_trainer:
            known = next((c for c in self._causes if c.of_trainer), None)
            if known is not None:
                self._causes.remove(known)
                cause = _joined(known, cause)
        if known is not None:  # it stays where it was found first
            cause = replace(cause, where=known.where, reasons=known.reasons)
        self._causes.append(cause)

    def _put_in(self, place: Place) -> None:
        """Take a place; those that it contains are given up, with the causes that they were."""
        self._contained = None
        for one in [*self._places]:
            if place.contains(one):
                self._places.remove(one)
                for cause in [*self._causes]:
                    if cause.what == one.what and {*one.entries} <= {*cause.entries}:
                        self._contained = self._contained or cause
                        self._causes.remove(cause)
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
            return self._same_as_a(self._of.tensors.absolute(), "tensors/comparison")
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
        given = self._of.tensors is not None
        self._evidence.append(message("proof.tensors_same" if given else "proof.a_again"))
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
        lasting = self._shown is not None and self._shown[0] == self._shown[1]
        if lasting and self._noise is not None and self._noise == self._first:
            raise _UndecidedError(message("proof.noise"))

    def _make(
        self, kind: str, number: int, settings: Mapping[str, Any], side: str = "b"
    ) -> MadeRun:
        self._progress(kind, number)
        try:
            return self._trials.make(f"{kind}{number}", settings, {SIDE: side})
        except TrialError as error:
            raise _UndecidedError(error.said) from None

    def _compare(
        self, a: Path, b: Path, output: str | None, include: Sequence[str] = ()
    ) -> Comparison:
        from mindrlhf_msprobe.api import compare_runs

        path = None if output is None else self._of.output / output
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if open_run(a).ranks != open_run(b).ranks:
            raise RunError.saying("proof.other_ranks", a=a, b=b)
        return compare_runs(a, b, output_path=path, tolerance=self._of.tolerance, include=include)

    def _note(self, kind: str, trial: MadeRun, result: Comparison, **of_graft: Any) -> None:
        first = Where.of(result.verdict.first_divergence)
        different = sum(1 for _ in disagreeing(result))
        made = (kind, str(trial.directory), trial.seconds, trial.reused)
        self._rounds.append(Round(*made, different, first, **of_graft))

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


def _joined(one: ProvenCause, other: ProvenCause) -> ProvenCause:
    """Return two causes as one."""
    names = ("entries", "what", "phases", "steps", "replaces")
    both: Any = {n: tuple(dict.fromkeys([*getattr(one, n), *getattr(other, n)])) for n in names}
    return replace(one, explained=one.explained + other.explained, **both)


def _identity(path: Path) -> str:
    """Return which run lies at a path, also where another one was recorded there since."""
    known = {f"{file.run_id} {len(file.attempts)}" for file in open_run(path).run_files}
    return " ".join([str(path.resolve()), *sorted(known)])


def _of_network(place: Place, tensors: Run) -> Place:
    """Return a place of parameters with all cells that have some in its phases."""
    if place.entries or place.replaces:
        return place
    heads = {
        head_of(entry.name)
        for at in tensors.layer_places()
        if at.phase in place.phases
        for entry in tensors.each_entry(*at)
        if any(record.io == "parameters" for record in entry.records)
    }
    return replace(place, entries=tuple(sorted(heads)))


def _is_compiled(run: Run) -> bool:
    """Return whether graphs were compiled of a run's networks, into which nothing can be put."""
    return any(
        (file.device or {}).get("mode") == "graph" and (file.environment or {}).get("MS_JIT") != "0"
        for file in run.run_files
    )


def _put_in(run: Run) -> int:
    """Return how many records were put in on all ranks by the graft that was given last."""
    return sum(grafts[-1].put_in or 0 for file in run.run_files if (grafts := file.grafted))


def _bytes_of(run: Run, step: int) -> int:
    """Return how many bytes the tensors of one step take, with all ranks."""
    return sum(
        prod(record.leaf.shape) * _bytes_of_element(record.leaf.dtype)
        for at in run.layer_places(step=step)
        for entry in run.each_entry(*at)
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
