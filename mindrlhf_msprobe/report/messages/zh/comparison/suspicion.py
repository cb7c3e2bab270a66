"""Why a record that agrees deserves a look all the same, in Chinese."""

from __future__ import annotations


def _non_finite(nan: int, inf: int) -> str:
    parts = [f"{n} 个 {what}" for n, what in ((nan, "NaN"), (inf, "Inf")) if n]
    return f"两侧均含 {'、'.join(parts) or 'NaN 或 Inf'}"


def _of_many(count: int, record: str, why: list[str]) -> str:
    return f"其中 {count} 条，首条 {record}：{'；'.join(why)}"


TEXTS = {
    "non_finite": _non_finite,
    "arises": "误差在该 Cell 中产生：输入和权重无误差，输出误差 {error:.1e}",
    "grows": "误差在该 Cell 中放大 {factor:.3g} 倍：{before:.1e} → {error:.1e}",
    "of_many": _of_many,
}
