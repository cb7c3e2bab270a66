"""用法错误，或无法完成的操作。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import few


def _holds_runs(path: object, runs: Sequence[str]) -> str:
    return f"{path} 不是采集结果，其中有采集结果：{few(runs)}。请给出其中之一。"


TEXTS: Mapping[str, Any] = {
    "together": lambda of: "".join(of),
    "holds_runs": _holds_runs,
    "estimate_no_cell": lambda path, given, of, cell, phase: (
        f"{path}：{' 和 '.join(given)} 没有留下已采集的 {of} 个 Cell 中的任何一个（例如 {cell}）；"
        f"应为能匹配 Cell 名称的正则表达式，名称可用 `mindrlhf-msprobe show {path} {phase}` 列出。"
    ),
    "no_msprobe_name": lambda module, name, names: (
        f"模块 {module!r} 没有 {name!r}：未安装 msprobe，由 mindrlhf_msprobe 代替，只提供 "
        f"{names or '其中的模块'}"
    ),
    "playback_differs": lambda name, path, step, call, differences, more, batch: (
        f"{'batch' if batch else name} 与 {path} 中 step {step} 第 {call} 次调用的不同："
        + "；".join(map(str, differences))
        + (f"；另有 {more} 处" if more else "")
        + "。请让两次训练按相同顺序使用相同数据，或回放另一次运行。"
    ),
}
