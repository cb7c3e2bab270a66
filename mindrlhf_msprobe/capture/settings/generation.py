"""What cells and optimizers are built with, as plain JSON values, and what networks generate with.

Attributes are read, never set. Numbers, switches, short texts, dtypes, tensors of one element and
tables of integers or bool are taken; what MindSpore itself keeps in every cell, and what could be a
secret, is not.

Of generation the arguments of `generate` are taken, and the configuration that it makes.
Phases in which each pass through the network is a token are looked at. Where the class of a watched
cell has a method `generate`, its calls run through this module, which takes numbers, switches and
short texts; tokens and tensors are not taken. Where the method makes a `GenerationConfig` of its
arguments, as MindFormers' does, what that holds counts.

A trainer may hold a method from before the first phase (`self.generate = model.generate`), so that
another one in the class would never be called. The function itself stays in its class: it gets
other code, which calls a copy of the function with the code that it had.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindrlhf_msprobe.capture.cells import ROOT_NAME, named_cells
from mindrlhf_msprobe.capture.framework.private import (
    HOOK_PREFIX,
    OF_EVERY_CELL,
    buffers_of,
    children_of,
    parameters_of,
)
from mindrlhf_msprobe.capture.settings.configurations import is_mindspore_dtype
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, local_of, to_host
from mindrlhf_msprobe.common.printable import address_free
from mindrlhf_msprobe.common.secret import could_be_secret, could_name_text, is_secret_key
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.writing.ledger import Counted, FaultSink

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.run_settings import RunSettings

_MAX_ITEMS = 16  # of a tuple
_MAX_GROUPS = 512  # of an optimizer's parameters

#: The attributes that are scalars in Python: the same object means the same value.
PLAIN_TYPES = (bool, int, float, str, type(None))

_OURS = "msprobe_"
# What an optimizer derives from its own settings, and what counts its parameters.
_DERIVED = frozenset(
    [
        *("reciprocal_scale", "need_scale", "exec_weight_decay", "global_step_increase_tensor"),
        *("increase_tensor", "param_length", "init_learning_rate", "enable_tuple_broaden"),
        *("skip_auto_parallel_compile", "use_parallel", "is_group_params_ordered"),
        *("optim_filter", "decay_flags", "dynamic_decay_flags", "grad_centralization_flags"),
        *("cache_enable", "ps_parameters", "param_rank", "max_v_group", "is_group"),
        *("is_group_lr", "dynamic_lr", "dynamic_weight_decay", "use_dist_optimizer"),
    ]
)
_LEARNING_RATE = ("learning_rate", "lr")
_MISSING: Any = object()


@functools.cache
def _names_of_every_cell() -> frozenset[str]:
    """Return the attributes that `nn.Cell` itself sets, which its code names as texts."""
    code = nn.Cell.__init__.__code__
    named = {const for const in code.co_consts if isinstance(const, str) and const.isidentifier()}
    return OF_EVERY_CELL | named


@functools.lru_cache(maxsize=4096)  # thousands of cells have the names of a few classes
def is_setting(name: str) -> bool:
    """Return whether an attribute of this name may be a setting, and none that is kept secret."""
    return (
        len(name) <= 100
        and not name.startswith((_OURS, HOOK_PREFIX, "__"))
        and name not in _names_of_every_cell()
        and not is_secret_key(name)
    )


def cell_attributes(cell: nn.Cell) -> dict[str, Any]:
    """Return the scalar attributes of a cell: name → JSON value, in the order of their setting.

    Beside Python's own scalars: dtypes, enums, short tuples of scalars, tensors of one element that
    are not trained, as constants of a loss often are, and tensors of integers or bool, of which
    larger ones are told by their fingerprint. `to_float` stands for the dtype that
    MindSpore computes the cell in, where one was set.
    """
    found: dict[str, Any] = {}
    # Parameters of one element that are not trained, as a loss scale is. Where a cell holds the
    # optimizer, the optimizer does not update the cell's own, whatever `requires_grad` says.
    trains = any(is_optimizer(child) for child in children_of(cell).values())
    fixed = {
        name: p
        for name, p in parameters_of(cell).items()
        if p is not None and (trains or not p.requires_grad) and p.size == 1 and name.isidentifier()
    }
    is_mindspores = type(cell).__module__.partition(".")[0] == "mindspore"
    for name, held in [*vars(cell).items(), *buffers_of(cell).items(), *fixed.items()]:
        if len(found) == 64:
            break
        if is_setting(name) and not (is_mindspores and name.startswith("_")):  # private to it
            value = local_of(held)
            plain = _tensor(value) if name in fixed else plain_value(name, value)
            plain = _table(value) if plain is _MISSING else plain
            if plain is not _MISSING:
                found[name] = plain
    flags = cell.get_flags()
    dtypes = [name for name in ("fp16", "fp32", "bf16") if flags.get(name)]
    return {**found, "to_float": dtypes[0]} if dtypes else found


def plain_value(name: str, value: Any) -> Any:
    """Return an attribute as a JSON value; `_MISSING` if it cannot be one or is too large."""
    if isinstance(value, (tuple, list)) and len(value) <= _MAX_ITEMS:
        items = [_scalar(name, item) for item in value]
        return items if items and _MISSING not in items else _MISSING
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else _MISSING
    if isinstance(value, float):
        return number_to_json(float(value))
    if isinstance(value, str):
        if len(value) > 200 or _names_text(name):
            return _MISSING
        value = address_free(value)
        return WITHHELD if _suspicious(value) else value
    if is_mindspore_dtype(value):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        return _number(np.asarray(value))
    if isinstance(value, Tensor) and not (isinstance(value, Parameter) and value.requires_grad):
        return _tensor(value)
    return _MISSING


_names_text = functools.lru_cache(maxsize=4096)(could_name_text)
_suspicious = functools.lru_cache(maxsize=4096)(could_be_secret)


def _tensor(value: Any) -> Any:
    """Return the number that a tensor of one element holds, on the host."""
    if getattr(value, "has_init", False) or value.size != 1:
        return _MISSING  # reading would initialise it
    try:
        array = value.asnumpy()
    except Exception:  # its memory is gone, as that of a sharded or an offloaded one may be
        return _MISSING
    return _number(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)


def _table(value: Any) -> Any:
    """Return a table of integers or bool: a short one as a list, else its fingerprint.

    Of one that is too large to be brought to the host no more than its dtype and shape is told.
    """
    if not isinstance(value, Tensor) or isinstance(value, Parameter):
        return _MISSING  # parameters are recorded themselves
    name = str(value.dtype).lower()
    if getattr(value, "has_init", False) or not name.startswith(("int", "uint", "bool")):
        return _MISSING
    what = f"{name} {list(value.shape)}"
    if value.size > 1 << 20:
        return f"{what}, elements not read"
    try:
        host = to_host(value)
    except Exception:  # its memory is gone, as that of an offloaded one may be
        return _MISSING
    if value.ndim == 1 and value.size <= _MAX_ITEMS:
        return np.asarray(host.values()).tolist()
    return f"{what}, {fingerprint_of(host)}"


def _number(array: np.ndarray) -> Any:
    """Return the shortest number that has these bits in their dtype: 0.01, not 0.00999999977."""
    number = array.reshape(-1)[0]
    if array.dtype.kind == "b":
        return bool(number)
    if array.dtype.kind in "iu":
        return int(number)
    if array.dtype.kind == "f":
        return number_to_json(float(str(number)))
    return _MISSING


def is_optimizer(cell: Any) -> bool:
    """Return whether a cell updates parameters: an optimizer of MindSpore's, or of `mint.optim`."""
    if isinstance(cell, nn.Optimizer):
        return True
    return isinstance(cell, nn.Cell) and isinstance(vars(cell).get("param_groups"), list)


def optimizer_settings(optimizer: nn.Cell) -> dict[str, Any]:
    """Return what an optimizer was built with: name → JSON value.

    A learning rate that follows a schedule stands with its class, and with the schedule's own
    attributes as `learning_rate.<name>`. Settings of groups of parameters are lists, one for each
    group; one value where they are all equal.
    """
    found: dict[str, Any] = dict(learning_rates(optimizer))
    trained = [str(p.name) for p in getattr(optimizer, "parameters", None) or ()]
    for name in ("weight_decay", "global_step"):
        _put(found, name, _grouped(name, getattr(optimizer, name, None)))
    for path, cell in named_cells(optimizer).items():
        prefix = "" if path == ROOT_NAME else f"{path}."
        if prefix:
            found[path] = type(cell).__name__
        for name, value in [*vars(cell).items(), *parameters_of(cell).items()]:
            if is_setting(name) and name not in _DERIVED and not name.startswith("_"):
                # MindSpore names the state that it keeps for a parameter `moments.head.bias`.
                one = isinstance(value, Parameter) and value.size == 1
                if one and any(name == p or name.endswith(f".{p}") for p in trained):
                    continue
                _put(found, prefix + name, _setting_value(name, value, in_schedule=bool(prefix)))
    return found


def learning_rates(optimizer: nn.Cell, most: int = _MAX_GROUPS) -> dict[str, Any]:
    """Return what may change from step to step without another optimizer: learning rates, groups.

    Args:
        most: how many groups are looked at; each learning rate that is a tensor is brought to the
            host.
    """
    found: dict[str, Any] = {}
    groups = vars(optimizer).get("param_groups")
    for i, group in enumerate(groups[:most] if isinstance(groups, list) else ()):
        prefix = "" if len(groups or ()) == 1 else f"groups.{i}."
        for name, value in group.items() if isinstance(group, Mapping) else ():
            if name != "params" and is_setting(name):
                _put(found, prefix + name, _setting_value(name, value))
    for name in _LEARNING_RATE if not groups else ():
        _put(found, name, _grouped(name, getattr(optimizer, name, None), most))
    return found


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    if value is not _MISSING:
        found.setdefault(name, value)


def _setting_value(name: str, value: Any, *, in_schedule: bool = False) -> Any:
    if isinstance(value, Tensor) and value.size == 1:
        return _tensor(value)
    if isinstance(value, Tensor):
        return _list_of_rates(value) if in_schedule else _MISSING
    if isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value):
        return _MISSING  # parameters, and their moments
    return plain_value(name, value)


def _grouped(name: str, value: Any, most: int = _MAX_GROUPS) -> Any:
    """Return one value, or one for each group of parameters."""
    if isinstance(value, nn.Cell) and not isinstance(value, nn.CellList):
        return type(value).__name__
    if not isinstance(value, (tuple, list, nn.CellList)):
        if value is None:
            return _MISSING
        return _tensor(value) if isinstance(value, Tensor) else plain_value(name, value)
    known: dict[int, Any] = {}
    for item in list(value)[:most]:
        if id(item) not in known:
            known[id(item)] = _grouped(name, item)
    items = [known[id(item)] for item in list(value)[:most]]
    if not items or _MISSING in items:
        return _MISSING
    return items[0] if all(item == items[0] for item in items) else items


def _list_of_rates(value: Any) -> Any:
    """Return a schedule that is a list of rates as its length, its ends and its fingerprint."""
    if getattr(value, "has_init", False) or not 1 < value.size <= 1 << 20 or value.ndim > 1:
        return _MISSING
    host = to_host(value)
    ends = [_number(np.asarray(end)) for end in (host.values()[0], host.values()[-1])]
    if _MISSING in ends:
        return _MISSING
    return f"{value.size} rates from {ends[0]} to {ends[1]}, {fingerprint_of(host)}"


_MAX_SETTINGS = 200
_CONFIG = "GenerationConfig"
_LOST = "lost.generation_settings"
_PLAIN = (bool, int, float, str)
#: Of lists, those that name tokens by their number; others may be the prompts.
_LISTS = ("token_id", "token_ids", "stop", "bad_words")


class GenerateCalls:
    """Listens to the calls of `generate`.

    Args:
        run: says whether a phase is open that generates, and takes what each call is given, when
            it ends.
        fault: called with every fault while looking; may raise only in strict mode.
    """

    def __init__(self, run: RunSettings, fault: FaultSink) -> None:
        self._run = run
        self._fault = fault
        self._replaced: list[tuple[FunctionType, FunctionType, CodeType]] = []
        self._seen: set[type] = set()
        self._calls = threading.local()

    def listen(self, network: Any) -> None:
        """Look at the classes of a network's cells."""
        for cell in named_cells(network).values():
            kind = type(cell)
            if kind in self._seen:
                continue
            self._seen.add(kind)
            methods = [vars(k)["generate"] for k in kind.__mro__ if "generate" in vars(k)]
            for method in filter(inspect.isfunction, methods):
                self._replace(method, self._generate)
            if methods:
                # Of the modules that define the class: the method itself may be a trainer's.
                for module in {k.__module__ for k in kind.__mro__}:
                    config = getattr(sys.modules.get(module), _CONFIG, None)
                    if isinstance(config, type) and inspect.isfunction(vars(config).get("update")):
                        self._replace(vars(config)["update"], self._update)

    def close(self) -> None:
        """Give the methods their own code back."""
        for function, own, ours in reversed(self._replaced):
            if function.__code__ is ours:
                function.__code__ = own.__code__
                vars(function).clear()
                vars(function).update(vars(own))
        self._replaced.clear()
        self._seen.clear()

    def _replace(self, function: FunctionType, instead: Callable[..., Any]) -> None:
        """Have `instead` called with a copy of a function before its arguments, whoever calls it.

        The copy alone uses the function's defaults and the variables around it.
        """
        if any(function.__code__ is ours for *_, ours in self._replaced):
            return  # done for another class
        own = FunctionType(
            *(function.__code__, function.__globals__, function.__name__),
            *(function.__defaults__, function.__closure__),
        )
        own.__kwdefaults__ = function.__kwdefaults__
        own.__qualname__ = function.__qualname__
        vars(own).update(vars(function))
        template = _through.__code__
        ours = template.replace(
            co_name=function.__name__,
            co_freevars=function.__code__.co_freevars,
            co_consts=tuple(
                partial(instead, own) if isinstance(constant, str) else constant
                for constant in template.co_consts
            ),
        )
        function.__code__ = ours
        vars(function)["__wrapped__"] = own  # whose signature and source are the function's
        self._replaced.append((function, own, ours))

    def _generate(
        self, function: Callable[..., Any], cell: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        if self._run.generates is None:
            return function(cell, *args, **kwargs)
        outer = getattr(self._calls, "settings", None)
        settings: dict[str, Any] = {}
        self._calls.settings = settings
        try:
            with Counted(self._fault, _LOST):
                settings.update(arguments(function, cell, args, kwargs))
            return function(cell, *args, **kwargs)
        finally:
            self._calls.settings = outer
            if outer is not None:  # what is called inside knows better
                outer.update(settings)
            else:
                with Counted(self._fault, _LOST):
                    self._run.note_call(settings)

    def _update(
        self, function: Callable[..., Any], config: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        unused = function(config, *args, **kwargs)
        settings = getattr(self._calls, "settings", None)
        if settings is not None:
            with Counted(self._fault, _LOST):
                settings.update(plain_settings(vars(config)))
        return unused


def _through(*args: Any, **kwargs: Any) -> Any:
    instead: Any = "a constant, in whose place `GenerateCalls` puts what is called"
    return instead(*args, **kwargs)


def arguments(
    function: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plain arguments of a call of `generate`, defaults too, without the prompts.

    A parameter that is None follows the network's own configuration, where that has the name.
    """
    try:
        bound = inspect.signature(function).bind(cell, *args, **kwargs)
    except TypeError:  # the call itself will say so
        return {}
    bound.apply_defaults()
    kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
    values: dict[str, Any] = {}
    for place, (name, value) in enumerate(bound.arguments.items()):
        if place < 2 and not (place and isinstance(value, (bool, int, float))):
            continue  # the cell, and the prompts
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
        elif kinds[name] is not inspect.Parameter.VAR_POSITIONAL:
            values[name] = value
    own = getattr(getattr(cell, "config", None), "__dict__", {})
    given = {name: own.get(name) if value is None else value for name, value in values.items()}
    return plain_settings({name: value for name, value in given.items() if value is not None})


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are settings as JSON: numbers, switches, short texts, token ids."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if len(found) == _MAX_SETTINGS:
            break
        if not isinstance(name, str) or name.startswith("_") or not is_setting(name):
            continue
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)
        several = isinstance(value, (list, tuple))
        if several and not name.endswith(_LISTS):
            continue
        items = [plain_value(name, v) for v in (value[:_MAX_SETTINGS] if several else [value])]
        plain = _PLAIN if several else (*_PLAIN, NoneType)
        if all(isinstance(item, plain) for item in items):
            found[name] = items if several else items[0]
    return found
