"""What the check for NaN and infinity says, in Chinese."""

from __future__ import annotations

from functools import partial

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.lists import by, made
from mindrlhf_msprobe.report.messages.zh.words import non_finite


def _held(nan: int, inf: int, size: int, **_: object) -> str:
    return f"{non_finite(nan, inf)}（共 {size} 个元素）"


def _called(operator: str, cell: str | None, line: str, **_: object) -> str:
    where = "" if cell is None else f"{cell} 内的" if cell else "不在任何 Cell 内的"
    return f"{where}算子 {operator}（{line}）" if line else f"{where}算子 {operator} "


_holds = partial(made, held=_held)
_of_operator = partial(made, held=_held, called=_called)


def _carried(ranks: list[int], origin: int, step: int, kind: str, collective: str) -> str:
    if collective:
        how = f"经集合通信 {collective} 传入"
    elif kind == "gradient":
        how = "经梯度规约传入（此前本卡的反向条目均为有限值）"
    elif kind == "parameter":
        how = "随权重传入：梯度做了卡间规约，或权重做了同步"
    elif kind == "data":
        how = "随训练代码在卡间交换的数据传入：规约后的 loss 或范数、汇集的数据"
    elif kind == "output":
        how = "经该 Cell 内部的集合通信传入：两卡输入不同，输出却相同"
    else:
        how = "随该 Cell 的输入传入"
    return (
        f"rank {few_numbers(ranks)} 从这里开始出现 NaN/Inf：来自 step {step} 的 rank "
        f"{origin}，{how}"
    )


def _retried(steps: int) -> str:
    again = f"（连续 {steps} 个 step）" if steps > 1 else ""
    return f"梯度在 loss scale 下溢出，该 step 已跳过{again}：动态 loss scale 的正常现象"


TEXTS: dict[str, Text] = {
    "born": by(
        "backward",
        {
            False: _holds("该 Cell 的输出含 {held}，输入与权重均为有限值"),
            True: _holds("该 Cell 传出的梯度含 {held}，传入的梯度为有限值"),
        },
    ),
    "born_of_operator": by(
        "backward",
        {
            False: _of_operator("{called}的输出含 {held}，输入均为有限值"),
            True: _of_operator("{called}传出的梯度含 {held}，传入的梯度为有限值"),
        },
    ),
    "in_container_operator": _holds(
        "该算子的输入含 {held}，而调用它的 {container} 的输入为有限值：产生于该容器自身的代码，位于"
        "已采集的算子之间"
    ),
    "came_in_operator": _holds(
        "{phase} 中该算子的输入含 {held}；此前采集到的均为有限值，即来自未采集的部分"
    ),
    "in_container": _holds(
        "该 Cell 的输入含 {held}，而调用它的 {container} 的输入为有限值：产生于该容器自身的代码"
    ),
    "came_in": _holds(
        "{phase} 中该 Cell 的输入含 {held}；此前采集到的均为有限值，即来自未采集的部分"
    ),
    "parameter": by(
        "gradients_finite",
        {
            True: _holds("更新之后权重含 {held}，而其梯度为有限值：产生于优化器"),
            False: _holds(
                "进入该 Cell 时权重含 {held}；此前采集到的均为有限值：来自上一次更新或权重加载"
            ),
        },
    ),
    "parameter_after_gap": _holds(
        "进入该 Cell 时权重含 {held}；step {before} 的数据均为有限值，其间没有采集数据：产生于其间"
    ),
    "parameter_of_ranks": _holds(
        "更新之后权重含 {held}，而其在本 rank 的梯度为有限值：来自其他 rank 的梯度"
        "（{others} 个 rank 未检查），或产生于优化器"
    ),
    "optimizer_state": by(
        "gradients_finite",
        {
            False: _holds("更新之后优化器状态含 {held}"),
            True: _holds("更新之后优化器状态含 {held}，而权重梯度为有限值：产生于优化器"),
        },
    ),
    "parameter_at_first": _holds("首次采集到该权重时已含 {held}"),
    "gradient": _holds(
        "权重梯度含 {held}，而此前采集到的反向条目均为有限值：产生于两者之间"
        "（累积、卡间规约、反缩放、裁剪）"
    ),
    "data": _holds("{key} 含 {held}；此前采集到的均为有限值"),
    "zero_deviation": _holds(
        "advantages 含 {held}；这些样本的 reward 全为 {rewards:g}，标准差为 0"
    ),
    "carried": _carried,
    "retried": _retried,
    "stuck": "梯度连续 {steps} 个 step 溢出：loss scale 不断下降，训练没有进展",
    "also": "此后：{what}",
    "given": "其输入、权重",
    "near": "此前接近 {dtype} 上限的值",
    "reached": "本 step、本卡受影响的记录数（按阶段或关键数据）",
    "cause_overflow": "溢出：数值超出 dtype 的表示范围；改用 float32 或 bfloat16 计算，或做缩放",
    "cause_overflow_backward": "缩放后的梯度溢出，loss scale 过大",
    "cause_masked_row": "softmax 的某一行全部被掩码（全为 -inf）",
    "cause_zero_division": "除以 0、对非正数取 log 或 sqrt、0 乘以无穷",
    "cause_singular_gradient": "导数无界：在 0 处的 sqrt、norm、log 或除法",
    "cause_kernel": "算子错误：以更高精度重算该条目",
    "cause_collective": "该 Cell 内部的集合通信；由哪张卡带入未采集",
    "cause_own_code": "容器自身在子 Cell 之间的计算",
    "cause_trainer_code": "训练代码在各阶段之间的计算",
    "cause_not_recorded": "未采集的 Cell 或阶段",
    "cause_loading": "加载的权重文件",
    "cause_initialisation": "权重初始化",
    "cause_optimizer": "优化器：除以 sqrt(v) + eps 时 eps 在 float16 下丢失，或动量溢出",
    "cause_learning_rate": "学习率或权重衰减不是有限值",
    "cause_gradient_not_recorded": "未采集到的梯度已含 NaN/Inf",
    "cause_reduction": "卡间或 micro_step 之间的梯度规约",
    "cause_unscaling": "反缩放或裁剪：loss scale 为 0，或梯度范数为 0 或 Inf",
    "cause_zero_deviation": "advantages 以 0 标准差做归一化：加上 eps，或跳过 reward 全相等的组",
    "cause_probability_zero": (
        "某个 token 的概率为 0：被 top_k、top_p 或 temperature 排除，或舍入为 0"
    ),
    "cause_ratio_overflow": "exp(log_prob - old_log_prob) 溢出：两个策略相差过大，或样本行未对应",
    "cause_scale_floor": "无论 loss scale 多大梯度都含 NaN/Inf：查找产生它的 Cell",
}
