"""首个差异记录之外的问题所在，及其依据。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.culprit import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.numbers import other_run
from mindrlhf_msprobe.report.messages.zh.words import listed, side

_PIECES: Mapping[str, Text] = {
    **VALUES,
    "phases": lambda record, **_: listed(record),
    "in_run": lambda run, **_: side(run),
    "in_other": lambda run, **_: side(other_run(run)),
    "in_unmoved": lambda unmoved, **_: side(unmoved),
    "parameter": "此前的记录均一致，但该 Cell 的权重已经不同",
    "choice": "随机种子、temperature、top-p、top-k、后处理",
    "loading": "权重加载、权重同步、权重转换",
    "batch_or": " batch 或",
    "batch_agreed": "（其 batch 一致：loss_inputs）",
    "one_update": "step {step} 的 {phase}",
    "update_of_several": "step {step} micro_step {micro_step} 的 {phase}",
    "one_optimizer_step": "step {step} 中 {phase} 的优化器更新{settings}",
    "optimizer_step_of_several": (
        "step {step} 中 {phase} micro_step {micro_step} 之后的优化器更新{settings}"
    ),
    "settings": "（lr、weight decay、{clipping}优化器状态）",
    "and_clipping": "更新之前对梯度的缩放或裁剪、",
    "unmoved_in": "{in_unmoved}的这次更新没有改变任何权重：lr 为 0，或该次更新被跳过。",
    "unseen_gradients": "但{unseen_of}的梯度可能不同，并通过求和或范数产生影响。",
    "unseen_cells": "被 include/exclude 过滤掉的 Cell",
    "unseen_ranks": "未采集的 rank",
    "unseen_both": "{unseen_cells} 和 {unseen_ranks}",
    "began_alike": "此前一次更新（{update}）的梯度和更新前的权重均逐位一致",
    "to_blame": " {of} 个权重中有 {parameters} 个不同：问题出在 {optimizer_step}",
    "its_gradients": "梯度",
    "its_gradients_and_weights": "梯度和更新前的权重",
    "by_statistics": "（仅依据统计量，没有指纹，不能作为定论）",
    "initial_weights": "初始权重",
    "weights_of_step": " step {step} 的权重",
    "weights_of_micro_step": " step {step} micro_step {micro_step} 的权重",
    "other_initial_weights": "{initial_weights}",
    "other_weights_of_step": " step {other[step]} 的权重",
    "other_weights_of_micro_step": " step {other[step]} micro_step {other[micro_step]} 的权重",
    "other_state": "{in_other}中为{state_of_other}。",
    "other_is_current": "{in_other}中为 {trained} 的权重，符合预期。",
    "other_followed_too": "{in_other}中为 {trained} 的权重，两侧相同。",
    "in_one_run": "{in_other}中该网络的权重与 {trained} 相同，{in_run}中不同。",
    "trained_by_none": (
        "。没有阶段训练该网络：请检查 {in_other}中是什么改变了它（权重加载、权重同步、直接给权重"
        "赋值），或 {in_run}为何没有执行这一步。"
    ),
    "trained_agrees_then": (
        "，而 {trained} 的权重一致：{in_run}未做权重同步，或 {in_other}不应同步。"
    ),
    "update_between_unknown": (
        "：{in_run}未做权重同步或未更新，或 {in_other}不应更新。其间的更新未采集。"
    ),
    "sampled_last": (
        "{phase} 采集到的所有 Cell 均一致，最后一个 token（token {token}）的输出逐位一致：差异产生"
        "于最后一个 token 的采样（{choice}），或之后对 token 的处理。"
    ),
    "sampled_next": (
        "网络在 token {token} 的输出（logits）逐位一致，而下一次输入的 token 不同：差异产生于 "
        "token 的采样（{choice}）{new_prompt}。"
    ),
    "prompt_begins": "，或由此开始了新的 prompt",
    "responses_differ": "生成的 responses ",
    "next_tokens_differ": "下一次输入的 token ",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "earlier_update": (
            "{key} 在 micro_step {micro_step} 一致，在 micro_step {next_micro_step} 存在差异：问题"
            "出在第 {number} 次更新（micro_step {micro_step} 的 {phase}：其梯度或优化器更新），或出"
            "在 micro_step {next_micro_step} 的{or_batch}前向{its_batch}；仅凭关键数据无法区分：请"
            "在两侧采集 step {step} 中 {phases} 的 Cell（含梯度）以确定。"
        ),
        "optimizer": "{began_alike}；更新后{to_blame}。{no_move}{unseen}",
        "before_optimizer": (
            "进入优化器的 {gradients} 个梯度全部存在差异，而 {phase} 反向过程的 {backward} 条记录逐"
            "位一致：请检查两者之间的环节（梯度裁剪、loss scale、梯度累积、跨卡规约），而不是该 "
            "Cell。"
        ),
        "optimizer_or_synchronisation": (
            "{began_alike}；此处{to_blame}，或出在把权重从训练网络同步到此处的环节。{phase} 更新后"
            "的权重未采集，因此无法区分。{no_move}{unseen}"
        ),
        "update_close": (
            "{parameter}：此前一次更新（{update}）的梯度或更新前的权重仅在容差内或仅统计量一致，因"
            "此或是这些微小误差被放大，或是问题出在 {optimizer_step}。{no_move}"
        ),
        "gradients_not_recorded": (
            "其在 {update} 中的{gradients_or_more}未在两侧都采集；请配置 directions: [forward, "
            "backward] 采集该 step，以区分是优化器还是梯度的问题。{no_move}"
        ),
        "update_not_recorded": (
            "此前一次更新（step {step} 的 {phase}）未采集：请同时采集 step {step}，以区分权重加载、"
            "权重同步和优化器的问题。"
        ),
        "not_synchronised": (
            "{parameter}。在 {in_run}中，{phase} 的网络 {of} 个权重里有 {parameters} 个仍是"
            "{state}，而 {trained} 中此时已更新{by}：权重未同步。{other_kept}"
        ),
        "synchronisation": (
            "{parameter}，涉及 {of} 个权重中的 {parameters} 个。此时 {trained} 的权重一致：问题出在"
            "把权重送到 {phase} 网络的环节（{loading}）。{whose}"
        ),
        "follows_trained": (
            "{parameter}。在 {in_run}中，{phase} 的网络 {of} 个权重里有 {parameters} 个变成了 "
            "{trained} 的权重{by}：它随训练网络一起被更新，或两者本就是同一个网络。{other_followed}"
        ),
        "not_moved": (
            "{parameter}。在 {in_run}中，{of} 个权重自 step {step} 起均未变化{by}，而在 {in_other}"
            "中有 {parameters} 个发生了变化{why_not_moved}"
        ),
        "changed_between": (
            "{parameter}，涉及 {of} 个权重中的 {parameters} 个。在本 step 更早的 {since} 中该权重一"
            "致，且在 {in_other}中至今未变：在 {in_run}中，它在两个阶段之间被改变，而其间没有权重更"
            "新（{loading}）。"
        ),
        "sampling": "{where_sampled}",
        "sampling_or_logits": (
            "网络在 token {token} 的输出（logits）仅在容差内或仅统计量一致，而{what_differs}不同："
            "或是这些微小误差改变了某个 token，或是差异产生于 token 的采样（{choice}）。"
        ),
        "loss": (
            "本 micro_step 中 loss 的输入（loss_inputs）和 log_prob 共 {agree} 条记录逐位一致：问题"
            "出在 loss 的计算（其代码，或其配置：beta、裁剪、求平均的方式），而不是网络的前向。"
        ),
        "schedule": (
            "它不是 {phase} 中任何 Cell 算出来的：它由优化器的学习率调度设定，或取决于已更新的次"
            "数。"
        ),
    },
)
