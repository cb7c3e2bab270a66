"""PrecisionDebugger at level L0: msprobe's config.json and calls, recorded by a probe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage.layout import UNNAMED_PHASE

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.switching import PhaseSwitch

ROLE = "model"


class PrecisionDebugger:
    """Records what the cells of a network receive and return, between `start` and `stop`.

        debugger = PrecisionDebugger(config_path="config.json")
        debugger.start(model)
        loss = train_step(batch)
        debugger.stop()
        debugger.step()

    A process has one; made again, it is the same one, whatever the arguments. `start`, `stop` and
    `step` work on the class too. Files lie in `<dump_path>/step<N>/rank<N>`.

    Args:
        config_path: msprobe's config.json; None: its defaults, with level L0.
        task: statistics or tensor.
        dump_path: where the run is recorded; it must not hold another run.
        level: L0.
        step: the steps that are recorded, numbers and ranges such as "3-5"; [] is all.
        rank: the ranks that record, likewise.

    task, dump_path, level, step and rank, where given, replace those of the file.

    Raises:
        ConfigError: a setting is wrong, or is one of msprobe's that is not offered.
        RunError: the dump_path already holds another run, or cannot be written.
    """

    _instance: ClassVar[PrecisionDebugger | None] = None
    _switch: PhaseSwitch | None
    _given: dict[str, Any]

    def __new__(
        cls,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        rank: list[int | str] | None = None,
    ) -> PrecisionDebugger:
        """Make the process's debugger, or return the one there is."""
        given = {
            **{"config_path": config_path, "task": task, "dump_path": dump_path},
            **{"level": level, "step": step, "rank": rank},
        }
        given = {name: value for name, value in given.items() if value is not None}
        known = PrecisionDebugger._instance
        if known is not None:
            if given and given != known._given:
                logger.warning(
                    "PrecisionDebugger(%s): there is one in this process already, made with (%s); "
                    "the arguments change nothing.",
                    _arguments(given),
                    _arguments(known._given),
                )
            return known
        from mindrlhf_msprobe.compat.debugger_config import probe_settings
        from mindrlhf_msprobe.compat.switching import PhaseSwitch
        from mindrlhf_msprobe.probe import Probe

        probe = Probe.from_config(probe_settings(given))
        debugger = super().__new__(cls)
        debugger._given = given
        debugger._switch = PhaseSwitch(probe, "PrecisionDebugger") if probe.enabled else None
        PrecisionDebugger._instance = debugger
        return debugger

    @classmethod
    def start(cls, model: Any = None, token_range: tuple[int, int] | None = None) -> None:
        """Begin to record; also several times in a step.

        In graph mode, start before the network is compiled, in whatever step: later it cannot be
        given probes.

        Args:
            model: a network or a list of networks; None: the one that was last given.
            token_range: the first and the last token to record, both inclusive; a token is one
                pass through the network since this start.

        Raises:
            UsageError: there is no debugger or no network, it is no cell, it has been compiled
                already, or the token range is none.
        """
        switch = cls._switch_for("start")
        if switch is not None:
            switch.start(UNNAMED_PHASE, ROLE, model, token_range)

    @classmethod
    def stop(cls) -> None:
        """End to record, until the next start.

        Raises:
            UsageError: there is no debugger.
        """
        switch = cls._switch_for("stop")
        if switch is not None:
            switch.stop()

    @classmethod
    def step(cls) -> None:
        """End the step: when this returns, everything recorded in it is readable on disk.

        Raises:
            UsageError: there is no debugger.
        """
        switch = cls._switch_for("step")
        if switch is not None:
            switch.step()

    @classmethod
    def _switch_for(cls, call: str) -> PhaseSwitch | None:
        if PrecisionDebugger._instance is None:
            raise UsageError(
                f"PrecisionDebugger.{call}() before PrecisionDebugger(config_path=…): nothing says "
                f"what to record."
            )
        return PrecisionDebugger._instance._switch


def _arguments(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
