"""A proposed mapping, in Chinese."""

from __future__ import annotations

TEXTS = {
    "head": (
        "按结构、shape 和相等的统计量给出的建议，请逐行核对。\n"
        "行尾为置信度，以及比对的权重和输出中统计量相等的个数"
    ),
    "line": "{confidence}：{values}/{compared} 相等，{cells} 个 Cell",
    "order": "假定各部分前后相接；完整张量才能确定顺序",
    "alone": "{side} 中没有对应的 Cell：{names}",
    "written": (
        "已生成映射建议：{path}，{count} 行，每行注明置信度。请核对后运行\n"
        "  mindrlhf-msprobe compare {a} {b} --mapping {path}"
    ),
}
