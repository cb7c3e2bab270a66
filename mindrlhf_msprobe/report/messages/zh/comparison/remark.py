"""What differs before any tensor and may explain a divergence, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.remark import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.zh.words import section_words

_PIECES: Mapping[str, Text] = {
    "agree": "{whose_weights}的初始权重一致（{parameters} 个权重）",
    "of_role": "{role} ",
    "of_networks": "{networks} 个网络",
    "of_section": lambda section, **_: section_words(section),
    "seed_name": " {name} ",
    "since_step": "从 step {step} 起",
    "a_is_set": "{a}",
    "b_is_set": "{b}",
    "not_set": "未设置",
    "against": "A 为 {value_a}，B 为 {value_b}",
    "first_setting": "{of_section} {name}：{against}",
    "one_setting": "有 1 项配置不同：{first_setting}",
    "several_settings": "有 {count} 项配置不同，首项 {first_setting}",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "weights_agree": "{agree}。",
        "weights_agree_but": "{agree}，但{but}。",
        "only_random": "{agree}；配置中只有 Python 随机数生成器的状态不同。",
        "no_setting": "{agree}，两侧都有采集的配置也没有不同。",
        "weights_differ": (
            "{role} 的初始权重有 {different} 个不同（共 {compared} 个），首个为 {first}：请检查加载"
            "的 checkpoint。"
        ),
        "other_parameters": (
            "{role} 两侧网络的权重不是同一组：{count} 个仅一侧有，首个为 {side} 侧的 {first}。"
        ),
        "sentence": "{what}。",
        "seed": "随机种子{which_seed}不同：{against}",
        "generator": "{whose} 随机数生成器的状态{since}不同",
        "determinism": "确定性配置 {name} 不同：{against}",
        "settings": "{how_many}",
    },
)
