"""What is said of runs whose ranks divide the work, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text


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


def _order(axis: str, order: str, axes: Sequence[str]) -> str:
    return f"order：{axis}: {order} 无法识别；应为 {'、'.join(axes)} 之一的 zigzag"


def _joined(side: str, ranks: int, axes: str) -> str:
    if ranks == 1:
        return f"{side}：一个 rank（{axes}）；在另一侧的各个 batch 中查找其各行"
    return f"{side}：已合并 {ranks} 个 rank（{axes}）所持有的数据；全部作为 rank 0 比对"


TEXTS: dict[str, Text] = {
    "file": "并行布局",
    "keys": "各 rank 如何分担",
    "wrong": "{path}：{why}。",
    "no_axes": _no_axes,
    "axis": "axes：{axis} 的大小为 {size}；应为不小于 1 的整数",
    "unknown_key": "{key} 无法识别；应为 {known}",
    "fits_neither": (
        "{size} 个 rank 的网格与两次运行都不符，A 有 {a} 个，B 有 {b} 个；"
        "请在 `a` 与 `b` 下分别写出两者的布局，或更正 `axes` 的大小"
    ),
    "place": _place,
    "same_place": "rank {ranks} 都位于 {place}；两个 rank 不能是同一分片的同一份",
    "no_rank": "没有 rank 位于 {place}；请写出持有该分片的 rank",
    "rule": _rule,
    "pattern": "shards：模式 {pattern} 不可用：{why}",
    "order": _order,
    "scale": "scale：{scale} 不是缩放；应为记录名的模式和大于 0 的数",
    "shift": (
        "shift：{axis}: {shift} 不是偏移；应为名称中编号之前的部分，以及该轴各位置所加的数，"
        "例如 pp: {{layers: [0, 16]}}"
    ),
    "strategy": (
        "strategy：{given} 不是策略文件；应为 MindSpore 策略文件的路径、其所在目录，或路径的列表"
    ),
    "micro_batches": (
        "micro_batches：无法识别 {how}；应为 mean 或 sum，即 batch 的梯度是"
        "各 micro_batch 梯度的均值还是总和"
    ),
    "strategy_file": "strategy 无法使用：{why}",
    "strategy_ranks": (
        "strategy：其 rank 数为 {sizes}，网格为 {size}；应给出本次运行所有 stage 的策略文件"
    ),
    "strategy_alone": (
        "策略文件只说明权重如何切分，而两次运行都没有记录各 rank 之间的关系；"
        "请在布局文件中同时写出，例如 "
        "b: {{axes: {{dp: 2, tp: 2}}, strategy: strategy.ckpt}}"
    ),
    "not_with": "--layout 将两次运行的各 rank 合并；不能与 --ranks、--noise 或单次运行同时给出。",
    "no_replay": (
        "--replay 不能与布局同用：多个 rank 合并的数据不是一次可以重新计算的调用；"
        "请对单个 rank 执行 replay。"
    ),
    "no_layout": (
        "{side} 有 rank {ranks}，但没有布局；请在对应字母下写出各 rank 如何分担，"
        "例如 b: {{axes: {{tp: 2}}}}。"
    ),
    "other_ranks": (
        "{side} 有 rank {ranks}，其 {size} 个 rank 的布局中没有它们；"
        "请更正 `axes` 的大小，或在 `ranks` 下写出每个 rank。"
    ),
    "other_world": "{side} 以 {world} 个 rank 运行，其布局却有 {size} 个；请更正 `axes` 的大小。",
    "joined": _joined,
    "absent_ranks": "{side}：其布局中的 rank {ranks} 没有落盘数据：需要这些分片的记录未比对",
    "missing": "缺少 rank {ranks} 的分片",
    "unlike": "并非所有 rank 的 {name} 都是 tensor",
    "dtypes": "rank {rank} 为 {dtype}，rank {first} 为 {other}",
    "dimension": (
        "布局（模式 {pattern!r}）在 {axis} 上切分维度 {dim}，"
        "而各 rank 的 shape 为 {shape}，没有该维度"
    ),
    "shapes": "各分片无法拼合，按 rank：{shapes}",
    "values_differ": "rank {ranks} 各有自己样本的数值，无法得知整体的数值",
    "copies_differ": "rank {ranks} 的值与 rank {first} 不同，二者本应相同",
    "partial_statistics": "部分和的统计量无法得出总和的统计量；请以 task: tensor 采集",
    "size_of_part": "{small} 是单个 rank 分片的大小，{large} 是整体的大小",
}
