"""某次调用未在扰动输入上再次运行的原因。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "compiled": "{cell} 已被编译：图内的算子无法扰动",
    "hooks": "{cell} 带有他人注册的前向 hook，再次运行会多调用一次",
    "object": "{path} 是 {kind}，再次运行可能改变它",
    "output_object": "输出中有 {kind}，无法重新构造",
    "communicates": "其中的 {operator} 与其他 rank 通信",
    "own_state": "{operator} 会写入 Cell 自己保存的张量",
    "writes": "它会写入可训练的权重 {parameter}",
    "in_place": "{operator} 会写入自己的输入",
    "changed": "它已改写自己的输入",
    "draws": "其中的 {operator} 使用随机数，再次运行时取值不同",
    "counts": "{operator} 的梯度会调用一个统计调用次数的算子，再次运行会改变该次数",
    "nothing_to_disturb": "没有可以扰动的浮点输入",
    "nothing_to_improve": "其中没有 16 位的计算；float32 请用 task: accuracy_check",
    "no_output": "没有浮点输出",
    "shapes": "输出 {path} 在第二次运行时形状不同或不存在",
    "raised": "第二次运行抛出异常：{why}",
    "differentiated": "阶段结束时仍在求导",
    "too_many": "其输入保留到阶段结束所需的内存超过 buffer_mb",
}
