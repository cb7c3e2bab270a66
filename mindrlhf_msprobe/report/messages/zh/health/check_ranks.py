"""What the checks of ranks say, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.common.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text


def _calls(lacking: bool, rank: int, other: int, cells: int, count: int, usual: int) -> str:
    what = "采集的条目偏少" if lacking else "Cell 的调用次数不同"
    return (
        f"rank {rank} 与 rank {other} 相比{what}：涉及 {cells} 个 Cell，"
        f"第一个调用 {count} 次（应为 {usual} 次）"
    )


def _no_phase(ranks: list[int], phase: str) -> str:
    return f"rank {few_numbers(ranks)} 没有采集到 {phase}，其他卡采集到了"


def _missing(ranks: list[int], of: int) -> str:
    return f"作业中的 rank {few_numbers(ranks)} 在此没有采集结果；有采集结果的卡数：{of}"


def _setting(section: str, name: str, ranks: list[int]) -> str:
    return f"rank {few_numbers(ranks)} 的 {name}（{section}）与其他卡不同"


def _parted(rank: int, others: list[int], parameters: int, of: int) -> str:
    return (
        f"rank {rank} 的 {parameters}/{of} 个权重与 rank {few_numbers(others)} 不同，"
        f"而此前的 step 一致：副本已不一致"
    )


def _other_weights(rank: int, others: list[int], parameters: int, of: int) -> str:
    return (
        f"rank {rank} 的 {parameters}/{of} 个权重从第一个 step 起就与 rank {few_numbers(others)} "
        f"不同，且各卡数据不同：作为副本从未一致"
    )


def _shapes(rank: int, records: int) -> str:
    return f"rank {rank} 有 {records} 条记录在所有 step 中 shape 或 dtype 都与其他卡不同"


TEXTS: dict[str, Text] = {
    "calls": _calls,
    "no_phase": _no_phase,
    "no_key": "rank {rank} 没有保存 {key}，其他卡都保存了",
    "missing": _missing,
    "setting": _setting,
    "parted": _parted,
    "other_weights": _other_weights,
    "shapes": _shapes,
    "no_manifest": "没有 run.json 说明各卡的运行环境",
    "shards": "{phase} 的两张卡权重不同而输入数据相同：视为同一网络的切分",
    "cause_branch": "与本卡数据有关的分支",
    "cause_batches": "各卡的 batch 或 micro_batch 大小不同",
    "cause_recording": "该卡的 msprobe_config 不同，或该卡进度落后",
    "cause_configuration": "该卡的网络配置不同",
    "cause_reduction": "梯度没有做卡间规约，或只规约了一部分",
    "cause_nondeterministic": "权重更新不确定，或各卡不同",
    "cause_seed": "该卡初始化网络时用了另一个随机种子",
    "cause_checkpoint": "该卡加载了另一份权重，或没有加载",
    "cause_launch": "各卡的启动方式不同：环境、镜像、脚本",
}
