"""One comparison by several processes that know nothing of each other.

Each compares a shard of the ranks and steps and writes a part; whoever has all parts joins them.
Joining reads of the runs what explains the first difference, and nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.comparison.compare import (
    Probed,
    Ready,
    compare_steps,
    prepare,
    repetitions_of,
    runs_of,
)
from mindrlhf_msprobe.comparison.parts import (
    At,
    Options,
    Part,
    output_of_part,
    part_files,
    place_of_part,
    read_headers,
    read_results,
    unlike_attempts,
    write_part,
)
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job, StepResult
from mindrlhf_msprobe.comparison.steps.tally import FOLD_ABOVE, Folding
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Comparison, Finding
from mindrlhf_msprobe.storage.outputs import refuse

_PathLike = str | Path


@dataclass(frozen=True)
class Sharded:
    """What became of a shard.

    Attributes:
        path: the part that was written.
        number, of: which shard, of how many.
        ranks, steps: how many it compared something of.
        records: how many it compared.
        different: how many of them do not agree.
        first: the first of those; None if all agree.
    """

    path: Path
    number: int
    of: int
    ranks: int
    steps: int
    records: int
    different: int
    first: Finding | None

    def to_json(self) -> dict[str, Any]:
        """Return it as the command prints it as JSON."""
        first = self.first
        shown = first and {"step": first.step, "rank": first.rank, "record": first.record}
        names = ("number", "of", "ranks", "steps", "records", "different")
        counts = {name: getattr(self, name) for name in names}
        return {"part": str(self.path), **counts, "first": shown}


def compare_shard(asked: Probed, number: int, of: int, output: _PathLike) -> Sharded:
    """Compare what one of several processes is to compare, and write the part.

    Args:
        number, of: which shard, from 1 on, of how many.
        output: the file; in a directory, its name is that of the shard.

    Raises:
        RunError, ConfigError, UsageError: as `mindrlhf_msprobe.compare_runs`.
        OutputError: the part cannot be written.
    """
    if not (type(number) is type(of) is int and 1 <= number <= of):
        raise UsageError.saying("error.shard", value=f"{number}/{of}")
    if asked.first_only:
        raise UsageError.saying("error.shard_first_only")
    path = place_of_part(output, number, of)
    runs = runs_of(asked)
    prepared = prepare(asked)
    refuse(output_of_part(path), runs=runs)
    held = prepared.rank_steps()
    results = compare_steps(prepared, shard_of(prepared.job, held, number, of))
    both = os.path.abspath(asked.a), None if asked.b is None else os.path.abspath(asked.b)
    options = _options(asked, prepared.job)
    part = Part(number, of, both, options, tuple(held), _attempts(prepared.job))
    write_part(path, part, results, runs)
    findings = (one for result in results for one in result.findings if one is not None)
    first = _first(results)
    return Sharded(
        path=path,
        number=number,
        of=of,
        ranks=len({result.rank for result in results}),
        steps=len({result.step for result in results}),
        records=sum(result.tally.compared for result in results),
        different=sum(not finding.status.agrees for finding in findings),
        first=None if first is None or first.tally.first is None else first.tally.first.finding,
    )


def shard_of(job: Job, rank_steps: Sequence[At], number: int, of: int) -> list[At]:
    """Return what a shard compares: a block of ranks, or of the steps of one rank.

    The blocks depend on how many ranks the job has, as its manifests say, and not on which of them
    lie on this machine: with a shard for each host, each compares the ranks of its own.
    """
    files = [] if job.laid_out else [f for side in job.sides for f in side.run.run_files]
    sizes = [file.world.size or 0 for file in files]
    world = max([1, *sizes, *(rank + 1 for _, rank in rank_steps)])
    steps = Counter(rank for _, rank in rank_steps)
    seen: Counter[int] = Counter()
    chosen = []
    for step, rank in rank_steps:
        # The place among all is (rank + seen / steps) / world, its block that times `of`.
        block = (rank * steps[rank] + seen[rank]) * of // (world * steps[rank])
        seen[rank] += 1
        if block == number - 1:
            chosen.append((step, rank))
    return chosen


def _attempts(job: Job) -> tuple[dict[int, str], ...]:
    """Return which recording of each rank of A and B lies here, and when its attempts began."""
    return tuple(
        {
            file.rank or 0: " ".join(
                [file.run_id or "", *(attempt.started or "" for attempt in file.attempts)]
            )
            for file in side.run.run_files
        }
        for side in job.sides
    )


def _options(asked: Probed, job: Job) -> Options:
    """Return how the runs are compared, so that it can be said in a file."""
    chosen = job.chosen
    return Options(
        tolerance=job.tolerances,
        noise=tuple(map(os.path.abspath, repetitions_of(asked))),
        **{
            name: os.path.abspath(given) if isinstance(given, (str, Path)) else given
            for name in _FILES
            for given in [getattr(asked, name)]
        },
        phases=asked.phases and (asked.phases[0], asked.phases[1]),
        ranks=asked.ranks and (asked.ranks[0], asked.ranks[1]),
        key_data_only=asked.key_data_only,
        steps=",".join(f"{first}-{last}" for first, last in chosen.steps) or None,
        include=chosen.include,
        exclude=chosen.exclude,
        keys=chosen.keys,
        common=asked.common,
        all_rows=asked.all_rows,
    )


#: Options that name a file; those of mappings may also be a mapping itself, or True.
_FILES = (
    *("mapping", "cell_mapping", "api_mapping", "data_mapping", "layer_mapping"),
    *("tokenizer", "layout", "after"),
)


def reduce_parts(
    paths: Iterable[_PathLike],
    a: _PathLike | None = None,
    b: _PathLike | None = None,
    ready: Ready = lambda runs: None,
) -> Comparison:
    """Join the parts of all shards: the comparison that one process would have made.

    Args:
        paths: the parts, or directories that hold them.
        a, b: where the runs lie on this machine; None: where the parts say.
        ready: as for `compare_as_asked`.

    Raises:
        RunError: a part cannot be read, they are not of one comparison, one is missing, or what
            explains the first difference does not lie on this machine.
        UsageError: no part is given.
    """
    files = part_files(paths)
    parts = read_headers(files)
    options = {f.name: getattr(parts[0].options, f.name) for f in fields(Options)}
    options["keys"] = dict(parts[0].options.keys)
    results = _joined(files, parts, all_rows=options["all_rows"])
    first = _first(results)
    by = parts[0] if first is None else _holder((first.step, first.rank), parts)
    runs = by.runs if a is None else (a, b)
    if len([run for run in runs if run]) != len([run for run in by.runs if run]):
        raise UsageError.saying("error.parts_runs")
    for run in runs:
        if run is not None and not os.path.isdir(run):
            raise RunError.saying("error.part_not_here", path=run, host=by.host)
    prepared = prepare(Probed(*runs, **options))
    ready(runs_of(prepared.asked))
    attempts = _attempts(prepared.job)
    for part in parts:
        what = unlike_attempts(attempts, part.attempts)
        if what is not None:
            raise RunError.saying("error.parts_of_others", number=part.number, what=what)
    here = {at for side in prepared.job.sides for at in side.rank_steps()}
    if first is not None and (first.step, first.rank) not in here:
        where = {"step": first.step, "rank": first.rank, "host": by.host}
        raise RunError.saying("error.part_elsewhere", **where, a=by.runs[0], b=by.runs[1])
    away = {rank for part in parts for _, rank in part.held} - {rank for _, rank in here}
    if away:
        prepared.steps = {step for part in parts for step, _ in part.held}
        notes = (note for note in prepared.notes if note.code != "pairing.missing_ranks")
        said = message("pairing.ranks_not_here", ranks=few_numbers(sorted(away)))
        prepared.notes = [*notes, said]
    else:
        prepared.rank_steps()
    return prepared.conclude(results)


def _joined(paths: Sequence[Path], parts: Sequence[Part], *, all_rows: bool) -> list[StepResult]:
    """Return what all parts found, in the order of the steps; what agrees is folded as in one.

    Raises:
        RunError: a part cannot be read, or something was compared by none.
    """
    results: dict[At, StepResult] = {}
    held = {at for part in parts for at in part.held}
    folding = Folding(FOLD_ABOVE, len(held), all_rows=all_rows)
    for path in paths:
        for result in read_results(path):
            at = result.step, result.rank
            if at in results or at not in held:
                why = message("error.part_step", step=at[0], rank=at[1])
                raise RunError.saying("error.part_unread", path=path, why=why)
            results[at] = result
            folding.came(result)
            folding.finished(result)
    left = sorted(held - results.keys())
    if left:
        by = _holder(left[0], parts)
        where = {"step": left[0][0], "rank": left[0][1], "host": by.host, "count": len(left)}
        raise RunError.saying("error.parts_lack", **where, of=by.of)
    return [results[at] for at in sorted(results)]


def _holder(at: At, parts: Sequence[Part]) -> Part:
    """Return the part of a machine that holds this step of a rank."""
    return next(part for part in parts if at in part.held)


def _first(results: Iterable[StepResult]) -> StepResult | None:
    """Return the step of the first difference; None if all agree."""
    ordered = [(order, result) for result in results if (order := result.order) is not None]
    return min(ordered, key=lambda found: found[0])[1] if ordered else None
