"""How to read the tables: each status, colour, cause and column in words, in both languages."""

from __future__ import annotations

from mindrlhf_msprobe.findings import Cause, Status
from mindrlhf_msprobe.report.formats.colours import colour_of
from mindrlhf_msprobe.report.formats.fills import CLOSE, DIFFERS, MISSING, PLAIN, SUSPICIOUS
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet

_COLUMNS = (("kind", 12), ("name", 30), ("meaning", 80), ("含义", 60))

_Words = tuple[str, str]

STATUSES: dict[Status, _Words] = {
    Status.UNREADABLE: (
        "a file is missing, cut short or damaged, or nothing is known of the elements, such as "
        "beside NaN where only statistics were recorded",
        "文件缺失、被截断或已损坏；或元素的情况无从得知，例如只采了统计量且有 NaN",
    ),
    Status.ONLY_IN_A: ("run B has no such record", "B 中没有这条记录"),
    Status.ONLY_IN_B: ("run A has no such record", "A 中没有这条记录"),
    Status.DTYPE_MISMATCH: ("the two have different dtypes", "两侧数据类型不同"),
    Status.SHAPE_MISMATCH: (
        "the two have different shapes; nothing is truncated",
        "两侧形状不同；不做截断",
    ),
    Status.NON_FINITE: (
        "NaN or infinite on one side where the other is finite",
        "一侧为 NaN 或无穷，另一侧为有限值",
    ),
    Status.DIFFERENT: ("anything else that is not the same", "其他任何不一致"),
    Status.WITHIN_TOLERANCE: (
        "not the same bytes, but within the tolerance of the column `tolerance`; or only "
        "statistics were recorded and these agree, which never proves identity",
        "字节不同，但在 tolerance 列给出的容差之内；"
        "或只记录了统计量且统计量一致（不能证明逐位相同）",
    ),
    Status.IDENTICAL: (
        "the same bytes, or the same values: two NaNs in one place are equal, −0.0 equals 0.0",
        "字节相同，或数值相同：同一位置的两个 NaN 视为相等，−0.0 等于 0.0",
    ),
}

_COLOURS: dict[str, tuple[str, str, str]] = {
    DIFFERS: ("red", "does not agree", "红色：不一致"),
    MISSING: (
        "dark red",
        "cannot be compared: missing on one side, or unreadable",
        "深红色：无法比对，一侧缺失或无法读取",
    ),
    SUSPICIOUS: (
        "orange",
        "agrees, but the column `suspicion` says why it deserves a look",
        "橙色：一致，但值得一看，原因见 suspicion 列",
    ),
    CLOSE: (
        "yellow",
        "agrees within a tolerance or by statistics only, not bit for bit",
        "黄色：仅在容差内或仅统计量一致，并非逐位一致",
    ),
    PLAIN: ("none", "agrees bit for bit", "无色：逐位一致"),
}

_SUSPICION: dict[str, _Words] = {
    "NaN or Inf on both sides": (
        "both runs hold NaN or infinite elements in the same places: they agree, and both may be "
        "wrong",
        "两侧在相同位置都有 NaN 或无穷：二者一致，但可能都有问题",
    ),
    "error grows in this cell": (
        "within the tolerance, but the relative error of this output is at least 10 times the "
        "largest one of the cell's inputs and parameters",
        "在容差之内，但该输出的相对误差至少是该 cell 输入与参数最大相对误差的 10 倍",
    ),
    "error arises in this cell": (
        "within the tolerance, but the cell's inputs and parameters show no error at all",
        "在容差之内，但该 cell 的输入与参数完全没有误差",
    ),
}

CAUSES: dict[Cause, _Words] = {
    Cause.COMPUTATION: (
        "inputs and parameters agree, the output does not: this cell is the origin",
        "输入与参数一致而输出不一致：问题出在该 cell",
    ),
    Cause.PARAMETER: (
        "the parameters differ already: look at loading, weight synchronisation, the last update",
        "参数已经不同：检查加载、权重同步或上一次更新",
    ),
    Cause.INPUT: ("what entered the phase differs", "进入该阶段的数据已经不同"),
    Cause.DATA: (
        "key data differ although every recorded cell before agrees",
        "关键数据不同，而此前记录的所有 cell 都一致",
    ),
    Cause.MISSING: ("one run has no such record", "一侧没有这条记录"),
    Cause.SHAPE: ("another shape", "形状不同"),
    Cause.DTYPE: ("another dtype", "数据类型不同"),
    Cause.NON_FINITE: ("NaN or infinite on one side only", "仅一侧为 NaN 或无穷"),
    Cause.STOPPED: (
        "one run had stopped; everything that both recorded agrees",
        "一侧已中断；两侧都有的内容全部一致",
    ),
    Cause.UNREADABLE: ("a file cannot be read", "文件无法读取"),
}

_MAIN_COLUMNS: dict[str, _Words] = {
    "NPU …, …1": ("run A, the first that was given", "A：给出的第一次运行"),
    "Bench …, …2": ("run B, the second that was given", "B：给出的第二次运行"),
    "id": ("the place inside a list or dict of key data", "关键数据在列表或字典中的位置"),
    "相同元素百分比(%)": ("share of equal elements", "相同元素占比，百分数"),
    "首个不匹配元素索引": ("flat index of the first different element", "展平后首个不同元素的下标"),
    "最大绝对误差, MaxAbsErr": ("largest |A−B| over finite elements", "有限元素上最大的 |A−B|"),
    "最大相对误差, MaxRelativeErr": (
        "largest |A−B| / max(|A|, |B|); beside Max diff: that of the maximum, |A−B| / |B|",
        "最大的 |A−B| / max(|A|, |B|)；与 Max diff 并列时为最大值的 |A−B| / |B|",
    ),
    "…内元素占比(%), … Err Ratio": (
        "share of elements whose relative error is below 1/1000, 5/1000, 1/100",
        "相对误差低于千分之一、千分之五、百分之一的元素占比",
    ),
    "Cosine": ("cosine of the angle between the two tensors", "两个张量的余弦相似度"),
    "EucDist": ("L2 norm of A−B", "A−B 的 L2 范数"),
    "… diff": ("the statistic of A less that of B", "A 与 B 的统计量之差"),
    "Result": (
        "pass for identical and within_tolerance, else error",
        "identical 与 within_tolerance 为 pass，其余为 error",
    ),
    "status": (
        "how the two records compare, one of those explained above; the first that fits",
        "两条记录的比对结果，取值见上文；取最先符合的一项",
    ),
    "note": (
        "what else there is to know about the status, e.g. where two texts first differ; in the "
        "preflight sheet: how the setting or parameter differs",
        "对 status 的补充说明，例如两段文本从何处开始不同；preflight 页中为该项如何不同",
    ),
    "Err_message": (
        "the status, and the note behind it; empty for identical",
        "status 及其补充说明（note）；identical 时为空",
    ),
    "MinRelativeErr, MeanRelativeErr, NormRelativeErr": (
        "|A−B| / |B| of the statistic, as is MaxRelativeErr beside Max diff: numbers shown in "
        "percent; in CSV texts with a % sign, as in msprobe's own tables",
        "统计量的 |A−B| / |B|，与 Max diff 并列的 MaxRelativeErr 也是如此："
        "以百分数显示的数值；在 CSV 中与 msprobe 自己的表格一样，是带 % 的文本",
    ),
    "NPU_Stack_Info": (
        "where the cell was called; beside an output only if it does not agree",
        "调用该 cell 的代码位置；输出行仅在不一致时给出",
    ),
    "text1, text2": ("the texts that were saved, of A and of B", "保存的文本，分别为 A 与 B"),
    "tolerance": (
        "what the record was judged by: a tolerance and the rule that gave it, or bitwise",
        "判定依据：容差及其来源规则，或 bitwise（逐位）",
    ),
    "suspicion": (
        "why a record that agrees deserves a look all the same; empty if it does not",
        "记录虽一致但仍值得一看的原因；为空表示没有",
    ),
    "factor": (
        "verdict sheet: the place's largest relative distance as a multiple of the one at the "
        "first divergence",
        "verdict 页：该处最大相对距离是首个分歧处的多少倍",
    ),
}

_FILES: dict[str, _Words] = {
    "preflight": (
        "the sheet's columns A and B hold texts, also where a setting is a number: it may be 1, "
        "True or the text 1",
        "该页 A、B 两列均为文本，即使设置项是数字：其值可能是 1、True 或文本 1",
    ),
    "CSV": (
        "a cell that a spreadsheet would take for a formula, e.g. one that begins with =, begins "
        "with ' instead; take it off to have the text as it was",
        "会被电子表格当作公式的单元格（如以 = 开头）前面加了 '；去掉它即为原文",
    ),
}

_OTHERS = (("suspicion", _SUSPICION), ("column", _MAIN_COLUMNS), ("table", _FILES))


def legend_sheet() -> Sheet:
    """Return the sheet that explains all others; its colours are the ones it explains."""
    rows: list[Row] = [(colour, ("colour", *words)) for colour, words in _COLOURS.items()]
    rows += [
        (colour_of(status), ("status", status.value, *words)) for status, words in STATUSES.items()
    ]
    for kind, meanings in _OTHERS:
        rows += [(PLAIN, (kind, name, *words)) for name, words in meanings.items()]
    rows += [(PLAIN, ("cause", cause.value, *words)) for cause, words in CAUSES.items()]
    return Sheet.of("legend", _COLUMNS, rows)
