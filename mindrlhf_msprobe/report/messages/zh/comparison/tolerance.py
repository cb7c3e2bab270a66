"""What a record was compared by, in Chinese."""

from __future__ import annotations

TEXTS = {
    "default": "rtol {rtol:g}，atol {atol:g}",
    "rule": "rtol {rtol:g}，atol {atol:g}（规则 {pattern!r}）",
    "bitwise_rule": "逐位（规则 {pattern!r}）",
    "number": "{name} 为 {value}；应为不小于 0 的数",
    "across": "最大元素的 {allowed:g}（不同框架，{dtype}）",
    "across_whole": "整数，按数值（不同框架）",
    "noise": "噪声基线（{repetitions} 次重复采集）",
}
