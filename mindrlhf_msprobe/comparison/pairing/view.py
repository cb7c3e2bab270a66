"""One side of a comparison: a run under the names the comparison has for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.coverage import THINNED
from mindrlhf_msprobe.comparison.pairing.planner import OwnNames, StepData
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import PHASES, UNNAMED_PHASE
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.foreign.dialect import MINDSPORE
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.run_file import Network
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.inventory import thinned_of
from mindrlhf_msprobe.storage.reading.reader import Problem, Run
from mindrlhf_msprobe.storage.records import Entry

_SHOWN = 8  # ranks that are named


@dataclass
class View:
    """What of a run is compared.

    Attributes:
        run: the run.
        phases: the comparison's name of a phase → the run's own; empty for all phases, and key
            data, under their own names.
        steps, ranks: the comparison's number → the run's own; what is not named keeps its own
            unless `only_ranks` is set.
        key_data_only: whether layer data are left out.
        keys: the comparison's name of a key → the run's own; empty for all, under their own names.
    """

    run: Run
    phases: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    ranks: Mapping[int, int] = field(default_factory=dict)
    only_ranks: bool = False
    key_data_only: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)

    def rank_steps(self) -> set[StepPlace]:
        """Return every (step, rank) of the comparison of which the run recorded something."""
        steps = {own: shown for shown, own in self.steps.items()}
        ranks = {own: shown for shown, own in self.ranks.items()}
        return {
            StepPlace(steps.get(step, step), ranks.get(rank, rank))
            for step, rank in self.run.places
            if rank in ranks or not self.only_ranks
        }

    def own(self, step: int, rank: int) -> StepPlace:
        """Return the run's own numbers of a step and a rank of the comparison."""
        return StepPlace(self.steps.get(step, step), self.ranks.get(rank, rank))

    def config(self, rank: int) -> ProbeConfig | None:
        """Return what the run was configured to record on one of the comparison's ranks."""
        return self.run.config(self.ranks.get(rank, rank))

    def first_weights(self, phase: str, role: str, rank: int) -> Mapping[str, str]:
        """Return the fingerprints of the network of a phase when it was first entered."""
        own = self.phases.get(phase, phase)
        return self.run.first_weights(own, role, self.ranks.get(rank, rank))

    def network_of(self, phase: str, rank: int) -> Network | None:
        """Return the network that ran in a phase; None if that is not known, or several did."""
        return self.run.network_of(self.phases.get(phase, phase), self.ranks.get(rank, rank))

    def entries(self, phase: str, step: int, rank: int) -> list[Entry]:
        """Read the entries of one phase in one step of a rank."""
        if self.key_data_only or (self.phases and phase not in self.phases):
            return []
        own = self.phases.get(phase, phase)
        at = self.own(step, rank)
        found = self.run.entries(own, step=at[0], rank=at[1])
        return found if own == phase else [replace(entry, phase=phase) for entry in found]

    def load(self, step: int, rank: int, *, layers: bool = True) -> StepData:
        """Read one step of a rank, its layer data only if wanted."""
        own = OwnNames(self.steps.get(step), self.ranks.get(rank), self.phases, self.keys)
        at = self.own(step, rank)
        entries: list[Entry] = []
        if self.phases and layers:
            entries = [e for phase in self.phases for e in self.entries(phase, step, rank)]
        elif layers and not self.key_data_only:
            entries = self.run.entries(step=at[0], rank=at[1])
        key_data = [] if self.phases or self.keys else self.run.key_data(step=at[0], rank=at[1])
        for shown, name in {} if self.phases else self.keys.items():
            key_data += [replace(d, key=shown) for d in self.run.key_data(name, *at)]
        removed = (kind for kind in step_spans.THINNED_KINDS if self.run.is_thinned(kind, at))
        left = {THINNED: {kind: (message("coverage.thinned", what=kind),) for kind in removed}}
        problems = [p for p in self.run.problems if p.concerns(at) and not p.partial]
        return StepData(
            entries=entries,
            key_data=key_data,
            config=self.run.config(at[1]),
            unreadable=self._unreadable_phases(problems),
            unreadable_keys={
                key: problem.said
                for problem in (() if self.phases else problems)
                if problem.key_data
                for key in self._shown_keys(problem.key)
            },
            coverage=self.run.coverage(at[1]) | left,
            own=own,
            dialect=self.run.dialect,
            stop=self.run.stop_of(at[1]),
            timeless=self.run.times_are_lost(at),
            keys_of_run=frozenset(self.run.keys),
        )

    def _unreadable_phases(self, problems: Iterable[Problem]) -> dict[str, Message]:
        """Return the comparison's phases of which something could not be read, and what."""
        found = [(p.phase, p) for p in problems if p.phase is not None]
        if not found:
            return {}
        shown = {name: phase for phase, name in self.phases.items()}
        known = {*shown} if self.phases else {*self.run.phases, *(phase.name for phase in PHASES)}
        return {
            shown.get(phase, phase): problem.said
            for phase, problem in found
            if phase in known or (problem.step is not None and not self.phases)
        }

    def unread(
        self, rank_steps: Iterable[tuple[int, int]], *, common: bool = False
    ) -> list[Message]:
        """Return what could not be read so far, as far as it concerns what is compared.

        Args:
            rank_steps: the comparison's (step, rank) that are compared.
            common: whether only what both runs have is: then nothing that is not there does.
        """
        own = [self.own(step, rank) for step, rank in rank_steps]
        return [
            problem.said
            for problem in self.run.problems
            if self._matters(problem, own) and not (common and problem.absent)
        ]

    def _matters(self, problem: Problem, rank_steps: Sequence[StepPlace]) -> bool:
        if problem.phase is not None:
            left_out = self.phases and problem.phase not in self.phases.values()
            if left_out or self.key_data_only:
                return False
        elif problem.key_data and (self.phases or not self._shown_keys(problem.key)):
            return False
        everywhere = problem.step is None and problem.rank is None
        return everywhere or any(map(problem.is_at, rank_steps))

    def _shown_keys(self, own: str | None) -> list[str | None]:
        """Return the names the comparison has for a key of the run; None stands for all keys."""
        if own is None or not self.keys:
            return [own]
        return [shown for shown, name in self.keys.items() if name == own]


def views(
    a: Run, b: Run, phases: tuple[str, str] | None, ranks: tuple[int, int] | None
) -> tuple[View, View, list[Message]]:
    """Bring two runs together and say how.

    Args:
        phases: which phase of A is compared with which of B; None: each with its own.
        ranks: which rank of A is compared with which of B; None: each with its own, or in order
            if the runs have no rank in common.
    """
    notes: list[Message] = []
    sides = View(a), View(b)
    unnamed = [run.phases == [UNNAMED_PHASE] for run in (a, b)]
    if phases is None and unnamed[0] != unnamed[1] and len(a.phases) == len(b.phases) == 1:
        phases = a.phases[0], b.phases[0]  # one run's dump names no phase
    if phases is not None and phases[0] != phases[1]:
        notes.append(message("pairing.against", a=phases[0], b=phases[1]))
    if phases is not None:
        sides[0].phases = {phases[0]: phases[0]}
        sides[1].phases = {phases[0]: phases[1]}
    notes += _bring_ranks_together(*sides, ranks)
    if phases is None and _nothing_in_common(a.phases, b.phases):
        notes.append(message("pairing.no_common_phase", a=list(a.phases), b=list(b.phases)))
    of_graphs = [side for side, run in (("A", a), ("B", b)) if run.dialect == MINDSPORE]
    if len(of_graphs) == 1:  # a dump of graphs shares no names with any other
        notes.append(message("pairing.dump_of_graphs", side=of_graphs[0]))
    notes += [*_on_what_lacks("A", a), *_on_what_lacks("B", b)]
    notes += [
        message("pairing.of_run", run=name, what=removed)
        for name, run in (("A", a), ("B", b))
        for removed in thinned_of(run)
    ]
    firsts = [run.dialect.first_step for run in (a, b)]
    if firsts[0] != firsts[1]:  # one tool counts steps from 1, the other from 0
        side = firsts.index(max(firsts))
        sides[side].steps = {step - max(firsts): step for step in (a, b)[side].steps}
        notes.append(message("pairing.steps_from_one", side="AB"[side]))
    steps = [layout.step_of_directory(run.path) for run in (a, b)]
    if None not in steps and steps[0] != steps[1]:
        sides[1].steps = {steps[0]: steps[1]}  # type: ignore[dict-item]
        notes.append(message("pairing.step", a=steps[0], b=steps[1]))
    return *sides, notes


def _nothing_in_common(a: Collection[object], b: Collection[object]) -> bool:
    """Return whether both hold something, and nothing of it is the same."""
    return bool(a) and bool(b) and not set(a) & set(b)


def _bring_ranks_together(
    left: View, right: View, ranks: tuple[int, int] | None
) -> Iterator[Message]:
    """Choose which rank of A is compared with which of B, and say so where the numbers differ."""
    a, b = left.run.ranks, right.run.ranks
    if ranks is not None:
        left.ranks, right.ranks = {ranks[0]: ranks[0]}, {ranks[0]: ranks[1]}
        left.only_ranks = right.only_ranks = True
        if ranks[0] != ranks[1]:
            yield message("pairing.rank", a=ranks[0], b=ranks[1])
    elif _nothing_in_common(a, b) and len(a) == len(b):
        right.ranks = dict(zip(a, b))
        yield message("pairing.no_common_rank", a=list(a), b=list(b))


def _on_what_lacks(name: str, run: Run) -> Iterator[Message]:
    """Say which ranks of a run are missing, and which dumps in its directory are none of it."""
    missing = run.missing_ranks
    if missing:
        ranks = {"count": len(missing), "ranks": list(missing[:_SHOWN])}
        more = len(missing) > _SHOWN
        yield message("pairing.missing_ranks", **ranks, more=more, side=name)
    if run.left_out:
        dumps = [str(dump) for dump in run.left_out[:_SHOWN]]
        more = len(run.left_out) > _SHOWN
        yield message("pairing.left_out", side=name, dumps=dumps, more=more)
