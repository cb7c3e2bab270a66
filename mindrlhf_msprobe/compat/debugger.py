"""PrecisionDebugger: msprobe's config.json and calls, recorded by a probe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe.config import ProbeConfig, load_config
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import UNNAMED_PHASE

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.shared import SharedProbe

_NAME = "PrecisionDebugger"

#: What a debugger sets in a run that it joins.
_JOINING = (
    *("task", "step_start", "step_end", "steps", "entries", "scope", "parts", "directions"),
    *("level", "pert_mode", "handler_type", "fuzz_stage"),
    *("grad_level", "param_list", "bounds", "phases", "fingerprint", "md5", "parameters", "strict"),
)


class PrecisionDebugger:
    """Records what the cells of a network receive and return, between `start` and `stop`.

        debugger = PrecisionDebugger(config_path="config.json")
        debugger.start(model)
        loss = train_step(batch)
        debugger.stop()
        debugger.step()

    A process has one; made again, it is the same one, whatever the arguments. `start`, `stop` and
    `step` work on the class too. Files lie in `<dump_path>/step<N>/rank<N>`. A SingleSave of the
    same dump_path in this process records into the same run.

    Args:
        config_path: msprobe's config.json; None: its defaults, with level L0.
        task: statistics, tensor, overflow_check, grad_probe or free_benchmark.
        dump_path: where the run is recorded; it must not hold another run.
        level: L0, L1 or mix; L0 where it is not given.
        step: the steps that are recorded, numbers and ranges such as "3-5"; [] is all.
        rank: the ranks that record, likewise.

    task, dump_path, level, step and rank, where given, replace those of the file.

    Raises:
        ConfigError: a setting is wrong, or is one of msprobe's that is not offered.
        RunError: the dump_path already holds another run, or cannot be written.
    """

    _instance: ClassVar[PrecisionDebugger | None] = None
    _shared: SharedProbe | None
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
                warn("log.debugger_again", given=_arguments(given), known=_arguments(known._given))
            return known
        from mindrlhf_msprobe.compat.debugger_config import probe_settings

        shared = _shared_probe(load_config(probe_settings(given)))
        debugger = super().__new__(cls)
        debugger._given = given
        debugger._shared = shared
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
        shared = cls._shared_for("start")
        if shared is not None:
            from mindrlhf_msprobe.compat.debugger_config import ROLE

            shared.start(f"{_NAME}.start", UNNAMED_PHASE, ROLE, model, token_range)

    @classmethod
    def stop(cls) -> None:
        """End to record, until the next start.

        Raises:
            UsageError: there is no debugger.
        """
        shared = cls._shared_for("stop")
        if shared is not None and shared.open == UNNAMED_PHASE:
            shared.stop()

    @classmethod
    def monitor(cls, opt: Any) -> None:
        """Record the gradients that enter an optimizer from now on, with task grad_probe.

        Without `start`, in PyNative mode, each call of the optimizer is a step, as in msprobe, and
        parameters have their own names. With `start` gradients belong to the network that was
        started, and to the step that `step` ends; in graph mode they do only so.

        Args:
            opt: an optimizer; before it is compiled.

        Raises:
            UsageError: there is no debugger, it is no cell, or, in graph mode, it has been compiled
                already.
        """
        shared = cls._shared_for("monitor")
        if shared is not None and shared.probe.config.task == "grad_probe":
            from mindrlhf_msprobe.compat.debugger_config import ROLE

            shared.monitor(f"{_NAME}.monitor", UNNAMED_PHASE, ROLE, opt)

    @classmethod
    def step(cls) -> None:
        """End the step: when this returns, everything recorded in it is readable on disk.

        Raises:
            UsageError: there is no debugger.
        """
        shared = cls._shared_for("step")
        if shared is not None:
            shared.step(_NAME)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Number the steps from `step` on; to be called before anything is recorded.

        Raises:
            UsageError: there is no debugger, it is no step's number, or something has been
                recorded already.
        """
        shared = cls._shared_for("set_init_step")
        if shared is not None:
            shared.start_at(step, _NAME)

    @classmethod
    def _shared_for(cls, call: str) -> SharedProbe | None:
        if PrecisionDebugger._instance is None:
            raise UsageError.saying("error.debugger_first", call=call)
        return PrecisionDebugger._instance._shared


def _shared_probe(config: ProbeConfig) -> SharedProbe | None:
    """Return a probe for a configuration; None on a rank that does not record.

    The run of a SingleSave in this process is joined; one that records layer data already is not.
    """
    from mindrlhf_msprobe.capture.recording.recorder import current_rank
    from mindrlhf_msprobe.compat.shared import SharedProbe, probe_at
    from mindrlhf_msprobe.probe import Probe

    if not config.records_rank(current_rank(os.environ)):
        return None
    probe = probe_at(config.dump_path)
    if probe is None or any(map(probe.config.records_phase, probe.config.phase_table().values())):
        probe = Probe(config)
    else:
        probe.record_more(**{name: getattr(config, name) for name in _JOINING})
    return SharedProbe.for_tool(probe, _NAME)


def _arguments(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
