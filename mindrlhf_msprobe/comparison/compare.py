"""Open two runs, align, compare, conclude; `mindrlhf_msprobe.api` writes what comes of it."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.patterns import pattern
from mindrlhf_msprobe.common.processes import available_cores
from mindrlhf_msprobe.comparison.engine.executor import (
    FOLD_ABOVE,
    Engine,
    Folding,
    Progress,
    merged_problems,
    run,
)
from mindrlhf_msprobe.comparison.judging.arrays import MOST_THREADS
from mindrlhf_msprobe.comparison.judging.status import load_decoder
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, Tolerances, tolerances
from mindrlhf_msprobe.comparison.pairing.filters import (
    Filters,
    check_keys,
    check_names,
    check_paths,
    check_steps,
    filters,
    record_names,
    unmatched,
)
from mindrlhf_msprobe.comparison.pairing.mapping import NO_MAPPING, load_cells
from mindrlhf_msprobe.comparison.pairing.names import NameRules
from mindrlhf_msprobe.comparison.pairing.view import View, views
from mindrlhf_msprobe.comparison.preflight.preflight import preflight, without_consequences
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job, StepResult
from mindrlhf_msprobe.comparison.steps.tally import is_folded
from mindrlhf_msprobe.comparison.verdict.earlier import load_earlier, relation
from mindrlhf_msprobe.comparison.verdict.first_difference import is_filtered
from mindrlhf_msprobe.comparison.verdict.next_step import size_of
from mindrlhf_msprobe.comparison.verdict.verdict import conclude
from mindrlhf_msprobe.config import phases_of
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.findings import (
    KEY_DATA_ONLY,
    Chosen,
    Comparison,
    Divergence,
    Earlier,
    Finding,
    KeptFindings,
    PackedFindings,
    Preflight,
    RuleUse,
    Stopped,
)
from mindrlhf_msprobe.storage.manifest.run_file import RUNNING
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import Given, MsprobeMapping

_PathLike = str | Path
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Request:
    """What of which runs is compared, and how; see `mindrlhf_msprobe.compare_runs`."""

    a: _PathLike
    b: _PathLike | None = None
    tolerance: Tolerance | Tolerances | _PathLike | None = None
    noise: Iterable[_PathLike] = ()
    mapping: _PathLike | None = None
    cell_mapping: Given = None
    api_mapping: Given = None
    data_mapping: Given = None
    layer_mapping: Given = None
    tokenizer: _PathLike | None = None
    phases: tuple[str, str] | None = None
    ranks: tuple[int, int] | None = None
    layout: _PathLike | None = None
    key_data_only: bool = False
    steps: str | int | Iterable[int | str] | None = None
    include: str | Iterable[str] = ()
    exclude: str | Iterable[str] = ()
    keys: str | Iterable[str] | Mapping[str, str] = ()
    first_only: bool = False
    common: bool = False
    after: _PathLike | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    all_rows: bool = False
    progress: Progress | None = None


#: Called with the paths of the runs when they are open, before they are compared: raises where what
#: comes of it cannot be written, or returns what is called while workers compare.
Ready = Callable[[Sequence[_PathLike]], "Callable[[], None] | None"]


def compare_as_requested(request: Request, ready: Ready = lambda runs: None) -> Comparison:
    """Compare two runs, or two phases or ranks of one run.

    Raises:
        RunError, ConfigError, UsageError: as `mindrlhf_msprobe.compare_runs`.
    """
    prepared = prepare(request)
    meanwhile = ready(runs_of(request))
    rank_steps = prepared.rank_steps()
    return prepared.conclude(compare_steps(prepared, rank_steps, meanwhile))


@dataclass
class Prepared:
    """Two runs that are open, and how they are compared.

    Attributes:
        notes: what is said of how they were brought together.
        earlier: what an earlier comparison of them found.
        steps: every step of which either run recorded something.
    """

    request: Request
    job: Job
    notes: list[Message]
    earlier: Earlier | None = None
    steps: Collection[int] = ()

    def rank_steps(self) -> list[StepPlace]:
        """Return every step and rank that is to be compared, in order.

        Raises:
            UsageError: a rule, a name pattern or a filter matches nothing.
        """
        job, chosen = self.job, self.job.chosen
        found = sorted(job.sides[0].rank_steps() | job.sides[1].rank_steps())
        self.steps = {step for step, _ in found}
        check_steps(chosen, self.steps)
        rank_steps = [at for at in found if chosen.takes_step(at.step)]
        _check_patterns(job, rank_steps)
        self.notes += _unused_names(job, rank_steps)
        check_names(chosen, lambda: (job.load(at) for at in rank_steps))
        return rank_steps

    def conclude(self, results: Sequence[StepResult]) -> Comparison:
        """Return what the comparison of these steps comes to.

        Raises:
            UsageError: the patterns leave nothing.
        """
        comparison = _conclude(self, results)
        if self.job.chosen == Filters():
            return comparison
        return _chosen(comparison, self.job, self.steps)


def prepare(request: Request) -> Prepared:
    """Open the runs and bring them together.

    Raises:
        RunError, ConfigError, UsageError: as `mindrlhf_msprobe.compare_runs`.
    """
    names = ("tolerance", "mapping", "tokenizer", "after", "layout")
    paths = {"A": request.a, "B": request.b, **{name: getattr(request, name) for name in names}}
    paths |= {f"noise[{number}]": path for number, path in enumerate(repetitions_of(request))}
    check_paths(paths)
    _check_choice(request.engine, request.workers)
    _check_two("phases", request.phases, str)
    _check_two("ranks", request.ranks, int)
    chosen = filters(
        *(request.steps, request.include, request.exclude, request.keys),
        first_only=request.first_only,
        common=request.common,
    )
    if chosen.keys and request.phases is not None:
        raise UsageError.saying("error.keys_and_phases")
    earlier = None if request.after is None else load_earlier(request.after)
    mapping, by_file, remarks = _mappings(request)
    job, notes = _job(request, chosen, mapping)
    threads = min(request.workers or available_cores(), MOST_THREADS)
    job = replace(job, msprobe_mapping=by_file, threads=threads)
    within_one = job.sides[0].run is job.sides[1].run
    unlike = not within_one and job.sides[0].run.ranks != job.sides[1].run.ranks
    if request.layout is not None or unlike:  # the ranks of the runs divide the work
        from mindrlhf_msprobe.comparison.layouts.choosing import choose

        given = {"within_one": within_one, "has_noise": bool(job.noise)}
        sides, on_layouts = choose(job.sides, request.layout, **given)
        job, notes = replace(job, sides=sides), [*notes, *on_layouts]
    notes += [*remarks, *[message(KEY_DATA_ONLY)] * bool(request.key_data_only)]
    return Prepared(request, job, notes, earlier)


def repetitions_of(request: Request) -> list[_PathLike]:
    """Return the paths of the further runs of A's configuration."""
    return [request.noise] if isinstance(request.noise, (str, Path)) else list(request.noise)


def runs_of(request: Request) -> list[_PathLike]:
    """Return the paths of all runs that are read."""
    return [run for run in (request.a, request.b, *repetitions_of(request)) if run is not None]


def compare_steps(
    prepared: Prepared, rank_steps: Sequence[StepPlace], meanwhile: Callable[[], None] | None = None
) -> list[StepResult]:
    """Compare steps, as many at once as was requested; return what was found, in their order.

    Args:
        meanwhile: called in a thread once workers are busy.
    """
    request, job = prepared.request, prepared.job
    start = _engine(request, job)
    results: list[StepResult] = []
    folding = Folding(FOLD_ABOVE, len(rank_steps), all_rows=request.all_rows)
    # With first_only step after step, up to that of the first divergence.
    by_step = itertools.groupby(rank_steps, lambda at: at.step if job.chosen.first_only else None)
    for _, group in by_step:
        results += run(
            job,
            list(group),
            start,
            request.progress,
            at_once=request.engine == "ray" or request.workers is not None,
            meanwhile=meanwhile,
            folding=folding,
        )
        if job.chosen.first_only and any(result.diverged for result in results):
            break
    if folding.many:
        return results
    # There turned out to be few records: what was counted wholesale is compared once more.
    again = [result.at for result in results if not result.whole]
    whole = {result.at: result for result in run(job, again, start)}
    return [whole.get(result.at, result) for result in results]


def _of_runs(found: Iterable[tuple[str | Message, Iterable[Message]]]) -> Messages:
    """Return what is said of runs, each time with the run's name, and once."""
    said = ((name, what) for name, several in found for what in several)
    return tuple(dict.fromkeys(message("pairing.of_run", run=n, what=what) for n, what in said))


def _incomplete(job: Job, results: Sequence[StepResult]) -> Messages:
    """Return what could not be read of each run, and what A and B lost while recording."""
    names: list[str | Message] = ["A", "B"]
    names += [message("pairing.repetition", path=str(view.run.path)) for view in job.noise]
    runs = [view.run for view in (*job.sides, *job.noise)]
    unread = [
        (name, [*(problem.said for problem in run.problems), *merged_problems(results, i)])
        for i, (name, run) in enumerate(zip(names, runs))
    ]
    return _of_runs([*unread, *((name, [*run.losses]) for name, run in zip(names[:2], runs))])


def _unread(job: Job, results: Sequence[StepResult]) -> Messages:
    """Return what could not be read of A and B, as far as it concerns what was compared."""
    rank_steps = [result.at for result in results]
    return _of_runs(
        (name, (*view.unread(rank_steps, common=job.chosen.common), *merged_problems(results, i)))
        for i, (name, view) in enumerate(zip("AB", job.sides))
    )


def _conclude(prepared: Prepared, results: Sequence[StepResult]) -> Comparison:
    job, request, earlier = prepared.job, prepared.request, prepared.earlier
    runs = job.sides[0].run, job.sides[1].run
    before = _preflight(job)
    findings = _findings(results)
    verdict = conclude(results, job, before, earlier, _unread(job, results))
    if verdict.first_divergence is not None:
        before = without_consequences(before, verdict.first_divergence.step)
    verdict = replace(verdict, first_divergence=_both_phases(verdict.first_divergence, job))
    used: Counter[Messages] = Counter()
    passed: Counter[Messages] = Counter()
    for by, (records, only_by_it) in (r for result in results for r in result.tally.rules.items()):
        used[by] += records
        passed[by] += only_by_it
    return Comparison(
        run_a=str(request.a),
        run_b=str(request.a if request.b is None else request.b),
        verdict=verdict,
        findings=findings,
        agreements=tuple(a for result in results if result.folded for a in result.tally.agreements),
        preflight=before,
        rules=tuple(RuleUse(by, n, passed[by]) for by, n in used.items()),
        remarks=tuple(
            dict.fromkeys([*prepared.notes, *(note for result in results for note in result.notes)])
        ),
        incomplete=_incomplete(job, results),
        all_cells=not is_filtered(runs),
        earlier=(
            None if earlier is None else (earlier, relation(earlier, verdict.first_divergence))
        ),
        stops=tuple(_stops(runs)),
    )


def _stops(runs: tuple[Run, Run]) -> Iterator[Stopped]:
    """Yield where the runs stopped, ranks that stopped in the same way together.

    One that still runs lacks nothing while neither run holds anything of the step it is in.
    """
    begun = {*runs[0].steps, *runs[1].steps}
    for name, side in zip(("A", "B"), runs[:1] if runs[0] is runs[1] else runs):
        lacking = (s for s in side.stops if s.state != RUNNING or s.step in begun)
        yield from Stopped.all_of(name, lacking)


def _findings(results: Iterable[StepResult]) -> Sequence[Finding]:
    """Return all findings; packed, if those of any step are."""
    found = [
        [f for f in result.findings if f is not None and not is_folded(f)]
        if result.folded and not isinstance(result.findings, PackedFindings)
        else result.findings
        for result in results
    ]
    if any(isinstance(result, PackedFindings) for result in found):
        return KeptFindings(found)
    return tuple(f for result in found for f in result if f is not None)


def _both_phases(first: Divergence | None, job: Job) -> Divergence | None:
    """Return the first divergence with settings that record both of two unlike phases again."""
    if first is None or first.next_step is None or "msprobe" not in first.next_step:
        return first
    own = job.sides[1].phases.get(first.phase or "", first.phase)
    config = job.sides[1].run.config(first.rank)
    phase = phases_of(config).get(own or "")
    if own == first.phase or phase is None:
        return first
    both = dict(first.next_step)
    both |= {phase.switch: True} if phase.switch else {}
    if config and config.phases:
        both["phases"] = {**both.get("phases", {}), **config.phases}
    runs = job.sides[0].run, job.sides[1].run
    size = size_of(both, first, runs) if runs[0] is runs[1] else None
    return replace(first, next_step=both, next_step_bytes=size, next_step_estimated=False)


def _preflight(job: Job) -> Preflight:
    """Compare what the ranks that are compared ran with."""
    a, b = job.sides
    if job.laid_out:
        lowest = {min(a.run.ranks, default=0): min(b.run.ranks, default=0)}
        return replace(preflight(a.run, b.run, lowest), weights=())
    if a.only_ranks or b.ranks:
        ranks = {shown: b.ranks.get(shown, shown) for shown in (a.ranks or b.ranks)}
        return preflight(a.run, b.run, ranks)
    return Preflight() if a.run is b.run else preflight(a.run, b.run)


def _job(request: Request, chosen: Filters, mapping: _PathLike | None) -> tuple[Job, list[Message]]:
    a, b, phases, ranks = request.a, request.b, request.phases, request.ranks
    within_one = _is_one_run(request, chosen.keys)
    given = NO_MAPPING
    if mapping is not None:
        given = load_cells(mapping)
    allowed = tolerances(request.tolerance)
    first = open_run(Path(a).absolute())
    second = first if within_one else open_run(Path(b or a).absolute())
    _check_sides(phases, ranks, first, second)
    check_keys(chosen, first.keys, second.keys)
    left, right, notes = views(first, second, phases, ranks)
    without_cells = not all(run.dialect.records_cells for run in (first, second))
    only_keys = request.key_data_only or without_cells or bool(chosen.keys)
    left.key_data_only = right.key_data_only = only_keys
    if without_cells and (first.phases or second.phases):
        notes.append(message(KEY_DATA_ONLY))
    if chosen.keys:  # of both sides, under A's names
        left.keys, right.keys = {key: key for key, _ in chosen.keys}, dict(chosen.keys)
        notes += [message("pairing.against", a=x, b=y) for x, y in chosen.keys if x != y]
    further, on_noise = _repetitions(request, left)
    notes += on_noise
    decoder = None if request.tokenizer is None else Path(request.tokenizer).absolute()
    if decoder is not None:
        load_decoder(decoder)  # raises before anything is compared
    job = Job((left, right), further, allowed, given.names, decoder, chosen, fused=given.fused)
    return job, notes


def _joined(a: object, b: object, by: str) -> str:
    return str(a) if a == b else f"{a}{by}{b}"


def _chosen(comparison: Comparison, job: Job, steps: Collection[int]) -> Comparison:
    """Return the comparison with what was requested, and what was left out by that.

    Raises:
        UsageError: the patterns leave nothing.
    """
    filters = job.chosen
    if filters.by_name and not (comparison.findings or comparison.agreements):
        patterns = {"list": list(filters.include), "list2": list(filters.exclude)}
        raise UsageError.saying("error.no_record_left", **patterns)
    first = comparison.verdict.first_divergence
    left, right = job.sides
    others = {*left.run.keys, *right.run.keys} - {key for pair in filters.keys for key in pair}
    taken = [step for step in sorted(steps) if filters.takes_step(step)]
    ends_at = first.step if first is not None and filters.first_only else None
    chosen = Chosen(
        steps=",".join(_joined(a, b, "-") for a, b in filters.steps),
        include=filters.include,
        exclude=filters.exclude,
        keys=tuple(_joined(a, b, "=") for a, b in filters.keys),
        common=filters.common,
        first_only=filters.first_only,
        steps_left_out=tuple(sorted({*steps} - {*taken})),
        keys_left_out=tuple(sorted(others)) if filters.keys else (),
        steps_after=tuple(step for step in taken if ends_at is not None and step > ends_at),
    )
    if first is not None and filters.first_only:
        comparison = _first_alone(comparison, first)
    return replace(comparison, chosen=chosen)


def _first_alone(comparison: Comparison, first: Divergence) -> Comparison:
    """Return the comparison with what was found at the first divergence alone."""
    at = first.step, first.rank, first.phase if first.key is None else None
    # In its phase, or its key.
    findings = (
        f
        for f in comparison.findings
        if (f.step, f.rank, f.key) == (first.step, first.rank, first.key)
        if first.key is not None or (f.entry is not None and f.phase == first.phase)
    )
    return replace(
        comparison,
        verdict=replace(comparison.verdict, spread=()),  # nothing after it was looked at
        findings=tuple(findings),
        agreements=tuple(a for a in comparison.agreements if (a.step, a.rank, a.phase) == at),
    )


def _repetitions(request: Request, left: View) -> tuple[tuple[View, ...], list[Message]]:
    """Open the repetitions of A, which has been opened as `left`; say in what they are unlike it.

    Raises:
        UsageError: one of them is A, B, or another one.
    """
    paths = repetitions_of(request)
    known: list[tuple[Message, _PathLike]] = [(message("error.itself_a"), request.a)]
    known += [] if request.b is None else [(message("error.itself_b"), request.b)]
    for path in paths:
        for what, other in known:
            if _same(path, other):
                raise UsageError.saying("error.repetition", path=path, what=what)
        known.append((message("error.given_twice"), path))
    found: list[View] = []
    notes: list[Message] = []
    for path in paths:
        # A's names are those of the comparison, so what leads to A's leads to the others.
        _, view, _ = views(left.run, open_run(Path(path).absolute()), None, None)
        view = replace(view, phases=left.phases, keys=left.keys, key_data_only=left.key_data_only)
        found.append(view)
        before = preflight(left.run, view.run, view.ranks or None)
        weights = [w.role for w in before.weights if not w.agree]
        names = [d.label for d in before.differences if d.section != "seeds"]
        if weights or names:
            unlike = {"roles": weights, "settings": names[:3], "more": len(names) > 3}
            notes.append(message("pairing.noise_run", path=str(view.run.path), **unlike))
    return tuple(found), notes


def _check_choice(engine: str, workers: int | None) -> None:
    if engine not in ENGINES:
        raise UsageError.saying(
            "error.engine", engine=engine, nearest=nearest_of(str(engine), ENGINES)
        )
    if workers is not None and (type(workers) is not int or workers < 1):
        what = message("config.whole_number", least=1)
        raise UsageError.saying("error.expected", name="workers", value=workers, what=what)


def _check_two(name: str, value: object, kind: type) -> None:
    if value is None:
        return
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not (is_pair and all(isinstance(v, kind) for v in value)):  # type: ignore[attr-defined]
        what = message("error.two_phases" if kind is str else "error.two_numbers")
        raise UsageError.saying("error.expected", name=name, value=value, what=what)


def _engine(request: Request, job: Job) -> Callable[[], Engine] | None:
    if request.engine == "ray":
        from mindrlhf_msprobe.comparison.engine.ray_workers import RayWorkers

        return lambda: RayWorkers(job, request.address, request.workers)
    count = request.workers or available_cores()
    if count == 1:
        return None
    from mindrlhf_msprobe.comparison.engine.local_workers import LocalWorkers

    return lambda: LocalWorkers(job, count)


def _same(a: _PathLike, b: _PathLike) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def _is_one_run(request: Request, keys: Sequence[tuple[str, str]]) -> bool:
    """Return whether both runs are one; refuse to compare it with itself, or with a part of it."""
    a, b, ranks = request.a, request.b, request.ranks
    if b is not None and not _same(a, b):
        roots = Path(os.path.realpath(a)), Path(os.path.realpath(b))
        if roots[0].is_relative_to(roots[1]) or roots[1].is_relative_to(roots[0]):
            raise RunError.saying("error.inside_each_other", a=Path(a), b=Path(b))
        return False
    same = [left for left, right in keys if left == right]
    if same and ranks is None:
        raise RunError.saying("error.same_directory_key", a=a, value=same[0])
    unlike = any(pair is not None and pair[0] != pair[1] for pair in (request.phases, ranks))
    if not unlike and (same or not keys):
        raise RunError.saying("error.same_directory", a=a)
    return True


def _check_sides(
    phases: tuple[str, str] | None, ranks: tuple[int, int] | None, a: Run, b: Run
) -> None:
    """Refuse a phase, or a rank, that the run has nothing of."""
    for name, side in zip(phases or (), (a, b)):
        if name not in side.phases:
            known = ", ".join(side.phases) or message("error.no_phase_at_all")
            near = nearest_of(str(name), side.phases)
            what = {"path": side.path, "name": name, "nearest": near, "value": known}
            raise UsageError.saying("error.no_phase", **what)
    for rank, side in zip(ranks or (), (a, b)):
        if rank not in side.ranks:
            some = ", ".join(map(str, side.ranks[:16]))
            what = {"join": some, "value": " …" if len(side.ranks) > 16 else ""}
            raise UsageError.saying("error.no_rank", path=side.path, rank=rank, **what)


def _mappings(request: Request) -> tuple[_PathLike | None, MsprobeMapping | None, list[Message]]:
    """Return the file of names, the mapping of another tool that counts, and what is said of them.

    A file in another tool's format that is given as `mapping` is recognised by what it holds.
    """
    mapping = request.mapping
    names = ("cell_mapping", "api_mapping", "data_mapping", "layer_mapping")
    given: dict[str, Given] = {name: getattr(request, name) for name in names}
    if mapping is None and all(value is None or value is False for value in given.values()):
        return None, None, []  # as in most comparisons
    from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import (
        Kind,
        load_msprobe_mapping,
        recognised,
    )

    by_file, notes = load_msprobe_mapping({Kind(name): value for name, value in given.items()})
    if mapping is not None and by_file is not None:
        raise UsageError.saying("error.two_mappings", value=by_file.kind.value)
    if mapping is None or (kind := recognised(mapping)) is None:
        return mapping, by_file, notes
    by_file, notes = load_msprobe_mapping({kind: mapping})
    return None, by_file, [*notes, message("pairing.read_as", path=mapping, kind=kind.value)]


def _unused_names(job: Job, rank_steps: Sequence[StepPlace]) -> list[Message]:
    """Say which names of a mapping are of nothing in B."""
    mapping = job.msprobe_mapping
    if mapping is None:
        return []
    from mindrlhf_msprobe.comparison.pairing.msprobe_partners import Unused

    left = Unused(mapping)
    for at in rank_steps:
        if not left.names:
            break
        left.note(job.load(at)[1].entries)
    if not left.names:
        return []
    first, *others = left.names
    what = {"mapping": mapping.kind.value, "first": first, "more": len(others)}
    return [message("pairing.unused_names", **what)]


def _check_patterns(job: Job, rank_steps: Sequence[StepPlace]) -> None:
    """Refuse rules and name patterns that match nothing, before any tensor is read."""
    rules = {rule.pattern: pattern(rule.pattern).search for rule in job.tolerances.rules}
    for unused in unmatched(rules, (record_names(job.load(at)) for at in rank_steps)):
        raise UsageError.saying("error.rule_unused", pattern=unused)
    left = job.mapping
    for at in rank_steps if left else ():
        left = NameRules(left.unused({entry.cell for entry in job.load(at)[0].entries}))
        if not left:
            break
    for rule in left:
        raise UsageError.saying(
            "error.name_unused", pattern=rule.source, path=job.sides[0].run.path
        )
