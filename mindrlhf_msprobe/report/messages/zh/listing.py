"""采集结果的内容（show）与所需空间（estimate）。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Joined
from mindrlhf_msprobe.report.messages.zh.words import listed, spans

_STATES = {
    "running": "采集中（running）",
    "finished": "已完成（finished）",
    "failed": "异常中断（failed）",
    "interrupted": "中途结束（interrupted）",
    "killed": "被强制终止（killed）",
    "unknown": "状态未知（unknown）",
}


def _changes(first: str | None, then: Sequence[tuple[int, str]], left: int) -> str:
    """Return a setting's values in time; `left` changes before the last one are not listed."""
    parts = [f"自 step {step} 起为 {value}" for step, value in then]
    if left:
        parts.insert(-1, f"… 另有 {left} 次变化 …")
    return "，".join(([] if first is None else [first]) + parts)


def _holds_none(path: str, what: str, number: int, held: Sequence[int]) -> str:
    there = f"其中有 {what} {spans(held)}" if held else f"其中没有任何 {what}"
    return f"{path} 中没有 {what} {number}；{there}。"


def _inside(cell: str | None) -> str:
    if cell is None:
        return ""
    return f"（位于 {cell} 内）" if cell else "（不在任何 Cell 内）"


TEXTS: Mapping[str, Any] = {
    "states": lambda state: _STATES.get(state, str(state)),
    "code_of": lambda entry, cell, phases, steps, ranks: (
        f"{entry}{_inside(cell)}  step {steps}，{phases}，rank {ranks}"
    ),
    "code_called": lambda line, cell: f"调用处{_inside(cell)}：{line}",
    "code_inside": lambda cell: f"调用处{_inside(cell)}",
    "changes": _changes,
    "holds_none": _holds_none,
}

#: demo 的输出。
DEMO: Mapping[str, Any] = {
    "number": lambda place, value, usual, whole: (
        f"{place} 为 {value}；应为{'不小于 1 的整数' if whole else '非负数'}，例如 {usual}。"
    ),
    "needs": lambda names: (
        f"demo 会真实训练，需要 {' 和 '.join(names)}：请安装带 demo 依赖的版本，在代码目录执行 "
        f'pip install ".[demo]"。'
    ),
    "never_ran": lambda cell, phase, cells: (
        f"Cell {cell!r} 在 {phase} 中从未运行，因此没有植入错误。"
        + (f"该阶段运行过的 Cell：{'、'.join(cells)}。" if cells else "")
    ),
}


#: 磁盘空间估算中的不确定因素。
ESTIMATE: Mapping[str, Any] = {
    "left_out": Joined("{what}：{why}", "；"),
    "not_recorded": lambda what: f"未采集 {listed(what)}，估算不含这部分",
    "filtered": lambda keys: f"采集时被 {listed(keys)} 排除的内容不在估算中",
}
