"""`prove`: B runs again with A's tensors where it first differs, until everything agrees.

The claim is that the places named suffice, and that none of them can be left out. They suffice:
with A's tensors there, all that is recorded agrees. None can be left out: each computes something
else by itself, though what comes before it is A's. A round may put in more than that, since it does
not change what B computes as A does; of what was put in, only what changed something is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.pairing.names import of_any_layer
from mindrlhf_msprobe.config import CODE, NO_END, ProbeConfig, phases_of
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.findings.proof import Conclusion, Proof, ProvenCause, Round, Where
from mindrlhf_msprobe.findings.words import Cause, Outcome, Status
from mindrlhf_msprobe.phases import REPLACED, UPDATE_PHASES
from mindrlhf_msprobe.proof.places import (
    OF_A_CELL,
    Given,
    NoPlaceError,
    Place,
    count_agreeing_now,
    count_differing,
    disagreeing,
    of_layers,
    places_of,
)
from mindrlhf_msprobe.proof.trials import MadeRun, TrialError, Trials, takes
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.manifest.run_file import Changed
from mindrlhf_msprobe.storage.reading.estimate import estimate
from mindrlhf_msprobe.storage.reading.reader import Run, open_run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_of, is_around

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances

#: What COMMAND has where it can run either side.
SIDE = "side"
PROOF_FILE = "proof.json"
_GIB = 1 << 30

#: Says that key data were left out of a comparison; what became of them is said apart.
_LEFT_OUT = "explanation.left_out"


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


def prove(experiment: Experiment) -> Proof:
    """Find by experiments which places explain all of the difference of two runs.

    Writes proof.json and a directory for each round into the output. A call that was interrupted
    goes on where it was when it is made again.

    Raises:
        RunError, UsageError: a run cannot be read, the output holds something else, or the command
            cannot be started.
    """
    found = _Rounds(experiment).conclude()
    write_json(experiment.output / PROOF_FILE, found.to_json())
    return found


@dataclass
class _Tried:
    """A place that A's tensors were put in at, and what the last round showed of it.

    Attributes:
        where, reasons: what the comparison said of it.
        explained: how many records behind it agree since.
        changed: what B computes unlike A of it, with all that is put in before it.
    """

    place: Place
    where: Where
    reasons: Messages
    explained: int = 0
    changed: Sequence[Changed] = ()

    @property
    def is_cause(self) -> bool:
        """Whether it was needed: what changed nothing was as good as not put in."""
        return bool(self.changed) or self.place.replaces is not None

    @property
    def apart(self) -> list[list[Changed]]:
        """What changed something, apart by cells, each with those of the other layers.

        Where all cells of a class did, their class is to blame: they are one, as weights are. What
        is wrong in the gradients alone of one phase is apart from what another phase returned.
        """
        returned = {(one.entry, one.phase) for one in self.changed if one.what == "output"}
        found: dict[tuple[str, bool], list[Changed]] = {}
        for one in self.changed:
            key = of_any_layer(one.entry or ""), (one.entry, one.phase) in returned
            found.setdefault(key, []).append(one)
        cells = {*map(of_any_layer, self.place.entries)}
        all_did = len(cells) > 1 and {cell for cell, _ in found} == cells
        is_one = all_did or self.place.what not in (OF_A_CELL, (CODE,))
        return [[*self.changed]] if is_one else [*found.values()]

    def cause(
        self, changed: Sequence[Changed], all_steps: Sequence[int], is_first: bool
    ) -> ProvenCause:
        """Return a part of what changed something as a cause.

        Args:
            is_first: whether the first difference of its round is of this part.
        """
        steps = [step for one in changed for step in one.steps]
        within = tuple(step for step in all_steps if steps and min(steps) <= step <= max(steps))
        whole, parts = self.whole, (("entries", "entry"), ("what", "what"), ("phases", "phase"))
        known: dict[str, Any] = {
            name: tuple(
                text
                for text in getattr(whole, name)
                if any(getattr(one, key) == text for one in changed)
            )
            for name, key in parts
        }
        if not is_first:
            first = min(changed, key=lambda one: min(one.steps))
            kind = Cause.PARAMETER if whole.of_weights else Cause.COMPUTATION
            place = (min(first.steps), self.where.rank, first.phase, first.entry or "")
            known |= {"where": Where(*place, kind.value), "reasons": (), "between": ()}
        return replace(whole, **known, steps=() if len(within) == len(all_steps) else within)

    @property
    def whole(self) -> ProvenCause:
        """All that was put in, needed or not."""
        place = self.place
        return ProvenCause(
            *(self.where, place.entries, place.what, place.phases, place.steps),
            replaces=(place.replaces,) if place.replaces else (),
            explained=self.explained,
            reasons=self.reasons,
            between=place.between,
        )


class _Rounds:
    def __init__(self, experiment: Experiment) -> None:
        self._of = experiment
        runs = {"a": experiment.a, "b": experiment.b, "tensors": experiment.tensors}
        what = {name: _identity(run) for name, run in runs.items() if run is not None}
        self._trials = Trials(
            *(experiment.output, what, experiment.command, experiment.seconds), uses_failed=True
        )
        self._rounds: list[Round] = []
        self._tried: list[_Tried] = []
        self._steps: Sequence[int] = ()
        self._evidence: list[Message] = []
        self._noise: Where | None = None
        self._noisy: tuple[int, int] | None = None
        self._is_a = False
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
            tensors = self._tensors()
            self._run_again()
            if self._shown is not None and self._shown[0] < self._shown[1]:
                why = [message("proof.trains_as_a")] if self._is_a else []
                return self._end(Conclusion.NOT_REPRODUCIBLE, *why)
            if first is not None:
                self._evidence.append(message("proof.before", records=first.agreed_before))
            if loosely := current.verdict.counts.get(Status.WITHIN_TOLERANCE.value, 0):
                self._evidence.append(message("proof.loosely", records=loosely))
            return self._graft(current, tensors)
        except TrialError as undecided:
            return self._end(Conclusion.NO_PROOF, undecided.said)

    def _graft(self, current: Comparison, tensors: Run) -> Proof:
        """Put A's tensors in where cells first differ, and again where they then do."""
        phases = phases_of(tensors.config())
        self._steps = tensors.steps
        run = self._of.b
        for number in count(1):
            if not any(map(of_layers, disagreeing(current))):
                return self._with_keys(current)
            layers = self._layers(run, current)
            divergence = layers.verdict.first_divergence
            where = Where.of(divergence)
            assert divergence is not None
            assert where is not None
            first = Where.of(current.verdict.first_divergence) or where
            if where.is_at(self._noise) or first.is_at(self._noise):
                return self._end(self._partly(), message("proof.noise"), remaining=first)
            if number > self._of.rounds:
                why = message("proof.rounds", rounds=self._of.rounds)
                return self._end(self._partly(), why, remaining=where)
            try:
                places = self._replaced(current, tensors) or places_of(layers, tensors, phases)
            except NoPlaceError as nothing:
                return self._end(self._partly(), nothing.said, remaining=where)
            known = [one.place for one in self._tried]
            reasons = tuple(said for said in divergence.reasons if said.code != _LEFT_OUT)
            new = [_Tried(place, where, reasons) for place in places if place not in known]
            if not new:
                compiled = where.cause == Cause.PARAMETER.value and _is_compiled(
                    open_run(self._of.b)
                )
                why = message("proof.within" if compiled else "proof.still_there")
                return self._end(self._partly(), why, remaining=where)
            of_graph = all(one.whole.of_weights or one.place.replaces for one in new)
            if not of_graph and _is_compiled(open_run(self._of.b)):
                return self._end(self._partly(), message("proof.compiled"), remaining=where)
            self._tried += new
            trial = self._make("graft", number, self._settings(tensors))
            after = self._compare(self._of.a, trial.run, f"graft{number}/comparison")
            put_in = self._read_notes(open_run(trial.run), new, after)
            gone = count_agreeing_now(current, after)
            for one in new:
                own = sum(changed.records or 0 for changed in one.changed)
                one.explained = max(0, gone - own) if one.is_cause else 0
            tried = tuple(one.whole for one in new)
            of_graft = {"put_in": put_in, "tried": tried, "tensors": str(tensors.path)}
            self._note("graft", trial, after, **of_graft)
            if after.verdict.status is Outcome.INCOMPARABLE:
                raise TrialError.saying("proof.incomparable")
            if put_in == 0:
                why = message("proof.not_put_in")
                return self._end(self._partly(), why, remaining=where)
            current, run = after, trial.run
        raise AssertionError

    def _read_notes(self, run: Run, new: Sequence[_Tried], after: Comparison) -> int | None:
        """Take what each graft changed in a run; return how many records the new ones put in.

        None where they are values that are replaced.

        Args:
            after: the comparison of A with the run.
        """
        put_in, given = 0, Given(after)
        grafted = [one for one in self._tried if one.place.entries]
        for number, one in enumerate(grafted):
            notes = [file.grafted[number] for file in run.run_files if file.grafted[number:]]
            one.changed = [new for note in notes for new in note.changed if given.agrees(new)]
            put_in += sum(note.put_in or 0 for note in notes) if one in new else 0
        return put_in if any(one.place.entries for one in new) else None

    def _layers(self, run: Path, current: Comparison) -> Comparison:
        """Return what a comparison says of the cells' records alone: where they differ, and why."""
        first = current.verdict.first_divergence
        if first is not None and first.key is None:
            return current
        return self._compare(self._of.a, run, None, include=(r"^Cell\.",))

    def _replaced(self, current: Comparison, tensors: Run) -> list[Place]:
        """Return a value to be replaced that differs and has not been, if there is one."""
        known = {one.place.replaces for one in self._tried}
        for finding in disagreeing(current):
            scope, _, name = (finding.key or "").partition(".")
            if scope == REPLACED and name not in known and finding.key in tensors.keys:
                return [Place(replaces=name)]
        return []

    def _with_keys(self, last: Comparison) -> Proof:
        """Conclude where all cells agree; key data may still differ, which cannot be put in.

        Where nothing of the trainer was put in, none of them changed what the networks computed:
        the trainer's own code computes each of them from what agrees.
        """
        replaced = {one.place.replaces for one in self._tried if one.place.replaces}
        left = {f.key: f for f in reversed([*disagreeing(last)]) if f.key is not None}
        keys = tuple(key for key in reversed(left) if key.rpartition(".")[2] not in replaced)
        causes = self._causes()
        of_trainer = bool(replaced) or any(cause.of_trainer for cause in causes)
        updated = not of_trainer and any(cause.of_updates for cause in causes)
        # What is computed of gradients where weights are updated tells of the same code.
        of_update = tuple(key for key in keys if updated and left[key].phase in UPDATE_PHASES)
        keys = tuple(key for key in keys if key not in of_update)
        if not keys:
            return self._end(Conclusion.PROVEN, keys=of_update)
        if of_trainer:
            several = len(keys) > 1 and not replaced
            conclusion = Conclusion.NOT_SEPARATED if several else Conclusion.PROVEN
            return self._end(conclusion, keys=keys)
        if not any(map(of_layers, last.findings)) and not last.agreements:
            return self._end(Conclusion.NO_PROOF, message("proof.keys_alone", keys=[*keys]))
        computed = []
        for key in keys:
            found = left[key]
            place = (found.step, found.rank, None, found.record)
            where = Where(*place, Cause.DATA.value, key=key)
            computed.append(ProvenCause(where, (), (), (), keys=(key,)))
        return self._end(Conclusion.PROVEN, keys=of_update, computed=computed)

    def _causes(self) -> list[ProvenCause]:
        """Return what was needed; of each round, one cause has the first difference."""
        found: list[ProvenCause] = []
        for one in (one for one in self._tried if one.is_cause):
            for changed in one.apart:
                known = any(cause.where is one.where for cause in found)
                at = one.place.first
                is_first = not at or (not known and any(part.entry == at for part in changed))
                found.append(one.cause(changed, self._steps, is_first))
        return [_with_code_around(cause, found) for cause in found]

    def _partly(self) -> Conclusion:
        """Return what is concluded where something of the cells still differs."""
        causes = self._causes()
        if any(cause.explained for cause in causes):
            return Conclusion.NOT_ALONE
        return Conclusion.NOT_THE_CAUSE if causes else Conclusion.NO_PROOF

    def _settings(self, tensors: Run) -> dict[str, Any]:
        path = str(tensors.path)
        places = [one.place for one in self._tried]
        replaced = {place.replaces: path for place in places if place.replaces}
        grafts = [place.settings(path) for place in places if place.entries]
        settings = {"graft": grafts, "replace": replaced}
        return {name: given for name, given in settings.items() if given}

    # --- the runs that are needed ----------------------------------------------------------------

    def _tensors(self) -> Run:
        """Return a run of A with elements: a given one, A itself, or one that is made now."""
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
            shown = ", ".join(f"{k}: {v}" for k, v in settings.items() if v not in ([], NO_END))
            raise TrialError.saying("proof.needs_tensors", settings=shown, side=f"{{{SIDE}}}")
        wanted = replace(config or ProbeConfig(), task="tensor")
        needed = estimate(a, wanted, steps=len(a.steps)).total
        if needed > self._of.gib * _GIB:
            gib = f"{needed / _GIB:.1f}"
            raise TrialError.saying("proof.too_large", gib=gib, most=self._of.gib)
        trial = self._make("tensors", 1, settings, side="a")
        run = self._same_as_a(trial.run, "tensors1/comparison")
        self._rounds.append(Round("tensors", str(trial.directory), trial.seconds, trial.reused))
        return run

    def _same_as_a(self, path: Path, output: str) -> Run:
        """Open a run that is to be A's, and has to hold the same."""
        result = self._compare(self._of.a, path, output)
        if not result:
            self._noise = Where.of(result.verdict.first_divergence)
            raise TrialError.saying("proof.a_differs", path=str(path))
        given = self._of.tensors is not None
        self._evidence.append(message("proof.tensors_same" if given else "proof.a_again"))
        return open_run(path)

    def _run_again(self) -> None:
        """Run B as it is, and see whether it differs from A at the same place, as before."""
        shown = 1
        for number in range(1, self._of.again + 1):
            trial = self._make("again", number, {})
            again = self._compare(self._of.a, trial.run, f"again{number}/comparison")
            self._note("again", trial, again)
            shown += Where.of(again.verdict.first_divergence) == self._first
            self._is_a = self._is_a or bool(again)
            own = self._compare(self._of.b, trial.run, None)
            if not own and self._noise is None:
                self._noise = Where.of(own.verdict.first_divergence)
                self._noisy = count_differing(own), len(own.findings)
        if self._of.again:
            self._shown = shown, self._of.again + 1
            if self._noise is None:
                self._evidence.append(message("proof.b_again", runs=self._of.again))

    def _make(
        self, kind: str, number: int, settings: Mapping[str, Any], side: str = "b"
    ) -> MadeRun:
        made = self._trials.make(f"{kind}{number}", settings, {SIDE: side})
        if made.failed_behind_run is not None:
            self._evidence.append(made.failed_behind_run)
        return made

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
        different = count_differing(result)
        made = (kind, str(trial.directory), trial.seconds, trial.reused)
        self._rounds.append(Round(*made, different, first, **of_graft))

    def _end(
        self,
        conclusion: Conclusion,
        *why: Message,
        remaining: Where | None = None,
        keys: tuple[str, ...] = (),
        computed: Sequence[ProvenCause] = (),
    ) -> Proof:
        """Return the proof.

        Args:
            keys: key data that differ before what the trainer handed to a network; where it handed
                none of A's, those that differ where weights were updated.
            computed: causes that were found without a tensor.
        """
        causes = [*self._causes(), *computed]
        if keys:
            of_trainer = [i for i, c in enumerate(causes) if c.of_trainer or c.replaces]
            at, *_ = of_trainer or [i for i, cause in enumerate(causes) if cause.of_updates]
            causes[at] = replace(causes[at], keys=keys)
        return Proof(
            *(str(self._of.a), str(self._of.b), str(self._of.output), conclusion, why),
            first=self._first,
            causes=tuple(causes),
            rounds=tuple(self._rounds),
            remaining=remaining,
            noise=self._noise,
            noisy=self._noisy,
            shown=self._shown,
            evidence=tuple(self._evidence),
        )


def _with_code_around(cause: ProvenCause, all_causes: Sequence[ProvenCause]) -> ProvenCause:
    """Add what else may make gradients of a cell's parameters differ: code that uses them itself.

    A graft of code puts in what that hands to cells, and not its share of these gradients.
    """
    if cause.what != (PARAMETERS_GRAD,):
        return cause
    around = [head for other in all_causes if CODE in other.what for head in other.entries]
    cell = cell_of(cause.entries[0])
    named = next((head for head in around if is_around(cell_of(head), cell)), None)
    if named is None:
        return cause
    said = message("proof.or_of_code", kind=named.rpartition(".")[2], code=cell_of(named))
    return replace(cause, reasons=(*cause.reasons, said))


def _is_compiled(run: Run) -> bool:
    """Return whether graphs were compiled of a run's networks, which take parameters alone."""
    return any(
        (file.device or {}).get("mode") == "graph" and (file.environment or {}).get("MS_JIT") != "0"
        for file in run.run_files
    )


def _identity(path: Path) -> str:
    """Return which run lies at a path, also where another one was recorded there since."""
    known = {f"{file.run_id} {len(file.attempts)}" for file in open_run(path).run_files}
    return " ".join([str(path.resolve()), *sorted(known)])
