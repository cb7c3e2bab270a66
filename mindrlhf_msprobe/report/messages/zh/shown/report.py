"""报告页面对自身的说明，中文。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import some


def _written(file: str, bytes: int, seconds: float) -> str:
    return f"报告页面：{file}（{bytes / 1e6:.1f} MB，{seconds:.1f} s）"


TEXTS: dict[str, Text] = {
    "fact_state": "状态",
    "fact_steps": "step 数",
    "fact_ranks": "rank 数",
    "file": "报告页面：{file}",
    "no_file": "{file!r} 不能作为报告页面：请给出文件名，例如 -o report.html",
    "exists": "{file!r} 已存在，且不是本工具写的报告页面：请换一个文件名，或先删除它",
    "inside_run": "{file!r} 位于采集结果 {run!r} 之内，采集结果是证据：请写到别处",
    "unwritten": "无法写入报告页面 {file!r}：{error}",
    "one_or_two_runs": "report 需要一份采集结果，或两份用于比对，而不是 {runs}",
    "of_one_run": "--html 写出一份采集结果的页面，而不是 {runs}：请逐份检查",
    "not_installed": "报告页面需要 extra `report`（{why}）：pip install 'mindrlhf_msprobe[report]'",
    "mismatch_no_phases": (
        "没有同时采集 {rollout} 与 {training} 的 step，无法比对同一 token 在推理侧与训练侧的值"
        "：请采集两者（actor_infer_dump、actor_train_dump）"
    ),
    "mismatch_no_tokens": (
        "未比对训练与推理：无法得知经过网络的是哪些 token。请用 task: sketch（或 tensor）采集，"
        "token_range_start 为 0，token_range_end 不小于最后一个 token"
    ),
    "mismatch_values_left": lambda names, why: (
        f"训练与推理：{len(names)} 个值未比对（{some(names[:4], len(names) - 4)}）：{why}"
    ),
    "mismatch_weights_left": lambda names: (
        f"训练与推理：{len(names)} 个权重未比对（{some(names[:4], len(names) - 4)}）"
    ),
    "mismatch_rows_left": "训练与推理：推理侧的 {tokens} 个 token 中有 {left} 个未能对齐",
    "loading": "正在读取…… 如果一直停在这一行，说明文件不完整：应有 {size} 字节。请重新复制。",
    "needs_script": "此页面需要 JavaScript。",
    "steps_left_out": "取值过多，热力图只显示每 n 个 step 中的一个，以及所有关注的 step",
    "written": _written,
    "curves_left_out": "有 {count} 条曲线未显示：数量过多",
    "findings_left_out": "有 {count} 条检查结果未显示：数量过多",
    "places_left_out": "有 {count} 个 step（按 rank 计）只显示汇总，记录未逐条列出",
    "tensors_left_out": "有 {count} 个存在差异的张量未读取：过大或过多",
    "texts_left_out": "有 {count} 个 step（按 rank 计）的 prompt 与 response 因大小限制未显示",
    "measure_distance": "相对距离",
    "explain_distance": (
        "该 cell 输出的 ‖a−b‖ / max(‖a‖, ‖b‖)：保存了张量则按元素计算，否则按采集到的 L2 范数计算"
    ),
    "measure_max_abs_err": "最大绝对误差",
    "explain_max_abs_err": "所有元素 |a−b| 的最大值；仅在保存了张量或字节全部相同时可知",
    "measure_growth": "该 cell 的误差放大",
    "explain_growth": "输出的相对距离除以输入的相对距离；输入与权重一致而输出不一致时为无穷大",
    "measure_norm": "A 的 L2 范数",
    "explain_norm": "该 cell 输出的最大 L2 范数",
    "measure_norm_b": "B 的 L2 范数",
    "explain_norm_b": "该 cell 输出的最大 L2 范数",
    "measure_non_finite": "NaN 与 Inf",
    "explain_non_finite": "该 cell 输出中 NaN 或无穷大元素的个数",
    "measure_status": "状态",
    "explain_status": "该 cell 输出中最差的状态",
    "measure_max": "最大值",
    "explain_max": "该 cell 输出中 |值| 的最大值",
    "measure_findings": "检查结果",
    "explain_findings": "与该 cell 有关的检查结果个数",
    "group_loss": "损失（loss）",
    "group_rollout": "训推差异",
    "group_kl": "KL 散度",
    "group_reward": "奖励",
    "group_advantages": "优势、回报与价值",
    "group_log_probs": "对数概率与熵",
    "group_ratio": "ratio 与裁剪",
    "group_lengths": "长度",
    "group_gradients": "梯度范数",
    "group_weights": "权重与优化器",
    "group_other": "其他",
    "measure_norm_of_run": "L2 范数",
    "explain_norm_of_run": "该 cell 输出的最大 L2 范数",
    "measure_distance_of_norms": "范数的相对距离（≥）",
    "explain_distance_of_norms": (
        "该 cell 输出的 |‖a‖ − ‖b‖| / max(‖a‖, ‖b‖)：没有保存元素，因此只是下限。归一化层几乎会"
        "掩盖差异；task: tensor 可得到准确值"
    ),
    "measure_growth_of_norms": "范数距离的放大",
    "explain_growth_of_norms": (
        "L2 范数的距离在该 cell 中的放大：没有保存元素，在归一化层之后可能有误导；输入与权重"
        "一致而输出不一致时为无穷大，这一点是确定的"
    ),
}
