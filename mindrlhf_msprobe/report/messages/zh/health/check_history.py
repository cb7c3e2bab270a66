"""What the checks of a run against its own past say, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text


def _jump(factor: float, others: int) -> str:
    more = f"，本 step 还有 {others} 条记录同样突变" if others else ""
    return f"范数相对之前的 step 突变 {factor:.3g} 倍{more}"


def _gradients(ratio: float, explode: bool) -> str:
    how = "爆炸" if explode else "消失"
    return f"梯度向首层方向{how}：首层与末层相差 {ratio:.3g} 倍"


def _kurtosis(kurtosis: float, median: float, others: int) -> str:
    more = f"，本 step 还有 {others} 个输出同样升高" if others else ""
    return (
        f"峰度由之前 step 的 {median:.3g} 升至 {kurtosis:.3g}（正态分布为 3），"
        f"少数元素远大于其余元素{more}"
    )


def _kurtosis_high(kurtosis: float, others: int) -> str:
    more = f"，另有 {others} 个输出的峰度同样偏高" if others else ""
    return f"峰度为 {kurtosis:.3g}（正态分布为 3）{more}"


TEXTS: dict[str, Text] = {
    "jump": _jump,
    "gradients": _gradients,
    "dead": "{count} 个激活连续两个 step 全为零，而其输入不为零",
    "routing": "一个专家处理了 {share:.0%} 的 token",
    "kurtosis": _kurtosis,
    "kurtosis_high": _kurtosis_high,
    "cause_outlier": "某一通道的权重持续增大，或个别 token 与其他 token 差异很大",
    "cause_batch": "该 batch 与其他 batch 差异很大（长度、奖励、空 response）",
    "cause_learning_rate": "上一个 step 的更新过大",
    "cause_initialisation": "初始权重的尺度不合适",
    "cause_normalisation": "缺少归一化或残差连接",
    "cause_dead": "权重或偏置使激活落入其平坦区",
    "cause_balance": "缺少专家负载均衡损失，或其系数过小",
    "cause_router": "路由器的权重或输入退化",
}
