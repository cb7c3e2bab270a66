"""精度预检的结论，中文。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "headline_wrong": "错误 {path}：有结果与 float64 的差距超出舍入误差所能解释的范围",
    "headline_ordinary": "正常 {path}：所有复算过的结果都在舍入误差范围内",
    "headline_gaps": "无法判断 {path}：{judged} 次调用没有错误；{count} 次没有结论：{names}",
    "headline_undecided": "无法判断 {path}：没有可判断的结果",
    "in_cell": "{cell} 中的 {name}",
    "apart": "{record}，step {step}，rank {rank}：相对误差 {error:.2g}；{precision} 的舍入可解释 "
    "{explained:.2g}。位置 {index}：{actual:.7g}，精确值 {exact:.7g}",
    "by_shape": "{record}，step {step}，rank {rank}：形状与精确结果不同",
    "by_not_finite": "{record}，step {step}，rank {rank}：位置 {index} 为 {actual}，精确值 "
    "{exact:.7g}",
    "by_not_equal": "{record}，step {step}，rank {rank}：位置 {index} 为 {actual:.7g}，精确值 "
    "{exact:.7g}",
    "counts": "复算 {calls} 次调用，用时 {seconds:.1f} s；张量：错误 {wrong} 个，无法判断 "
    "{undecided} 个，正常 {ordinary} 个",
    "ranked": "排序：结论、误差与舍入误差之比、相对误差、精度：",
    "is_wrong": "错误",
    "is_ordinary": "正常",
    "is_undecided": "无法判断",
    "more": "另有 {count} 项",
    "not_computed": "{call}（{cell}）{count} 次调用无结论：{why}",
    "outside": "不在任何 Cell 内",
    "unchecked": "{count} 次调用无结论，未作检查：{names}",
    "written": "已写入：{files}",
    "none": "{path} 中没有复算结果（{file}）；请以 task: accuracy_check 采集",
    "nothing": (
        "{path} 以 task: {task} 采集，但没有复算任何内容：所采集的阶段和 step 中没有调用选中的"
        " Cell。level: mix 还会复算 Cell 之外的算子；选中哪些由 include、exclude、step_start 和 "
        "step_end 决定"
    ),
    "reason_unseen": "有张量来自未被识别的算子",
    "reason_ties": "相等的元素可能以其他顺序排列",
    "reason_overflowed": "前向结果或导数超出该 dtype 的范围",
    "reason_given_not_finite": "输入中已有 NaN 或 Inf",
    "reason_exact_not_finite": "精确结果不是有限值",
    "reason_not_finite": "不是有限值，而精确结果是",
    "reason_not_equal": "不相等",
    "reason_shape": "形状不同",
}
