"""Which probe `save`, `save_grad` and `step` record with: the newest whose run has not ended.

They are called from inside networks, where no probe is at hand. This module imports nothing that
costs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import logger, warn

if TYPE_CHECKING:
    from mindrlhf_msprobe.probe import Probe


class Current:
    """The probes of this process that record, the newest last.

    Attributes:
        wait: called before a step or a run ends: returns when graphs that run have handed over what
            they save.
        snapshot: returns a value as it is now, whatever becomes of its tensors.
        expected: whether calls without any probe are in order, because a trainer's configuration
            decides whether there is one.
        held: where it is a list, it gets what is saved, by name, and nothing is written.
        compiled_without: the keys of graphs that were compiled without a probe, so that they never
            hand anything over.
        recorded: the directory and the rank of each run that this process has begun to record.
        why_not: why a training of this process is not recorded, of the last one that is not.
        step_ended: called when a step of a probe has ended, with its number, and the bytes and
            seconds that it took.
    """

    def __init__(self) -> None:
        self.wait: Callable[[], None] = lambda: None
        self.snapshot: Callable[[Any], Any] = lambda data: data
        self.expected = False
        self.held: list[tuple[str, Any]] | None = None
        self._probes: list[tuple[Probe, Callable[[Message, BaseException], None]]] = []
        self.compiled_without: set[str] = set()
        self.recorded: list[tuple[Path, int]] = []
        self.why_not: Message | None = None
        self.step_ended: Callable[[int, int, float], None] = lambda *_: None
        self._logged: set[Message] = set()
        self._missed = False  # whether it was said that there is no probe

    def begin(self, probe: Probe, fault: Callable[[Message, BaseException], None]) -> None:
        """Let a probe be the newest.

        Args:
            fault: called with what goes wrong while it records; raises it in strict mode.
        """
        self._probes.append((probe, fault))
        self._missed = False

    def end(self, probe: Probe) -> None:
        """Forget a probe, if it is known."""
        self._probes = [known for known in self._probes if known[0] is not probe]

    def save(self, probe: Probe, name: Any, data: Any) -> None:
        """Save key data with a probe; what is wrong is said once, and training goes on."""
        if self.held is not None and isinstance(name, str):
            self.held.append((name, self.snapshot(data)))
            return
        try:
            probe.save_data(name, data)
        except UsageError as error:
            self.log_once(message("unread.at", path=f"save({name!r}, …)", why=error))

    @contextmanager
    def hold(self) -> Iterator[list[tuple[str, Any]]]:
        """Put what is saved into a list, as it is then, instead of writing it."""
        held: list[tuple[str, Any]] = []
        before, self.held = self.held, held
        try:
            yield held
            self.wait()
        finally:
            self.held = before

    @property
    def probe(self) -> Probe | None:
        """The newest probe that records."""
        return self._probes[-1][0] if self._probes else None

    def fault(self, what: Message, error: BaseException) -> None:
        """Count a fault of the newest probe; raises it in strict mode."""
        if self._probes:
            self._probes[-1][1](what, error)

    def probe_for(self, call: str | Message) -> Probe | None:
        """Return the newest probe that records; where there is none, that is said once."""
        if not (self._probes or self.expected or self._missed):
            self._missed = True
            warn("log.no_probe", call=call)
        return self.probe

    def log_once(self, said: Message) -> None:
        """Log a warning, once."""
        if said not in self._logged:
            self._logged.add(said)
            logger.warning("%s", said)


CURRENT = Current()
