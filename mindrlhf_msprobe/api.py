"""The public functions that join rooms: what one of them finds is written by another.

The rooms below know nothing of each other for it: storage reads runs without trends, comparison and
checks find without tables. Each function loads what it joins when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.language import LANGUAGES, in_its_language
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.reading import reader

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.compare import Ready
    from mindrlhf_msprobe.comparison.engine.executor import Progress
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, Tolerances
    from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import Given
    from mindrlhf_msprobe.comparison.shards import Sharded
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
    from mindrlhf_msprobe.findings.health import CheckResult, CheckResults
    from mindrlhf_msprobe.storage.reading.series import Series

_PathLike = str | Path
_Path = _PathLike | reader.Run
_Settings = _PathLike | Mapping[Any, Any]


class Run(reader.Run):
    """What one training job recorded, with what became of it over the steps."""

    def trend(
        self,
        pattern: str | None = None,
        *,
        record: str | None = None,
        key: str | None = None,
        derived: str | None = None,
        statistic: str | None = None,
        phase: str | None = None,
        rank: int | None = None,
    ) -> list[Series]:
        """Return quantities over the steps as `Series`, by a pattern of names, in one pass.

        Without any choice: the mean of every key, and every derived quantity that there is.

        Args:
            pattern: a regular expression on the names of records, keys and derived quantities.
            record: one on the names of records alone.
            key, derived: the name of a key, of a derived quantity.
            statistic: mean, max, min, norm, nan_count or inf_count; None: the mean of a key, the
                norm of a record. A number has its value.
            phase, rank: of this one only.

        Raises:
            UsageError: a pattern cannot be used, or a name is not known.
            RunError: nothing matches; the message names the nearest.
        """
        from mindrlhf_msprobe.trends.reading import Choice, read_trends

        keys, names = (() if one is None else (one,) for one in (key, derived))
        return read_trends(
            self, Choice(pattern, record, keys, names, statistic, phase, rank)
        ).series


def open_run(path: str | Path) -> Run:
    """Open a run's directory, or one phase's, step's or rank's directory inside it.

    A rank's directory may also be given by the `dump.json` in it, as msprobe's compare takes it.

    Raises:
        RunError: there is no such directory, it holds no run, or one whose manifest has a schema
            that this version does not read.
    """
    return Run(reader.directory_of(path))


@in_its_language
def compare_runs(
    a: _PathLike,
    b: _PathLike | None = None,
    *,
    output_path: _PathLike | None = None,
    tolerance: Tolerance | Tolerances | _PathLike | None = None,
    noise: Iterable[_PathLike] = (),
    mapping: _PathLike | None = None,
    cell_mapping: Given = None,
    api_mapping: Given = None,
    data_mapping: Given = None,
    layer_mapping: Given = None,
    tokenizer: _PathLike | None = None,
    phases: tuple[str, str] | None = None,
    ranks: tuple[int, int] | None = None,
    layout: _PathLike | None = None,
    key_data_only: bool = False,
    steps: str | int | Iterable[int | str] | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    keys: str | Iterable[str] | Mapping[str, str] = (),
    first_only: bool = False,
    common: bool = False,
    after: _PathLike | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    csv: bool = False,
    lang: str | None = None,
    all_rows: bool = False,
    keep_earlier: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two runs, or two phases or ranks of one run; say where they first diverge, and why.

    Args:
        a, b: the runs' directories; or one phase's or step's directory of each. Without `b`, or
            with the same run twice, `phases` or `ranks` say what of the run is compared.
        output_path: where tables and verdict.json are written, None for nowhere.
        tolerance: a Tolerance, the path of a YAML file with rules, or Tolerances of both; bitwise
            by default.
        noise: further runs of A's configuration, whose differences do not count; nor do theirs from
            A.
        mapping: a YAML file that says how cells of A are called in B; or one of the following
            four, which is recognised by what it holds.
        cell_mapping, api_mapping, data_mapping, layer_mapping: msprobe's mappings of B (NPU) to A
            (Bench), a file as `-cm`, `-am`, `-dm`, `-lm` take it, or True. True stands for what
            needs no file; data_mapping may be a dict. With one of them names alone decide.
        tokenizer: a tokenizer.json, to show token ids as text (extra `tokenizer`).
        phases: a pair: which phase of A is compared with which of B.
        ranks: a pair: which rank of A is compared with which of B.
        layout: a YAML file that says how the ranks of A and B divide the work. What they hold is
            put together, and compared as the records of one rank. Without it, run.json tells where
            the trainer knows it.
        key_data_only: leave out layer data; the columns of `SingleComparator` come first in tables.
        steps: the steps that are compared: `2-5`, `2,4-6`, a number, or numbers.
        include, exclude: regular expressions on the names of records: one of `include` must match,
            and none of `exclude`.
        keys: the key data that are compared, and nothing else, e.g. `old_log_prob=log_prob` for two
            names. A mapping, too, compares one of A with another one of B, or of A itself.
        first_only: end at the first divergence, and write its entry alone.
        common: what one run alone has (steps, ranks, phases, keys, cells) is coverage, no
            divergence.
        after: the output directory of an earlier comparison of the same training, recorded
            with other settings; what it found is taken into account.
        engine: `local`, or `ray` for a Ray cluster.
        address: of a running Ray cluster; None starts one on this machine.
        workers: how many processes compare at most; never more than there is work for, nor than
            four for each core (Ray: than the cluster has cores); 1: only this one; None: as many as
            there are cores, where it is worth while to start them.
        csv: write the tables as CSV as well.
        lang: `en` or `zh`, of all that is said, None for the locale's; the texts of the comparison,
            summary.xlsx and verdict.json.
        all_rows: list every record, also those of agreeing cells beyond 50 000. By default these
            are one row a phase, step and rank in the tables, and one of `Comparison.agreements`
            instead of a finding each.
        keep_earlier: name the files with the time in them, beside those of earlier comparisons;
            else they take the place of these.
        progress: called with how many records are done, and of how many; as far as is known.

    Returns:
        The comparison; `bool(result)` is true only if something was compared and nothing
        diverged.

    Raises:
        RunError: a directory is not a run, both are the same, or the output cannot be written,
            or lies inside a run. Where writing fails only at the end, the finished comparison is
            the error's attribute `comparison`.
        ConfigError: a file of rules or names is wrong.
        UsageError: an argument is wrong, or a rule, a name pattern or a filter matches nothing.
    """
    given = dict(locals())  # all arguments
    from mindrlhf_msprobe.comparison.compare import Request, compare_as_requested
    from mindrlhf_msprobe.comparison.pairing.filters import check_paths

    given["noise"] = [noise] if isinstance(noise, (str, Path)) else list(noise)
    request = Request(**{of.name: given[of.name] for of in fields(Request)})
    check_paths({"output_path": output_path})
    return _with_tables(
        partial(compare_as_requested, request),
        output_path,
        lang,
        csv=csv,
        keep_earlier=keep_earlier,
    )


def compare_shard(
    a: _PathLike,
    b: _PathLike | None = None,
    *,
    shard: tuple[int, int],
    output_path: _PathLike,
    **options: Any,
) -> Sharded:
    """Compare one of several shards of two runs and write what it found, to be joined later.

    A shard is a block of ranks, or of the steps of one rank. Each may be compared by a process, or
    on a machine, of its own: nothing else is needed of the others.

    Args:
        a, b: as for `compare_runs`; on this machine they may hold some ranks of the job alone.
        shard: its number, from 1 on, and how many there are.
        output_path: the file that is written (a part); in a directory it is called
            `shard_<number>_of_<count>.part.gz`.
        options: those of `compare_runs` that say what is compared and how, and by which workers;
            `first_only` cannot be.

    Returns:
        What became of the shard. Whether the runs agree, only all parts together say.

    Raises:
        RunError, ConfigError, UsageError: as for `compare_runs`.
        OutputError: the part cannot be written.
    """
    from mindrlhf_msprobe.comparison.compare import Request
    from mindrlhf_msprobe.comparison.shards import compare_shard as compare

    return compare(Request(a=a, b=b, **options), *shard, output_path)


@in_its_language
def reduce_shards(
    parts: Iterable[_PathLike],
    a: _PathLike | None = None,
    b: _PathLike | None = None,
    *,
    output_path: _PathLike | None = None,
    csv: bool = False,
    lang: str | None = None,
) -> Comparison:
    """Join what all shards of two runs found: the comparison that one process would have made.

    Of the runs nothing is read but what explains the first difference.

    Args:
        parts: what `compare_shard` wrote, for every shard; or directories with such files.
        a, b: where the runs lie on this machine; None: where the parts say.
        output_path, csv, lang: as for `compare_runs`.

    Returns:
        The comparison, with the same tables and the same verdict.json as of `compare_runs`.

    Raises:
        RunError: a part cannot be read, is missing or is of another comparison; or the records of
            the first difference lie on another machine, which is named.
        UsageError: no part is given.
    """
    from mindrlhf_msprobe.comparison.shards import reduce_parts

    reduce = partial(reduce_parts, list(parts), a, b)
    return _with_tables(reduce, output_path, lang, csv=csv)


def _with_tables(
    compare: Callable[[Ready], Comparison],
    output_path: _PathLike | None,
    lang: str | None,
    *,
    csv: bool,
    keep_earlier: bool = False,
) -> Comparison:
    """Make a comparison and write its tables, where they are wanted.

    Args:
        compare: makes it; calls what it is given with the paths of the runs when they are open.
    """
    from mindrlhf_msprobe.report.staging import (
        OutputError,
        check_output,
        load,
        with_texts,
        write_beside,
        write_comparison,
    )

    _check_language(lang)
    if output_path is None:
        return with_texts(compare(lambda runs: None))
    output = Path(output_path)

    def ready(runs: Sequence[_PathLike]) -> Callable[[], None]:
        check_output(output, runs, beside=keep_earlier)
        return load

    comparison = with_texts(compare(ready))
    try:
        write = write_beside if keep_earlier else write_comparison
        return write(comparison, output, csv=csv)
    except OutputError as error:
        error.comparison = comparison
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        failed = OutputError.saying("error.output_unwritten", output=output_path, reason=reason)
        failed.comparison = comparison
        raise failed from error


@in_its_language
def compare_checkpoints(
    a: _PathLike,
    b: _PathLike,
    *,
    output_path: _PathLike | None = None,
    tolerance: Tolerance | Tolerances | _PathLike | None = None,
    noise: Iterable[_PathLike] = (),
    mapping: _PathLike | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    common: bool = False,
    step: int | None = None,
    workers: int | None = None,
    csv: bool = False,
    lang: str | None = None,
    progress: Progress | None = None,
) -> CheckpointComparison:
    """Compare two checkpoints parameter by parameter, whatever their sizes.

    Args:
        a, b: a MindSpore .ckpt, a .safetensors or its index, a directory with them or with a
            directory `rank_N` for each rank; one of both may be a run that recorded parameters.
        output_path: where checkpoint.xlsx, ckpt_similarity.json and verdict.json are written; None
            writes nothing.
        tolerance: what counts as the same, as for `compare_runs`, by the names of parameters.
        noise: further checkpoints of A's kind. What they differ by among themselves and from A does
            not count as a difference.
        mapping: the path of a YAML file that says how cells or parameters of A are called in B, and
            which cells of one side are several of the other.
        include, exclude: regular expressions, searched in the names of parameters.
        common: what one side alone has is coverage, no difference.
        step: of a run, the step whose parameters are compared; None: those that it saved in the
            other side, as run.json says, else those it began with.
        workers: how many threads compare at once; None: one a core, at most four.
        csv: write the tables as CSV as well.
        lang: `en` or `zh`; None: the locale's.
        progress: called with how many elements are done, and of how many.

    Returns:
        The comparison; `bool(result)` is true only if something was compared and nothing differs.

    Raises:
        RunError: a side cannot be read, both are the same, or the output cannot be written.
        ConfigError: a file of rules or names is wrong.
        UsageError: an argument is wrong, or a rule, a name pattern or a filter matches nothing.
    """
    given = {k: v for k, v in locals().items() if k not in ("output_path", "csv", "lang")}
    from mindrlhf_msprobe.comparison.checkpoints import compare_sides

    repetitions = [noise] if isinstance(noise, (str, Path)) else [*noise]
    _check_language(lang)
    output = None if output_path is None else Path(output_path)

    def ready() -> None:
        if output is not None:
            from mindrlhf_msprobe.report.staging import check_output

            check_output(output, [a, b, *repetitions])

    comparison = compare_sides(**{**given, "noise": repetitions}, ready=ready)
    if output is None:
        return comparison
    from mindrlhf_msprobe.report.checkpoints import write_checkpoints

    return write_checkpoints(comparison, output, csv=csv)


def _check_language(lang: str | None) -> None:
    if lang not in (None, *LANGUAGES):
        known = message("config.either", choices=LANGUAGES)
        raise UsageError.saying("error.expected", name="lang", value=lang, what=known)


def check_run(
    run: _Path,
    *,
    rules: _Settings | None = None,
    extra: Iterable[Any] = (),
    healthy: Sequence[_Path] = (),
    progress: Callable[[int, int], None] | None = None,
) -> CheckResult:
    """Check one run by itself: no other run is compared with it.

    Args:
        run: its directory, or a run that was opened.
        rules: a rule file (YAML), or its content as a mapping: rules that are off, thresholds.
        extra: further rules: `module:function`, functions, or classes (see `rule`).
        healthy: runs that are known to be healthy, for the rules that compare with such ones.
        progress: is given how many steps were read, and how many there are.

    Raises:
        RunError: there is no such run.
        ConfigError: the rule file is wrong.
        UsageError: one of `extra` is no rule.
    """
    return check_runs([run], rules=rules, extra=extra, healthy=healthy, progress=progress).runs[0]


@in_its_language
def check_runs(
    runs: Iterable[_Path],
    *,
    rules: _Settings | None = None,
    extra: Iterable[Any] = (),
    healthy: Sequence[_Path] = (),
    output_path: str | Path | None = None,
    lang: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckResults:
    """Check several runs, each by itself; the arguments are those of `check_run`.

    Args:
        output_path: the directory for checks.xlsx, or an .xlsx file; None: none is written. Beside
            it stand the tables of `task: free_benchmark`, if a run has such results.
        lang: `en` or `zh`, of the workbook; None: the locale's.

    Raises:
        RunError, ConfigError, UsageError: as for `check_run`.
        OutputError: the workbook cannot be written.
    """
    from mindrlhf_msprobe.checks.check import check_opened

    opened, others = [*map(_opened, runs)], [*map(_opened, healthy)]
    if output_path is None:
        return check_opened(opened, rules, extra, others, progress)
    from mindrlhf_msprobe.report.checks import check_files
    from mindrlhf_msprobe.storage.outputs import refuse, write_all

    refuse(*check_files(output_path, opened), runs=[run.path for run in (*opened, *others)])
    results = check_opened(opened, rules, extra, others, progress)
    files = check_files(output_path, opened, results)
    write_all(*files, runs=[run.path for run in opened])
    return results


def _opened(run: _Path) -> reader.Run:
    return run if isinstance(run, reader.Run) else open_run(run)
