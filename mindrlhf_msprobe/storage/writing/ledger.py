"""What recording costs: time in the training's threads and behind it, bytes on disk; and faults."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import field
from time import perf_counter
from types import TracebackType
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message

#: Accounts beside those of the phases, whose names hold no space.
KEY_DATA = "key data"
CONFIGURATIONS = "save_configs()"
STEP = "step()"

_LAST_STEPS = 16  # steps that are kept one by one; of all others only the summary stays


#: What one phase cost in one step: seconds of the training, bytes on disk, records.
_Account = dict[str, float]


def _account() -> _Account:
    return {"seconds": 0.0, "bytes": 0, "records": 0}


def _rounded(account: _Account) -> _Account:
    return {name: round(value, 6) for name, value in account.items()}


@dataclass(slots=True)
class _Summary:
    """What one phase cost in all steps in which it was recorded."""

    steps: int = 0
    total: _Account = field(default_factory=_account)
    largest: _Account = field(default_factory=_account)
    last: _Account = field(default_factory=_account)

    def add(self, account: _Account) -> None:
        self.steps += 1
        self.last = account
        self.total = {name: self.total[name] + value for name, value in account.items()}
        self.largest = {name: max(self.largest[name], value) for name, value in account.items()}

    def to_json(self) -> dict[str, Any]:
        total, largest, last = map(_rounded, (self.total, self.largest, self.last))
        return {"steps": self.steps} | {
            name: {
                "total": total[name],
                "mean": round(total[name] / self.steps, 6 if name == "seconds" else None),
                "max": largest[name],
                "last": last[name],
            }
            for name in total
        }


@dataclass(slots=True)
class GraphCost:
    """What probes in compiled graphs cost: compiling, and what running graphs call on the host.

    Copies that a graph makes of what it hands over are part of its run, and in none of these.

    Attributes:
        with_probes, with_seconds: graphs that were compiled with probes, and how long that took.
        without_probes, without_seconds: those of them that were compiled without probes as well.
        calls, seconds, bytes: of host functions, in any thread, recorded or not.
    """

    with_probes: int = 0
    with_seconds: float = 0.0
    without_probes: int = 0
    without_seconds: float = 0.0
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def called(self, seconds: float, size: int) -> None:
        """Note a call of a host function."""
        self.calls += 1
        self.seconds += seconds
        self.bytes += size

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        seconds = [round(s, 6) for s in (self.with_seconds, self.without_seconds, self.seconds)]
        return {
            "with_probes": {"compiled": self.with_probes, "seconds": seconds[0]},
            "without_probes": {"compiled": self.without_probes, "seconds": seconds[1]},
            "host_functions": {"calls": self.calls, "seconds": seconds[2], "bytes": self.bytes},
        }


class Ledger:
    """Adds up, per phase and step, what recording costs; its memory does not grow with the steps.

        with ledger.charge("actor_update"):   # around everything a hook does
            ...

    Charges are made in the training's threads; one inside another counts once, for the outer
    account. The one thread that writes calls `wrote` and adds to `busy`. There is no lock, so that
    nothing waits and a signal handler may record too: of two charges that end in the same instant
    in two threads, one may be missed.

    Attributes:
        graphs: what probes in compiled graphs cost beside, in all phases together.
        busy: seconds that the thread that writes worked.
        waited: seconds that recording waited for room; the charges around it have them too.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._charges: dict[str, Charge] = {}
        self._step: dict[str, _Account] = {}
        self._summaries: dict[str, _Summary] = {}
        self._last_steps: deque[tuple[int, dict[str, _Account]]] = deque(maxlen=_LAST_STEPS)
        self.busy = self.waited = 0.0
        self.graphs = GraphCost()

    def charge(self, name: str) -> Charge:
        """Return a context manager that charges the time inside it to a phase or another account.

        It may be kept and entered again and again, also by several threads at once.
        """
        charge = self._charges.get(name)
        if charge is None:
            charge = self._charges[name] = Charge(self, name)
        return charge

    def wrote(self, name: str, size: int, records: int = 0) -> None:
        """Note bytes and records written for an account of this step."""
        account = self.account(name)
        account["bytes"] += size
        account["records"] += records

    def bytes_of_last_step(self) -> dict[str, int]:
        """Return the bytes written in the last step that was ended, by account."""
        accounts = self._last_steps[-1][1] if self._last_steps else {}
        return {name: int(account["bytes"]) for name, account in accounts.items()}

    def taken_by(self, step: int) -> tuple[int, float]:
        """Return the bytes and seconds that one of the last steps took; 0 where it is not known."""
        taken = dict(self._last_steps).get(step, {}).values()
        return int(sum(each["bytes"] for each in taken)), sum(each["seconds"] for each in taken)

    def seconds_of_step(self) -> float:
        """Return the seconds that recording has taken in this step so far."""
        return sum(account["seconds"] for account in [*self._step.values()])

    def end_step(self, step: int) -> None:
        """Close the accounts of this step."""
        for name, account in dict(self._step).items():
            self._summaries.setdefault(name, _Summary()).add(account)
        if self._step:
            self._last_steps.append((step, self._step))
        self._step = {}

    def to_json(self, step: int) -> dict[str, Any]:
        """Return all accounts as plain JSON values.

        Args:
            step: the number of the step whose accounts are open.
        """
        open_step = dict(self._step)  # other threads may add to it
        summaries = copy.deepcopy(dict(self._summaries))
        last = [*self._last_steps, *([(step, open_step)] if open_step else [])]
        for name, account in open_step.items():
            summaries.setdefault(name, _Summary()).add(dict(account))
        totals = [summary.total for summary in summaries.values()]
        return {
            "seconds": round(sum(total["seconds"] for total in totals), 6),
            "waited_seconds": round(self.waited, 6),
            "background_seconds": round(self.busy, 6),
            "bytes": sum(total["bytes"] for total in totals),
            **({"graphs": self.graphs.to_json()} if self.graphs.with_probes else {}),
            "phases": {name: summary.to_json() for name, summary in summaries.items()},
            "last_steps": {
                str(number): {name: _rounded(account) for name, account in accounts.items()}
                for number, accounts in last[-_LAST_STEPS:]
            },
        }

    def account(self, name: str) -> _Account:
        """Return the account of this step that has a name."""
        account = self._step.get(name)
        return self._step.setdefault(name, _account()) if account is None else account


class _Thread(threading.local):
    """Whether a charge is running in this thread, and since when."""

    depth = 0
    began = 0.0


class Charge:
    """Charges the time inside a `with` block to one account of a ledger."""

    __slots__ = ("_clock", "_ledger", "_name", "_thread")

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name, self._thread = ledger, name, _RUNNING
        self._clock = ledger.clock

    def __enter__(self) -> None:
        thread = self._thread
        depth = thread.depth
        if not depth:
            thread.began = self._clock()
        thread.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        thread = self._thread
        depth = thread.depth = thread.depth - 1
        if not depth:
            seconds = self._clock() - thread.began
            self._ledger.account(self._name)["seconds"] += seconds


_RUNNING = _Thread()

#: Takes what was being recorded and what went wrong; may raise only in strict mode.
FaultSink = Callable[[Message, BaseException], None]


class Counted:
    """A context that no exception leaves, but those that end the process: it is counted.

    Args:
        fault: counts it.
        what: the code of what is lost with it, in the area `lost`, of the parameters.
        charge: takes the time inside; None: it is part of another charge.
    """

    __slots__ = ("_charge", "_fault", "_params", "_what")

    def __init__(
        self, fault: FaultSink, what: str, /, *, charge: Charge | None = None, **params: Any
    ) -> None:
        self._fault, self._what, self._params = fault, what, params
        self._charge = charge

    def __enter__(self) -> None:
        if self._charge is not None:
            self._charge.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._charge is not None:
            self._charge.__exit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        self._fault(message(self._what, **self._params), error)
        return True
