"""磁盘空间估算中的不确定因素。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import listed, reasons


def _left_out(what: object, why: object) -> str:
    return f"{what}：{reasons(why)}"


def _not_recorded(what: Sequence[str]) -> str:
    return f"未采集 {listed(what)}，估算不含这部分"


def _filtered(keys: Sequence[str]) -> str:
    return f"采集时被 {listed(keys)} 排除的内容不在估算中"


TEXTS: dict[str, Text] = {
    "left_out": _left_out,
    "not_recorded": _not_recorded,
    "filtered": _filtered,
    "key_data_in_every_step": (
        "step 范围之外的 step 也采集关键数据：每个 step、每个 rank 另需 {bytes} 字节"
    ),
    "tokens": "生成阶段只含 token {first} 到 {last}：其余 token 未采集",
    "no_parameters": "未采集权重，估算不含这部分",
    "no_fingerprints": "没有指纹，无法识别相同的张量，因此逐个计入",
    "unknown_dtype": "dtype 为 {dtype} 的张量大小未知，估算不含这部分",
}
