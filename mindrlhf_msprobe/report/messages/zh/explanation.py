"""首个差异点的说明：该记录有何差异，意味着什么。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.choices import (
    EXPLANATION_VALUES,
    INSIDE_VALUES,
)
from mindrlhf_msprobe.report.messages.templates import computed, joined, order, other_run
from mindrlhf_msprobe.report.messages.zh.words import listed, side

_KINDS = {"input": "输入", "gradient": "梯度"}

PIECES: Mapping[str, Any] = {
    "side_stopped": lambda stopped, **_: side(stopped),
    "side_other": lambda other, **_: side(other),
    "side_run": lambda run, **_: side(run),
    "kind_given": lambda given, **_: _KINDS.get(given, given),
    "all_given": joined("given", "、"),
    "all_changes": joined("changes", "；"),
    "all_between": joined("between", "、"),
    "next_one": lambda earlier, **_: str(earlier + 1),
    "all_keys": joined("keys", "、"),
    "in_run": lambda run, **_: side(run),
    "in_kept": lambda kept_in, **_: side(kept_in),
}


CULPRIT_PIECES: Mapping[str, Any] = {
    **EXPLANATION_VALUES,
    "phases": lambda record, **_: listed(record),
    "in_run": lambda run, **_: side(run),
    "in_other": lambda run, **_: side(other_run(run)),
    "in_unmoved": lambda unmoved, **_: side(unmoved),
    "all_given": joined("given", "、"),
    "all_unlike": joined("unlike", "、"),
    "all_agreeing": joined("agree", "、"),
    "all_parts": joined("parts", "、"),
    "coefficient_a": lambda coefficients, **_: f"{coefficients['A']:.4g}",
    "coefficient_b": lambda coefficients, **_: f"{coefficients['B']:.4g}",
    "possible_of_a": lambda possible_means, **_: _means(possible_means["A"]),
    "possible_of_b": lambda possible_means, **_: _means(possible_means["B"]),
    "count_over": lambda counts, **_: _counted(*counts[0]),
    "count_under": lambda counts, **_: _counted(*counts[1]),
}


def _means(names: Sequence[str]) -> str:
    said = {
        "tokens": "全部 token",
        "sequences": "每条序列、再对各序列",
        "places": "全部位置（含填充）",
    }
    return "或".join(said[name] for name in names)


def _counted(what: str, number: int) -> str:
    names = {"samples": "条序列", "tokens": "个计入的 token", "places": "个位置"}
    return f"{number} {names[what]}" if what in names else str(number)


#: 各轴的含义。
_NOUNS = {
    "sample": "样本",
    "token": "token",
    "head": "注意力头",
    "channel": "通道",
    "token_id": "token id",
    "row": "行",
}


def _along(axis: int, name: str | None) -> str:
    return f"沿第 {axis} 维" + ("" if name is None else f"（{_NOUNS[name]}）")


_COMPUTED = {
    "every": "所有元素均满足 {}",
    "each": "每个不同的元素均满足 {}",
    "within": "，误差不超过 {:.1e}",
    "exactly": "，精确成立",
    "divisors": "，如同标准差分别除以 {n} 和 {less}（ddof）",
}


_order = order(
    _along,
    turned="仅位置移动，数值未变：{along}，B 是 A 循环移动 {by} 位的结果（共 {size}）",
    moved="仅位置移动，数值未变：{along}顺序不同：{pairs}",
)


INSIDE_PIECES: Mapping[str, Any] = {
    **INSIDE_VALUES,
    "all_where": joined("where", "、"),
    "all_prompts": lambda prompts, **_: "、".join(map(str, prompts)),
    "along": lambda axis, name, **_: _along(axis, name),
    "noun": lambda name, **_: _NOUNS[name],
    "places_that_came": lambda by, **_: f"{'前' if by > 0 else '后'} {abs(by)} 个位置",
}


def _elsewhere(a: str | None, b: str | None, **_: Any) -> str:
    held = []
    if b is not None:
        held.append(f"A 在此处的值，B 放在 {b}")
    if a is not None:
        held.append(f"B 在此处的值，A 放在 {a}")
    return "换成了另一个权重：" + "；".join(held)


#: 单条记录内部的差异：位于各轴的何处，是何种变化。
INSIDE: Mapping[str, Any] = {
    "factor": computed("×", "max、min、mean 和 norm 表明", "factor", _COMPUTED),
    "offset": computed("+", "统计量表明", "offset", _COMPUTED),
    "order": _order,
    "elsewhere": _elsewhere,
}
