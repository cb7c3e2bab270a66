"""磁盘空间估算中的不确定因素。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import listed, reasons


def _left_out(what: object, why: object) -> str:
    return f"{what}：{reasons(why)}"


TEXTS: dict[str, Text] = {
    "thinned": "keep_mb {keep} 约可保留每个 rank 的 {steps} 个完整 step；更早的 step 会清理",
    "left_out": _left_out,
    "not_recorded": lambda what: f"未采集 {listed(what)}，估算不含这部分",
    "filtered": lambda keys: f"采集时被 {listed(keys)} 排除的内容不在估算中",
    "key_data_in_every_step": (
        "step 范围之外的 step 也采集关键数据：每个 step、每个 rank 另需 {bytes} 字节"
    ),
    "tokens": "生成阶段只含 token {first} 到 {last}：其余 token 未采集",
    "no_parameters": "未采集权重，估算不含这部分",
    "no_fingerprints": "没有指纹，无法识别相同的张量，因此逐个计入",
    "unknown_dtype": "dtype 为 {dtype} 的张量大小未知，估算不含这部分",
}
