"""报告页面的脚本所显示的文字。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import some


def _written(file: str, bytes: int, seconds: float) -> str:
    return f"报告页面：{file}（{bytes / 1e6:.1f} MB，{seconds:.1f} s）"


#: 报告页面对自身的说明。
REPORT: Mapping[str, Any] = {
    "mismatch_values_left": lambda names, why: (
        f"训练与推理：{len(names)} 个值未比对（{some(names[:4], len(names) - 4)}）：{why}"
    ),
    "mismatch_weights_left": lambda names: (
        f"训练与推理：{len(names)} 个权重未比对（{some(names[:4], len(names) - 4)}）"
    ),
    "written": _written,
}
