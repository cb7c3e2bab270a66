"""PrecisionDebugger: msprobe's config.json and calls, recorded by a probe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import LEVELS, NO_END, SECTION, TASKS, ProbeConfig, load_config
from mindrlhf_msprobe.errors import ConfigError, UsageError, nearest_of
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import UNNAMED_PHASE

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.shared import SharedProbe

_OTHER_TASKS = ("acc_check", "run_ut", "structure", "diff_check", "exception_dump", "nan_check")
LEVEL = "L0"
ROLE = "model"  # the one role of such a debugger's runs
_DATA_MODES = ("all", "forward", "backward", "input", "output")
_SUMMARY_MODES = ("statistics", "md5")

#: Of msprobe's settings those that change nothing here: what they steer is not done, or is done
#: either way.
_IGNORED = (
    *("extra_info", "async_dump", "precision", "risk_level", "custom_op_namespaces"),
    *("enable_dataloader", "seed", "is_deterministic", "acl_config"),
)
_IGNORED_IN_TASK = ("device", "precision", "file_format", "diff_nums", "check_mode")
#: Those that would record something else than what is recorded here, unless they are empty.
_NOT_OFFERED = ("dump_enable",)
_NOT_OFFERED_IN_TASK = ("tensor_list", "slice", "request_id", "backward_input", "bench_path")
#: The settings of grad_probe, with msprobe's defaults.
_OF_GRADIENTS = {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]}
#: The settings of free_benchmark, with msprobe's defaults; the rest of them change nothing there.
_OF_BENCHMARK = {"pert_mode": "improve_precision", "handler_type": "check", "fuzz_stage": "forward"}
_ONLY_IN_BENCHMARK = {"fuzz_device": ("npu",), "fuzz_level": ("L1",)}
_IGNORED_IN_BENCHMARK = ("if_preheat", "preheat_step", "max_sample")
#: How msprobe names operators in the `list` of free_benchmark, and how entries begin.
_NAMESPACES = {
    "mindspore.mint.nn.functional.": "MintFunctional.",
    "mindspore.mint.": "Mint.",
    "mindspore.ops.": "Functional.",
    "mindspore.Tensor.": "Tensor.",
}
#: Those of the probe itself, for what msprobe has no setting for.
_OWN = ("existing", "strict", "fingerprint", "parameters", "buffer_mb", "initial_step")

_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


def probe_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a probe that records what the arguments of PrecisionDebugger say.

    Raises:
        ConfigError: a setting is wrong, or is one of msprobe's that is not offered.
    """
    path = given.get("config_path")
    content = {} if path is None else _read(path)
    where = "PrecisionDebugger" if path is None else str(path)
    settings = {**content, **{k: v for k, v in given.items() if k != "config_path"}}
    _check_keys(where, settings)
    task, level = settings.get("task"), settings.get("level")
    if task in _OTHER_TASKS:
        raise _of_msprobe(where, "task", task, TASKS)
    task = _one_of(where, "task", task, TASKS) or TASKS[0]
    of_gradients = task == "grad_probe"
    if level in ("L2", "debug") and not of_gradients:  # which has no level in msprobe
        raise _of_msprobe(where, "level", level, LEVELS)
    if not of_gradients:
        _one_of(where, "level", level, LEVELS)
    section = settings.get(task) or {}
    if not isinstance(section, Mapping):
        raise _wrong(where, task, section, message("config.section_of_task"))
    dump_path = settings.get("dump_path")
    if dump_path is None:
        dump_path = "./dump_path"  # as in the config.json that comes with msprobe
    if not isinstance(dump_path, (str, Path)) or not str(dump_path).strip():
        raise _wrong(where, "dump_path", dump_path, message("config.directory"))
    ranks = _numbers(where, "rank", settings.get("rank"))
    steps = _numbers(where, "step", settings.get("step"))
    span = {"step_start": steps[0], "step_end": steps[-1], "steps": steps} if steps else {}
    return {
        "msprobe": True,
        "dump_path": str(dump_path),
        "task": task,
        "level": LEVEL if of_gradients else level or LEVEL,
        "ranks": ranks,
        **{"step_start": 0, "step_end": NO_END, **span},
        **_READ.get(task, _section)(f"{where}: {task}", section),
        **{name: settings[name] for name in _OWN if name in settings},
        "graft": _checked(f"{where}: load", "graft", settings.get("load")),
        "phases": {UNNAMED_PHASE: ROLE},
    }


def _of_msprobe(where: str, name: str, value: Any, offered: Sequence[str]) -> ConfigError:
    expected = message("config.either", choices=offered)
    given = {"where": where, "name": name, "value": value, "expected": expected}
    return ConfigError.saying("error.of_msprobe", **given)


def _read(path: Any) -> dict[str, Any]:
    if not isinstance(path, (str, Path)):
        raise ConfigError.saying("error.config_path", path=path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        file = message("error.mapping_file", kind="config.json")
        raise ConfigError.saying("error.no_such_file", path=path, file=file) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError.saying("error.unread_json", path=path, error=error) from None
    if not isinstance(content, dict):
        raise ConfigError.saying("error.no_json_object", path=path, name=type(content).__name__)
    return content


def _check_keys(where: str, settings: Mapping[str, Any]) -> None:
    known = (
        *("task", "dump_path", "rank", "step", "level", "load"),
        *(*_IGNORED, *_NOT_OFFERED, *TASKS, *_OTHER_TASKS, *_OWN),
    )
    for name, value in settings.items():
        _check_known(where, name, value, known)
        is_usual = value in (None, []) or (name == "dump_enable" and value is True)
        if name in _NOT_OFFERED and not is_usual:
            raise ConfigError.saying("error.not_offered", where=f"{where}: {name}", value=value)


def _check_known(where: str, name: str, value: Any, known: Iterable[str]) -> None:
    if name not in known:
        hint = nearest_of(name, known)
        raise ConfigError.saying(
            "config.unknown_key", where=where, name=name, value=repr(value), hint=hint
        )


def _section(where: str, section: Mapping[str, Any]) -> dict[str, Any]:
    known = (
        *("scope", "list", "data_mode", "summary_mode", "overflow_nums"),
        *(*_IGNORED_IN_TASK, *_NOT_OFFERED_IN_TASK),
    )
    for name, value in section.items():
        _check_known(where, name, value, known)
        if name in _NOT_OFFERED_IN_TASK and value not in (None, [], "", False):
            raise ConfigError.saying("error.not_offered", where=f"{where}.{name}", value=value)
    summary_mode = _one_of(where, "summary_mode", section.get("summary_mode"), _SUMMARY_MODES)
    entries = _texts(where, "list", section.get("list"))
    scope = _checked(where, "scope", _texts(where, "scope", section.get("scope")))
    modes = _texts(where, "data_mode", section.get("data_mode"))
    if any(mode not in _DATA_MODES for mode in modes):
        listed = message("config.list_of", choices=", ".join(_DATA_MODES))
        raise _wrong(where, "data_mode", modes, listed)
    if "all" in modes and len(modes) > 1:
        raise _wrong(where, "data_mode", modes, message("config.all_or_others"))
    directions = [mode for mode in ("forward", "backward") if mode in modes]
    parts = [mode for mode in ("input", "output") if mode in modes]
    return {
        "md5": summary_mode == _SUMMARY_MODES[1],
        "entries": entries,
        "scope": scope,
        "directions": directions or ["forward", "backward"],
        "parts": parts or ["input", "output"],
    }


def _of_overflow(where: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section of overflow_check says: also how many overflows are recorded."""
    found, number = _section(where, section), section.get("overflow_nums")
    if number is None:
        return found
    if type(number) is not int or number == 0 or number < -1:
        raise _wrong(where, "overflow_nums", number, message("config.number_or_all"))
    return {**found, "overflow_nums": number}


def _texts(where: str, name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(where, name, value, message("config.list_of_texts"))
    return value


def _of_gradients(where: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section of grad_probe says; at level L0 msprobe writes its md5, too."""
    for name, value in section.items():
        _check_known(where, name, value, _OF_GRADIENTS)
    given = {name: v for name, v in section.items() if v not in (None, [], "")}
    settings = {**_OF_GRADIENTS, **given}
    for name, value in settings.items():
        _checked(where, name, value)
    return {**settings, "md5": settings["grad_level"] == "L0"}


def _of_benchmark(where: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the section of free_benchmark says."""
    known = (*_OF_BENCHMARK, *_ONLY_IN_BENCHMARK, *_IGNORED_IN_BENCHMARK, "list", "scope")
    for name, value in section.items():
        _check_known(where, name, value, known)
    for name, only in _ONLY_IN_BENCHMARK.items():
        if section.get(name) not in (None, "", *only):
            raise _wrong(where, name, section[name], message("config.this", value=only[0]))
    given = {n: v for n, v in section.items() if n in _OF_BENCHMARK and v not in (None, "")}
    settings = {**_OF_BENCHMARK, **given}
    for name, value in given.items():  # fix asks for some values of the others
        _checked(where, name, value, **{**settings, "task": "free_benchmark"})
    entries = []
    for name in _texts(where, "list", section.get("list")):
        namespace = next((one for one in _NAMESPACES if name.startswith(one)), None)
        inside = name.removeprefix(namespace or "")
        entries.append(name if namespace is None else f"{_NAMESPACES[namespace]}{inside}.")
    scope = _checked(where, "scope", _texts(where, "scope", section.get("scope")))
    return {**settings, "entries": entries, "scope": scope}


def _checked(where: str, name: str, value: Any, **others: Any) -> Any:
    """Return a value that a probe's setting of the same name takes, beside other settings.

    Raises:
        ConfigError: it does not.
    """
    try:
        ProbeConfig(**{**others, name: value})
    except ConfigError as error:
        setting = error.said.params["setting"].replace(f"{SECTION}.", f"{where}: ")
        raise ConfigError(
            Message(error.said.code, {**error.said.params, "setting": setting})
        ) from None
    return value


def _numbers(where: str, name: str, value: Any) -> list[int]:
    """Return the numbers that a list of numbers and of ranges such as "3-5" names."""
    expected = message("config.numbers_and_ranges")
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(where, name, value, expected)
    found: set[int] = set()
    for item in value:
        match = _RANGE.fullmatch(str(item)) if type(item) in (int, str) else None
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= 1_000_000:  # step or rank
            raise _wrong(
                where, name, value, message("config.is_none", expected=expected, item=repr(item))
            )
        found |= set(range(first, last + 1))
    return sorted(found)


def _wrong(
    where: str, name: str, value: Any, expected: Message, known: Iterable[str] = ()
) -> ConfigError:
    return ConfigError.saying(
        "config.wrong",
        setting=f"{where}: {name}",
        shown=repr(value),
        kind=type(value).__name__,
        expected=expected,
        hint=nearest_of(value, known) if isinstance(value, str) else "",
    )


def _one_of(where: str, name: str, value: Any, choices: Sequence[str]) -> Any:
    """Return a value that is one of some, or is not given."""
    if value not in (None, "", *choices):
        raise _wrong(where, name, value, message("config.either", choices=choices), choices)
    return value


#: Reads the section of a task; of any other task `_section` does.
_READ = {
    "grad_probe": _of_gradients,
    "free_benchmark": _of_benchmark,
    "overflow_check": _of_overflow,
}


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
                said = [
                    ", ".join(f"{name}={value!r}" for name, value in of.items())
                    for of in (given, known._given)
                ]
                warn("log.debugger_again", given=said[0], known=said[1])
            return known
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
