"""表格说明：状态、颜色、原因与各列。"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "colour_differs_name": "红色",
    "colour_differs": "不一致",
    "colour_missing_name": "深红色",
    "colour_missing": "无法比对：一侧缺失或无法读取",
    "colour_suspicious_name": "橙色",
    "colour_suspicious": "一致，但值得一看，原因见 suspicion 列",
    "colour_close_name": "黄色",
    "colour_close": "仅在容差内或仅统计量一致，并非逐位一致",
    "colour_plain_name": "无色",
    "colour_plain": "逐位一致",
    "status_unreadable": (
        "文件缺失、被截断或已损坏；或无法得知元素的取值，例如只采集了统计量且含 NaN"
    ),
    "status_only_in_a": "B 中没有这条记录",
    "status_only_in_b": "A 中没有这条记录",
    "status_dtype_mismatch": "两侧 dtype 不同",
    "status_shape_mismatch": "两侧 shape 不同；不做截断",
    "status_non_finite": "一侧为 NaN 或 Inf，另一侧为有限值",
    "status_different": "其他任何不一致",
    "status_within_tolerance": (
        "字节不同，但在 tolerance 列给出的容差之内；或只采集了统计量且统计量一致（不能证明逐"
        "位相同）"
    ),
    "status_identical": ("字节相同，或数值相同：同一位置的两个 NaN 视为相等，−0.0 等于 0.0"),
    "term_non_finite": "两侧均含 NaN/Inf",
    "term_grows": "误差在该 Cell 中放大",
    "term_arises": "误差在该 Cell 中产生",
    "suspicion_non_finite": "两侧在相同位置都有 NaN 或 Inf：二者一致，但可能都有问题",
    "suspicion_grows": (
        "在容差之内，但该输出的相对误差至少是该 Cell 输入与权重最大相对误差的 10 倍"
    ),
    "suspicion_arises": "在容差之内，但该 Cell 的输入与权重完全没有误差",
    "cause_computation": "输入与权重一致而输出不一致：问题出在该 Cell",
    "cause_parameter": "权重已经不同：检查加载、权重同步或上一次更新",
    "cause_input": "进入该阶段的输入已经不同",
    "cause_data": "关键数据不同，而此前采集到的所有 Cell 都一致",
    "cause_missing": "一侧没有这条记录",
    "cause_shape": "shape 不同",
    "cause_dtype": "dtype 不同",
    "cause_non_finite": "仅一侧为 NaN 或 Inf",
    "cause_stopped": "一侧已中断；两侧都有的内容全部一致",
    "cause_file": "文件在落盘后被改动过；无法判断计算是否有差异",
    "cause_unreadable": "文件无法读取",
    "column_side_a": "A（标杆）：compare 的第一个采集结果，即 msprobe 的 -gp",
    "column_side_b": "B（待比对）：compare 的第二个采集结果，即 msprobe 的 -tp",
    "column_id": "关键数据在列表或字典中的位置",
    "column_equal": "相同元素占比，百分数",
    "column_first_mismatch": "展平后首个不同元素的序号（从 0 计）",
    "column_max_abs": "有限元素上最大的 |A−B|",
    "column_max_rel": ("最大的 |A−B| / max(|A|, |B|)；与 Max diff 并列时为最大值的 |B−A| / |A|"),
    "column_err_ratio": "相对误差低于千分之一、千分之五、百分之一的元素占比",
    "column_cosine": "两个张量的余弦相似度",
    "column_euclidean": "A−B 的 L2 范数",
    "column_diff": "B（NPU）的统计量减去 A（Bench）的统计量",
    "column_result": "identical 与 within_tolerance 为 pass，其余为 error",
    "column_status": "两条记录的比对结果，取值见上文；取最先符合的一项",
    "column_note": (
        "对 status 的补充说明，例如两段文本从何处开始不同；“比对前检查”页中为该项如何不同"
    ),
    "column_err_message": "status 及其补充说明（note）；identical 时为空",
    "column_relative_of_statistics": (
        "统计量的 |B−A| / |A|（相对于 Bench），与 Max diff 并列的 MaxRelativeErr 也是如此："
        "以百分数显示的数值；在 CSV 中与 msprobe 自己的表格一样，是带 % 的文本"
    ),
    "column_stack": (
        "待比对一侧调用该 Cell 的代码位置：输入行和不一致的行给出完整调用栈，"
        "一致的输出行只给最内层一行"
    ),
    "column_texts": "保存的文本，分别为 A 与 B",
    "column_tolerance": "判定依据：容差及其来源规则，或 bitwise（逐位）",
    "column_suspicion": "记录虽一致但仍值得一看的原因；为空表示没有",
    "column_factor": "“结论”页：该处最大相对距离是首个差异点的多少倍",
    "table_preflight": (
        "“比对前检查”页的 A、B 两列均为文本，即使设置项是数字：其值可能是 1、True 或文本 1"
    ),
    "table_csv": ("会被电子表格当作公式的单元格（如以 = 开头）前面加了 '；去掉它即为原文"),
}
