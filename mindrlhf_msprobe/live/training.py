"""The training's side: says which steps ended, and does what `on_finding` says of what is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from mindrlhf_msprobe.checks.loading import all_rules, imported, settings_of
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import RECORD, STOP, WARN, ProbeConfig
from mindrlhf_msprobe.errors import ConfigError, RunError, UsageError
from mindrlhf_msprobe.findings.health import CheckFinding
from mindrlhf_msprobe.live.common_end import CommonEnd
from mindrlhf_msprobe.live.process import (
    Behind,
    Diverged,
    Fault,
    Follower,
    Found,
    Looked,
    Report,
    Task,
    Uncompared,
)
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage.layout import FINDINGS, lines_name
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing.directory import world_of
from mindrlhf_msprobe.storage.writing.ledger import Counted, FaultSink

#: Takes a phase and the name of a cell.
LookCloser = Callable[[str, str], None]

_MOST_OF_STEP = 5  # findings of one step that are logged
_MOST_LOGGED = 50  # findings of one run that are
_READY = 20.0  # seconds for which the end of the first step waits until the process follows
_PATIENCE = 60.0  # seconds for which the end of the run waits for each of its reports

# What could not be done, as run.json counts it.
_LIVE, _FUNCTION, _COMMON_END = "lost.live", "lost.on_finding", "lost.common_end"


class Live:
    """What looks at the steps of one rank while it trains.

    A rank that records nothing has no process; it ends with the others where they stop.

    Raises:
        ConfigError, UsageError: the function that is to be called cannot be imported, the rule
            file is wrong, or tensorboardX is not there.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self._call = _function(config.on_finding)
        self._stops = config.may_stop
        if config.compare_to:
            _check_run(config.compare_to, config.dump_path)
        if config.tensorboard and find_spec("tensorboardX") is None:
            raise UsageError.saying("trend.no_tensorboardx", why="tensorboardX")
        if config.on_finding and config.rules:
            settings_of(config.rules, all_rules()[0])  # says what is wrong while nothing runs
        self._config = config
        self._fault: FaultSink = _logged
        self._not_observed: Callable[[Message], None] | None = None
        self._lock = threading.RLock()
        self._process: Follower | None = None
        self._common: CommonEnd | None = None
        self._ended = 0  # steps
        self._waiting: set[int] = set()  # steps that were not looked at yet
        self._not_looked_at: tuple[int, int, int] | None = None  # how many steps, first, last
        self._logged = 0
        self._new: list[CheckFinding] = []  # which nobody was called with
        self._ends_by = ""  # the rule, or the key, by which the training is to end
        self._ends = False
        self._look_closer: LookCloser | None = None

    def begin(
        self,
        root: Path,
        rank: int,
        fault: FaultSink | None = None,
        not_observed: Callable[[Message], None] | None = None,
        look_closer: LookCloser | None = None,
    ) -> None:
        """Begin to follow what a rank records.

        Args:
            root: the run's directory.
            fault: counts what goes wrong; None on a rank that records nothing.
            not_observed: takes why steps were not looked at.
            look_closer: has the elements of a phase's cell recorded in the step that is open.
        """
        self._fault, self._not_observed = fault or _logged, not_observed
        self._look_closer, config = look_closer, self._config
        self._findings_file = lines_name(FINDINGS, rank)
        size = world_of()["size"]
        if self._stops and size > 1:
            self._stops = False  # a rank that ends alone leaves the others in a collective
            with Counted(self._fault, _COMMON_END):
                meets = bool(config.compare_to) and config.on_divergence == STOP
                self._common = CommonEnd(root, rank, size, meets=meets)
                self._stops = True
        if fault is not None:
            events, rules = _path(config.tensorboard), _path(config.rules)
            with Counted(self._fault, _LIVE):
                other = _path(config.compare_to)
                task = Task(root, rank, bool(config.on_finding), events, rules, other)
                self._process = Follower(task)

    def step_ended(self, step: int | None) -> bool:
        """Take note that a step can be read on disk; return whether the training is to end now.

        Args:
            step: its number; None on a rank that records nothing.
        """
        with self._lock:
            self._ended += 1
            if self._process is not None and step is not None:
                with Counted(self._fault, _LIVE):
                    self._announce(self._process, step)
            self.look()
            self._hand_over()
            self._ends = self._stops and self._is_last()
            if self._ends:
                logger.error("%s", message("live.stops", rule=self._ends_by))
            return self._ends

    def _announce(self, process: Follower, step: int) -> None:
        if not (self._waiting or process.ready):
            self._take(process.reports(_READY))
        self._waiting.add(step)
        if process.ended or not process.announce(step):
            self._leave_out([step])
        if self._config.compare_to and self._config.on_divergence != WARN:
            # Until it was looked at: what it leads to concerns the next one.
            until = time.monotonic() + _PATIENCE
            while step in self._waiting and not process.ended and time.monotonic() < until:
                self._take(process.reports(until - time.monotonic()))

    def look(self) -> None:
        """Log what was found since, and count what went wrong; waits for nothing."""
        with self._lock:
            if self._process is not None:
                with Counted(self._fault, _LIVE):
                    self._take(self._process.reports())

    def _take(self, reports: list[Report]) -> None:
        for one in reports:
            if isinstance(one, Found):
                self._show(one)
            elif isinstance(one, Diverged):
                self._diverged(one)
            elif isinstance(one, Uncompared):
                params = {**one.params, "path": self._config.compare_to}
                logger.warning("%s", Message(one.code, params))
            elif isinstance(one, Looked):
                self._waiting.discard(one.step)
            elif isinstance(one, Behind):
                self._leave_out(one.steps)
            elif isinstance(one, Fault):
                error = type(one.kind, (Exception,), {})(one.text)
                if self._waiting and not one.observer:  # it has ended
                    self._leave_out([*self._waiting])
                self._fault(message(_LIVE), error)

    def _diverged(self, found: Diverged) -> None:
        """Say where the training parts from the run it is compared with, and act on it."""
        place = {"step": found.step, "phase": found.phase or "", "record": found.record}
        path = self._config.compare_to
        logger.warning("%s", message("live.diverged", **place, path=path, why=found.said))
        if self._config.on_divergence == STOP:
            self._ends_by = self._ends_by or "compare_to"
        elif self._config.on_divergence == RECORD and self._look_closer is not None:
            if found.phase is None or found.cell is None:
                logger.warning("%s", message("live.nothing_closer", record=found.record))
            else:
                self._look_closer(found.phase, found.cell)

    def _show(self, found: Found) -> None:
        firsts = [one for one, follows in found.findings if not follows]
        self._new += [one for one, _ in found.findings]
        if self._config.on_finding == STOP:
            grave = (one.rule for one, _ in found.findings if one.severity.counts)
            self._ends_by = self._ends_by or next(grave, "")
        shown = firsts[: max(0, min(_MOST_OF_STEP, _MOST_LOGGED - self._logged))]
        for one in shown:
            at, log = one.place, logger.warning if one.severity.counts else logger.info
            name = "" if at.name == at.phase else at.name
            where = {"step": at.step, "phase": at.phase or "", "name": name}
            known = {"severity": one.severity.value, "rule": one.rule, "said": one.said}
            log("%s", message("live.finding", **where, **known))
        left = len(found.findings) - len(shown)
        if left and self._logged < _MOST_LOGGED:
            logger.info("%s", message("live.more", count=left, file=self._findings_file))
        self._logged += len(shown)

    def _is_last(self) -> bool:
        if self._common is None:
            return bool(self._ends_by)
        with Counted(self._fault, _COMMON_END):
            if self._common.meets:
                ends = self._common.meet(self._ended, ends=bool(self._ends_by))
                if self._common.meets:
                    return ends
                logger.warning("%s", message("live.ranks_apart"))
            if self._ends_by:
                missing = self._common.publish(self._ended)
                if missing:
                    logger.error("%s", message("live.cannot_stop", ranks=[*missing]))
                    self._common.leave(ending=False)
                    self._common = None
                    self._stops = False
                    return False
            return self._common.is_last(self._ended)
        return False

    def close(self) -> None:
        """Look at what has ended, and at no more."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            with Counted(self._fault, _LIVE):
                self._take(process.end(_PATIENCE))
            if self._waiting:
                self._leave_out([*self._waiting])
            if self._not_looked_at and self._not_observed is not None:
                self._not_observed(self._said_of_left_out())
            self._hand_over()

    def _hand_over(self) -> None:
        """Call the user's function with what it was not called with yet."""
        new, self._new = self._new, []
        if self._call is not None and new:
            with Counted(self._fault, _FUNCTION):
                self._call(new)

    def leave(self) -> None:
        """Let the other ranks go on, or where all end together, wait until they have ended."""
        if self._common is not None:
            self._common.leave(ending=self._ends)
            self._common = None

    def abandon(self) -> None:
        """Do nothing more: in a forked child, all this is the parent's."""
        self._common = None
        if self._process is not None:
            self._process.abandon()
            self._process = None

    def _leave_out(self, steps: Sequence[int]) -> None:
        """Count steps that were not looked at, and say so once."""
        self._waiting.difference_update(steps)
        first = not self._not_looked_at
        known = self._not_looked_at or (0, min(steps), 0)
        self._not_looked_at = known[0] + len(steps), min(known[1], *steps), max(known[2], *steps)
        if first:
            logger.warning("%s", self._said_of_left_out())

    def _said_of_left_out(self) -> Message:
        count, first, last = self._not_looked_at or (0, 0, 0)
        return message("live.not_observed", count=count, first=first, last=last)


def _check_run(path: str, dump_path: str) -> None:
    """Refuse to compare with what is no run, the run that is recorded, or that of other ranks.

    Raises:
        RunError: it is.
    """
    root = Path(path).expanduser()
    if root.resolve() == Path(dump_path).expanduser().resolve():
        raise RunError.saying("error.run_itself", key="compare_to", path=path)
    worlds = [manifest.get("world") for manifest in open_run(root).manifests]
    sizes = {world.get("size") for world in worlds if isinstance(world, dict)} - {None}
    own = world_of()["size"]
    if sizes and own not in sizes:
        recorded = ", ".join(map(str, sorted(sizes, key=str)))
        raise RunError.saying("error.compare_to_ranks", path=path, recorded=recorded, own=own)


def _path(named: str) -> Path | None:
    return Path(named).expanduser().absolute() if named else None


def _function(on_finding: str) -> Callable[[list[CheckFinding]], object] | None:
    """Return the function that is to be called with findings, if one is named.

    Raises:
        ConfigError: there is none.
    """
    if on_finding in ("", WARN, STOP):
        return None
    try:
        found = imported(on_finding)
        shown = repr(found)
    except Exception as error:
        found, shown = error, str(error)
    if isinstance(found, Exception) or not callable(found):
        known = {"named": on_finding, "kind": type(found).__name__, "error": shown}
        raise ConfigError.saying("config.no_such_function", **known)
    return found


def _logged(what: Message, error: BaseException) -> None:
    logger.warning("%s: %s: %s", what, type(error).__name__, error)
