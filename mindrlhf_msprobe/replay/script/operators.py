"""Which operator an entry names: one of the installed MindSpore, by name; nothing else is code."""

from __future__ import annotations

import importlib
from typing import Any

from mindrlhf_msprobe.common.text.printable import shortened
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage.operators import KINDS, OperatorName

#: They write files, print, or run code that their arguments name.
_NOT_AGAIN = frozenset(
    name.lower()
    for name in (
        *("tensordump", "print_", "print", "custom", "pyfunc", "py_func", "custominfo"),
        *("hook_backward", "hookbackward", "asnumpy", "tofile", "dump", "save", "load"),
        *("tobytes", "from_numpy", "pin_memory", "offload", "register_hook", "assign_value"),
        *("imagesummary", "scalarsummary", "tensorsummary", "histogramsummary", "iscallable"),
    )
)


def operator_of(name: OperatorName) -> tuple[str, str, Any]:
    """Return the module or class of an operator as Python names it, its name there, and itself.

    Raises:
        RunError: MindSpore cannot be imported.
        UsageError: it is no operator of the installed MindSpore, or not one that is computed again.
    """
    try:
        import mindspore
    except ImportError as error:
        raise RunError.saying("replay.needs_mindspore", error=error) from None
    shown = shortened(name.operator)
    if name.communicates or name.name.lower() in _NOT_AGAIN:
        raise UsageError.saying("replay.side_effects", operator=shown)
    if name.kind == "Primitive":
        raise UsageError.saying("replay.primitive", operator=shown)
    unknown = UsageError.saying(
        "replay.unknown_operator", operator=shown, version=mindspore.__version__
    )
    if name.kind not in KINDS or not name.name.isidentifier():
        raise unknown
    home = KINDS[name.kind]
    owner = mindspore.Tensor if name.kind == "Tensor" else importlib.import_module(home)
    dunder = name.name.startswith("__") and name.name.endswith("__")
    if name.name.startswith("_") and not (dunder and name.kind == "Tensor"):
        raise unknown
    # The attribute is looked for among those that there are; a class or a module is no operator.
    known = {attribute: attribute for attribute in dir(owner)}
    found = getattr(owner, known.get(name.name, ""), None)
    of_mindspore = str(getattr(found, "__module__", None) or "mindspore").startswith("mindspore")
    if not callable(found) or isinstance(found, type) or not of_mindspore:
        raise unknown
    return home, known[name.name], found
