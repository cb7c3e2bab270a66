"""What the checks of ranks say, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.check_ranks import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen

_PIECES: Mapping[str, Text] = {
    "those_ranks": lambda ranks, **_: f"rank {few_numbers(ranks)}",
    "other_ranks": lambda others, **_: f"rank {few_numbers(others)}",
    "recorded_less": "采集的条目偏少",
    "called_otherwise": "Cell 的调用次数不同",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "calls": (
            "rank {rank} 与 rank {other} 相比{how_called}：涉及 {cells} 个 Cell，第一个调用 "
            "{count} 次（应为 {usual} 次）"
        ),
        "no_phase": "{those_ranks} 没有采集到 {phase}，其他卡采集到了",
        "no_key": "rank {rank} 没有保存 {key}，其他卡都保存了",
        "missing": "作业中的 {those_ranks} 在此没有采集结果；有采集结果的卡数：{of}",
        "setting": "{those_ranks} 的 {name}（{section}）与其他卡不同",
        "parted": (
            "rank {rank} 的 {parameters}/{of} 个权重与 {other_ranks} 不同，而此前的 step 一致：副本"
            "已不一致"
        ),
        "other_weights": (
            "rank {rank} 的 {parameters}/{of} 个权重从第一个 step 起就与 {other_ranks} 不同，且各卡"
            "数据不同：作为副本从未一致"
        ),
        "shapes": "rank {rank} 有 {records} 条记录在所有 step 中 shape 或 dtype 都与其他卡不同",
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
    },
)
