"""Which piece of a text is said, for both languages, where several parameters decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Choice


def _weights(compared: int, different: int, only_in_a: int, only_in_b: int) -> str:
    if compared and not (different or only_in_a or only_in_b):
        return "all_weights_agree"
    return "some_weights_differ" if compared or only_in_a or only_in_b else "no_weights"


def _on_rank_0(ranks: Sequence[int], **_: Any) -> str | None:
    return None if [*ranks] == [0] else "on_ranks"


def _step_or_steps(steps: Sequence[Sequence[int]], **_: Any) -> str:
    return "one_step" if steps[0][0] == steps[-1][1] else "several_steps"


def _around_operator(call: str, cell: str, **_: Any) -> str | None:
    return "inside_cell" if cell and not call.startswith("Cell.") else None


def _state(step: int | None = None, micro_step: int | None = None, **_: Any) -> str:
    if step is None:
        return "initial_weights"
    return "weights_of_step" if micro_step is None else "weights_of_micro_step"


_FEW = 8  # times as many parameters as those that differ: an optimizer acts on all of them


def _if_written(parameters: int, of: int, **_: Any) -> str | None:
    return "if_written" if _FEW * parameters < of else None


def _not_saved(
    given: Sequence[str] = (), unlike: Sequence[str] = (), missing: Sequence[str] = (), **_: Any
) -> str | None:
    """Return what is said of what a loss is given and was not saved; loss_inputs holds it all."""
    if not (given or unlike):
        return "save_inputs"
    return None if "loss_inputs" in (*given, *unlike) else f"save_{'_and_'.join((*missing, 'set'))}"


def _to_the_end(piece: str) -> Choice:
    """Return the choice of a piece of one span that reaches to the end of an axis, not from 0."""

    def choice(spans: Sequence[Sequence[int]], size: int, **_: Any) -> str | None:
        first, last = spans[0]
        return piece if len(spans) == 1 and first and last == size - 1 else None

    return choice


def _deviations(
    root: Sequence[int] | None = None,
    fraction: Sequence[int] | None = None,
    ddof: int = 0,
    **_: Any,
) -> str | None:
    """Return what is said of a factor that is the root of a fraction."""
    return "of_deviations" if fraction is None and root is not None and ddof > 2 else None


def _placed(ranks: Sequence[int], setting: str, step: int | None, **known: Any) -> str:
    what = setting or known["more"] or known["phases"] or step is not None
    return "name_of_step" if not ranks else "name_of_ranks" if what else "of_ranks"


#: By area: the place of a template → what names its piece.
CHOICES: Mapping[str, Mapping[str, Choice]] = {
    "check_accuracy": {"in_cell": _around_operator},
    "console": {
        "on_other_ranks": _on_rank_0,
        "of_weights": _weights,
    },
    "coverage": {"on_other_ranks": _on_rank_0, "step_or_steps": _step_or_steps},
    "culprit": {
        "state": _state,
        "state_of_other": lambda other, **_: f"other_{_state(**other)}",
        "whose_zero": lambda zero=(), **_: f"zero_{'_'.join(zero)}" if zero else None,
        "or_written": _if_written,
        "not_saved": _not_saved,
    },
    "inside": {
        "as_deviations": _deviations,
        "from_there": _to_the_end("to_the_end"),
        "from_there_alone": _to_the_end("to_the_end_alone"),
    },
    "preflight": {"placed": _placed},
}
