"""What of two runs could not be compared before any tensor, in English."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindrlhf_msprobe.common.numbers import few_numbers
from mindrlhf_msprobe.report.messages.en.words import section_words, some


def _about(template: str) -> Callable[..., str]:
    """Return a text about `{names}`; `{was}` and `{it}` are as many as they are."""

    def text(names: Sequence[str], more: int, **others: object) -> str:
        was, it = ("were", "them") if len(names) + more > 1 else ("was", "it")
        return template.format(names=some(names, more), was=was, it=it, **others)

    return text


def _only_one_side(side: str, names: Sequence[str], more: int) -> str:
    it = "them" if len(names) + more > 1 else "it"
    return f"{some([section_words(name) for name in names], more)}: only run {side} recorded {it}"


def _ranks_alone(side: str, ranks: Sequence[int], more: int) -> str:
    return f"rank {some(ranks, more)}: only run {side} recorded it"


def _no_manifest(sides: Sequence[str], ranks: Sequence[int], more: int) -> str:
    what = f"run {sides[0]} has no" if len(sides) == 1 else "neither run has a"
    of = f" of rank {some(ranks, more)}" if ranks else ""
    return f"versions, settings and initial weights: {what} run.json{of} that can be read"


def _configurations(file: str, sides: Sequence[str]) -> str:
    return f"configurations: {file} of run {' and of run '.join(sides)} cannot be read"


def _attempt(number: int, side: str, sections: Sequence[str]) -> str:
    return (
        f"attempt {number} of run {side} ran with other {', '.join(sections)} than its first one, "
        f"which was compared: see its run.json"
    )


def _more_differences(section: str, count: int) -> str:
    return f"{section_words(section)}: {count} more differences, which are not listed"


def _only_in(section: str, side: str, names: Sequence[str], more: int) -> str:
    return f"{section_words(section)}: only run {side} recorded {some(names, more)}"


def _neither(names: Sequence[str]) -> str:
    return f"{', '.join(map(section_words, names))}: neither run recorded them"


def _weights_only_in(side: str, names: Sequence[str], more: int) -> str:
    return f"initial weights of {some(names, more)}: only run {side} recorded them"


def _name(
    setting: str,
    more: int,
    kind: str,
    phases: Sequence[str],
    of_phase: bool,
    step: int | None,
    ranks: Sequence[int],
) -> str:
    cells = " ".join(filter(None, [kind, "cell" if more == 1 else "cells"]))
    what = setting + (f" and {more} more {cells}" if more else "")
    shown = ", ".join(phases)
    if of_phase:
        what = ": ".join(filter(None, [shown, what]))
    elif phases:
        what += f" in {shown}"
    what += "" if step is None else f" from step {step} on"
    of = f"rank {few_numbers(ranks)}"
    return what if not ranks else f"{what} ({of})" if what else of


TEXTS = {
    "section": "{name}",
    "sections": lambda names: " / ".join(map(section_words, names)),
    "name": _name,
    "only_one_side": _only_one_side,
    "only_in": _only_in,
    "neither": _neither,
    "more": "… {count} more things that could not be compared",
    "ranks_alone": _ranks_alone,
    "no_common_rank": "settings and initial weights: the runs have no rank in common",
    "no_manifest": _no_manifest,
    "configurations_unread": _configurations,
    "whose_rank": "a run.json of run {side} does not say whose rank it is",
    "two_manifests": "run {side} has two manifests of rank {rank}; the first was taken",
    "newer_schema": (
        "the run.json of run {side} has the schema {schema}, this version knows {known}: only what "
        "could be read was compared"
    ),
    "early_seed": _about(
        "seeds: {names} {was} looked at when the probe started, perhaps before the trainer set "
        "{it}, or in another phase than in the other run"
    ),
    "attempt": _attempt,
    "key_data_left_out": _about("{names}: left out of A and of B: {why}"),
    "more_differences": _more_differences,
    "nested": "{section}: nested deeper than {levels} levels, not compared there",
    "withheld": _about("{section}: {names} {was} withheld in both runs, possibly secret"),
    "weights_unreadable": "initial weights of {role}: run {side} has none that can be read",
    "weights_only_in": _weights_only_in,
    "weights_without_fingerprint": (
        "initial weights of {role}: {count} parameter(s) without a fingerprint in one run"
    ),
    "weights_other_algorithm": (
        "initial weights of {role}: {count} parameter(s) with fingerprints of different algorithms"
    ),
}
