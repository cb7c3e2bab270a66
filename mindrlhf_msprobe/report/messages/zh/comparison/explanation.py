"""首个差异点的说明：该记录有何差异，意味着什么。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import side

_HAPPENED = {
    "unreadable": "无法读取",
    "only_in_a": "仅 A（标杆）采集到",
    "only_in_b": "仅 B（待比对）采集到",
    "dtype_mismatch": "dtype 不一致",
    "shape_mismatch": "shape 不一致",
    "non_finite": "仅一侧出现 NaN/Inf",
    "different": "存在差异",
}

_GIVEN = {
    "inputs_and_parameters": "其输入和权重均一致",
    "inputs": "其输入一致",
    "gradient": "传入的梯度及此前所有记录均一致",
}

_KINDS = {"input": "输入", "gradient": "梯度"}


def _happened(record: str, argument: str, status: str, note: str, **_: Any) -> str:
    named = f"（{argument}）" if argument else " "
    return f"{record}{named}{_HAPPENED[status]}{f'（{note}）' if note else ''}。"


def _left_out(records: int, inside: bool, **_: Any) -> str:
    where = "该 Cell 内部" if inside else "本 step 内此前"
    return (
        f"本次比对（--include、--exclude）略过了{where}的 {records} 条记录，问题可能出在其中："
        f"请不加过滤再比对一次。"
    )


def _given_left_out(given: Sequence[str], **_: Any) -> str:
    return f"传入该 Cell 的 {'、'.join(given)} 也存在差异，但本次比对将其略过：源头在它之前。"


def _not_reached(stopped: str, other: str, records: int, **_: Any) -> str:
    return (
        f"两侧都采集到的数据均一致。{side(stopped)}到此已停止；{side(other)}从该记录起继续，"
        f"多出 {records} 条 {side(stopped)}未执行到的记录。"
    )


def _unreadable(fingerprints_agree: bool | None, **_: Any) -> str:
    known = ""
    if fingerprints_agree is not None:
        known = f"；采集时记下的指纹{'一致' if fingerprints_agree else '不一致'}"
    return f"其元素未知，目前只能归因于该文件{known}。"


def _file_changed(run: str | None = None, **_: Any) -> str:
    file = f"{side(run)}的" if run else "其中一侧的"
    return (
        f"按采集时的指纹，两侧数据相同；{file}文件内容已与其指纹不符。无法据此判断计算是否有差异："
        f"请恢复该文件或重新采集，然后再次比对。"
    )


def _cell_computed(given: str, inside: bool, **_: Any) -> str:
    children = "，其内部采集到的记录也都一致" if inside else ""
    return f"{_GIVEN[given]}{children}：差异由该 Cell 的计算产生。"


def _container(container: str, given: str, **_: Any) -> str:
    return (
        f"{container} 自身的输入一致，传给该 Cell 的{_KINDS.get(given, given)}却不同：源头是该容器"
        f" construct 中各子 Cell 以外的代码，或它未经子 Cell 直接使用的权重。"
    )


def _nothing_of_step(run: str, step: int, **_: Any) -> str:
    return f"{side(run)}在此没有采集到 step {step} 的任何数据。"


def _nothing_of_phase(run: str, phase: str, **_: Any) -> str:
    return f"{side(run)}在本 step 没有采集到 {phase} 的任何数据。"


def _not_on_disk(run: str, why: object, **_: Any) -> str:
    return f"{side(run)}采集到的内容多于磁盘上现有的：{why}。无法据此判断计算是否有差异。"


def _ran_in_one_run(container: str | None, **_: Any) -> str:
    return f"该 Cell{f'（位于 {container} 内）' if container else ' '}仅在一侧执行。"


def _step_input(not_recorded: str | None, **_: Any) -> str:
    made = f"，而 {not_recorded} 的 Cell 未采集" if not_recorded else ""
    return f"本 step 各阶段的输入已有差异{made}。"


def _cells_agree(phase: str | None, close: int, records: int, **_: Any) -> str:
    which = f"{phase} 采集到的所有 Cell " if phase else "此前采集到的所有 Cell "
    if not close:
        return f"{which}均一致：差异来自训练脚本自身的运算。"
    return (
        f"{which}均一致，但 {records} 条记录中有 {close} 条仅在容差内或仅统计量一致：差异可能由这些"
        f"微小误差累积而来，也可能来自训练脚本自身的运算。"
    )


def _phase_not_recorded(phase: str, switch: str | None, **_: Any) -> str:
    return (
        f"产生它的 {phase} 的 Cell 未在两侧都采集，所用权重也未采集：配置 {switch}: true 即可同时"
        f"采集权重的指纹。"
    )


def _nth_call(
    phase: str,
    earlier: int,
    between: Sequence[str],
    updated: bool,
    weights_moved: bool | None,
    **_: Any,
) -> str:
    after = f"第 {earlier} 次更新之后" if updated else f"第 {earlier} 次之后"
    others = f"，其间执行了 {'、'.join(between)}" if between else ""
    still = "；其间权重未变化" if weights_moved is False else ""
    return f"这是本 step 内第 {earlier + 1} 次执行 {phase}，在{after}{others}{still}。"


TEXTS: Mapping[str, Any] = {
    "happened": _happened,
    "left_out": _left_out,
    "left_out_all": (
        "本次比对（--keys）略过了所有 Cell 和其余关键数据，问题可能出在其中：请不加过滤再比对一次。"
    ),
    "given_left_out": _given_left_out,
    "given_differs": "其输入存在差异。",
    "given_agrees": "该 Cell 的输入一致。",
    "place_unreadable": "该 step、该 rank 的数据均无法比对。",
    "phase_unreadable": "该阶段的数据均无法比对。",
    "unreadable": _unreadable,
    "unreadable_files": "随之丢失的内容未知，目前只能归因于该文件。",
    "file_changed": _file_changed,
    "not_reached": _not_reached,
    "ended_in_one_run": "其输入一致；但仅一侧执行完毕。",
    "gradient_in_one_run": "此前的记录均一致；该梯度在一侧存在，在另一侧为 None。",
    "returned_otherwise": "其输入一致；但两侧返回值的结构不同。",
    "parameter_gradient": "此前的记录均一致：差异产生于该 Cell 权重梯度的计算。",
    "gradient_at_optimizer": (
        "该梯度是进入优化器时的值：在此之前还有梯度裁剪、loss scale 还原、梯度累积和跨卡规约，"
        "问题也可能出在这些环节。"
    ),
    "cell_computed": _cell_computed,
    "parameter_in_one_run": "此前的记录均一致，但该权重仅一侧的 Cell 拥有，或仅一侧采集到。",
    "parameter": (
        "此前的记录均一致，但该 Cell 的权重已经不同：请检查权重加载、权重同步或上一次权重更新。"
    ),
    "container": _container,
    "gradient_after": (
        "{phase} 中此前的 {records} 条记录均一致；传入的梯度存在差异：请检查该 Cell 之后的计算，"
        "例如 loss。"
    ),
    "input_after": (
        "{phase} 中此前的 {records} 条记录均一致；该 Cell 的输入产生于已采集的 Cell 之外。"
    ),
    "first_recorded_cell": "它是 {phase} 中第一个采集到的 Cell。",
    "gradient": "传入的梯度存在差异：请检查该 Cell 之后的计算，例如 loss。",
    "input": "该 Cell 的输入产生于已采集的 Cell 之外。",
    "token_input": "token {token} 这次前向的输入存在差异；此前的情况见上一轮比对的结论。",
    "first_token": "token {token} 是第一个采集到的 token：差异可能出现在更早的 token。",
    "phase_input": "{phase} 的输入已有差异：请检查训练脚本传入的数据。",
    "not_on_disk": _not_on_disk,
    "nothing_of_step": _nothing_of_step,
    "nothing_of_phase": _nothing_of_phase,
    "other_elements": "两侧都保存了 {key}，但其中的元素不同。",
    "saved_in_one_run": "训练脚本仅在一侧保存了它。",
    "ran_in_one_run": _ran_in_one_run,
    "step_input": _step_input,
    "some_tokens": "{phase} 采集到的所有 Cell 均一致，但只采集了部分 token。",
    "cells_agree": _cells_agree,
    "phase_not_recorded": _phase_not_recorded,
    "no_cell_before": "此前没有两侧都采集到的 Cell；此前的关键数据均一致。",
    "but_filtered": "但部分 Cell 被 include/exclude 过滤掉，问题可能出在其中。",
    "but_not_bitwise": "但部分记录仅在容差内或仅统计量一致，并非逐位一致。",
    "but_opaque": "但 {record} 的类型为 {type}，无法比对，问题也可能出在它。",
    "but_no_parameters": "但其权重未采集（parameters: false），问题也可能出在权重。",
    "nth_call": _nth_call,
}
