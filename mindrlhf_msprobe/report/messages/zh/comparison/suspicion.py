"""Why a record that agrees deserves a look all the same, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.lists import Joined
from mindrlhf_msprobe.report.messages.zh.words import non_finite


def _non_finite(nan: int, inf: int) -> str:
    return f"两侧均含 {non_finite(nan, inf) or 'NaN 或 Inf'}"


TEXTS = {
    "non_finite": _non_finite,
    "arises": "误差在该 Cell 中产生：输入和权重无误差，输出误差 {error:.1e}",
    "grows": "误差在该 Cell 中放大 {factor:.3g} 倍：{before:.1e} → {error:.1e}",
    "of_many": Joined("其中 {count} 条，首条 {record}：{why}", "；"),
}
