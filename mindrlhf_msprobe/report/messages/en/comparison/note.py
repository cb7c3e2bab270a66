"""What stands beside the status of a record, in English."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages.en.words import counted, non_finite
from mindrlhf_msprobe.report.messages.lists import Joined


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


TEXTS = {
    "all": Joined("{notes}", "; "),
    # by statistics and fingerprints
    "by_statistics": "by statistics only: they never prove identity",
    "fingerprints_equal": "the fingerprints are equal, but max or min is not",
    "no_elements": "no elements",
    "nothing_to_compare": "neither statistics nor comparable fingerprints",
    "rounded_statistics": (
        "by statistics: one is a difference of two gradients, exact to {error:.1e}"
    ),
    "rounded": "one is a difference of two gradients, exact to {error:.1e}",
    "bytes_differ": "by statistics only: the bytes differ",
    "fingerprints_differ": "the fingerprints differ",
    "statistics_equal": "the fingerprints differ, the statistics are equal",
    "no_statistic_tells": "beside NaN or infinity no statistic says how much",
    "two_tools": "by statistics of two tools, which round unlike",
    "all_nan": "by statistics: every element is NaN on both sides",
    "nan_beside_infinity": "NaN beside infinity",
    "nan_hides": (
        "NaN on both sides leaves no statistic of the other elements, and no fingerprint of one "
        "kind is there to tell: not known"
    ),
    "infinities": "by statistics only, with infinities on both sides",
    "infinities_hide": (
        "infinities on both sides leave no statistic of the other elements, and no fingerprint of "
        "one kind is there to tell: not known"
    ),
    "statistics_differ": "by statistics only",
    # by values
    "in_one": _in_one,
    "in_both": _in_both,
    "unlike_infinities": "infinities of opposite sign, or NaN beside infinity",
    "value_in_one": "in {side} only: {a} against {b}",
    "dtypes": "{a} against {b}",
    "shapes": "{a} against {b}",
    "values": "{a} against {b}",
    "lengths": "{a} against {b} bytes",
    "same_values": "same values, as {a} and as {b}",
    # of records that several ranks hold
    "parts_differ": _parts_differ,
    "sum_differs": _sum_differs,
    "copies_differ": _copies_differ,
    "copies_added": _copies_added,
    "file_changed": "the fingerprints are equal, so a file was changed after it was recorded",
    "texts": "from token {token} (character {character}) on: {a!r} against {b!r}",
    "tokens": "from token {token} on: {a} against {b}",
    "tokens_of_row": "from token {token} of row {row} on: {a} against {b}",
    "zero_gradient": "no gradient against a gradient of zeros",
    "no_gradient": "no gradient in {side}: None",
    # not compared
    "unreadable_side": "{side}: {why}",
    "unreadable": "{why}",
    "not_saved": "values of type {type} were not saved, so they cannot be compared",
    "not_compared": "it was not compared",
    "failed": "it could not be compared: {error}",
    "two_tries": _tries,
    "worker": "the worker that compared it {what}",
    "worker_stopped": "was stopped, and did not go on",
    "worker_killed": "was killed ({by})",
    "no_answer": "does not answer",
    "ended": "ended early (exit code {code})",
    "ended_unknown": "ended early (it is not known how: SIGCHLD is ignored here)",
    "sigkill": "SIGKILL, as when memory does not suffice",
    "sigbus": "SIGBUS: a file shrank or could not be read on",
    "ray_worker_lost": "the Ray worker that compared it was lost ({kind})",
    # against the noise
    "noise_unknown": "its noise is not known: {error}",
    "no_repetition": "no repetition of A recorded it",
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
    "noise_non_finite": "NaN or infinity leaves nothing to hold against the noise",
    "noise_too_large": "a distance that is too large for a float",
    "noise": _runs(
        "{ratio:.3g} times the noise of {runs} ({spread:.2g}; up to {margin:.3g} times passes)"
    ),
    # a row that stands for many
    "records_agree": _records_agree,
    "agreeing": "{identical} identical, {within_tolerance} within_tolerance",
}
