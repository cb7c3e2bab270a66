"""How two runs, and the tokens of their rows, were brought together, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Joined


def _some(names: Sequence[object], more: bool) -> str:
    shown = "、".join(map(str, names))
    return f"{shown} 等" if more else shown


def _missing_ranks(count: int, ranks: Sequence[int], more: bool, side: str) -> str:
    return (
        f"{side} 侧目录中缺少 {count} 个 rank 的采集结果（{_some(ranks, more)}）；"
        f"其他节点的结果可用 mindrlhf-msprobe merge 合并"
    )


def _left_out(side: str, dumps: Sequence[str], more: bool) -> str:
    return f"{side} 侧目录中原有的、不属于本次采集的数据未比对：{_some(dumps, more)}"


def _below(phase: str, a: str, b: str) -> str:
    a, b = (f" {prefix}.… 下的 Cell" if prefix else "网络本身的 Cell" for prefix in (a, b))
    return f"{phase}：A 侧{a}与 B 侧{b}配对"


def _noise_run(path: str, roles: Sequence[str], settings: Sequence[str], more: bool) -> str:
    what = [f"{'、'.join(roles)} 的初始权重"] if roles else []
    what += ["、".join(settings) + (" 等" if more else "")] if settings else []
    return f"重复采集 {path} 的配置与 A 不同（{'；'.join(what)}）：其差异可能不全是噪声"


def _unused_names(mapping: str, first: str, more: int) -> str:
    return f"{mapping}：B 侧没有 {first}{f' 等 {more + 1} 个名称' if more else ''}"


_ALIKE = {
    "inputs": "输入相同的行",
    "bytes": "逐位相同的行",
    "nearest": "（没有逐位相同的行）数值最接近的行",
}


def _rows(alike: str, moved: bool, matched: bool, assumed: bool) -> str:
    if not (matched or assumed):
        return "行与行的对应关系未知"
    same = f"{_ALIKE[alike]}相互比对，顺序{'不同' if moved else '相同'}"
    if not assumed:
        return same
    in_order = "按 micro_batch 的顺序对应（假定；如果训练脚本打乱过顺序，则不成立）"
    if not matched:
        return f"没有{_ALIKE[alike]}，各行{in_order}"
    return f"{same}；其余各行{in_order}"


def _batch_sizes(
    a: str, b: str, a_rows: Sequence[int], b_rows: Sequence[int], how: str, updated: bool
) -> str:
    if list(a_rows) == list(b_rows):
        return f"A 的 {a} 与 B 的 {b} 的 batch 由相同的行以不同方式组成；{how}"
    sizes = [" 或 ".join(map(str, rows)) for rows in (a_rows, b_rows)]
    only = "；仅限阶段内首次更新之前" if updated else ""
    return f"{a}（每个 batch {sizes[0]} 行）与 {b}（{sizes[1]} 行）的 batch 大小不同；{how}{only}"


TEXTS: Mapping[str, Any] = {
    "other_floats": Joined(
        "浮点 dtype 在 A 中为 {a}，在 B 中为 {b}；"
        "dtype 不同的值仅在给出容差时按数值比对，例如 --rtol 1e-2 --atol 1e-2",
        "、",
    ),
    "rows": _rows,
    "batch_sizes": _batch_sizes,
    "no_common_phase": Joined(
        "没有相同的阶段：A 有 {a}，B 有 {b}；可用 --phases X,Y 指定比对的阶段", "、"
    ),
    "missing_ranks": _missing_ranks,
    "left_out": _left_out,
    "below": _below,
    "noise_run": _noise_run,
    "unused_names": _unused_names,
}


def _no_axes(side: str) -> str:
    where = f"`{side}` 下" if side else "顶层"
    return (
        f"{where}没有 rank 网格；应有 `axes`，由外到内给出各轴的 rank 数，"
        f"例如 axes: {{dp: 2, tp: 4}}"
    )


def _place(rank: str, axes: Sequence[str]) -> str:
    return (
        f"ranks：{rank} 在网格中没有位置；应为 rank 及其在各轴（{'、'.join(axes)}）上的位置，"
        f"从 0 开始，例如 3: {{{axes[0]}: 1}}"
    )


def _rule(rule: str, axes: Sequence[str]) -> str:
    return (
        f"shards：{rule} 不是规则；应为记录名的模式，以及各轴（{'、'.join(axes)}）所切分的维度，"
        f"或 copy、partial、mean，例如 'wo.*weight': {{{axes[-1]}: 1}}"
    )


def _joined(side: str, ranks: int, axes: str) -> str:
    if ranks == 1:
        return f"{side}：一个 rank（{axes}）；在另一侧的各个 batch 中查找其各行"
    return f"{side}：已合并 {ranks} 个 rank（{axes}）所持有的数据；全部作为 rank 0 比对"


#: What is said of runs whose ranks divide the work.
LAYOUT: Mapping[str, Any] = {
    "no_axes": _no_axes,
    "place": _place,
    "rule": _rule,
    "order": Joined("order：{axis}: {order} 无法识别；应为 {axes} 之一的 zigzag", "、"),
    "joined": _joined,
}


TOKENS: Mapping[str, Any] = {
    "unknown_samples": lambda entry, count, saved: (
        f"{entry} 输入了 {count} 个样本的 token，但无法得知它们接续之前的哪些样本："
        "这些行不参与比对。"
        + (
            "已保存的 prompts 和 responses 中没有或不止一个相符："
            "可用 `phase.tokens(ids, positions=...)` 指明输入了哪些 token"
            if saved
            else "可以 token id 保存 prompts 和 responses，"
            "或用 `phase.tokens(ids, positions=...)` 指明"
        )
    ),
}
