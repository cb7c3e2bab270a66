"""精度检查的结论，中文。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "no_opinion": "{name} 没有结论",
    "wrong": lambda call, cell, tensor, precision, error, explained, reason: (
        f"{call} 的 {tensor} 计算有误"
        + (f"（位于 {cell}）" if cell and not call.startswith("Cell.") else "")
        + (
            f"：与 float64 的相对误差 {error:.2g}，{precision} 的舍入可解释 {explained:.2g}"
            if not reason
            else "：不是有限值，而精确结果是"
            if reason == "not_finite"
            else "：与精确计算的结果不同"
        )
    ),
}
