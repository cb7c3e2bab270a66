"""The rules of one check of one run: they are given entries and steps, and their findings kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.checks.next_config import next_recording
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import HEALTHY, Need, Rule
from mindrlhf_msprobe.checks.registry.rule_file import Setting
from mindrlhf_msprobe.checks.story import Findings, Found, told
from mindrlhf_msprobe.common.message import Message, as_message, message
from mindrlhf_msprobe.health import (
    CheckFinding,
    CheckResult,
    Evidence,
    NotChecked,
    Place,
    Severity,
)
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage.reading.reader import Run

#: Findings of one run that are kept, and what of one is.
_MOST_FINDINGS = 1000
_MOST_EVIDENCE = 20
_MOST_WHY = 5  # reasons why one rule was not checked
#: What shows in a journal's line that a run holds something; asked until it was seen once.
_SHOWN_BY = {
    "numbers": (b'"Max":',),
    "parameters": (b'"parameters":',),
    "gradients": (b".parameters_grad.", b'"parameters_grad":'),
    "backward": (b".backward.",),
    "fingerprints": (b'"fingerprint":', b'"md5":'),
}


class Check:
    """What one rule is given in the check of one run.

    Attributes:
        run: the run.
        healthy: the runs that are known to be healthy (`--healthy`).
        rule: the rule.
        memory: what a rule that is a function keeps from step to step.
        collected: what the rule's class of `collects` holds of the step; None without one.
    """

    collected: Any = None

    def __init__(self, run: Run, rule: Rule, setting: Setting, healthy: Sequence[Run] = ()) -> None:
        self.run, self.rule, self.setting, self.healthy = run, rule, setting, tuple(healthy)
        self.memory: dict[str, Any] = {}
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
        at: Place,
        *,
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
            severity, causes, follows: None: as the rule says; causes are messages, or their codes.
            next_step: an msprobe_config section; see `next_recording`.
            same: findings of this rule with equal `same` are one, told with how often and where
                it was; None: those of one place's name in whatever step and rank, that say the
                same.
            ranks: on which it is; None: that of the place.
            explained_by: see `Found`.
        """
        what = as_message(said)
        given = self.rule.causes if causes is None else causes
        finding = CheckFinding(
            rule=self.rule.name,
            severity=self.setting.severity or severity or self.rule.severity,
            said=what,
            place=at,
            causes=tuple(one if isinstance(one, Message) else Message(one) for one in given),
            evidence=tuple(evidence)[:_MOST_EVIDENCE],
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
    """One check of one run, fed with entries and steps: from the disk, or while it trains.

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
        self._collectors: dict[type[Any], Any] = {}
        self._broken: dict[str, Message] = {}
        self._unseen = dict(_SHOWN_BY)
        self._seen = {"healthy"} if healthy else set()
        self.steps = self.entries = self.saves = 0
        self.ranks: set[int] = set()
        for rule in rules:
            setting = (settings or {}).get(rule.name, Setting())
            if setting.on:
                check = Check(run, rule, setting, healthy)
                self._guarded(rule, partial(self._start, check))
        self._on_entry = [one for one in self._running.values() if one.entry is not None]
        #: Of them those that may be given entries of the journal that is read, with their marks.
        self._asked: list[tuple[_Running, list[bytes]]] = [(one, []) for one in self._on_entry]

    def _start(self, check: Check) -> None:
        one = _Running(check)
        kind = check.rule.collects
        if kind is not None:
            if kind not in self._collectors:
                self._collectors[kind] = kind()
                one.entry = self._collectors[kind].entry
            check.collected = self._collectors[kind]
        self._running[check.rule.name] = one

    def journal(self, content: bytes | None) -> None:
        """Take the journal whose entries come next, as it is on disk, or None if there is none.

        A mark that is nowhere in it need not be looked for in its lines.
        """
        self._asked = []
        for one in self._on_entry:
            marks = one.check.rule.marks
            there = [] if content is None else [mark for mark in marks if mark in content]
            if not marks or content is None or there:
                self._asked.append((one, there))

    def entry(self, entry: EntryView, raw: bytes | None) -> None:
        """Take an entry, and its line as it is on disk, or None where there is none."""
        self.entries += 1
        if self._unseen:
            self._look(entry, raw)
        for one, marks in self._asked:
            if marks and raw is not None:
                for mark in marks:
                    if mark in raw:
                        break
                else:
                    continue
            try:
                one.entry(entry)
            except Exception as error:
                self._stop(one.check.rule, error)

    def _look(self, entry: EntryView, raw: bytes | None) -> None:
        """Note what the run holds."""
        self._seen.add("layers")
        for kind, marks in [*self._unseen.items()]:
            if kind == "parameters" and raw is None:
                shown = any(io == kind for io, *_ in entry.records)
            elif kind == "numbers" and raw is None:
                shown = any(leaf.get("Max") is not None for *_, leaf in entry.records)
            elif kind == "fingerprints" and raw is None:
                shown = any("fingerprint" in leaf or "md5" in leaf for *_, leaf in entry.records)
            else:
                line = entry.name.encode(errors="replace") + b"." if raw is None else raw
                shown = any(mark in line for mark in marks)
            if shown:
                self._seen.add(kind)
                del self._unseen[kind]

    def step(self, step: Step) -> list[CheckFinding]:
        """Take a step whose entries were given; return what was found for the first time."""
        self.steps += 1
        self.ranks.update(step.ranks)
        saves = sum(len(step.keys(rank)) for rank in step.ranks)
        self.saves += saves
        if saves:
            self._seen.add("numbers")
        new: list[CheckFinding] = []
        for one in [*self._running.values()]:
            if one.step is not None:
                self._guarded(
                    one.check.rule, partial(self._take, one, partial(one.step, step), new)
                )
        for collector in self._collectors.values():
            collector.clear()
        return new

    def finish(self, not_loaded: Iterable[NotChecked] = ()) -> CheckResult:
        """Return what was found, after the last step.

        Args:
            not_loaded: rules that could not be loaded.
        """
        for one in [*self._running.values()]:
            if one.end is not None:
                self._guarded(one.check.rule, partial(self._take, one, one.end, []))
        checked, not_checked = [], [*not_loaded]
        for rule, why in self._broken.items():
            not_checked.append(NotChecked(rule, why))
        for name, one in self._running.items():
            lacks = [need.said for need in one.check.rule.needs if not self._has(need)]
            whys = lacks or [*one.check.whys]
            not_checked += [NotChecked(name, why) for why in whys]
            if not lacks and (one.check.looked or not whys):
                checked.append(name)
        if self._findings.left_out:
            why = message("checks.too_many", count=self._findings.left_out, most=_MOST_FINDINGS)
            not_checked.append(NotChecked("", why))
        return CheckResult(
            path=str(self._run.path),
            findings=told(self._findings.all()),
            checked=tuple(checked),
            not_checked=tuple(not_checked),
            problems=tuple(problem.said for problem in self._run.problems),
            steps=self.steps,
            ranks=len(self.ranks),
            entries=self.entries,
            saves=self.saves,
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
        return need.kind in self._seen

    def _take(
        self,
        one: _Running,
        find: Callable[[], Iterator[Found] | None],
        new: list[CheckFinding],
    ) -> None:
        for item in find() or ():
            if one.check.setting.counts(item.finding.place.name) and self._findings.add(item):
                new.append(item.finding)

    def _guarded(self, rule: Rule, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._stop(rule, error)

    def _stop(self, rule: Rule, error: Exception) -> None:
        """Go on without a rule that failed: it costs no other one, and is said."""
        logger.debug("rule %s failed", rule.name, exc_info=error)
        self._broken[rule.name] = message(
            "checks.failed", kind=type(error).__name__, error=str(error)[:300]
        )
        stopped = self._running.pop(rule.name, None)
        for one in self._running.values():  # another rule's entries are collected as before
            if stopped and rule.collects and one.check.rule.collects is rule.collects:
                one.entry, stopped = stopped.entry, None
                if one.entry is not None:
                    self._on_entry.append(one)
                    self._asked.append((one, []))
        self._on_entry = [one for one in self._on_entry if one.check.rule.name != rule.name]
        self._asked = [asked for asked in self._asked if asked[0].check.rule.name != rule.name]


class _Running:
    """A rule in one run: its instance, or the function itself."""

    def __init__(self, check: Check) -> None:
        self.check = check
        make = check.rule.make
        self.entry: Any = None
        self.end: Any = None
        self.step: Any = None
        if HEALTHY in check.rule.needs and not check.healthy:
            return  # it has nothing to compare with
        if isinstance(make, type):
            made = make(check)
            self.entry, self.step, self.end = (
                getattr(made, name, None) for name in ("entry", "step", "end")
            )
        else:
            self.step = lambda step: make(step, check)
