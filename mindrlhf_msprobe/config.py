"""The `msprobe_config` section as a frozen, checked value.

The twelve documented keys and the extensions; every value is checked when the configuration is
read, so that a training never starts with a setting that means something else than it says.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import PatternError, pattern
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError, nearest_of
from mindrlhf_msprobe.phases import PHASES, Phase, phase_table
from mindrlhf_msprobe.storage.operators import parse_operator

SECTION = "msprobe_config"

#: An environment variable: the path of a JSON file with settings in the place of a trainer's own.
OVERRIDES = "MSPROBE_OVERRIDES"

#: A step_end that means: no end.
NO_END = 2**31 - 1

#: The tasks that have the recorded calls computed again.
ACCURACY_CHECK, FREE_BENCHMARK = "accuracy_check", "free_benchmark"

#: What a run records of each tensor.
TASKS = (
    *("statistics", "tensor", "overflow_check", "grad_probe", "sketch"),
    *(FREE_BENCHMARK, ACCURACY_CHECK),
)


#: What `task: free_benchmark` disturbs inputs by, as msprobe names it.
PERT_MODES = ("improve_precision", "add_noise", "bit_noise", "no_change", "change_value")
_FLOATS = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64"}

#: What `accuracy_check` computes in, and what a run may declare that it computes in.
PRECISIONS = ("float64", "float32")
COMPUTE_DTYPES = ("float32", "float16", "bfloat16")

#: What is recorded: cells, operators, or both; msprobe's words.
LEVELS = ("L0", "L1", "mix")

#: What phases, roles and values that are replaced may be called.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A phase names a directory beside data/, and neither a step's nor a rank's.
_RESERVED_PHASE = re.compile(r"data|(step|rank|proc)\d*")
_RESERVED_ROLE = "optimizers"  # a keyword of Probe.watch
_ENTRY = re.compile(r"Cell\..+\.(forward|backward)\.[0-9]+")
_SKIPPED = object()

#: msprobe's range of `bounds`: that of int64.
_MOST_BOUND = 2**63

#: What `on_finding` may say beside the name of a function.
WARN, STOP = "warn", "stop"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

#: What a divergence from the run that is compared with while training leads to, beside WARN, STOP.
RECORD = "record"

#: In which order recorded rollouts are played.
SAME, CYCLE, SHUFFLE = "same", "cycle", "shuffle"

#: What a graft puts in, as it is called there: the direction of the entries, and the part of them.
GRAFTED = {
    "output": ("forward", "output"),
    "input": ("forward", "input"),
    "gradient": ("backward", "input"),
    "input_gradient": ("backward", "output"),
    "parameters": ("forward", "parameters"),
    "updated_parameters": ("forward", "parameters"),
    "parameters_grad": ("parameters_grad", "parameters_grad"),
}
#: Likewise: all that a cell's own code makes, between the cells in it. It hands that to them, or
#: returns it, forward and backward.
CODE = "code"
#: What the keys of a graft are called in msprobe's section `load`.
_OF_LOAD = {"path": "from", "modules": "entries", "step": "steps", "rank": "ranks"}

#: How many patterns `include` and `exclude` may have: each is tried on the name of every cell.
MOST_PATTERNS = 1000


def _fail(name: str, value: Any, expected: Message, hint: Message | str = "") -> ConfigError:
    return ConfigError(_wrong(name, value, expected, hint))


def _wrong(name: str, value: Any, expected: Message, hint: Message | str = "") -> Message:
    shown, kind = repr(value), type(value).__name__
    setting = f"{SECTION}.{name}"
    return message(
        "config.wrong", setting=setting, shown=shown, kind=kind, expected=expected, hint=hint
    )


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(name, value, message("config.true_or_false"))
    return value


def _number(
    kind: type[int | float], fits: Callable[[Any], bool], code: str, **params: Any
) -> Callable[[str, Any], Any]:
    """Return what checks a number of a kind; `code`, with its parameters, says what is expected."""

    def check(name: str, value: Any) -> Any:
        known = isinstance(value, numbers.Integral if kind is int else numbers.Real)
        if not known or isinstance(value, bool) or not fits(value):
            raise _fail(name, value, message(code, **params))
        return kind(value)

    return check


def _whole_number(minimum: int) -> Callable[[str, Any], int]:
    return _number(int, lambda n: bool(n >= minimum), "config.whole_number", least=minimum)


_positive = _number(float, lambda n: 0 < float(n) < math.inf, "config.positive")
_seconds = _number(float, lambda n: bool(0 <= n < math.inf), "config.seconds")


def _or_nothing(check: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    """Return what lets None and "" stand for nothing, "", and has all else checked."""
    return lambda name, value: "" if value is None or value == "" else check(name, value)


def _path(name: str, value: Any, expected: str = "config.directory") -> str:
    if not isinstance(value, (str, Path)) or not str(value).strip() or "\0" in str(value):
        raise _fail(name, value, message(expected))
    return str(value)


def _file(name: str, value: Any) -> str:
    return _path(name, value, "config.file")


def _on_finding(name: str, value: Any) -> str:
    if not isinstance(value, str) or not (value in (WARN, STOP) or _FUNCTION.fullmatch(value)):
        hint = nearest_of(value, (WARN, STOP)) if isinstance(value, str) else ""
        raise _fail(name, value, message("config.on_finding"), hint)
    return value


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = nearest_of(value, choices) if isinstance(value, str) else ""
            raise _fail(name, value, message("config.one_of", choices=", ".join(choices)), hint)
        return value

    return check


def _items(name: str, value: Any, expected: Message) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise _fail(name, value, expected)
    return tuple(value)


def _each(
    check: Callable[[str, Any], Any], code: str, **params: Any
) -> Callable[[str, Any], tuple[Any, ...]]:
    """Return what checks a list item by item; `code`, with its parameters, says what it is."""

    def checked(name: str, value: Any) -> tuple[Any, ...]:
        items = _items(name, value, message(code, **params))
        return tuple(check(f"{name}[{i}]", item) for i, item in enumerate(items))

    return checked


_ranks = _each(_whole_number(0), "config.list_of_numbers", what="ranks")
_steps = _each(_whole_number(0), "config.list_of_numbers", what="steps")


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    patterns = _items(name, value, message("config.patterns"))
    if len(patterns) > MOST_PATTERNS:
        count, setting = len(patterns), f"{SECTION}.{name}"
        raise ConfigError.saying(
            "config.too_many_patterns", setting=setting, count=count, most=MOST_PATTERNS
        )
    expected = message("config.pattern")
    for i, text in enumerate(patterns):
        if not isinstance(text, str):
            raise _fail(f"{name}[{i}]", text, expected)
        try:
            pattern(text)
        except PatternError as error:
            wrong = _wrong(f"{name}[{i}]", text, expected)
            raise ConfigError.saying("config.unusable", wrong=wrong, error=error) from None
    return patterns


def _some_of(*choices: str) -> Callable[[str, Any], tuple[str, ...]]:
    listed = ", ".join(choices)
    each = _each(_choice(*choices), "config.list_of", choices=listed)

    def check(name: str, value: Any) -> tuple[str, ...]:
        items = each(name, value)
        if not items:
            raise _fail(name, value, message("config.one_at_least", choices=listed))
        return items

    return check


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _fail(name, value, message("config.text"))
    return value


_texts = _each(_text, "config.texts")


def _bounds(name: str, value: Any) -> tuple[float, ...]:
    expected = message("config.bounds")
    bounds = _items(name, value, expected)
    known = all(isinstance(b, numbers.Real) and not isinstance(b, bool) for b in bounds)
    known = known and all(-_MOST_BOUND <= b <= _MOST_BOUND for b in bounds)
    if not bounds or not known or any(a >= b for a, b in itertools.pairwise(bounds)):
        raise _fail(name, value, expected)
    return tuple(map(float, bounds))


def _scope(name: str, value: Any) -> tuple[str, ...]:
    expected = message("config.scope")
    ends = _items(name, value, expected)
    if len(ends) not in (0, 2):
        raise _fail(name, value, expected)
    for i, end in enumerate(ends):
        if not isinstance(end, str) or not (_ENTRY.fullmatch(end) or parse_operator(end)):
            example = "Cell.layers.0.Dense.forward.0"
            raise _fail(f"{name}[{i}]", end, message("config.entry", example=example))
    return ends


def _step_window(name: str, value: Any) -> tuple[int, ...]:
    window = _steps(name, value)
    if len(window) not in (0, 2) or (window and window[1] < window[0]):
        raise _fail(name, value, message("config.step_window"))
    return window


def _pairs(name: str, value: Any, expected: str) -> dict[Any, Any]:
    if not isinstance(value, (Mapping, type(None))):
        raise _fail(name, value, message(expected))
    return dict(value or {})


def _runs_of_values(name: str, value: Any) -> dict[str, str]:
    runs = _pairs(name, value, "config.replace")
    for key, run in runs.items():
        if not isinstance(key, str) or not NAME.fullmatch(key):
            raise _fail(name, key, message("config.value_name"))
        _path(f"{name}.{key}", run)
    return {key: str(run) for key, run in runs.items()}


def _grafts(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Return grafts with all their keys; one alone may be given without a list around it."""
    several = [value] if isinstance(value, Mapping) else value
    grafts: tuple[dict[str, Any], ...] = _each(_graft, "config.graft")(name, several)
    return grafts


def _graft(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _fail(name, given, message("config.graft"))
    of_load = "modules" in given or "path" in given  # msprobe's: what a module is given
    items = {_OF_LOAD.get(key, key) if of_load else key: item for key, item in given.items()}
    if of_load:
        items.pop("dump_after_load", None)
        items.setdefault("what", "input")
    checks: dict[str, Callable[[str, Any], Any]] = {
        "from": _path,
        "entries": _entries,
        "what": _what,
        "steps": _steps,
        "phases": _texts,
        "ranks": _ranks,
    }
    for key, item in items.items():
        if key not in checks:
            shown = [(repr(f"{name}.{key}"), repr(item), nearest_of(str(key), checks))]
            raise ConfigError.saying("config.unknown_keys", items=shown, known=", ".join(checks))
    missing = [key for key in ("from", "entries") if not items.get(key)]
    if missing:
        raise _fail(f"{name}.{missing[0]}", items.get(missing[0]), message("config.graft"))
    items.setdefault("what", "output")
    return {key: check(f"{name}.{key}", items.get(key)) for key, check in checks.items()}


def _what(name: str, value: Any) -> tuple[str, ...]:
    return _some_of(*GRAFTED, CODE)(name, [value] if isinstance(value, str) else value)


def _entries(name: str, value: Any) -> tuple[str, ...]:
    """Return what names entries: `Cell.<cell>.<Class>`, one call of it, or one record."""
    texts = _texts(name, value)
    for i, text in enumerate(texts):
        if not text.startswith(("Cell.", "Module.")) or text.count(".") < 2:
            raise _fail(f"{name}[{i}]", text, message("config.graft_entry"))
    return tuple(re.sub(r"^Module\.", "Cell.", text) for text in texts)


def _own_phases(name: str, value: Any) -> dict[str, str]:
    phases, standard = _pairs(name, value, "config.phases"), {phase.name for phase in PHASES}
    for phase, role in phases.items():
        if not isinstance(phase, str) or not NAME.fullmatch(phase):
            raise _fail(name, phase, message("config.phase_name"))
        if phase in standard or _RESERVED_PHASE.fullmatch(phase):
            raise _fail(name, phase, message("config.free_name"))
        if not isinstance(role, str) or not NAME.fullmatch(role) or role == _RESERVED_ROLE:
            raise _fail(f"{name}.{phase}", role, message("config.role"))
    return phases


def _fuzz_thresholds(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise _fail(name, value, message("config.thresholds"))
    for dtype, threshold in value.items():
        if dtype not in _FLOATS:
            raise _fail(f"{name}.{dtype}", threshold, message("config.thresholds"))
        _positive(f"{name}.{dtype}", threshold)
    return {dtype: float(threshold) for dtype, threshold in value.items()}


def _setting(default: Any, check: Callable[[str, Any], Any]) -> Any:
    """Return a key of the section: its default, and what checks a value and makes it uniform."""
    metadata = {"check": check}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ProbeConfig:
    """What to record, when and where; see docs/en/configuration.md for every key.

    Ranges are inclusive. Step and token ranges limit layer data, not key data.

    Raises:
        ConfigError: a value has the wrong type or a range is inverted.
    """

    msprobe: bool = _setting(False, _bool)
    dump_path: str = _setting("./msprobe_dump", _path)
    key_data_dump: bool = _setting(False, _bool)
    configurations_dump: bool = _setting(False, _bool)
    actor_infer_dump: bool = _setting(False, _bool)
    actor_train_dump: bool = _setting(False, _bool)
    reference_dump: bool = _setting(False, _bool)
    critic_train_dump: bool = _setting(False, _bool)
    token_range_start: int = _setting(0, _whole_number(0))
    token_range_end: int = _setting(0, _whole_number(0))
    step_start: int = _setting(0, _whole_number(0))
    step_end: int = _setting(0, _whole_number(0))
    # extensions
    task: str = _setting("statistics", _choice(*TASKS))
    level: str = _setting("L0", _choice(*LEVELS))
    precision: str = _setting("float64", _choice(*PRECISIONS))
    budget: float = _setting(
        0.0, lambda name, value: _seconds(name, 0.0 if value is None else value)
    )
    compute_dtype: str = _setting("", _or_nothing(_choice(*COMPUTE_DTYPES)))
    overflow_nums: int = _setting(
        1, _number(int, lambda n: n > 0 or n == -1, "config.number_or_all")
    )
    grad_level: str = _setting("L2", _choice("L0", "L1", "L2"))
    param_list: Sequence[str] = _setting((), _texts)
    bounds: Sequence[float] = _setting((-1.0, 0.0, 1.0), _bounds)
    fingerprint: bool = _setting(True, _bool)
    md5: bool = _setting(False, _bool)
    parameters: bool = _setting(True, _bool)
    optimizer_state: bool = _setting(False, _bool)
    ranks: Sequence[int] = _setting((), _ranks)
    include: Sequence[str] = _setting((), _patterns)
    exclude: Sequence[str] = _setting((), _patterns)
    directions: Sequence[str] = _setting(("forward", "backward"), _some_of("forward", "backward"))
    parts: Sequence[str] = _setting(("input", "output"), _some_of("input", "output"))
    entries: Sequence[str] = _setting((), _texts)
    scope: Sequence[str] = _setting((), _scope)
    steps: Sequence[int] = _setting((), _steps)
    step_interval: int = _setting(1, _whole_number(1))
    existing: str = _setting("refuse", _choice("refuse", "resume", "overwrite"))
    strict: bool = _setting(False, _bool)
    initial_step: int = _setting(0, _whole_number(0))
    buffer_mb: int = _setting(512, _whole_number(1))
    keep_mb: int = _setting(0, _whole_number(0))
    columns: bool = _setting(True, _bool)
    numbered_key_data: bool = _setting(False, _bool)
    on_finding: str = _setting("", _or_nothing(_on_finding))
    rules: str = _setting("", _or_nothing(_file))
    tensorboard: str = _setting("", _or_nothing(_path))
    pert_mode: str = _setting("improve_precision", _choice(*PERT_MODES))
    handler_type: str = _setting("check", _choice("check", "fix"))
    fuzz_stage: str = _setting("forward", _choice("forward", "backward"))
    fuzz_runs: int = _setting(3, _whole_number(1))
    fuzz_thresholds: Mapping[str, float] = _setting({}, _fuzz_thresholds)
    fuzz_ratio: float = _setting(100.0, _positive)
    phases: Mapping[str, str] = _setting({}, _own_phases)
    rollout_from: str = _setting("", _or_nothing(_path))
    rollout_order: str = _setting(SAME, _choice(SAME, CYCLE, SHUFFLE))
    rollout_seed: int = _setting(0, _whole_number(0))
    rollout_steps: Sequence[int] = _setting((), _step_window)
    replace: Mapping[str, str] = _setting({}, _runs_of_values)
    graft: Sequence[Mapping[str, Any]] = _setting((), _grafts)
    compare_to: str = _setting("", _or_nothing(_path))
    on_divergence: str = _setting(WARN, _choice(WARN, RECORD, STOP))

    def __post_init__(self) -> None:
        for key in dataclasses.fields(self):
            value = key.metadata["check"](key.name, getattr(self, key.name))
            object.__setattr__(self, key.name, value)
        for name in ("token_range", "step"):
            start, end = getattr(self, f"{name}_start"), getattr(self, f"{name}_end")
            if end < start:
                names = {"first": f"{name}_start", "last": f"{name}_end"}
                raise ConfigError.saying("config.inverted_range", **names, start=start, end=end)
        if self.task == "grad_probe" and "backward" not in self.directions:
            raise ConfigError.saying("config.no_backward", directions=str(list(self.directions)))
        needed = {"task": FREE_BENCHMARK, "pert_mode": "improve_precision", "fuzz_stage": "forward"}
        for name, value in needed.items() if self.handler_type == "fix" else ():
            if getattr(self, name) != value:
                raise _fail(name, getattr(self, name), message("config.for_fix", value=value))
        if self.steps and self.step_interval > 1:
            raise ConfigError.saying("config.steps_and_interval", interval=self.step_interval)
        if self.steps and not self.recorded_steps:
            raise ConfigError.saying(
                "config.steps_outside",
                steps=str(list(self.steps)),
                first=self.step_start,
                last=self.step_end,
                needed=max(self.steps),
            )

    @property
    def fuzz_limits(self) -> dict[str, float]:
        """The thresholds of changes that were given, by MindSpore's names of dtypes."""
        return {_FLOATS[dtype]: limit for dtype, limit in self.fuzz_thresholds.items()}

    @property
    def changes_training(self) -> bool:
        """Whether the training goes on with something that it did not compute itself."""
        return self.msprobe and self.handler_type == "fix"

    @property
    def may_stop(self) -> bool:
        """Whether something that is found while training may end it, on every rank."""
        return self.on_finding == STOP or bool(self.compare_to and self.on_divergence == STOP)

    @property
    def plays(self) -> bool:
        """Whether the training is given rollouts or other values of another run."""
        return bool(self.rollout_from or self.replace)

    def phase_table(self) -> dict[str, Phase]:
        """Return every phase a trainer may open, by name."""
        return phase_table(self.phases)

    def records_phase(self, phase: Phase) -> bool:
        """Return whether the layer data of `phase` are switched on."""
        if not self.msprobe:
            return False
        return phase.switch is None or bool(getattr(self, phase.switch))

    def records_anything(self) -> bool:
        """Return whether key data or the layer data of any phase are switched on."""
        return self.key_data_dump or any(map(self.records_phase, self.phase_table().values()))

    def records_step(self, step: int) -> bool:
        """Return whether `step` lies in the step window of layer data, and is one of those chosen.

        They are `steps`, or every `step_interval`-th one, counted from `step_start`.
        """
        in_window = self.step_start <= step <= self.step_end
        if self.steps:
            return in_window and step in self.steps
        return in_window and (step - self.step_start) % self.step_interval == 0

    def next_recorded(self, step: int) -> int | None:
        """Return the first step, from `step` on, of which layer data are recorded; None: none."""
        if self.steps:
            return min(
                (one for one in self.steps if one >= step and self.records_step(one)), default=None
            )
        first = max(step, self.step_start)
        first += -(first - self.step_start) % self.step_interval
        return first if first <= self.step_end else None

    def steps_from(self, step: int) -> int | None:
        """Return of how many steps, from `step` on, layer data are recorded; None: no end."""
        if self.steps:
            return sum(self.records_step(other) for other in set(self.steps) if other >= step)
        if self.step_end == NO_END:
            return None
        before = max(0, -(-(step - self.step_start) // self.step_interval))
        return max(0, (self.step_end - self.step_start) // self.step_interval + 1 - before)

    @property
    def task_for_msprobe(self) -> str:
        """The task that msprobe's own tools read such a run as."""
        return "tensor" if self.task == "tensor" else "statistics"

    @property
    def keeps_rows(self) -> bool:
        """Whether more of a tensor's rows is kept than their statistics: elements, or sketches."""
        return self.task in ("tensor", "sketch")

    @property
    def records_cells(self) -> bool:
        """Whether cells are recorded, with their parameters and gradients of parameters."""
        return self.level != "L1"

    @property
    def records_operators(self) -> bool:
        """Whether operators are recorded."""
        return self.level != "L0"

    @property
    def recorded_steps(self) -> int | None:
        """How many steps' layer data are recorded; None if the step window has no end."""
        return self.steps_from(self.step_start)

    def records_token(self, token: int) -> bool:
        """Return whether `token` lies in the token range of the generate phase."""
        return self.token_range_start <= token <= self.token_range_end

    def records_rank(self, rank: int) -> bool:
        """Return whether `rank` records at all."""
        return not self.ranks or rank in self.ranks

    def records_cell(self, name: str) -> bool:
        """Return whether the cell called `name` passes `include` and `exclude`."""
        if self.include and not any(pattern(text).search(name) for text in self.include):
            return False
        return not any(pattern(text).search(name) for text in self.exclude)

    def records_entry(self, name: str) -> bool:
        """Return whether the entry called `name` passes `entries`."""
        return not self.entries or any(text in name for text in self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        values = dataclasses.asdict(self)
        values["graft"] = [{k: _listed(v) for k, v in one.items()} for one in self.graft]
        return {key: _listed(value) for key, value in values.items()}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


#: All keys, in the order of the documents.
_KEYS = tuple(key.name for key in dataclasses.fields(ProbeConfig))
#: The keys that no other section of a trainer's file has.
_OWN_KEYS = frozenset(_KEYS[: _KEYS.index("task")])


def overridden(config: ProbeConfig) -> ProbeConfig:
    """Return a configuration with the settings that `prove` and `hunt` have for a run, if any.

    Raises:
        ConfigError: the file that OVERRIDES names cannot be read, or a setting is wrong.
    """
    path = os.environ.get(OVERRIDES)
    if not path or not config.msprobe:
        return config
    settings = read_yaml(Path(path), unique=SECTION)
    return load_config({**{key: getattr(config, key) for key in _KEYS}, **settings})


def phases_of(config: ProbeConfig | None) -> dict[str, Phase]:
    """Return every phase a trainer may open, by name; the standard ones where it is not known."""
    return phase_table({}) if config is None else config.phase_table()


def section_of(
    config: ProbeConfig | None, phases: Iterable[Phase], first: int, last: int
) -> dict[str, Any]:
    """Return the settings that record phases in the steps `first` to `last`, inclusive.

    The trainer's own phases and the number of its first step are taken from `config`.
    """
    section: dict[str, Any] = {"msprobe": True}
    if config and config.phases:
        section["phases"] = dict(config.phases)
    if config and config.initial_step:
        section["initial_step"] = config.initial_step
    section.update({phase.switch: True for phase in phases if phase.switch is not None})
    return section | {"step_start": first, "step_end": last}


def load_config(source: Any, ignore: Callable[[Message], None] | None = None) -> ProbeConfig:
    """Read the configuration from a YAML path, a mapping, a dataclass or an attribute object.

    If `source` holds a section or attribute `msprobe_config`, that section is taken; if not,
    `source` is the section itself. An empty section means the defaults: switched off.

    Args:
        ignore: is given a message that names the unknown keys, which are left out then. Without
            it they are an error, and with `strict: true` where the probe is switched on.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong. The message names the
            key, the value, what was expected and, for an unknown key, the nearest known one.
    """
    if isinstance(source, ProbeConfig):
        return source
    file: str | Path | None = None
    if isinstance(source, (str, Path)):
        file = source
        source = read_yaml(Path(file), unique=SECTION)
        # The others have everyday names (task, parameters), which a trainer's file may use too.
        if SECTION not in source and not _OWN_KEYS & set(source):
            raise ConfigError(_of(file, message("config.no_section")))
    is_mapping = isinstance(source, Mapping)
    section = source.get(SECTION, source) if is_mapping else getattr(source, SECTION, source)
    try:
        items = {} if section is None else _as_items(section)
        if unknown := [key for key in items if key not in _KEYS]:
            known = sorted(_KEYS)
            shown = [(repr(k), repr(items.pop(k)), nearest_of(str(k), known)) for k in unknown]
            said = message("config.unknown_keys", items=shown, known=", ".join(_KEYS))
            strict = items.get("msprobe") is True and items.get("strict") is True
            if ignore is None or strict:
                raise ConfigError(said)
            ignore(_of(file, said))
        return ProbeConfig(**items)
    except ConfigError as error:
        raise ConfigError(_of(file, error.said)) from None


def _of(file: str | Path | None, said: Message) -> Message:
    return said if file is None else message("unread.at", path=file, why=said)


def _as_items(section: Any) -> dict[Any, Any]:
    """Return a section's keys and values, whatever kind of object carries them."""
    if isinstance(section, Mapping):
        return dict(section)
    if inspect.isroutine(section) or isinstance(
        section, (str, bytes, numbers.Number, list, tuple, set)
    ):
        kind = type(section).__name__
        raise ConfigError.saying("config.no_mapping", shown=repr(section), kind=kind)
    if dataclasses.is_dataclass(section) and not isinstance(section, type):
        return {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    names = {key for key in _KEYS if hasattr(section, key)} | {*getattr(section, "__dict__", ())}
    is_class = isinstance(section, type)
    if is_class or not getattr(section, "__dict__", ()):  # without any of its own, its classes'
        kind = section if is_class else type(section)
        names |= {name for base in kind.__mro__ for name in vars(base)}
    items = {n: getattr(section, n, _SKIPPED) for n in names if not n.startswith("_")}
    return {
        name: value
        for name, value in items.items()
        if name in _KEYS
        or not (value is _SKIPPED or callable(value) or isinstance(value, property))
    }


class Selection:
    """What `entries`, `scope` and `parts` leave of the entries of one phase and step.

    A scope reaches from the moment its first entry begins to the moment its last one ends. An
    entry that begins meanwhile is recorded.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._first, self._last = config.scope if config.scope else ("", "")
        self._inside = not config.scope
        self._traced: set[str] = set()  # cells of which a backward entry is recorded
        self._limited = bool(config.scope or config.entries)
        self.inputs = "input" in config.parts
        self.outputs = "output" in config.parts

    def may_begin(self, entry: str) -> bool:
        """Return whether an entry may be recorded; if so, or not, `begin` says when it begins."""
        return self._config.records_entry(entry) or entry in (self._first, self._last)

    def begin(self, entry: str) -> bool:
        """Take note that an entry begins and return whether it is recorded."""
        if entry == self._first:
            self._inside = True
        recorded = self._inside and self._config.records_entry(entry)
        if recorded and self._limited and ".backward." in entry:
            self._traced.add(entry.rpartition(".backward.")[0])
        return recorded

    def end(self, entry: str) -> None:
        """Take note that an entry ended; "" is none."""
        if entry and entry == self._last:
            self._inside = False

    def takes_part(self, part: str) -> bool:
        """Return whether a part of entries is recorded, by its name in an entry's JSON."""
        return self.inputs if part.startswith("input") else self.outputs

    def takes_parameter_gradient(self, head: str, entry: str) -> bool:
        """Return whether the gradient of a cell's parameter is recorded, when it comes.

        Args:
            head: the cell's part of its entries' names.
        """
        return head in self._traced or (self._inside and self._config.records_entry(entry))
