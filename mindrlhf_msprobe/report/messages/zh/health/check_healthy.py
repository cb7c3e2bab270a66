"""What the checks against healthy runs say, in Chinese."""

from __future__ import annotations

from collections.abc import Callable

from mindrlhf_msprobe.report.messages import Text


def _and_others(said: str) -> Callable[..., str]:
    def text(others: int) -> str:
        return f"{said}（本 step 另有 {others} 处）" if others else said

    return text


TEXTS: dict[str, Text] = {
    "finite": _and_others("出现 NaN/Inf，而健康采集中始终为有限值"),
    "dtype": _and_others("dtype 在健康采集的同一位置从未出现"),
    "shape": _and_others("shape 在健康采集的同一位置从未出现"),
    "range": _and_others("范数远超健康采集的范围"),
    "unknown": _and_others("健康采集中没有该条目"),
    "calls": _and_others("调用次数与健康采集的任何 step 都不同"),
    "drift": _and_others("逐渐偏离健康采集在相同 step 的取值"),
    "cause_settings": "某项设置与健康采集不同（学习率、数据、权重）",
    "cause_precision": "误差逐 step 累积（精度、权重未同步）",
}
