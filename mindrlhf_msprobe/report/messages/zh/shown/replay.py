"""`replay` 所说的话（中文）。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "several_phases": "{entry} 在多个阶段中都有采集：{phases}。请用 --phase 指定其中一个。",
    "no_entry": (
        "{path}：没有条目 {name}。{hint}应为算子或 Cell 的条目，可用 `mindrlhf-msprobe show {path} "
        "PHASE` 列出。"
    ),
    "no_call": "{entry} 不是一次调用的条目；应为算子或 Cell 的前向或反向条目。",
    "unread_entry": "{path}：条目 {entry} 无法读取",
    "no_inputs": "{entry}：没有采集其输入；请以 directions: [forward, backward] 采集",
    "no_elements": (
        "{record} 只采集了统计量，replay 需要其元素。请重新采集 {phase} 的 step {step}："
        "msprobe_config: {{task: tensor, step_start: {step}, step_end: {step}}}"
    ),
    "no_elements_of_operator": (
        "{record} 只采集了统计量，replay 需要其元素。请重新采集 {phase} 的 step {step}："
        "msprobe_config: {{task: tensor, step_start: {step}, step_end: {step}, level: mix}}"
    ),
    "unread": "{record} 无法读取：{why}",
    "argument": (
        "输入 {argument} 的类型是 {kind}，采集结果中没有其内容；应为张量、数值、None、切片、dtype、"
        "文字，或由它们组成的结构"
    ),
    "other_folder": "{path} 中有其他文件，例如 {held}；应为新目录，或 replay 写过的目录。",
    "unwritten": "{path} 无法写入：{why}",
    "no_yaml": "--network {path}：没有这个文件；应为 MindFormers 模型的 YAML",
    "network": (
        "--network 为 {network}；应为返回网络的 MODULE:FUNCTION（从当前目录或 Python 路径导入），"
        "或 MindFormers 模型的 YAML"
    ),
    "needs_network": (
        "{entry} 是 Cell 的条目，replay 需要其网络：请用 --network 给出返回网络的 MODULE:FUNCTION，"
        "或 MindFormers 模型的 YAML。"
    ),
    "unknown_operator": (
        "{operator} 不是已安装的 MindSpore（{version}）的算子；应为可采集的算子。采集结果中的名称"
        "不会被导入。"
    ),
    "side_effects": "{operator} 会写文件、打印、通信或运行自带的代码，因此不重新计算。",
    "primitive": (
        "{operator}：采集结果中没有该原语的属性，尝试过的属性都得不到采集的结果。请用 --network "
        "给出包含它的网络，或重算包含它的 Cell。"
    ),
    "needs_mindspore": (
        "replay 需要 MindSpore 来计算，此处无法导入：{error}。请在装有 MindSpore 的机器上运行。"
    ),
    "dtype": "--compute-dtype 为 {dtype}；应为 {expected} 之一",
    "runs_and_entry": "收到 {given}；应为 RUN、RUN ENTRY 或 RUN_A RUN_B ENTRY",
    "failed": "{script} 运行失败：{why}。单独运行该脚本可看到全部输出。",
    "refused": "原因：{why}",
    "written": "目录：{folder}   再次运行：{command}",
    "no_operators": (
        "{path} 中没有算子的条目；请以 msprobe_config: {{level: mix}} 采集，或给出 Cell 的 ENTRY。"
    ),
    "table_title": "{path} 中算子的 {calls} 次调用，最可疑的在前",
    "row": "{verdict}：{entry}，{phase}，step {step}，rank {rank}",
    "apart": (
        "{value}：为舍入上限的 {share:.2g} 倍，{ulp:.2g} ulp，相对误差 {relative:.1e}{drawn}"
    ),
    "drawn_row": "（随机输入）",
    "wrong": "错误",
    "ordinary": "正常",
    "undecided": "无法判定",
    "unjudged": "未判定",
    "drawn": "随机",
    "recorded": "采集",
    "more": "  …… 另有 {count} 个，见表格",
    "table_summary": "错误 {wrong} 个，正常 {ordinary} 个，无法判定 {undecided} 个",
    "table_unjudged": "未判定 {count} 个：没有参照，且不含浮点运算，或用到随机数",
    "table_drawn": (
        "其中 {drawn} 个只采集了统计量，以采集范围内的随机输入计算：判定的是算子在此处的计算，"
        "而不是采集结果。"
    ),
    "table_file": "表格：{file}",
    "computing": "重新计算",
    "unit": "算子",
    "command": "判断哪一侧错误：{command}",
    "nothing_computed": (
        "--replay：差异不在算子或 Cell 的计算中（原因：{cause}），"
        "或两侧是同一次运行；没有可重新计算的内容。"
    ),
}
