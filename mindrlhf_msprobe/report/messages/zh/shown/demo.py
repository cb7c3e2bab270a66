"""demo 的输出。"""

from __future__ import annotations

from typing import Any

TEXTS: dict[str, Any] = {
    "training": "训练两次",
    "output": "--output {path} 无法使用：{error}。请给出可以创建文件的目录。",
    "range": "{option} 为 {value}；取值范围：{expected}。",
    "one_or_more": "不小于 1",
    "fault_step": (
        "--fault-step 为 {value}；应在 0 … {last} 之间，即训练的某个 step（--steps {steps}）。"
    ),
    "holds_a_run": "{run} 中已有采集结果。请换一个 --output，或删除 {output}。",
    "fault_form": (
        "--fault 为 {value}；应为 PHASE:CELL，例如 {example}，或 {names} 之一。{nearest}"
    ),
    "no_update_before": (
        "--fault {name} 不能从 step 0 开始：此前没有训练更新。请给出不小于 1 的 --fault-step，"
        "且 --steps 不小于 2。"
    ),
    "nothing_decoded": (
        "--fault {name} 需要 decode 的 token：rl_config.response_length 为 1 时没有，请设为 2 或"
        "更大。"
    ),
    "fault_phase": "--fault 指定的阶段 {name} 不存在。{nearest}可用的阶段：{phases}。",
    "minibatches": "{path}：rl_config.minibatches 大于 rl_config.batch_size。",
    "nothing_recorded": (
        "{path}：{section}.{setting} 为 {value} 时不会采集任何内容；demo 使用 rank 0，且需要 "
        "msprobe: true。"
    ),
    "no_settings": "{place} 为 {value}；应为一组设置，例如 {example}。",
    "unknown_key": "{place} 中有未知的键 {key}。{nearest}可用的键：{keys}。",
    "number": lambda place, value, usual, whole: (
        f"{place} 为 {value}；应为{'不小于 1 的整数' if whole else '非负数'}，例如 {usual}。"
    ),
    "no_example": "安装中缺少示例文件 {name}，请重新安装。",
    "needs": lambda names: (
        f"demo 会真实训练，需要 {' 和 '.join(names)}：请安装带 demo 依赖的版本，在代码目录执行 "
        f'pip install ".[demo]"。'
    ),
    "cannot_build": "无法构建训练：{error}",
    "no_cell": "{network} 中没有 Cell {name}。{nearest}其中有：{cells}。",
    "never_ran": lambda cell, phase, cells: (
        f"Cell {cell!r} 在 {phase} 中从未运行，因此没有植入错误。"
        + (f"该阶段运行过的 Cell：{'、'.join(cells)}。" if cells else "")
    ),
    "none_identical": "未植入错误，两次训练逐位一致，符合预期。",
    "none_within": (
        "未植入错误，也没有发现差异；但仅凭统计量不能证明两次训练逐位一致：请保留 "
        "fingerprint: true。"
    ),
    "none_otherwise": "未植入错误，但比对结论为 {status}。",
    "planted": "植入的错误：{fault}，自 step {step} 起。",
    "found": "定位结果：{phase}:{cell}，step {step}。",
    "not_shown": "比对结论为 {status}：采集到的内容没有体现该错误。",
    "not_recorded": "当前配置没有采集该位置。",
    "as_planted": "定位结果与植入的错误相符。",
    "no_cell_computes": "结论指向采样得到的内容，没有指向任何 Cell：错误在采样器中，符合预期。",
    "phase_only": (
        "当前配置没有采集植入错误的 Cell 在该 step 的数据，结论指向其所在阶段；采集该阶段的各层即可"
        "定位到 Cell。"
    ),
    "otherwise": "定位结果与植入的错误不符。",
    "next": "接下来：",
    "open_page": "用浏览器打开 {file}：两次运行在哪里、逐步如何产生差异，以及原因",
    "open_table": "打开 {file}：按时间顺序列出每条记录",
    "look": "查看采集结果：{run}",
    "mismatch": "逐 token 比对 run_b 的推理与训练：{command}",
    "again": "再次比对：{command}",
    "trainer": "训练脚本如何接入采集：{file}",
    "no_tensor": "类型为 {kind} 的输出中没有可以植入错误的张量",
}
