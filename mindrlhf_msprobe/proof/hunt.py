"""`hunt`: which of the differences between a good and a bad setup make the runs differ.

A trial has some of the bad values and is judged by a comparison with a good run. Sets are made
smaller by delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", 2002, ddmin); commits are found by `git bisect`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import MsprobeError, UsageError
from mindrlhf_msprobe.findings.proof import Hunt, Setting, Trial
from mindrlhf_msprobe.findings.words import Outcome
from mindrlhf_msprobe.proof.differences import (
    CONFIG,
    PYTHON,
    Commits,
    Files,
    Interpreters,
    Variables,
    git,
    read_between,
)
from mindrlhf_msprobe.proof.trials import MadeRun, TrialError, Trials, takes
from mindrlhf_msprobe.storage.arrays.atomic import write_json

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances

HUNT_FILE = "hunt.json"
GOOD, BAD, UNDECIDED = "good", "bad", "undecided"
_FIRST_BAD = "is the first bad commit"
_MOST_SETS = 4


@dataclass(frozen=True)
class Search:
    """What is searched, and how.

    Attributes:
        between: pairs (or rows of interpreters) of GOOD and BAD.
        output: the directory of all trials.
        command: with `{config}` for a file of settings, `{python}` for an interpreter.
        good: a run of the good setup that was recorded already; None: it is made.
        seconds: after how many a command is stopped.
        tolerance: within which a trial is good.
    """

    between: Sequence[Sequence[str]]
    output: Path
    command: Sequence[str]
    good: Path | None = None
    seconds: float | None = None
    tolerance: Tolerances | None = None


def hunt(search: Search) -> Hunt:
    """Find the smallest sets of differences that make a run differ from a good one.

    Writes hunt.json and a directory for each trial into the output. A call that was interrupted
    goes on where it was when it is made again.

    Raises:
        ConfigError, RunError, UsageError: what is between cannot be used, the output holds
            something else, or the command cannot be started or has no place for it.
    """
    found = _Hunt(search).conclude()
    write_json(search.output / HUNT_FILE, found.to_json())
    return found


@dataclass(frozen=True)
class _Item:
    """One difference: of which pair, and what it is there."""

    pair: int
    key: Any
    setting: Setting


class _Hunt:
    def __init__(self, search: Search) -> None:
        self._of = search
        self._pairs = [read_between(texts) for texts in search.between]
        for pair in self._pairs:
            kind, name = (Files, CONFIG) if isinstance(pair, Files) else (Interpreters, PYTHON)
            if isinstance(pair, kind) and not takes(search.command, name):
                raise UsageError.saying("error.hunt_no_place", place=f"{{{name}}}")
        for kind in (Files, Interpreters):
            if sum(isinstance(pair, kind) for pair in self._pairs) > 1:
                raise UsageError.saying("error.hunt_one_place")
        if len(self._pairs) > 1 and any(isinstance(one, Commits) for one in self._pairs):
            raise UsageError.saying("error.hunt_commits_alone")
        what = {"between": [[*texts] for texts in search.between], "good": str(search.good or "")}
        what["contents"] = [repr(pair) for pair in self._pairs]
        self._trials = Trials(search.output, what, search.command, search.seconds)
        self._items = [*self._differences()]
        self._made: list[Trial] = []
        self._known: dict[frozenset[int], str] = {}
        self._good = search.good
        self._tree = self._trials.output / "checkout"  # of the commits
        self._inside = ""  # the working directory, in its repository

    def _differences(self) -> Any:
        for number, pair in enumerate(self._pairs):
            if isinstance(pair, (Files, Variables)):
                for key, setting in pair.differences().items():
                    yield _Item(number, key, setting)
            elif isinstance(pair, Interpreters):
                for place, (good, bad) in enumerate(zip(pair.paths, pair.paths[1:]), 1):
                    yield _Item(number, place, Setting("interpreter", bad, good, bad))

    def conclude(self) -> Hunt:
        """Make the trials, and return what they show."""
        if self._pairs and isinstance(self._pairs[0], Commits):
            return self._of_commits(self._pairs[0])
        if not self._items:
            return self._end(message("hunt.no_difference"))
        everything = range(len(self._items))
        if why := self._refused():
            return self._end(why)
        left, sets = [*everything], list[tuple[Setting, ...]]()
        while len(sets) < _MOST_SETS and left and self._result(left) == BAD:
            chosen = smallest(left, self._result)
            sets.append(tuple(self._items[i].setting for i in chosen))
            # A row of interpreters is an order: those behind a bad one say nothing more.
            done = {
                self._items[i].pair for i in chosen if self._items[i].setting.kind == "interpreter"
            }
            left = [i for i in left if i not in chosen and self._items[i].pair not in done]
        rest = None if not left else self._result(left) == GOOD
        return self._end(sets=tuple(sets), rest_is_good=rest)

    def _refused(self) -> Message | None:
        """Return why nothing can be found: GOOD is not good, or BAD is not bad."""
        if self._of.good is None:
            try:
                self._good = self._make([], "good").run
            except TrialError as error:
                return error.said
        if self._result([]) != GOOD:
            return message("hunt.good_is_not_good")
        result = self._result([*range(len(self._items))])
        return None if result == BAD else _bad_is_not_bad(result)

    def _result(self, bad: Sequence[int]) -> str:
        """Return what a run with these bad values is."""
        key = frozenset(bad)
        if key not in self._known:
            self._known[key] = self._judged(bad, f"trial{len(self._made) + 1}")
        return self._known[key]

    def _judged(self, bad: Sequence[int], name: str, commit: str = "") -> str:
        """Make a trial and compare it with the good run."""
        why: Message | None = None
        seconds, reused, result = 0.0, False, UNDECIDED
        try:
            trial = self._make(bad, name, commit)
            seconds, reused = trial.seconds, trial.reused
            result, why = self._compared(trial.run, trial.directory / "comparison")
        except MsprobeError as error:
            why = error.said
        names = tuple(self._items[i].setting.name for i in bad)
        if commit:
            names = (f"{commit[:12]} {_subject(commit)}",)
        path = str(self._trials.output / name)
        self._made.append(Trial(path, names, result, seconds, reused, why))
        return result

    def _compared(self, run: Path, output: Path) -> tuple[str, Message | None]:
        from mindrlhf_msprobe.api import compare_runs

        assert self._good is not None
        found = compare_runs(
            self._good, run, output_path=output, tolerance=self._of.tolerance
        ).verdict.status
        if found is Outcome.INCOMPARABLE:
            return UNDECIDED, message("proof.incomparable")
        return (BAD if found is Outcome.DIVERGED else GOOD), None

    def _make(self, bad: Sequence[int], name: str, commit: str = "") -> MadeRun:
        arguments: dict[str, str] = {}
        environment: dict[str, str | None] = {}
        for number, pair in enumerate(self._pairs):
            keys = [self._items[i].key for i in bad if self._items[i].pair == number]
            if isinstance(pair, Files):
                file = self._trials.output / f"{name}.{number}{pair.suffix}"
                file.write_text(pair.text(keys), "utf-8")
                arguments[CONFIG] = str(file)
            elif isinstance(pair, Variables):
                environment |= pair.mixed(keys)
            elif isinstance(pair, Interpreters):
                arguments[PYTHON] = pair.paths[max(keys, default=0)]
        if commit:
            environment["MSPROBE_COMMIT"] = commit  # by which a trial is known again
        directory = self._tree / self._inside if commit else None
        return self._trials.make(name, {}, arguments, environment, directory)

    def _of_commits(self, commits: Commits) -> Hunt:
        """Find the first bad commit in a work tree of its own."""
        tree = self._tree
        self._inside = git("rev-parse", "--show-prefix").stdout.strip()
        repository = Path.cwd()
        git("worktree", "remove", "--force", str(tree))
        added = git("worktree", "add", "--detach", "--force", str(tree), commits.good)
        if added.returncode:
            return self._end(message("hunt.git", why=added.stderr.strip()[:300]))
        try:
            if self._good is None:
                try:
                    self._good = self._make([], "good", commits.good).run
                except TrialError as error:
                    return self._end(error.said)
            return self._bisected(commits)
        finally:
            git("bisect", "reset", directory=tree)
            git("worktree", "remove", "--force", str(tree), directory=repository)

    def _bisected(self, commits: Commits) -> Hunt:
        tree = self._tree
        for name, commit in ((BAD, commits.bad), (GOOD, commits.good)):
            git("checkout", "--detach", "--force", commit, directory=tree)
            if self._of_commit(commit) != name:
                return self._end(
                    message("hunt.good_is_not_good")
                    if name == GOOD
                    else _bad_is_not_bad(self._made[-1].result)
                )
        done = git("bisect", "start", commits.bad, commits.good, directory=tree)
        while done.returncode == 0 and _FIRST_BAD not in done.stdout:
            commit = git("rev-parse", "HEAD", directory=tree).stdout.strip()
            result = self._of_commit(commit)
            done = git("bisect", "skip" if result == UNDECIDED else result, directory=tree)
        if _FIRST_BAD not in done.stdout:
            if left := re.findall(r"^[0-9a-f]{40}$", done.stdout, re.MULTILINE):
                return self._end(message("hunt.one_of"), candidates=tuple(map(_as_setting, left)))
            return self._end(message("hunt.git", why=(done.stdout + done.stderr).strip()[:300]))
        return self._end(commit=_as_setting(done.stdout.partition(" ")[0].rpartition("\n")[2]))

    def _of_commit(self, commit: str) -> str:
        return self._judged([], f"commit-{commit[:12]}", commit)

    def _end(self, *why: Message, **found: Any) -> Hunt:
        settings = tuple(item.setting for item in self._items)
        return Hunt(str(self._of.output), settings, trials=tuple(self._made), why=why, **found)


def _bad_is_not_bad(result: str) -> Message:
    return message("hunt.bad_is_not_bad", result=message(f"hunt.result_{result}"))


def _subject(commit: str) -> str:
    return git("log", "-1", "--format=%s", commit).stdout.strip()


def _as_setting(commit: str) -> Setting:
    return Setting("commit", commit, None, _subject(commit))


def smallest(items: list[int], result: Callable[[Sequence[int]], str]) -> list[int]:
    """Return a smallest part of the differences that is bad: without any of them it is not.

    Args:
        items: which are bad together.
        result: tells what a run with some of them is.
    """
    parts = 2
    while len(items) > 1:
        bounds = [i * len(items) // parts for i in range(parts + 1)]
        cut = [items[first:last] for first, last in itertools.pairwise(bounds)]
        without = [[i for i in items if i not in part] for part in cut]
        smaller = next((one for one in (*cut, *without) if one and result(one) == BAD), None)
        if smaller is not None:
            parts = 2 if smaller in cut else max(parts - 1, 2)
            items = smaller
        elif parts >= len(items):
            break
        else:
            parts = min(2 * parts, len(items))
    return items
