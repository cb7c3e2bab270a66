"""单条记录内部的差异：位于各轴的何处，是何种变化。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.inside import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.numbers import computed, order

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


_PIECES: Mapping[str, Text] = {
    **VALUES,
    "only_there": "差异仅位于{all_where}",
    "all_where": joined("where", "、"),
    "all_of_prompts": "，全部属于 prompt {all_prompts}",
    "all_prompts": lambda prompts, **_: "、".join(map(str, prompts)),
    "and_change": "；{change}",
    "change_alone": "{change}",
    "n_elements": "（{size} 个元素中有 {elements} 个不同）",
    "along": lambda axis, name, **_: _along(axis, name),
    "noun": lambda name, **_: _NOUNS[name],
    "plain_axis": "第 {axis} 维第 {few_spans} 个（共 {size} 个，从 0 计{from_there_alone}）",
    "named_axis": "第 {axis} 维（{noun}）第 {few_spans} 个（共 {size} 个，从 0 计{from_there}）",
    "to_the_end_alone": "{to_the_end}",
    "to_the_end": "，从该处起直到末尾",
}


def _elsewhere(a: str | None, b: str | None, **_: Any) -> str:
    held = []
    if b is not None:
        held.append(f"A 在此处的值，B 放在 {b}")
    if a is not None:
        held.append(f"B 在此处的值，A 放在 {a}")
    return "换成了另一个权重：" + "；".join(held)


TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "differs": "{only}{of_prompts}{changed}{how_many}。",
        "element": "第 {few_spans} 个元素（共 {size} 个，从 0 计）",
        "axis": "{places}",
        "factor": computed("×", "max、min、mean 和 norm 表明", "factor", _COMPUTED),
        "offset": computed("+", "统计量表明", "offset", _COMPUTED),
        "rounded": "{side} 等于 {other_side} 逐元素舍入到 {dtype}",
        "order": _order,
        "order_inside": "仅位置移动，数值未变：{along}，每行元素相同、顺序不同",
        "shifted": "仅位置移动，数值未变：{along}，B 是 A 平移 {by} 位，B[i] = {shifted_index}",
        "transposed": "转置：B 是 A 的行列互换",
        "rotary_base": "旋转位置编码：A 的表的 base 为 {a:g}，B 为 {b:g}",
        "epsilon": "归一化：A 计算时的 epsilon 为 {a:g}，B 为 {b:g}",
        "elsewhere": _elsewhere,
        "moved": "仅位置移动，数值未变：相同的元素位于不同位置",
        "rounding": "舍入误差：所有元素相差不超过 {ulps} 个 ulp",
        "same_statistics": (
            "max、min、mean 和 norm 相同而字节不同，像是数值移动了位置而未改变；采集真实数据可以确"
            "认"
        ),
    },
)
