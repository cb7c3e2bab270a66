"""单条记录内部的差异：位于各轴的何处，是何种变化。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.numbers import (
    computed,
    few_spans,
    is_to_the_end,
    order,
    other_run,
)

#: 各轴的含义。
_NOUNS = {
    "sample": "样本",
    "token": "token",
    "head": "注意力头",
    "channel": "通道",
    "token_id": "token id",
    "row": "行",
}


def _differs(
    where: Sequence[str],
    prompts: Sequence[int],
    change: str | None,
    elements: int | None,
    size: int | None,
    **_: Any,
) -> str:
    words = f"差异仅位于{'、'.join(where)}" if where else ""
    if prompts:
        words += f"，全部属于 prompt {'、'.join(map(str, prompts))}"
    if change is not None:
        words = "；".join(filter(None, [words, change]))
    if elements is not None:
        words += f"（{size} 个元素中有 {elements} 个不同）"
    return f"{words}。"


def _element(spans: Sequence[Sequence[int]], size: int, **_: Any) -> str:
    return f"第 {few_spans(spans)} 个元素（共 {size} 个，从 0 计）"


def _axis(axis: int, name: str | None, size: int, spans: Sequence[Sequence[int]], **_: Any) -> str:
    to_the_end = "，从该处起直到末尾" if is_to_the_end(spans, size) else ""
    noun = "" if name is None else f"（{_NOUNS[name]}）"
    return f"第 {axis} 维{noun}第 {few_spans(spans)} 个（共 {size} 个，从 0 计{to_the_end}）"


def _along(axis: int, name: str | None) -> str:
    return f"沿第 {axis} 维" + ("" if name is None else f"（{_NOUNS[name]}）")


_COMPUTED = {
    "every": "所有元素均满足 {}",
    "each": "每个不同的元素均满足 {}",
    "within": "，误差不超过 {:.1e}",
    "exactly": "，精确成立",
    "divisors": "，如同标准差分别除以 {n} 和 {less}（ddof）",
}


def _rounded(side: str, dtype: str, **_: Any) -> str:
    return f"{side} 等于 {other_run(side)} 逐元素舍入到 {dtype}"


_order = order(
    _along,
    turned="仅位置移动，数值未变：{along}，B 是 A 循环移动 {by} 位的结果（共 {size}）",
    moved="仅位置移动，数值未变：{along}顺序不同：{pairs}",
)


def _shifted(axis: int, name: str | None, by: int, **_: Any) -> str:
    return f"仅位置移动，数值未变：{_along(axis, name)}，B 是 A 平移 {by} 位，B[i] = A[i{-by:+d}]"


def _order_inside(axis: int, name: str | None, **_: Any) -> str:
    return f"仅位置移动，数值未变：{_along(axis, name)}，每行元素相同、顺序不同"


TEXTS: Mapping[str, Any] = {
    "differs": _differs,
    "element": _element,
    "axis": _axis,
    "factor": computed("×", "max、min、mean 和 norm 表明", "factor", _COMPUTED),
    "offset": computed("+", "统计量表明", "offset", _COMPUTED),
    "rounded": _rounded,
    "order": _order,
    "order_inside": _order_inside,
    "shifted": _shifted,
    "moved": "仅位置移动，数值未变：相同的元素位于不同位置",
    "rounding": "舍入误差：所有元素相差不超过 {ulps} 个 ulp",
    "same_statistics": (
        "max、min、mean 和 norm 相同而字节不同，像是数值移动了位置而未改变；采集真实数据可以确认"
    ),
}
