"""Lists, and the two runs, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.report.messages import templates

__all__ = ["few", "listed", "non_finite", "reasons", "section_words", "side", "some", "spans"]


def listed(items: Sequence[str], last: str = "和") -> str:
    """Return `a`, `a 和 b`, `a、b 和 c`."""
    return templates.listed(items, last, "、")


some = partial(templates.some, between="、", more=" 等（另有 {left} 个）")
few = partial(templates.few, between="、", more=" 等，另有 {left} 个")
non_finite = partial(templates.non_finite, each="{} 个 {}", between="、")
reasons = partial(templates.reasons, between="；")


def side(run: str) -> str:
    """Return which of the two runs A or B is: `A（标杆）`, `B（待比对）`."""
    return f"{run}（{_SIDES[run]}）" if run in _SIDES else str(run)


_SIDES = {"A": "标杆", "B": "待比对"}


def section_words(name: str) -> str:
    """Return what a section of run.json is called."""
    return _SECTIONS.get(name, name)


_SECTIONS = {
    "versions": "版本",
    "device": "设备",
    "world": "并行规模",
    "seeds": "随机种子",
    "determinism": "确定性设置",
    "networks": "网络与优化器配置",
    "generation": "生成参数",
    "generation_settings": "生成参数",
    "modes": "训练/推理模式",
    "cells": "Cell 属性",
    "optimizers": "优化器",
    "environment": "环境变量",
    "configurations": "训练配置",
    "msprobe_config": "采集配置",
    "initial_weights": "初始权重",
    "packages": "软件包",
    "checkpoints": "权重文件",
    "data": "数据",
    "script": "脚本",
    "random_calls": "随机操作",
}
