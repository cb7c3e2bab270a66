"""What recording costs: time in the training's threads and behind it, bytes on disk."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import field, replace
from time import perf_counter
from types import TracebackType
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass

#: Accounts beside those of the phases, whose names hold no space.
KEY_DATA = "key data"
CONFIGURATIONS = "save_configs()"
STEP = "step()"

_LAST_STEPS = 16  # steps that are kept one by one; of all others only the summary stays


@dataclass(slots=True)
class _Account:
    """What one phase cost in one step: seconds of the training, bytes on disk, records."""

    seconds: float = 0.0
    bytes: int = 0
    records: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 6), "bytes": self.bytes, "records": self.records}


@dataclass(slots=True)
class _Summary:
    """What one phase cost in all steps in which it was recorded."""

    steps: int = 0
    total: _Account = field(default_factory=_Account)
    largest: _Account = field(default_factory=_Account)
    last: _Account = field(default_factory=_Account)

    def add(self, account: _Account) -> None:
        self.steps += 1
        self.last = account
        for name in ("seconds", "bytes", "records"):
            value = getattr(account, name)
            setattr(self.total, name, getattr(self.total, name) + value)
            setattr(self.largest, name, max(getattr(self.largest, name), value))

    def to_json(self) -> dict[str, Any]:
        total, largest, last = (a.to_json() for a in (self.total, self.largest, self.last))
        content: dict[str, Any] = {"steps": self.steps}
        for name in ("seconds", "bytes", "records"):
            mean = total[name] / self.steps
            content[name] = {
                "total": total[name],
                "mean": round(mean, 6) if name == "seconds" else round(mean),
                "max": largest[name],
                "last": last[name],
            }
        return content


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
        graphs = {"with_probes": (self.with_probes, self.with_seconds)}
        graphs["without_probes"] = self.without_probes, self.without_seconds
        return {
            **{k: {"compiled": n, "seconds": round(s, 6)} for k, (n, s) in graphs.items()},
            "host_functions": {
                "calls": self.calls,
                "seconds": round(self.seconds, 6),
                "bytes": self.bytes,
            },
        }


class Ledger:
    """Adds up, per phase and step, what recording costs; its memory does not grow with the steps.

        with ledger.charge("actor_update"):   # around everything a hook does
            ...

    Charges are made in the training's threads; one inside another counts once, for the outer
    account. `wrote` and `busy` are told by the one thread that writes. There is no lock, so that
    nothing waits and a signal handler may record too: of two charges that end in the same instant
    in two threads, one may be missed.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._charges: dict[str, Charge] = {}
        self._step: dict[str, _Account] = {}
        self._summaries: dict[str, _Summary] = {}
        self._last_steps: deque[tuple[int, dict[str, _Account]]] = deque(maxlen=_LAST_STEPS)
        self._busy = self._waited = 0.0
        self._graphs = GraphCost()

    def charge(self, name: str) -> Charge:
        """Return a context manager that charges the time inside it to a phase or another account.

        It may be kept and entered again and again, also by several threads at once.
        """
        charge = self._charges.get(name)
        if charge is None:
            charge = self._charges[name] = Charge(self, name)
        return charge

    def spent(self, name: str, seconds: float) -> None:
        """Charge seconds to an account of this step."""
        self._account(name).seconds += seconds

    def wrote(self, name: str, size: int, records: int = 0) -> None:
        """Note bytes and records written for an account of this step."""
        account = self._account(name)
        account.bytes += size
        account.records += records

    def busy(self, seconds: float) -> None:
        """Note that the thread that writes worked for some seconds."""
        self._busy += seconds

    def waited(self, seconds: float) -> None:
        """Note that recording waited for room; the charge around it has these seconds too."""
        self._waited += seconds

    @property
    def graphs(self) -> GraphCost:
        """What probes in compiled graphs cost beside, in all phases together."""
        return self._graphs

    def bytes_of_last_step(self) -> dict[str, int]:
        """Return the bytes written in the last step that was ended, by account."""
        accounts = self._last_steps[-1][1] if self._last_steps else {}
        return {name: account.bytes for name, account in accounts.items()}

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
            summaries.setdefault(name, _Summary()).add(replace(account))
        totals = [summary.total for summary in summaries.values()]
        return {
            "seconds": round(sum(total.seconds for total in totals), 6),
            "waited_seconds": round(self._waited, 6),
            "background_seconds": round(self._busy, 6),
            "bytes": sum(total.bytes for total in totals),
            **({"graphs": self._graphs.to_json()} if self._graphs.with_probes else {}),
            "phases": {name: summary.to_json() for name, summary in summaries.items()},
            "last_steps": {
                str(number): {name: account.to_json() for name, account in accounts.items()}
                for number, accounts in last[-_LAST_STEPS:]
            },
        }

    def _account(self, name: str) -> _Account:
        account = self._step.get(name)
        return self._step.setdefault(name, _Account()) if account is None else account


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._thread
        depth = thread.depth = thread.depth - 1
        if not depth:
            self._ledger.spent(self._name, self._clock() - thread.began)


_RUNNING = _Thread()
