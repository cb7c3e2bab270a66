"""What is said of checkpoints that are read and compared, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Joined
from mindrlhf_msprobe.report.messages.zh.words import some


def _some(count: int, names: Sequence[str]) -> str:
    return some(list(names), count - len(names))


def _unlisted(names: Sequence[str], count: int) -> str:
    return f"文件中有 {count} 个权重未列入索引：{_some(count, names)}"


def _in_another_file(names: Sequence[str], count: int, file: str, said: str) -> str:
    return (
        f"有 {count} 个权重，索引所指的文件不对：{_some(count, names)}；"
        f"{names[0]} 在 {file} 中，而不在 {said} 中。已按实际位置读取"
    )


def _last_step(epoch: int, step: int, others: int) -> str:
    older = f"（另有 {others} 个更早的未读取）" if others else ""
    return f"有多个 checkpoint，取所有 rank 都有的最后一个：epoch {epoch}、step {step}{older}"


def _of_role(role: str, others: Sequence[str], step: int | None) -> str:
    when = "首次采集时的值" if step is None else f"step {step} 的值"
    said = f"{role} 的权重，{when}"
    if others:
        said += f"；如需 {'、'.join(others)}，请给出其某个阶段的目录"
    return said


def _below(a: str, b: str) -> str:
    sides = [f"{side} 侧前缀 {prefix!r}" for side, prefix in (("A", a), ("B", b)) if prefix]
    return f"已去掉 {' 和 '.join(sides)}"


def _only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"仅 {side} 侧有的权重 {count} 个：{_some(count, names)}"


def _optimizer_only_in(side: str, count: int, names: Sequence[str]) -> str:
    other = "B" if side == "A" else "A"
    return f"优化器状态仅 {side} 侧有（{count} 个：{_some(count, names)}），{other} 侧没有"


def _texts_only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"仅 {side} 侧有的非张量条目 {count} 个：{_some(count, names)}"


TEXTS: Mapping[str, Any] = {
    "unlisted": _unlisted,
    "in_another_file": _in_another_file,
    "several": Joined(
        "{path} 中有多个 checkpoint（{names} 等），无法确定用哪一个；请给出文件路径。", "、"
    ),
    "only_pickles": Joined(
        "{path} 中没有可读取的 checkpoint，只有 {names}：PyTorch 的 pickle 文件。"
        "加载 pickle 会执行其中的代码，因此从不加载。请另存为 safetensors。",
        "、",
    ),
    "last_step": _last_step,
    "rank_twice": lambda path, rank, names: (
        f"{path} 中有两个目录属于 rank {rank}：{'、'.join(names)}，"
        f"无法确定用哪一个；请移走其中一个。"
    ),
    "of_role": _of_role,
    # names
    "below": _below,
    # notes
    "transposed": lambda to: "转置后相同：" + (f"舍入到 {to} 后相等" if to else "所有元素相等"),
    "only_in": _only_in,
    "optimizer_only_in": _optimizer_only_in,
    "texts_only_in": _texts_only_in,
}
