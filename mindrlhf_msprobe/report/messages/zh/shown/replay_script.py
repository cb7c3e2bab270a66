"""`replay` 的脚本所说的话（中文）；脚本从同目录的 words.json 中读取。"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "describes": "重新计算一个采集到的条目，并给出采集值与重算值的差距",
    "help_device": "在哪里计算：CPU、GPU 或 Ascend（默认：由 MindSpore 决定）",
    "help_json": "把差距和结论同时写入该文件",
    "no_mindspore": (
        "replay.py 用 MindSpore 和 numpy 计算，此处无法导入：{error}。请在装有两者的机器上运行，"
        "整个目录可原样拷贝。"
    ),
    "title": "{side}：{entry}，{phase}，step {step}，rank {rank}，采集目录 {run}",
    "device": "由 {device} 计算",
    "again": "按采集的 dtype 重算",
    "Float32": "以 Float32 计算",
    "Float64": "以 Float64 计算",
    "formula": "按 numpy 公式计算",
    "is_ordinary": "舍入误差可以解释（为舍入上限的 {share} 倍）",
    "is_wrong": "错误：为舍入上限的 {share} 倍",
    "is_ordinary_formula": "舍入误差可以解释（按 numpy 公式，为舍入上限的 {share} 倍）",
    "is_wrong_formula": "错误：按 numpy 公式，为舍入上限的 {share} 倍",
    "not_judged": "未判定（--no-run）",
    "is_undecided": "无法判定",
    "is_equal": "相同",
    "is_other": "整数值不同",
    "agrees": "{side} 与 {dtype} 的结果相差 {ulp} ulp：舍入误差可以解释。",
    "agrees_formula": "按 numpy 公式，{side} 与 {dtype} 的结果相差 {ulp} ulp：舍入误差可以解释。",
    "same": "{side} 重算的结果相同。",
    "off": "{side} 偏差 {by}（{value}）：舍入误差无法解释。",
    "off_formula": "按 numpy 公式，{side} 偏差 {by}（{value}）：舍入误差无法解释。",
    "not_finite": "{side} 错误：{value} 为 NaN 或无穷，而 {dtype} 的结果不是。",
    "undecided": "{side}：无法判定是否正确。",
    "inputs_agree": "A 与 B 的输入逐比特一致。",
    "inputs_differ": "A 与 B 的输入不同：各自按自己的输入判定。",
    "one_is_wrong": "错误的一侧是 {side}。",
    "both_wrong": "两侧都错误。",
    "no_kernel": "{run}：此处无法计算：{error}",
    "not_computed": "此处无法按采集的 dtype 重算：{error}",
    "not_returned": "采集到了 {value}，但此处没有返回它，或形状不同",
    "random": "{value} 每次都不同：其中用到随机数",
    "by_mask": "{value}：随机算子，按采集到的输出所示的掩码判定",
    "dropped_other": "{value}：原非零的元素有 {dropped} 变成了零，而它按 {p} 的概率丢弃",
    "differs_between_runs": "{value}：此处每次运行的末位不同",
    "wrong_here": (
        "{value} 按采集的 dtype 重算，与精确值的差距也是舍入上限的 {share} 倍：此处的计算方式与采集"
        "时相同"
    ),
    "cast_inside": "{value} 以更高精度计算，返回的却是 {dtype}：其内部有计算不接受更高精度",
    "fewer_bits": (
        "{value} 与本机算子的结果一致，但该算子得到 {dtype} 输入时也以 {lowest} 计算：是否正确无法"
        "判定"
    ),
    "recomputed_other": (
        "只计算前向：其梯度属于 MindSpore 重计算（recompute）的那一次，其间重新产生了随机数，输入"
        "不同"
    ),
    "recomputed_unknown": (
        "只计算前向：其梯度属于 MindSpore 重计算（recompute）的那一次，采集结果中没有记录其输入是否"
        "相同"
    ),
    "no_cell": "构造出的网络（{network}）中没有 Cell {cell}；应为采集时的网络",
    "no_network": "构造网络的函数返回了 {kind}；应为 mindspore.nn.Cell",
    "other_class": "Cell {cell} 在构造出的网络中是 {built}，采集时是 {recorded}；应为同一个网络",
    "no_parameter": "构造出的网络中没有采集到的权重 {parameter}；应为同一个网络",
    "other_shape": (
        "权重 {parameter} 在构造出的网络中形状为 {built}，采集时为 {recorded}；应为同一个网络"
    ),
    "not_recorded": (
        "没有采集权重 {parameter}（共缺 {count} 个）；请同时采集其内部的 Cell，并设 "
        "parameters: true"
    ),
    "other_output": (
        "{value} 在此处形状为 {built}，采集时为 {recorded}；应为同一个网络，且模式（set_train）相同"
    ),
}
