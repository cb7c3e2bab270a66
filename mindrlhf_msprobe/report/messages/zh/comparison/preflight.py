"""What of two runs could not be compared before any tensor, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.preflight import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.zh.words import section_words, some

_PIECES: Mapping[str, Text] = {
    **VALUES,
    "some_names": lambda names, more, **_: some(names, more),
    "some_sections": lambda names, more, **_: some([*map(section_words, names)], more),
    "some_ranks": lambda ranks, more, **_: some(ranks, more),
    "of_section": lambda section, **_: section_words(section),
    "all_sections": lambda names, **_: "、".join(map(section_words, names)),
    "each_section": lambda names, **_: " / ".join(map(section_words, names)),
    "section_name": lambda name, **_: section_words(name),
    "all_sides": joined("sides", "、"),
    "other_sections": lambda sections, **_: "、".join(map(section_words, sections)),
    "one_has_none": "{sides[0]} 侧没有",
    "both_have_none": "两侧都没有",
    "of_some_ranks": "（rank {some_ranks}）",
    "all_phases": joined("phases", "、"),
    "setting_and_more": "{setting}{and_more}",
    "setting_of_phases": "{all_phases}：{setting_and_more}",
    "setting_in_phases": "{setting_and_more}（{all_phases}）",
    "more_cells": " 等 {one_more} 个{kind_of_cell}",
    "one_more": lambda more, **_: str(more + 1),
    "cell_of_kind": " {kind} Cell",
    "any_cell": " Cell",
    "on_from_step": "（从 step {step} 起）",
    "of_ranks": "rank {rank_numbers}",
    "name_of_step": "{whole_name}{from_step}",
    "name_of_ranks": "{name_of_step}（{of_ranks}）",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "sections": "{each_section}",
        "section": "{section_name}",
        "name": "{placed}",
        "only_one_side": "{some_sections}：仅 {side} 侧有采集",
        "only_in": "{of_section}：仅 {side} 侧采集了 {some_names}",
        "neither": "{all_sections}：两侧均未采集",
        "more": "……另有 {count} 项无法比对",
        "changed_training": (
            "{side} 侧的训练已被改变：handler_type: fix 使它改用第二次运行的结果（{by}）"
        ),
        "played": (
            "{side} 侧的训练使用 {path} 记录的 {name}，"
            "而不是自己的结果{order}：其生成过程未参与比对"
        ),
        "ranks_alone": "rank {some_ranks}：仅 {side} 侧有采集",
        "no_common_rank": "配置和初始权重：两侧没有相同的 rank",
        "no_manifest": "版本、配置和初始权重：{no_run_file}可读取的 run.json{whose_ranks}",
        "configurations_unread": "训练配置：{all_sides} 侧的 {file} 无法读取",
        "whose_rank": "{side} 侧有一个 run.json 未说明属于哪个 rank",
        "two_manifests": "{side} 侧的 rank {rank} 有两个 run.json；使用第一个",
        "newer_schema": (
            "{side} 侧 run.json 的 schema 为 {schema}，当前版本支持到 {known}：只比对了能读取的内容"
        ),
        "early_seed": (
            "随机种子：{some_names} 是在采集启动时读取的，可能早于训练脚本的设置，或与另一侧不在同"
            "一阶段"
        ),
        "attempt": (
            "{side} 侧第 {number} 次启动的{other_sections}与首次启动不同，比对使用的是首次启动的"
            "{other_sections}，详见其 run.json"
        ),
        "key_data_left_out": "{some_names}：A、B 两侧均未采集：{why}",
        "more_differences": "{of_section}：另有 {count} 处不同，未列出",
        "nested": "{of_section}：嵌套超过 {levels} 层，更深处未比对",
        "withheld": "{of_section}：{some_names} 可能涉密，两侧均未落盘",
        "stopped_script": (
            "随机操作：{side} 的脚本被停止，因此不比对调用次数，也不比对其可能尚未执行到的操作"
        ),
        "calls_of_rank": "随机操作：只有 {side} 有 rank {rank} 的进程",
        "incomplete_calls": "{some_names} 的调用次数：有进程被强制结束",
        "incomplete_seeds": "{some_names} 的全部种子：有进程被提前结束",
        "batches": "数据：A 有 {a} 批，B 有 {b} 批；只比对前几批",
        "parameters_of_one": "权重文件：{some_names} 一侧为各权重，另一侧只有文件",
        "of_pack": "{some_names}：msprobe 的打包文件以另一种方式统计和描述",
        "opaque_data": "数据：{some_names} 只有类型已知",
        "weights_unreadable": "{role} 的初始权重：{side} 侧没有可读取的",
        "weights_only_in": "{some_names} 的初始权重：仅 {side} 侧有采集",
        "weights_without_fingerprint": "{role} 的初始权重：{count} 个权重在一侧没有指纹",
        "weights_other_algorithm": "{role} 的初始权重：{count} 个权重两侧的指纹算法不同",
    },
)
