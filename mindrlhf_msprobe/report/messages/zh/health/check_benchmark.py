"""再次运行结果的检查：中文文本。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _what(stage: str, path: str) -> str:
    return f"梯度 {path} " if stage == "backward" else f"输出 {path} "


def _changes(path: str, stage: str, change: float | None, by: float | None, mode: str) -> str:
    how = "变为 NaN 或 Inf" if change is None else f"变化 {change:.3g}"
    if mode == "improve_precision":
        return f"升精度后{_what(stage, path)}{how}"
    of_inputs = "交换" if by is None else f"变化 {by:.3g}"  # 含 NaN 或 Inf
    return f"输入{of_inputs}（{mode}）时，{_what(stage, path)}{how}"


def _not_deterministic(path: str, stage: str, differing: int, size: int) -> str:
    return f"输入不变，再次运行时{_what(stage, path)}不同：{size} 个元素中有 {differing} 个不一致"


TEXTS: dict[str, Text] = {
    "changes": _changes,
    "not_deterministic": _not_deterministic,
    "not_recorded": "没有调用再次运行（task: free_benchmark）",
    "not_run": "{cell} 未再次运行：{why}",
    "cause_ill_conditioned": "相近的数相减，或除以很小的数",
    "cause_kernel": "kernel 的舍入大于其 dtype",
    "cause_order": "求和顺序不固定，例如原子加",
    "cause_state": "在多次调用之间保留状态，或读取了未写入的内存",
}
