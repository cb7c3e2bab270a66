"""What stands beside the status of a record, and what could not be compared, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.report.messages.choices import PREFLIGHT_VALUES
from mindrlhf_msprobe.report.messages.templates import Joined, joined
from mindrlhf_msprobe.report.messages.zh.words import non_finite, section_words, some


def _in_one(side: str, nan: int, inf: int) -> str:
    return f"仅 {side} 侧含 {non_finite(nan, inf)}"


def _in_both(nan_a: int, inf_a: int, nan_b: int, inf_b: int) -> str:
    return f"A 侧含 {non_finite(nan_a, inf_a)}；B 侧含 {non_finite(nan_b, inf_b)}"


def _tries(first: str, second: str) -> str:
    why = f"两次均为 {first}" if first == second else f"第一次 {first}，第二次 {second}"
    return f"尝试两次均未能比对：{why}"


def _parts_differ(side: str, ranks: Sequence[int], others: Sequence[int]) -> str:
    rest = f"，rank {few_numbers(others)} 的分片相同" if others else ""
    return f"{side} 侧 rank {few_numbers(ranks)} 的分片不同{rest}"


def _sum_differs(side: str, ranks: Sequence[int]) -> str:
    return f"{side} 侧 rank {few_numbers(ranks)} 所持部分之和不同，出自其中一个或多个"


def _copies_differ(side: str, ranks: Sequence[int]) -> str:
    return f"{side} 侧 rank {few_numbers(ranks)} 与持有同一分片的其他 rank 不同"


def _copies_added(side: str, ranks: Sequence[int], how: str) -> str:
    what = {"partial": "和", "mean": "平均值"}[how]
    return (
        f"但 {side} 侧 rank {few_numbers(ranks)} 所持内容之{what}与另一次运行相同："
        f"若本就在之后才归约，请在布局文件中将该记录写为 `{how}`，否则就是缺少归约"
    )


TEXTS: Mapping[str, Any] = {
    "all": Joined("{notes}", "；"),
    # by values
    "in_one": _in_one,
    "in_both": _in_both,
    # of records that several ranks hold
    "parts_differ": _parts_differ,
    "sum_differs": _sum_differs,
    "copies_differ": _copies_differ,
    "copies_added": _copies_added,
    "two_tries": _tries,
}


def _non_finite(nan: int, inf: int) -> str:
    return f"两侧均含 {non_finite(nan, inf) or 'NaN 或 Inf'}"


#: Why a record that agrees deserves a look all the same.
SUSPICION: Mapping[str, Any] = {
    "non_finite": _non_finite,
    "of_many": Joined("其中 {count} 条，首条 {record}：{why}", "；"),
}


PREFLIGHT_PIECES: Mapping[str, Any] = {
    **PREFLIGHT_VALUES,
    "some_names": lambda names, more, **_: some(names, more),
    "some_sections": lambda names, more, **_: some([*map(section_words, names)], more),
    "some_ranks": lambda ranks, more, **_: some(ranks, more),
    "of_section": lambda section, **_: section_words(section),
    "all_sections": lambda names, **_: "、".join(map(section_words, names)),
    "each_section": lambda names, **_: " / ".join(map(section_words, names)),
    "section_name": lambda name, **_: section_words(name),
    "all_sides": joined("sides", "、"),
    "other_sections": lambda sections, **_: "、".join(map(section_words, sections)),
    "all_phases": joined("phases", "、"),
    "one_more": lambda more, **_: str(more + 1),
}


REMARK_PIECES: Mapping[str, Any] = {
    "of_section": lambda section, **_: section_words(section),
}
