"""What `Probe.phase` returns: a phase, or several, as a context manager and as a decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.phases import Phase

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_RUN_LATER = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


class Phases(Protocol):
    """What a phase asks of its probe."""

    def phase(
        self,
        name: str | Sequence[str],
        model: Any = None,
        *,
        token_range: tuple[int, int] | None = None,
    ) -> PhaseContext | NoPhase:
        """Return a phase, or several that open together."""

    def enter_phases(
        self, context: PhaseContext, phases: Sequence[Phase], model: Any
    ) -> dict[Phase, Any]:
        """Mark phases open and return the network to record in each that is recorded now."""

    def leave_phases(self, context: PhaseContext) -> None:
        """Mark phases closed."""


class PhaseContext:
    """One phase of the step, or several at once: `with probe.phase(…):` or `@probe.phase(…)`.

    Exceptions inside pass through; the phase is closed all the same.
    """

    def __init__(
        self,
        probe: Phases,
        recorder: Recorder,
        phases: Sequence[Phase],
        model: Any,
        token_range: tuple[int, int] | None = None,
    ) -> None:
        self._probe = probe
        self._recorder = recorder
        self._phases = phases
        self._model = model
        self._token_range = token_range
        self._capture: Any = None

    @property
    def name(self) -> str:
        """The phase's name; of several, all of them."""
        return " and ".join(phase.name for phase in self._phases)

    def __enter__(self) -> PhaseContext:
        networks = self._probe.enter_phases(self, self._phases, self._model)
        if networks:
            try:
                with self._recorder.ledger.charge(next(iter(networks)).name):
                    self._capture = self._recorder.open_phases(networks, self._token_range)
            except BaseException:
                self._probe.leave_phases(self)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._recorder.note_failure(self._phases, error)
        try:
            self.end(raised=error is not None)
        except Exception:
            if error is None:  # strict mode never hides the training's own exception
                raise

    def end(self, *, raised: bool = False) -> None:
        """Remove the hooks; does nothing where the phase has ended already.

        Args:
            raised: the training raised inside the phase, so it may well be empty.
        """
        capture, self._capture = self._capture, None
        try:
            if capture is not None:
                with self._recorder.ledger.charge(next(iter(capture.phases)).name):
                    self._recorder.close_phases(capture, raised=raised)
        finally:
            self._probe.leave_phases(self)

    def __call__(self, function: _Function) -> _Function:
        """Return `function` wrapped so that each call of it is this phase.

        Raises:
            UsageError: it is not a function, or one whose body runs after it returned.
        """
        if not callable(function):
            raise UsageError(message("error.no_function", name=self.name, function=function))
        if any(kind(function) for kind in _RUN_LATER):
            raise UsageError(
                message("error.late_function", name=self.name, qualname=function.__qualname__)
            )
        probe, model, tokens = self._probe, self._model, self._token_range
        each = [phase.name for phase in self._phases]
        names = each if len(each) > 1 else each[0]

        @functools.wraps(function)
        def in_phase(*args: Any, **kwargs: Any) -> Any:
            with probe.phase(names, model=model, token_range=tokens):
                return function(*args, **kwargs)

        return in_phase  # type: ignore[return-value]


class NoPhase:
    """The phase of a probe that is switched off: costs nothing, changes nothing."""

    def __enter__(self) -> NoPhase:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: _Function) -> _Function:
        """Return `function` as it is."""
        return function


NO_PHASE = NoPhase()
