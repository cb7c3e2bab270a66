"""首个差异点的说明：该记录有何差异，意味着什么。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.explanation import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.zh.words import side

_KINDS = {"input": "输入", "gradient": "梯度"}

_PIECES: Mapping[str, Text] = {
    "side_stopped": lambda stopped, **_: side(stopped),
    "side_other": lambda other, **_: side(other),
    "side_run": lambda run, **_: side(run),
    "kind_given": lambda given, **_: _KINDS.get(given, given),
    "all_given": joined("given", "、"),
    "all_changes": joined("changes", "；"),
    "all_between": joined("between", "、"),
    "next_one": lambda earlier, **_: str(earlier + 1),
    "unnamed": " ",
    "of_argument": "（{argument}）",
    "is_unreadable": "无法读取",
    "is_only_in_a": "仅 A（标杆）采集到",
    "is_only_in_b": "仅 B（待比对）采集到",
    "is_dtype_mismatch": "dtype 不一致",
    "is_shape_mismatch": "shape 不一致",
    "is_non_finite": "仅一侧出现 NaN/Inf",
    "is_different": "存在差异",
    "with_note": "（{note}）",
    "inside_cell": "该 Cell 内部",
    "before_in_step": "本 step 内此前",
    "fingerprints_agree_then": "；采集时记下的指纹一致",
    "fingerprints_differ": "；采集时记下的指纹不一致",
    "file_of_run": "{side_run}的",
    "file_of_one": "其中一侧的",
    "in_cell_around": "（位于 {cell}）",
    "in_line": "，{line}",
    "entered_close": "其输入的相对误差仅 {entered:.2g}",
    "entered_equal": "其输入一致",
    "agree_inputs_and_parameters": "其输入和权重均一致",
    "agree_inputs": "其输入一致",
    "agree_gradient": "传入的梯度及此前所有记录均一致",
    "children_agree": "，其内部采集到的记录也都一致",
    "inside_container": "（位于 {container} 内）",
    "makers_not_recorded": "，而 {not_recorded} 的 Cell 未采集",
    "cells_of_phase": "{phase} 采集到的所有 Cell ",
    "cells_before": "此前采集到的所有 Cell ",
    "all_agree": "：差异来自训练脚本自身的运算。",
    "some_close": (
        "，但 {records} 条记录中有 {close} 条仅在容差内或仅统计量一致：差异可能由这些微小误差累积而"
        "来，也可能来自训练脚本自身的运算。"
    ),
    "others_between": "，其间执行了 {all_between}",
    "after_update": "第 {earlier} 次更新之后",
    "after_call": "第 {earlier} 次之后",
    "weights_kept": "；其间权重未变化",
    "gradients_agree": "（含本次更新的权重梯度）",
    "or_gradients": "未采集的梯度、",
    "state_agrees": "，step {step} 之后的优化器状态也一致",
    "or_initial_state": "优化器的初始状态（checkpoint）、",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "happened": "{record}{named}{happened_to_it}{noted}。",
        "left_out": (
            "本次比对（--include、--exclude）略过了{where}的 {records} 条记录，问题可能出在其中：请"
            "不加过滤再比对一次。"
        ),
        "left_out_all": (
            "本次比对（--keys）略过了所有 Cell 和其余关键数据，问题可能出在其中：请不加过滤再比对一"
            "次。"
        ),
        "given_left_out": (
            "传入该 Cell 的 {all_given} 也存在差异，但本次比对将其略过：源头在它之前。"
        ),
        "given_differs": "其输入存在差异。",
        "given_agrees": "该 Cell 的输入一致。",
        "place_unreadable": "该 step、该 rank 的数据均无法比对。",
        "phase_unreadable": "该阶段的数据均无法比对。",
        "unreadable": "其元素未知，目前只能归因于该文件{fingerprints}。",
        "layout_unfit": (
            "给出的布局与落盘数据不符；问题不在文件，也无法据此判断计算是否有差异："
            "请更正布局，然后再次比对。"
        ),
        "unreadable_files": "随之丢失的内容未知，目前只能归因于该文件。",
        "file_changed": (
            "按采集时的指纹，两侧数据相同；{whose_file}文件内容已与其指纹不符。无法据此判断计算是否"
            "有差异：请恢复该文件或重新采集，然后再次比对。"
        ),
        "not_reached": (
            "两侧都采集到的数据均一致。{side_stopped}到此已停止；{side_other}从该记录起继续，多出 "
            "{records} 条 {side_stopped}未执行到的记录。"
        ),
        "ended_in_one_run": "其输入一致；但仅一侧执行完毕。",
        "gradient_in_one_run": "此前的记录均一致；该梯度在一侧存在，在另一侧为 None。",
        "returned_otherwise": "其输入一致；但两侧返回值的结构不同。",
        "parameter_gradient": "此前的记录均一致：差异产生于该 Cell 权重梯度的计算。",
        "gradient_at_optimizer": (
            "该梯度是进入优化器时的值：在此之前还有梯度裁剪、loss scale 还原、梯度累积和跨卡规约，"
            "问题也可能出在这些环节。"
        ),
        "cell_computed": "{what_agrees}{children}：差异由该 Cell 的计算产生。",
        "born": (
            "以上属正常舍入；误差产生于 {record}{around_it}{at_line}：此处相对误差 {distance:.2g}，"
            "超出舍入所能解释的范围，而{what_entered}。"
        ),
        "not_mindspores": "在 {runs} 中它并非 MindSpore 自身的实现：由 {by} 替换。",
        "operator_computed": "{what_agrees}：差异由该算子的计算产生。",
        "one_attribute": "{name} 在 A 中为 {a}，在 B 中为 {b}",
        "other_attributes": "两侧算子的属性不同，差异由此产生：{all_changes}。",
        "but_random": "但该算子使用随机数，问题也可能出在随机种子或此前的随机数消耗。",
        "but_other_ranks": "但该算子在各 rank 间通信，问题也可能出在其他 rank 传入的数据。",
        "parameter_in_one_run": "此前的记录均一致，但该权重仅一侧的 Cell 拥有，或仅一侧采集到。",
        "optimizer_state": (
            "此前的记录均一致{gradients_too}{state_too}，但本次更新后留给下一次更新的优化器状态不"
            "同：请检查{unrecorded_gradients}{initial_state}优化器的设置、优化器的算子。"
        ),
        "parameter": (
            "此前的记录均一致，但该 Cell 的权重已经不同：请检查权重加载、权重同步或上一次权重更新。"
        ),
        "container": (
            "{container} 自身的输入一致，传给该 Cell 的{kind_given}却不同：源头是该容器 construct "
            "中各子 Cell 以外的代码，或它未经子 Cell 直接使用的权重。"
        ),
        "container_of_operator": (
            "{container} 自身的输入一致，传给该算子的{kind_given}却不同：源头是该容器 construct 中"
            "已采集算子之间的代码（Python、numpy 或未采集的算子），或它使用的权重。"
        ),
        "gradient_after_operators": (
            "{phase} 中此前的 {records} 条记录均一致；传入的梯度存在差异：它产生于未采集的计算。"
        ),
        "input_after_operators": (
            "{phase} 中此前的 {records} 条记录均一致；该算子的输入产生于未采集的计算，或是权重。"
        ),
        "gradient_after": (
            "{phase} 中此前的 {records} 条记录均一致；传入的梯度存在差异：请检查该 Cell 之后的计"
            "算，例如 loss。"
        ),
        "input_after": (
            "{phase} 中此前的 {records} 条记录均一致；该 Cell 的输入产生于已采集的 Cell 之外。"
        ),
        "first_recorded_operator": (
            "它是 {phase} 中第一个采集到的算子；其输入产生于未采集的计算，或是权重。"
        ),
        "first_recorded_cell": "它是 {phase} 中第一个采集到的 Cell。",
        "gradient": "传入的梯度存在差异：请检查该 Cell 之后的计算，例如 loss。",
        "input": "该 Cell 的输入产生于已采集的 Cell 之外。",
        "token_input": "token {token} 这次前向的输入存在差异；此前的情况见上一轮比对的结论。",
        "first_token": "token {token} 是第一个采集到的 token：差异可能出现在更早的 token。",
        "phase_input": "{phase} 的输入已有差异：请检查训练脚本传入的数据。",
        "not_on_disk": (
            "{side_run}采集到的内容多于磁盘上现有的：{why}。无法据此判断计算是否有差异。"
        ),
        "nothing_of_step": "{side_run}在此没有采集到 step {step} 的任何数据。",
        "nothing_of_phase": "{side_run}在本 step 没有采集到 {phase} 的任何数据。",
        "other_elements": "两侧都保存了 {key}，但其中的元素不同。",
        "saved_in_one_run": "训练脚本仅在一侧保存了它。",
        "ran_in_one_run": "该 Cell{in_container}仅在一侧执行。",
        "called_in_one_run": "该算子{in_container}仅在一侧被调用。",
        "step_input": "本 step 各阶段的输入已有差异{makers}。",
        "some_tokens": "{phase} 采集到的所有 Cell 均一致，但只采集了部分 token。",
        "cells_agree": "{which_cells}均一致{from_where}",
        "phase_not_recorded": (
            "产生它的 {phase} 的 Cell 未在两侧都采集，所用权重也未采集：配置 {switch}: true 即可同"
            "时采集权重的指纹。"
        ),
        "no_cell_before": "此前没有两侧都采集到的 Cell；此前的关键数据均一致。",
        "but_filtered": "但部分 Cell 被 include/exclude 过滤掉，问题可能出在其中。",
        "but_not_bitwise": "但部分记录仅在容差内或仅统计量一致，并非逐位一致。",
        "but_opaque": "但 {record} 的类型为 {type}，无法比对，问题也可能出在这里。",
        "but_gap": "但 {record} 未比对（{why}），问题也可能出在这里。",
        "but_no_parameters": "但其权重未采集（parameters: false），问题也可能出在权重。",
        "nth_call": "这是本 step 内第 {next_one} 次执行 {phase}，在{after_which}{others}{still}。",
    },
)
