"""比对结论：控制台与 summary.xlsx。"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.choices import CONSOLE_VALUES
from mindrlhf_msprobe.report.messages.templates import clauses, either, joined, not_finite
from mindrlhf_msprobe.report.messages.zh.words import few, section_words, side, spans

CAUSES = {
    "computation": "计算",
    "parameter": "权重",
    "input": "输入",
    "data": "关键数据",
    "missing": "缺失",
    "shape": "shape 不同",
    "dtype": "dtype 不同",
    "non_finite": "NaN/Inf",
    "unreadable": "无法读取",
    "stopped": "中断",
    "file": "文件被改动",
}

_either = partial(either, word="或")
_KEY = clauses(
    "（{clauses}）",
    "；",
    {
        "absolute": "最大绝对误差",
        "relative": "× 为相对距离的倍数，首个差异点为 ×1",
        "zero": "舍入误差内的零没有相对距离",
    },
)
_COMPARED_ONLY = clauses(
    "比对范围：{clauses}",
    "；",
    {
        "steps": "step {}",
        "keys": "关键数据 {}",
        "include": "匹配 {} 的记录",
        "exclude": "不含匹配 {} 的记录",
        "common": "仅两侧都有的内容（--common）",
        "first_only": "到首个差异点为止（--first-only）",
    },
    {"keys": "、".join, "include": _either, "exclude": _either},
)
_LEFT_OUT = clauses(
    "未纳入比对：{clauses}",
    "；",
    {
        "steps": "step {}",
        "cells": "全部 Cell",
        "keys": "关键数据 {}",
        "steps_after": "首个差异点之后的 step {}",
    },
    {"steps": spans, "keys": few, "steps_after": spans},
)


def _section(section: str, **_: Any) -> str:
    chinese = section_words(section)
    return section if chinese == section else f"{chinese}（{section}）"


PIECES: Mapping[str, Any] = {
    **CONSOLE_VALUES,
    "that_side": lambda only_in, **_: side(only_in),
    "each_count": joined("counts", "，"),
    "that_run": lambda run, **_: side(run),
    "in_words": _section,
    "cause_words": lambda cause, **_: CAUSES.get(cause, cause),
    "again_micro_step": lambda micro_step, **_: f"，micro-step {micro_step}" if micro_step else "",
}

TEXTS: Mapping[str, Any] = {
    "not_finite": not_finite("{runs}（共 {elements} 个元素）", "{runs}", " 和 "),
    "chain_key": _KEY,
    "compared_only": _COMPARED_ONLY,
    "left_out": _LEFT_OUT,
}
