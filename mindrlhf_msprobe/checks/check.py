"""`check_run` and `check_runs`: the whole way from a directory to what is wrong with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.checks.checking import Checking
from mindrlhf_msprobe.checks.reading.views import steps
from mindrlhf_msprobe.checks.registry.loading import all_rules
from mindrlhf_msprobe.checks.registry.rule import Rule
from mindrlhf_msprobe.checks.registry.rule_file import Setting, read_settings, settings_of
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.health import CheckResult, CheckResults, NotChecked
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

_Path = str | Path | Run
_Settings = str | Path | Mapping[Any, Any]


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
    known, broken = all_rules(extra)
    settings = _settings(rules, known)
    opened = [*map(_opened, runs)]
    if not opened:
        raise UsageError.saying("checks.no_run")
    others = [*map(_opened, healthy)]
    results = CheckResults(
        tuple(_check(run, known, broken, settings, others, progress) for run in opened)
    )
    if output_path is not None:
        from mindrlhf_msprobe.report.tables.checks import write_checks

        write_checks(results, Path(output_path), lang=lang)
        from mindrlhf_msprobe.report.tables.free_benchmark import write_benchmark

        write_benchmark(opened, Path(output_path))
    return results


def _settings(rules: _Settings | None, known: list[Rule]) -> dict[str, Setting]:
    if rules is None:
        return {}
    if isinstance(rules, Mapping):
        return settings_of(rules, known, lambda *place: "")
    return read_settings(rules, known)


def _opened(run: _Path) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def _check(
    run: Run,
    rules: Iterable[Rule],
    broken: Iterable[NotChecked],
    settings: Mapping[str, Setting],
    healthy: Sequence[Run],
    progress: Callable[[int, int], None] | None,
) -> CheckResult:
    checking = Checking(run, rules, settings, healthy)
    total = len(run.steps)
    for step in steps(run):
        checking.feed(step)
        if progress is not None:
            progress(checking.steps, total)
    return checking.finish(broken)
