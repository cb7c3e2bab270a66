"""How two runs were brought together, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence


def _some(names: Sequence[object], more: bool) -> str:
    shown = "、".join(map(str, names))
    return f"{shown} 等" if more else shown


def _no_common_phase(a: Sequence[str], b: Sequence[str]) -> str:
    phases = f"A 有 {'、'.join(a)}，B 有 {'、'.join(b)}"
    return f"没有相同的阶段：{phases}；可用 --phases X,Y 指定比对的阶段"


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


def _other_floats(a: Sequence[str], b: Sequence[str]) -> str:
    return (
        f"浮点 dtype 在 A 中为 {'、'.join(a)}，在 B 中为 {'、'.join(b)}；"
        "dtype 不同的值仅在给出容差时按数值比对，例如 --rtol 1e-2 --atol 1e-2"
    )


TEXTS = {
    "other_floats": _other_floats,
    "of_run": "{run}：{what}",
    "repetition": "重复采集 {path}",
    "rows": _rows,
    "batch_sizes": _batch_sizes,
    "batch_statistics": (
        "整个 batch 的统计量无法反映其中的 micro_batch，因此只比对了权重和不含行的值。"
        "如需比对其余内容，请两侧都用 task: tensor 采集，或让两侧都按整个 batch 运行"
    ),
    "key_rows": "A 的 {a} 与 B 的 {b} 每次保存的行数不同；{how}",
    "against": "A 的 {a} 与 B 的 {b} 比对",
    "rank": "A 的 rank {a} 与 B 的 rank {b} 比对",
    "step": "A 的 step {a} 与 B 的 step {b} 比对",
    "no_common_rank": "没有相同的 rank：A 的 rank {a} 与 B 的 rank {b} 依次比对",
    "no_common_phase": _no_common_phase,
    "dump_of_graphs": (
        "{side} 侧是 MindSpore 的 Dump（MINDSPORE_DUMP_CONFIG）：算子名来自编译后的计算图，"
        "其他工具不采集这些名称。请两侧都用 MindSpore Dump，或都用本工具或 msprobe 采集后再比对"
    ),
    "missing_ranks": _missing_ranks,
    "left_out": _left_out,
    "pattern": (
        "{side} 侧采集时设置了 {setting}: {pattern!r}，现已无法匹配（{why}）："
        "{side} 侧因此未采集的内容按缺失处理"
    ),
    "unlike_names": (
        "{phase}：A、B 的大多数 Cell 名称不同；如果是同一网络、名称不同，"
        "请用 --mapping 指定对应关系"
    ),
    "preset": "MindSpore 与 PyTorch 比对：按预置规则对应名称（{count} 条，例如 {rules}）",
    "activations": "门控之外的激活函数并入门控比对（{count} 个），与另一侧网络一致",
    "fused": "一侧的 {count} 个 Cell 相当于另一侧的多个 Cell：{shown}",
    "same_weight": "{count} 个 Cell 在另一侧网络中名称不同（按权重的元素对应）：{shown}",
    "interleaved": "{count} 个权重的行按 head 交错排列，例如 {shown}；已按行对应后比对。"
    "如果两个网络以相同方式读取这些行，则这些权重加载有误",
    "below": _below,
    "key_data_only": "仅比对关键数据：未比对层数据",
    "noise_run": _noise_run,
    "unused_names": _unused_names,
    "mapping_not_used": "{mapping} 未使用：同时给出的 {used} 优先",
}
