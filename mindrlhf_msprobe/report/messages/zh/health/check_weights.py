"""What the checks of weights and gradients say, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.health.check_rl import BOTH_RANDOM


def _not_synchronised(count: int, first: str, total: int, still: int | None) -> str:
    since = "" if still is None else f"，仍是训练网络在 step {still} 时的权重"
    return f"{total} 个权重中有 {count} 个与训练网络的不一致，例如 {first}{since}"


def _reference(count: int, first: str, total: int, random: bool) -> str:
    said = (
        f"reference 不是初始 actor：首次更新之前，{total} 个权重中有 {count} 个不同，例如 {first}"
    )
    return said + BOTH_RANDOM * random


TEXTS: dict[str, Text] = {
    "steps_apart": "没有采集到相邻的两个 step",
    "not_synchronised": _not_synchronised,
    "reference": _reference,
    "moved_inside": "{count} 个权重在只做计算的阶段内发生了变化，例如 {first}",
    "moved_reference": "reference 有 {count} 个权重发生了变化，例如 {first}",
    "frozen": (
        "{total} 个权重中有 {count} 个梯度不为零，但在 {updates} 个 step 中没有更新，例如 {first}"
    ),
    "frozen_without_gradient": (
        "{total} 个权重中有 {count} 个没有梯度，在 {updates} 个 step 中没有更新，而其余权重在更新，"
        "例如 {first}"
    ),
    "zero_gradient": "{total} 个权重中有 {count} 个的梯度全为零，例如 {first}",
    "large_update": "{count} 个权重的范数变化最大达 {share:.0%}，例如 {first}",
    "cause_no_synchronisation": "更新之后没有同步权重",
    "cause_partly_synchronised": "部分权重没有参与同步，或同步到了别处",
    "cause_shared": "该网络与训练中的网络共享权重",
    "cause_in_place": "网络中有算子对权重原地赋值",
    "cause_not_in_optimizer": "没有把这些权重交给优化器",
    "cause_requires_grad": "requires_grad 为 False，或其前有 stop_gradient",
    "cause_detached": "其后的计算没有到达 loss（stop_gradient、mask、detach）",
    "cause_no_tokens": "router 没有把 token 分给这些专家",
    "cause_dead": "其后的激活值全为零",
    "cause_learning_rate": "学习率过大，或缺少 warmup",
    "cause_clipping": "没有做梯度裁剪，或没有除去 loss scale",
}
