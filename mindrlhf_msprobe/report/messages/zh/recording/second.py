"""为什么某次调用没有复算，中文。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "communicates": "{operator} 与其他 rank 通信",
    "in_place": "{operator} 原地写入已有的张量",
    "no_attributes": "{operator} 已被其他对象替换，不知道它构造时的设置",
    "no_formula": "{operator} 的这种调用形式没有公式，CPU 上也没有以 float64 计算的 kernel",
    "replaced": "{operator} 已被其他函数替换，其原本的计算无从得知",
    "complex": "{operator} 进行复数运算，没有对应的公式",
    "random": "{operator} 产生的随机数无法重现",
    "compiled": "{cell} 是编译执行的（ms.jit）",
    "raised": "复算时抛出 {error}",
    "other_outputs": "复算返回 {again} 个值，原计算返回 {first} 个",
    "own_bprop": "其 bprop 由库自行编写，不一定是 construct 的梯度",
    "no_gradient": "不知道 {operators} 的梯度公式",
    "gradients_unknown": "其梯度无法与其他调用的梯度区分",
    "unseen": "其输出来自未被识别的计算",
}
