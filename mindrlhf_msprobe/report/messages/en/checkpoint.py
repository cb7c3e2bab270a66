"""What is said of checkpoints that are read and compared, in English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted, some
from mindrlhf_msprobe.report.messages.templates import Joined


def _unlisted(names: Sequence[str], count: int) -> str:
    what = some(list(names), count - len(names))
    return f"its files hold {counted(count, 'parameter')} that its index does not list: {what}"


def _in_another_file(names: Sequence[str], count: int, file: str, said: str) -> str:
    what = some(list(names), count - len(names))
    return (
        f"its index names the wrong file of {counted(count, 'parameter')}: {what}; "
        f"{names[0]} is in {file}, not in {said}. They were read where they are"
    )


def _last_step(epoch: int, step: int, others: int) -> str:
    older = f" ({counted(others, 'earlier one')} left)" if others else ""
    return (
        f"of several checkpoints the last one that all ranks have, epoch {epoch} step {step}{older}"
    )


def _of_role(role: str, others: Sequence[str], step: int | None) -> str:
    when = "as first recorded" if step is None else f"of step {step}"
    said = f"the parameters of the {role}, {when}"
    if others:
        said += f"; for {', '.join(others)} give the directory of one of its phases"
    return said


def _below(a: str, b: str) -> str:
    sides = [f"{prefix!r} of {side}" for side, prefix in (("A", a), ("B", b)) if prefix]
    return f"prefix {' and '.join(sides)} taken off"


def _some(count: int, names: Sequence[str]) -> str:
    return some(list(names), count - len(names))


def _only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"{counted(count, 'parameter')} of {side} alone: {_some(count, names)}"


def _optimizer_only_in(side: str, count: int, names: Sequence[str]) -> str:
    other = "B" if side == "A" else "A"
    return (
        f"the optimizer's state is in {side} alone ({counted(count, 'tensor')}: "
        f"{_some(count, names)}), {other} has none"
    )


def _texts_only_in(side: str, count: int, names: Sequence[str]) -> str:
    what = "entry that is no tensor" if count == 1 else "entries that are no tensors"
    return f"{count} {what} in {side} alone: {_some(count, names)}"


def _perhaps_cut(side: str, count: int) -> str:
    return (
        f"{side} may be cut short: it lacks {counted(count, 'parameter')}, and ends between two "
        f"entries, where a .ckpt that was not saved with crc_check=True shows no cut"
    )


def _differing(count: int) -> str:
    return f"{counted(count, 'parameter')} {'differs' if count == 1 else 'differ'}:"


def _only(side: str) -> Text:
    def text(count: int) -> str:
        return f"{counted(count, 'parameter')} in {side} alone:"

    return text


def _suspicious(count: int) -> str:
    return f"{counted(count, 'parameter')} that agree{'s' if count == 1 else ''}, suspicious:"


def _headline_diverged(compared: int, different: int) -> str:
    return f"DIVERGED: {different} of {counted(compared, 'parameter')} do not agree."


TEXTS: Mapping[str, Any] = {
    "unlisted": _unlisted,
    "in_another_file": _in_another_file,
    "several": Joined(
        "{path} holds several checkpoints ({names}, …), and nothing says which one is "
        "meant; give the path of one file.",
        ", ",
    ),
    "only_pickles": Joined(
        "{path} holds no checkpoint that can be read, but {names}: pickles of PyTorch, "
        "which are never loaded, as loading one runs its code. Save them as safetensors.",
        ", ",
    ),
    "last_step": _last_step,
    "rank_twice": lambda path, rank, names: (
        f"{path} has two directories of rank {rank}, {' and '.join(names)}, and nothing says which "
        f"one is meant; move one away."
    ),
    "of_role": _of_role,
    # names
    "below": _below,
    # notes
    "transposed": lambda to: (
        "the same transposed" + (f": equal once rounded to {to}" if to else ": all elements equal")
    ),
    # coverage
    "perhaps_cut": _perhaps_cut,
    "only_in": _only_in,
    "optimizer_only_in": _optimizer_only_in,
    "texts_only_in": _texts_only_in,
    "headline_diverged": _headline_diverged,
    "differing": _differing,
    "only_in_a": _only("A"),
    "only_in_b": _only("B"),
    "suspicious": _suspicious,
}
