"""一个量随 step 的变化（`trend`），以及两份采集结果的梯度相似度。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.trend import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined

_PIECES: Mapping[str, Text] = {
    "n_more": " 等，另有 {more} 个",
    "nearest_names": joined("near", "、"),
    "the_nearest": "相近的有：{nearest_names}。",
    "at_n_steps": "（{steps} 个 step）",
    "all_names": joined("names", "、"),
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "reading": "读取中",
        "rank": "rank {rank}",
        "summary": "{count} 个值{at_steps}：首个 {first}，末个 {last}，最小 {low}，最大 {high}",
        "not_finite": "；step {steps}{and_more} 出现 NaN 或 Inf",
        "none_finite": "{count} 个值，全部为 NaN 或 Inf",
        "no_series": "未采集",
        "more_series": "另有 {count} 条曲线未画出：用 --plots、--key、--record 选择，--csv 含全部",
        "more_problems": "另有 {count} 个问题",
        "without": "{path}：不含 {what}",
        "not_available": "无法给出：",
        "missing": "  {name}：{why}",
        "nothing_matches": "{path} 中没有记录、关键数据或派生量 {asked!r}。{nearest}",
        "no_numbers": (
            "{path} 中匹配 {asked!r} 的没有 {statistic}：是文本、空张量，或未采集该统计量。"
        ),
        "unknown_statistic": "没有统计量 {name!r}。{nearest}",
        "unknown_derived": "没有派生量 {name!r}。{nearest}",
        "unknown_key": "{path} 中没有关键数据 {name!r}。{nearest}",
        "unknown_phase": "{path} 中没有阶段 {name!r}。{nearest}",
        "unknown_rank": "{path} 中没有 rank {name!r}。{nearest}",
        "bad_pattern": "正则表达式 {pattern!r} 无法使用：{why}。",
        "no_tensorboardx": (
            "--tensorboard 需要 tensorboardX，但无法导入（{why}）：pip install tensorboardX"
        ),
        "no_key_data": "未采集关键数据：请开启 key_data_dump",
        "no_key": "未采集 {all_names}：请用 save_data 保存（key_data_dump）",
        "no_one_tensor": "{key} 不是单个张量",
        "unread_key": "{key} 无法读取：{why}",
        "rows_unknown": (
            "{key} 保存了 {count} 次，{shape}；{other} 保存了 {other_count} 次，{other_shape}：没有"
            "采集哪些行相互对应；请按相同的行保存 {other}，或保存 loss_inputs"
        ),
        "no_pad": "{key} 是 token，但既未保存 mask，configurations.json 中也没有 pad_token_id",
        "no_gradients": (
            "未采集权重梯度：请开启 actor_train_dump 或 critic_train_dump，directions 含 backward"
        ),
        "no_moments": "未采集优化器状态（optimizer_state: true）",
        "no_parameters": (
            "未采集更新阶段的权重：请开启 actor_train_dump 或 critic_train_dump，并设 parameters: "
            "true"
        ),
        "parameters_once": "权重只采集了一次：至少需要两个 step",
        "parameters_without_elements": "权重只有统计量：task: tensor 才采集真实数据",
        "rows_by_value": "按数值找出相互对应的行；无法找出的更新不计入",
        "without_mask": "未保存 mask：所有 token 都计入，包括 padding",
        "rows_by_old_tokens": (
            "按 old_log_prob 所对应的 token 找出相互对应的行；无法找出的回复不计入"
        ),
        "rows_by_tokens": "按损失函数拿到的 token 找出相互对应的行；无法找出的回复不计入",
        "saves_left_out": "shape 不同的保存不计入",
        "mask_of_rollout": "未保存 mask：行末的 0 视为 padding",
        "non_finite_left_out": ("NaN 和 Inf 不计入，其个数见 rollout_corr/non_finite_tokens"),
        "shapes_apart": (
            "rollout_log_prob、training_log_prob 和 mask 的 shape 分别为 {rollout}、{training} 和 "
            "{mask}；应为同一个 shape [..., tokens]。"
        ),
        "no_token": "没有计入的 token：回复全部为空，或全部被 mask 掉",
        "no_finite_token": "计入的 token 中，没有一个的两侧 log_prob 都是有限值",
        "one_token": "只有一个 token 时没有定义",
        "all_equal": "所有值相等时没有定义",
        "clip_range": "裁剪范围为 1 以下 {low}、以上 {high}，取自 configurations.json",
        "usual_clip_range": (
            "裁剪范围按 1 以下 {low}、以上 {high} 计，configurations.json 中没有给出"
        ),
        "length_of_loss": "按损失函数拿到的行计算：packing 时一行含多个回复",
        "kl_of_old": "按 old_log_prob 计算，即更新前的策略",
        "in_characters": "以字符计：未保存 token，也未保存 mask",
        "pad": "pad_token_id {pad} 以外的 token",
        "gradients_of_two": "--gradients 需要两份采集结果：RUN RUN2。",
        "same_run": "两份采集结果是同一个目录：{path}。",
        "bad_threshold": "--first 为 {first}，--fall 为 {fall}；应分别在 -1 到 1、0 到 2 之间。",
        "gradient_alone": "只有 {side} 侧有",
        "gradient_shapes": "shape 分别为 {a} 和 {b}",
        "gradient_statistics": (
            "两侧没有都采集符号或真实数据：请用 task: grad_probe 或 task: tensor"
        ),
        "similarity": "梯度相似度（按元素个数加权）",
        "similarity_summary": (
            "{count} 次更新：首次 {first}，末次 {last}；{parameters} 个权重，{size} 个元素"
        ),
        "gradients_alike": "{updates} 次更新、{parameters} 个权重，均无可疑之处",
        "gradients_fall": "从 {place} 起可疑（共 {count} 处）：",
        "no_gradients_compared": (
            "没有可比对的梯度：两份采集结果须在相同的 step 采集了真实数据（task: tensor）或符号"
            "（task: grad_probe）"
        ),
        "more_suspicious": "另有 {count} 处，见 --csv",
        "steps_alone": "未比对：step {steps}{and_more} 只有 {side} 侧采集了",
        "place": "step {step}，rank {rank}，{phase}，第 {update} 次更新，{parameter}",
        "first_low": "首次相似度为 {value}",
        "fall": "相似度从 {before} 降到 {value}",
        "not_finite_gradient": "梯度中有 NaN 或 Inf",
        "not_compared": "未比对：{why}",
        "no_matched": "{a} 与 {b} 没有相同 step、相同 rank 的梯度可比对。",
        "no_pictures": (
            "未生成 similarities_picture：需要 matplotlib（pip install matplotlib）；数值见 "
            "similarities.csv"
        ),
    },
)
