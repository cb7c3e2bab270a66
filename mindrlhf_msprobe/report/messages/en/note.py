"""What stands beside the status of a record, and what could not be compared, in English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices import PREFLIGHT_VALUES
from mindrlhf_msprobe.report.messages.en.words import (
    count,
    counted,
    non_finite,
    section_words,
    some,
)
from mindrlhf_msprobe.report.messages.templates import Joined, joined


def _in_one(side: str, nan: int, inf: int) -> str:
    return f"in {side} only: {non_finite(nan, inf)}"


def _in_both(nan_a: int, inf_a: int, nan_b: int, inf_b: int) -> str:
    return f"in A: {non_finite(nan_a, inf_a)}; in B: {non_finite(nan_b, inf_b)}"


def _tries(first: str, second: str) -> str:
    why = f"each time {first}" if first == second else f"first {first}, then {second}"
    return f"it could not be compared, in two tries: {why}"


def _runs(template: str) -> Any:
    """Return a text in which `{runs}` is the number of A's repetitions."""

    def text(repetitions: int, **others: Any) -> str:
        return template.format(runs=counted(repetitions, "repetition"), **others)

    return text


def _records_agree(records: int) -> str:
    return "1 record that agrees" if records == 1 else f"{records} records that agree"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"


def _parts_differ(side: str, ranks: Sequence[int], others: Sequence[int]) -> str:
    what, differ = ("part", "differs") if len(ranks) == 1 else ("parts", "differ")
    said = f"in {side} the {what} of {_ranks(ranks)} {differ}"
    rest = f", not {'that' if len(others) == 1 else 'those'} of {_ranks(others)}"
    return f"{said}{rest if others else ''}"


def _sum_differs(side: str, ranks: Sequence[int]) -> str:
    return f"in {side} the sum of what {_ranks(ranks)} hold differs, one of them or several"


def _copies_differ(side: str, ranks: Sequence[int]) -> str:
    held = "holds another copy" if len(ranks) == 1 else "hold other copies"
    return f"in {side} {_ranks(ranks)} {held} of a part than the other ranks"


def _copies_added(side: str, ranks: Sequence[int], how: str) -> str:
    what = {"partial": "sum", "mean": "mean"}[how]
    return (
        f"but the {what} of what {_ranks(ranks)} of {side} hold is what the other run has: if they "
        f"are to be added only later, name the record as `{how}` in the layout, else their "
        "reduction is missing"
    )


TEXTS: Mapping[str, Any] = {
    "all": Joined("{notes}", "; "),
    # by values
    "in_one": _in_one,
    "in_both": _in_both,
    # of records that several ranks hold
    "parts_differ": _parts_differ,
    "sum_differs": _sum_differs,
    "copies_differ": _copies_differ,
    "copies_added": _copies_added,
    "two_tries": _tries,
    "repetitions_identical": _runs("A and its {runs} agree bit for bit here"),
    "repetitions_identical_but": _runs("A and its {runs} agree here in all but NaN and infinity"),
    "repetitions_alike": _runs("A and its {runs} agree here"),
    "repetitions_finite": _runs("A and its {runs} have no such NaN or infinite elements"),
    "repetitions_unlike_non_finite": _runs(
        "neither A nor its {runs} have NaN and infinity in the same places"
    ),
    "repetitions_differ_otherwise": _runs(
        "A and its {runs} differ among themselves here, but not in this"
    ),
    "repetitions_differ": _runs("A and its {runs} differ among themselves here, too"),
    "noise": _runs(
        "{ratio:.3g} times the noise of {runs} ({spread:.2g}; up to {margin:.3g} times passes)"
    ),
    # a row that stands for many
    "records_agree": _records_agree,
}


def _non_finite(nan: int, inf: int) -> str:
    return f"{non_finite(nan, inf) or 'NaN or Inf'} on both sides"


#: Why a record that agrees deserves a look all the same.
SUSPICION: Mapping[str, Any] = {
    "non_finite": _non_finite,
    "of_many": Joined("{count} of them, first {record}: {why}", "; "),
}


def _noise(repetitions: int) -> str:
    return f"noise ({counted(repetitions, 'repetition')})"


#: What a record was compared by.
TOLERANCE: Mapping[str, Any] = {
    "noise": _noise,
}


def _as_many(one: str, several: str) -> Text:
    return lambda names, more, **_: several if len(names) + more > 1 else one


PREFLIGHT_PIECES: Mapping[str, Any] = {
    **PREFLIGHT_VALUES,
    "was": _as_many("was", "were"),
    "it": _as_many("it", "them"),
    "some_names": lambda names, more, **_: some(names, more),
    "some_sections": lambda names, more, **_: some([*map(section_words, names)], more),
    "some_ranks": lambda ranks, more, **_: some(ranks, more),
    "of_section": lambda section, **_: section_words(section),
    "all_sections": lambda names, **_: ", ".join(map(section_words, names)),
    "each_section": lambda names, **_: " / ".join(map(section_words, names)),
    "all_sides": joined("sides", " and of run "),
    "other_sections": joined("sections", ", "),
    "all_phases": joined("phases", ", "),
    "any_cell": lambda more, **_: "cell" if more == 1 else "cells",
}


REMARK_PIECES: Mapping[str, Any] = {
    "n_parameters": count("parameters", "parameter"),
    "n_compared": count("compared", "parameter"),
    "n_settings": count("count", "setting"),
    "capital": lambda what, **_: what[0].upper() + what[1:],
}
