"""Which operator an entry names: one of the installed list, by name; nothing of a dump is code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mindrlhf_msprobe.common.text.language import language
from mindrlhf_msprobe.common.text.printable import shortened
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage.operators import OperatorName

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


def home_of(operator: Operator) -> str:
    """Return the module or class that Python finds an operator in, e.g. `mindspore.mint`."""
    if operator.kind == "Tensor":
        return "mindspore.Tensor"
    return str(operator.owner.__name__)


def prepare() -> None:
    """Let operators of entries be computed in this process."""
    from mindrlhf_msprobe.replay.offline import computing
    from mindrlhf_msprobe.replay.offline.script import template
    from mindrlhf_msprobe.replay.offline.script.folder import words_of

    template.WORDS.update(words_of(language()))
    computing.prepare()


def check_installed() -> None:
    """Make sure that there is a MindSpore, without the time of an import.

    Raises:
        RunError: there is none.
    """
    if find_spec("mindspore") is None:
        check_mindspore()  # says why it cannot be imported


def check_mindspore() -> None:
    """Make sure that there is a MindSpore.

    Raises:
        RunError: it cannot be imported.
    """
    try:
        import mindspore  # noqa: F401
    except ImportError as error:
        raise RunError.saying("replay.needs_mindspore", error=error) from None
