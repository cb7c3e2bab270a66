"""`check_run` and `check_runs`: from a directory to what is wrong with the run, rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.loading import Setting, all_rules, settings_of
from mindrlhf_msprobe.checks.next_config import next_recording
from mindrlhf_msprobe.checks.rule import HEALTHY, Findings, Found, Need, Rule, nested
from mindrlhf_msprobe.checks.views import Step, place_of, steps
from mindrlhf_msprobe.common.message import Message, as_message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.comparison import Stopped
from mindrlhf_msprobe.findings.health import (
    CheckFinding,
    CheckResult,
    CheckResults,
    Evidence,
    NotChecked,
    Severity,
)
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.layouts import Layout, Layouts
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.layout import OPINIONS, lines_name
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.inventory import limits_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run

#: Findings of one run that are kept, and what of one is.
_MOST_FINDINGS = 1000
_MOST_EVIDENCE = 20
_MOST_WHY = 5  # reasons why one rule was not checked
#: What a run holds → the fields of records that show it.
_SHOWN_BY = {"numbers": ("Max",), "fingerprints": ("fingerprint", "md5")}


class Check:
    """What one rule is given in the check of one run.

    Attributes:
        run: the run.
        healthy: the runs that are known to be healthy (`--healthy`).
        rule: the rule.
        memory: what a rule that is a function keeps from step to step.
        learning: which of `healthy` a rule that learns from them is given; None: the run itself.
    """

    def __init__(self, run: Run, rule: Rule, setting: Setting, healthy: Sequence[Run] = ()) -> None:
        self.run, self.rule, self.setting, self.healthy = run, rule, setting, tuple(healthy)
        self.memory: dict[str, Any] = {}
        self.learning: int | None = None
        self.whys: dict[Message, None] = {}
        self.looked = 0

    def threshold(self, name: str) -> float:
        """Return a threshold: that of the rule file, else the rule's own."""
        value = self.setting.thresholds.get(name)
        return self.rule.thresholds[name] if value is None else value

    def not_checked(self, why: Message) -> None:
        """Say that something could not be checked, and why; each reason counts once."""
        if len(self.whys) < _MOST_WHY:
            self.whys[why] = None

    def checked(self, count: int = 1) -> None:
        """Say that so much was looked at, where `not_checked` may say the same of other things.

        A rule that says neither was checked.
        """
        self.looked += count

    def finding(
        self,
        said: Message | str,
        at: Place | KeyDatum,
        *,
        shown: Mapping[str, Any] | None = None,
        evidence: Iterable[Evidence] = (),
        severity: Severity | None = None,
        causes: Iterable[Message | str] | None = None,
        next_step: Mapping[str, Any] | None = None,
        stack: Sequence[str] = (),
        same: Any = None,
        ranks: Iterable[int] | None = None,
        times: int = 1,
        last_step: int | None = None,
        follows: Iterable[str] | None = None,
        explained_by: Callable[[CheckFinding], bool] | None = None,
        followed_by: Sequence[CheckFinding] = (),
    ) -> Found:
        """Return a finding for the rule to yield.

        Args:
            said: a message; a text for a rule that is nobody else's.
            at: where; `at.seq` orders findings within a step.
            shown: values of that place which show it, as the first evidence.
            severity, causes, follows: None: as the rule says; causes are messages, or their codes.
            next_step: an msprobe_config section; see `next_recording`.
            same: findings of this rule with equal `same` are one, reported with how often and where
                it was; None: those of one place's name in whatever step and rank, that say the
                same.
            ranks: on which it is; None: that of the place.
            explained_by: see `Found`.
        """
        what = as_message(said)
        at = at if isinstance(at, Place) else place_of(at)
        own = [] if shown is None else [Evidence(at, shown)]
        given = self.rule.causes if causes is None else causes
        finding = CheckFinding(
            rule=self.rule.name,
            severity=self.setting.severity or severity or self.rule.severity,
            said=what,
            place=at,
            causes=tuple(one if isinstance(one, Message) else Message(one) for one in given),
            evidence=(*own, *evidence)[:_MOST_EVIDENCE],
            next_step=None if next_step is None else dict(next_step),
            stack=tuple(stack),
            times=times,
            last_step=at.step if last_step is None else last_step,
            ranks=tuple(sorted(set(ranks)))
            if ranks is not None
            else (() if at.rank is None else (at.rank,)),
            followed_by=tuple(followed_by),
        )
        names = self.rule.follows if follows is None else tuple(follows)
        key = (what.code, at.phase, at.name) if same is None else same
        return Found(finding, key, names, explained_by)

    def next_recording(self, at: Place, **options: Any) -> dict[str, Any] | None:
        """Return the settings that record a place more closely; see `next_config`."""
        return next_recording(self.run, at, **options)


class Checking:
    """One check of one run, fed step by step: from the disk, or while it trains.

        checking = Checking(run, rules)
        for step in steps(run):
            checking.feed(step)
        result = checking.finish()

    Args:
        run: the run.
        rules: those that are to run.
        settings: rule → setting, of those that have one.
        healthy: runs that are known to be healthy.
    """

    def __init__(
        self,
        run: Run,
        rules: Iterable[Rule],
        settings: Mapping[str, Setting] | None = None,
        healthy: Sequence[Run] = (),
    ) -> None:
        self._run = run
        self._findings = Findings(_MOST_FINDINGS)
        self._running: dict[str, _Running] = {}
        self._cut: int | None = None  # the last step, if it was not ended
        self._broken: dict[str, Message] = {}
        self._layouts = Layouts()
        self._seen = {"healthy"} if healthy else set()
        self.steps = self.entries = self.saves = 0
        self.ranks: set[int] = set()
        for rule in rules:
            setting = (settings or {}).get(rule.name, Setting())
            if setting.on:
                check = Check(run, rule, setting, healthy)
                self._guarded(rule, partial(self._start, check))
        # The runs that are known to be healthy are given to the rules that learn from them.
        learning = [one for one in self._running.values() if one.learns]
        known = enumerate(healthy if learning else ())
        for number, step in ((number, step) for number, run in known for step in steps(run)):
            for one in learning:
                one.check.learning = number
            for journal in step.journals(self._layouts):
                self._to_rules(journal, learning)
            for one in learning:
                self._take(one, partial(one.step, step))
        for one in learning:
            one.check.learning = None

    def _start(self, check: Check) -> None:
        self._running[check.rule.name] = _Running(check)

    def _to_rules(self, journal: Columns, running: Iterable[_Running]) -> None:
        """Give a journal, and its entries, to the rules that want them."""
        for one in running:
            if one.journal is not None:
                self._guarded(one.check.rule, partial(one.journal, journal))
            if one.entry is not None:
                self._guarded(one.check.rule, partial(one.give, journal))

    def feed(self, step: Step) -> list[CheckFinding]:
        """Take the next step of the run; return what was found for the first time.

        Of the step nothing is held afterwards but what rules keep of its past, which is bounded.
        """
        for journal in step.journals(self._layouts):
            self.entries += len(journal)
            self._seen |= journal.layout.once(_parts_of)
            for kind, names in _SHOWN_BY.items():
                if kind not in self._seen and any(map(journal.values.holds, names)):
                    self._seen.add(kind)
            self._to_rules(journal, [*self._running.values()])
        self.steps += 1
        self.ranks.update(step.ranks)
        self._cut = None if step.complete else step.number
        saves = sum(len(step.keys(rank)) for rank in step.ranks)
        self.saves += saves
        if saves:
            self._seen.add("numbers")
        new: list[CheckFinding] = []
        for one in [*self._running.values()]:
            if one.step is not None:
                new += self._take(one, partial(one.step, step))
        return new

    def findings(self) -> tuple[CheckFinding, ...]:
        """Return what was found so far in order of time; what follows from one stands under it."""
        return nested(self._findings.all())

    def finish(self, not_loaded: Iterable[NotChecked] = ()) -> CheckResult:
        """Return what was found, after the last step.

        Args:
            not_loaded: rules that could not be loaded.
        """
        for one in [*self._running.values()]:
            if one.end is not None:
                self._take(one, one.end)
        # What no rule could look at, and findings that were not kept.
        whys = [*limits_of(self._run)]
        if self._cut is not None and not self._run.finished:
            whys.append(message("checks.cut_off", step=self._cut))
        if left_out := self._findings.left_out:
            whys.append(message("checks.too_many", count=left_out, most=_MOST_FINDINGS))
        checked, not_checked = [], [*(NotChecked("", why) for why in whys), *not_loaded]
        for rule, why in self._broken.items():
            not_checked.append(NotChecked(rule, why, failed=True))
        for name, one in self._running.items():
            lacks = [need.said for need in one.check.rule.needs if not self._has(need)]
            whys = lacks or [*one.check.whys]
            not_checked += [NotChecked(name, why) for why in whys]
            if not lacks and (one.check.looked or not whys):
                checked.append(name)
        return CheckResult(
            path=str(self._run.path),
            findings=self.findings(),
            checked=tuple(checked),
            not_checked=tuple(not_checked),
            problems=tuple(problem.said for problem in self._run.problems),
            steps=self.steps,
            ranks=len(self.ranks),
            entries=self.entries,
            saves=self.saves,
            stopped=tuple(Stopped.all_of("", self._run.stops)),
        )

    def _has(self, need: Need) -> bool:
        if need.kind == "key":
            return any(name in self._run.keys for name in need.names)
        if need.kind == "phase":
            return any(name in self._run.phases for name in need.names)
        if need.kind == "ranks":
            return len(self.ranks) >= need.count
        if need.kind == "steps":
            return self.steps >= need.count
        if need.kind == "opinions":
            names = {lines_name(OPINIONS, rank) for rank in self.ranks}
            return any((self._run.path / name).is_file() for name in names)
        return need.kind in self._seen

    def _take(
        self, one: _Running, find: Callable[[], Iterator[Found] | None]
    ) -> list[CheckFinding]:
        """Take what a rule finds; return what of it is new."""
        new: list[CheckFinding] = []

        def take() -> None:
            for item in find() or ():
                if one.check.setting.counts(item.finding.place.name) and self._findings.add(item):
                    new.append(item.finding)

        self._guarded(one.check.rule, take)
        return new

    def _guarded(self, rule: Rule, function: Callable[[], None]) -> None:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # a damaged record may hold anything
                function()
        except Exception as error:  # it costs no other rule, and is said
            logger.debug("%s", message("log.rule_failed", rule=rule.name), exc_info=error)
            known = {"kind": type(error).__name__, "error": str(error)[:300]}
            self._broken[rule.name] = message("checks.failed", **known)
            self._running.pop(rule.name, None)


class _Running:
    """A rule in one run: its instance, or the function itself."""

    def __init__(self, check: Check) -> None:
        self.check = check
        make = check.rule.make
        self.learns: bool = getattr(make, "learns", False)
        self.entry: Any = None
        self.end: Any = None
        self.step: Any = None
        self.journal: Any = None
        if HEALTHY in check.rule.needs and not check.healthy:
            return  # it has nothing to compare with
        if isinstance(make, type):
            made = make(check)
            self.journal, self.entry, self.step, self.end = (
                getattr(made, name, None) for name in ("journal", "entry", "step", "end")
            )
        else:
            self.step = lambda step: make(step, check)

    def give(self, journal: Columns) -> None:
        """Give the rule the entries of a journal that it wants."""
        rule = self.check.rule
        wanted: Iterable[int] = range(len(journal))
        if rule.names is not None:
            wanted = journal.layout.once(self._named)
        elif rule.marks:
            wanted = journal.marked(rule.marks)
        for number in wanted:
            self.entry(journal.entry(number))

    def _named(self, layout: Layout) -> list[int]:
        wants = self.check.rule.names
        assert wants is not None
        return [number for number, name in enumerate(layout.names) if wants(name)]


def _parts_of(layout: Layout) -> set[str]:
    """Return what a journal holds, by the needs of rules."""
    parts = {part for structure in layout.structures for part, _ in structure.places}
    shown = {"layers": bool(layout.names), "parameters": "parameters" in parts}
    shown["gradients"] = any(map(holds_gradients, layout.names))
    shown["backward"] = any(".backward." in name for name in layout.names)
    return {kind for kind, there in shown.items() if there}


_Settings = str | Path | Mapping[Any, Any]


def check_opened(
    runs: Sequence[Run],
    rules: _Settings | None,
    extra: Iterable[Any],
    healthy: Sequence[Run],
    progress: Callable[[int, int], None] | None,
) -> CheckResults:
    """Check runs that were opened, each by itself; see `mindrlhf_msprobe.check_runs`."""
    known, broken = all_rules(extra)
    settings = {} if rules is None else settings_of(rules, known)
    if not runs:
        raise UsageError.saying("checks.no_run")
    results = []
    for run in runs:
        checking, total = Checking(run, known, settings, healthy), len(run.steps)
        for step in steps(run):
            checking.feed(step)
            if progress is not None:
                progress(checking.steps, total)
        results.append(checking.finish(broken))
    return CheckResults(tuple(results))
