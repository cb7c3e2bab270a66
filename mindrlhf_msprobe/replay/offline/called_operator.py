"""Which operator an entry names: one of the installed list, by name; nothing of a dump is code.

A primitive is made again from the attributes that were recorded, or, where none were, from what
came out.
"""

from __future__ import annotations

import inspect
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.replay.offline.folder import Draw, write_side
from mindrlhf_msprobe.replay.offline.recorded_call import RecordedCall
from mindrlhf_msprobe.storage.operators import Attributes, OperatorName

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.operators.inventory import Operator

#: They write files or print, or run code that their arguments name.
NOT_AGAIN = frozenset(
    [
        *("tensordump", "print_", "custom", "pyfunc", "tensorsummary", "imagesummary"),
        *("scalarsummary", "histogramsummary"),
    ]
)


def operator_of(name: OperatorName) -> Operator:
    """Return the operator that is called so.

    Raises:
        RunError: MindSpore cannot be imported.
        UsageError: it is no operator of the installed MindSpore, or not one that is computed again.
    """
    check_mindspore()
    import mindspore

    from mindrlhf_msprobe.capture.operators.inventory import find_operator

    shown = shortened(name.operator)
    if name.communicates or name.name.lower() in NOT_AGAIN:
        raise UsageError.saying("replay.side_effects", operator=shown)
    found = find_operator(name.operator)
    if found is None:
        version = mindspore.__version__
        raise UsageError.saying("replay.unknown_operator", operator=shown, version=version)
    return found


def check_mindspore() -> None:
    """Make sure that there is a MindSpore.

    Raises:
        RunError: it cannot be imported.
    """
    try:
        import mindspore  # noqa: F401
    except ImportError as error:
        raise RunError.saying("replay.needs_mindspore", error=error) from None


#: Where primitives are that compute: none of those that communicate, print, write or run code.
_MODULES = (
    "mindspore.ops.auto_generate.",
    *(f"mindspore.ops.operations.{name}" for name in ("math_ops", "nn_ops", "array_ops")),
    "mindspore.ops.operations.manually_defined.",
)
_MOST_TRIED = 64
_MOST_AXES = 8
#: How far the result may be from the record where attributes cannot all be tried.
_NEAR = 1e-2


def is_recorded(call: RecordedCall, operator: Operator) -> bool:
    """Return whether all that a primitive is made with was recorded.

    Raises:
        UsageError: the class is not one that is computed again.
    """
    if not computes_only(operator):
        raise UsageError.saying("replay.side_effects", operator=shortened(operator.full_name))
    names = {one.name for one in _parameters(operator)}
    return call.attributes is not None and names == call.attributes.keys()


def computes_only(operator: Operator) -> bool:
    """Return whether an operator does nothing beside computing: no file, print or code."""
    if operator.kind != "Primitive":
        return operator.name.lower() not in NOT_AGAIN
    return f"{operator.owner.__module__}.".startswith(_MODULES)


def _parameters(operator: Operator) -> list[inspect.Parameter]:
    return [*inspect.signature(operator.owner.__init__).parameters.values()][1:]


def attributes_of(
    call: RecordedCall, operator: Operator, draw: Draw | None = None
) -> dict[str, Any]:
    """Return the attributes with which a primitive gives what was recorded, or what is nearest.

    Switches and axes are tried; everything else keeps its default. Numbers that were recorded
    count.

    Args:
        operator: one that `is_recorded` has not refused.
        draw: makes the inputs, where statistics alone were recorded: then shapes decide.

    Raises:
        UsageError: none fits.
    """
    shown, recorded = shortened(operator.full_name), call.attributes or {}
    known = {n: v for n, v in recorded.items() if isinstance(v, (bool, int, float))}
    parameters = _parameters(operator)
    needed = {one.name for one in parameters if one.default is one.empty}
    if not needed <= known.keys():
        raise UsageError.saying("replay.primitive", operator=shown)
    if not parameters:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        unmade = replace(call, attributes=None)
        write_side(Path(directory), unmade, draw=draw, compute_dtype=None)
        fitting = _fitting(Path(directory), operator, parameters, known, draw is not None)
        found = sorted(fitting)
    unknown = [one for one in parameters if one.name not in known]
    certain = all(type(one.default) in (bool, int) for one in unknown)
    if not found or (not certain and found[0][0] > _NEAR):
        raise UsageError.saying("replay.primitive", operator=shown)
    pairs = zip(parameters, found[0][2])
    return {one.name: v for one, v in pairs if v is not one.default and v != one.default}


def _fitting(
    folder: Path,
    operator: Operator,
    parameters: list[inspect.Parameter],
    known: Attributes,
    by_shape: bool,
) -> Iterator[tuple[float, int, tuple[Any, ...]]]:
    """Yield (distance, number, values) of the attributes with which the shapes are as recorded."""
    from mindrlhf_msprobe.replay.offline.computing import Recomputed, array_of
    from mindrlhf_msprobe.replay.offline.template import distance

    ranks = [len(node["shape"]) for node in Recomputed(folder, operator.owner).inputs]
    most = min(max(ranks, default=0), _MOST_AXES)
    choices: list[list[Any]] = []  # the values that each attribute may have, its default first
    for one in parameters:
        choices.append([known.get(one.name, one.default)])
        if one.name not in known and isinstance(one.default, bool):
            choices[-1].append(not one.default)
        elif one.name not in known and type(one.default) is int and "axis" in one.name:
            choices[-1] += [axis for axis in range(-most, most) if axis != one.default]
    tried = itertools.islice(itertools.product(*choices), _MOST_TRIED)
    for number, values in enumerate(tried):
        apart = 0.0
        try:
            side = Recomputed(folder, operator.owner(*values))
            computed = side.compute()
            if any(
                name not in computed or tuple(node["shape"]) != tuple(computed[name].shape)
                for name, node in side.recorded.items()
            ):
                continue
            for name, node in () if by_shape else side.recorded.items():
                value = distance(side.array(node), array_of(computed[name]), node["dtype"])
                apart = max(apart, min(value["relative"], 1e300))
        except Exception:  # of MindSpore: such attributes do not fit the inputs
            continue
        yield apart, number, values
        if apart == 0:
            return  # bit for bit; or the first whose shapes fit
