"""What checks say, in Chinese."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.report.messages.templates import by, made, named
from mindrlhf_msprobe.report.messages.zh.words import non_finite

_LACKS = {
    "numbers": "采集结果中没有张量的统计量",
    "layers": "采集结果中没有逐层数据",
    "parameters": "采集结果中没有权重（采集时需 parameters: true）",
    "gradients": "采集结果中没有权重梯度",
    "backward": "采集结果中没有反向条目",
    "fingerprints": "采集结果中没有指纹（采集时需 fingerprint: true）",
    "elements": "采集结果中没有激活值的真实数据（采集时需 task: tensor）",
    "opinions": "没有复算的结论（采集时需 task: accuracy_check）",
    "healthy": "未给出健康的采集结果（--healthy RUN）",
    "key": "未采集以下任一关键数据：{names}",
    "phase": "未采集以下任一阶段：{names}",
    "ranks": "至少需要 {count} 张卡（rank）",
    "steps": "至少需要 {count} 个 step",
}


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "错误"), (warning, "告警"), (note, "提示")]
    return f"不健康 {path}：" + "，".join(f"{n} 个{what}" for n, what in found if n)


TEXTS: Mapping[str, Any] = {
    "lacks": named("kind", _LACKS),
    "run_unhealthy": _unhealthy,
}

#: 精度检查的结论。
CHECK_ACCURACY: Mapping[str, Any] = {
    "wrong": lambda call, cell, tensor, precision, error, explained, reason: (
        f"{call} 的 {tensor} 计算有误"
        + (f"（位于 {cell}）" if cell and not call.startswith("Cell.") else "")
        + (
            f"：与 float64 的相对误差 {error:.2g}，{precision} 的舍入可解释 {explained:.2g}"
            if not reason
            else "：不是有限值，而精确结果是"
            if reason == "not_finite"
            else "：与精确计算的结果不同"
        )
    ),
}


def _what(stage: str, path: str) -> str:
    return f"梯度 {path} " if stage == "backward" else f"输出 {path} "


def _changes(path: str, stage: str, change: float | None, by: float | None, mode: str) -> str:
    how = "变为 NaN 或 Inf" if change is None else f"变化 {change:.3g}"
    if mode == "improve_precision":
        return f"升精度后{_what(stage, path)}{how}"
    of_inputs = "交换" if by is None else f"变化 {by:.3g}"  # 含 NaN 或 Inf
    return f"输入{of_inputs}（{mode}）时，{_what(stage, path)}{how}"


def _not_deterministic(path: str, stage: str, differing: int, size: int) -> str:
    return f"输入不变，再次运行时{_what(stage, path)}不同：{size} 个元素中有 {differing} 个不一致"


#: 再次运行结果的检查。
CHECK_BENCHMARK: Mapping[str, Any] = {
    "changes": _changes,
    "not_deterministic": _not_deterministic,
}


def _and_others(said: str) -> Callable[..., str]:
    def text(others: int) -> str:
        return f"{said}（本 step 另有 {others} 处）" if others else said

    return text


#: What the checks against healthy runs say.
CHECK_HEALTHY: Mapping[str, Any] = {
    "finite": _and_others("出现 NaN/Inf，而健康采集中始终为有限值"),
    "dtype": _and_others("dtype 在健康采集的同一位置从未出现"),
    "shape": _and_others("shape 在健康采集的同一位置从未出现"),
    "range": _and_others("范数远超健康采集的范围"),
    "unknown": _and_others("健康采集中没有该条目"),
    "calls": _and_others("调用次数与健康采集的任何 step 都不同"),
    "drift": _and_others("逐渐偏离健康采集在相同 step 的取值"),
}


def _jump(factor: float, others: int) -> str:
    more = f"，本 step 还有 {others} 条记录同样突变" if others else ""
    return f"范数相对之前的 step 突变 {factor:.3g} 倍{more}"


def _gradients(ratio: float, explode: bool) -> str:
    how = "爆炸" if explode else "消失"
    return f"梯度向首层方向{how}：首层与末层相差 {ratio:.3g} 倍"


def _kurtosis(kurtosis: float, median: float, others: int) -> str:
    more = f"，本 step 还有 {others} 个输出同样升高" if others else ""
    return (
        f"峰度由之前 step 的 {median:.3g} 升至 {kurtosis:.3g}（正态分布为 3），"
        f"少数元素远大于其余元素{more}"
    )


def _kurtosis_high(kurtosis: float, others: int) -> str:
    more = f"，另有 {others} 个输出的峰度同样偏高" if others else ""
    return f"峰度为 {kurtosis:.3g}（正态分布为 3）{more}"


#: What the checks of a run against its own past say.
CHECK_HISTORY: Mapping[str, Any] = {
    "jump": _jump,
    "gradients": _gradients,
    "kurtosis": _kurtosis,
    "kurtosis_high": _kurtosis_high,
}


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


#: What the check for NaN and infinity says.
CHECK_NON_FINITE: Mapping[str, Any] = {
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
}

CHECK_RANKS_PIECES: Mapping[str, Any] = {
    "those_ranks": lambda ranks, **_: f"rank {few_numbers(ranks)}",
    "other_ranks": lambda others, **_: f"rank {few_numbers(others)}",
}


def _not_synchronised(count: int, first: str, total: int, still: int | None) -> str:
    since = "" if still is None else f"，仍是训练网络在 step {still} 时的权重"
    return f"{total} 个权重中有 {count} 个与训练网络的不一致，例如 {first}{since}"


def _reference(count: int, first: str, total: int, random: bool) -> str:
    said = (
        f"reference 不是初始 actor：首次更新之前，{total} 个权重中有 {count} 个不同，例如 {first}"
    )
    return said + BOTH_RANDOM * random


#: What the checks of weights and gradients say.
CHECK_WEIGHTS: Mapping[str, Any] = {
    "not_synchronised": _not_synchronised,
    "reference": _reference,
}


BOTH_RANDOM = "；两者都没有加载 checkpoint，均为随机初始权重"


def _unlike_reference(mean: float, random: bool) -> str:
    said = (
        f"reference 不是初始 actor：首次更新之前，ref_log_prob 与 old_log_prob 平均相差 {mean:.3g}"
    )
    return said + BOTH_RANDOM * random


def _rollout_gap(mean: float, p99: float, probability: float, limit: float, float32: bool) -> str:
    said = (
        f"训推不一致：已采样 token 的 log_prob 平均相差 {mean:.3g}（p99 为 {p99:.3g}），"
        f"概率平均相差 {probability:.3g}；"
    )
    if float32:
        return said + f"float32 网络应在 {limit:g} nat 以内"
    return said + f"舍入误差造成的概率之差应在 {limit:g} 以内"


def _advantages(mean: float, grouped: bool) -> str:
    over = "同一 prompt 的样本" if grouped else "白化后的 advantages"
    return f"advantages 未中心化：{over}的均值为 {mean:.3g}"


def _identical(count: int, all: bool) -> str:
    if all:
        return f"{count} 条 responses 完全相同"
    return "每个 prompt 的各条 responses 都完全相同"


CHECK_RL: Mapping[str, Any] = {
    "reference": _unlike_reference,
    "rollout_gap": _rollout_gap,
    "advantages": _advantages,
    "identical": _identical,
}
