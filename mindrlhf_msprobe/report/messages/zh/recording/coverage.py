"""为什么没有采集，或没有比对。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.text.numbers import few_ranges, spans
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import reasons


def _graph_mode(why: object) -> str:
    return f"静态图模式下未采集：{reasons(why)}"


def _left_out(what: object, why: object) -> str:
    return f"{what} 未采集：{reasons(why)}"


def _backward(why: object) -> str:
    return f"反向未采集：{reasons(why)}"


_REMOVED = {"tensors": "层数据的真实数据", "layers": "层数据", "key_data": "关键数据"}


def _thinned_steps(what: str, ranks: Sequence[int], steps: Sequence[Sequence[int]]) -> str:
    on = f"rank {spans(ranks)} 的 " if [*ranks] != [0] else ""
    return f"{on}step {few_ranges(steps)} 的{_REMOVED[what]}已清理（keep_mb）"


TEXTS: dict[str, Text] = {
    "rollout_played": "生成结果取自 {path} 的回放",
    "cannot_be_saved": "类型为 {type} 的值无法保存",
    "graph_mode": _graph_mode,
    "vectorised": "在 vmap、jacrev 或 jacfwd 中执行",
    "dtype": "dtype 为 {dtype} 的张量",
    "dict_keys": "键既非文本也非数值的 dict",
    "dynamic_shape": "动态 shape 的张量",
    "object_of_graph": "图执行时才创建的对象",
    "value_of_graph": "类型为 {type} 的值，图执行时才确定",
    "kept_by_graph": "图没有输出其 {dtype} 元素",
    "accuracy_in_graph": "由静态图计算，没有第二意见",
    "overflow_in_graph": (
        "缺溢出处的真实数据：overflow_check 不保留编译进图的 Cell 的张量；用 check 查出条目后，"
        "以 task: tensor 采集"
    ),
    "operator_replaced": "并非 MindSpore 自身的实现：由 {by} 替换，其调用按该算子的名称采集",
    "operator_held": (
        "由它调用的 {operator}：采集只替换模块和 Cell 自身的属性；请作为这两者的属性保存"
    ),
    "operators_in_graph": "缺其中的算子：由图执行，不经过 Python",
    "elements_reduced": "缺真实数据：编译出的图只输出统计量",
    "gradients_passes_parameter": "缺梯度：以网络的 Parameter 作为输入或输出",
    "changed_in_place": "其所在的图既求导又原地修改张量，未插入探针",
    "not_compiled": "其所在的图插入探针后无法编译（{error}）",
    "python_in_graph": "其所在的图有部分值在执行时由 Python 计算，未插入探针",
    "gradients_in_python": "缺梯度：外层 jit 代码由 Python 求导",
    "gradients_own_bprop": "缺梯度：自定义了 bprop",
    "gradients_recomputed": "缺梯度：随外层 Cell 一起重计算",
    "gradients_casts_inputs": "缺梯度，也缺输入转换前的 dtype：to_float 会转换输入",
    "optimizer_itself": "优化器自身的调用；进入优化器的梯度已采集",
    "optimizer_not_watched": "未把优化器传给 watch(optimizers=…)",
    "parameters_in_tuple": "缺权重：权重存放在 tuple 中",
    "inside_recurrent": "MindSpore 循环网络内部的 Cell，以 Parameter 作为输入",
    "compiled_before_watch": "{cell} 在 watch() 之前已编译",
    "replaced": "编译后被替换，此前编译的图仍执行旧 Cell；新 Cell 在含有它的图编译后才会被采集",
    "left_out": _left_out,
    "backward": _backward,
    "saved_vectorised": "{call}() 在 vmap、jacrev 或 jacfwd 中调用",
    "saved_without_probe": "保存它的图在编译时没有 Probe 采集关键数据",
    "key_follows": "{key} 由 mismatch -o 写入，由其他关键数据算出",
    "key_data_off": "未采集关键数据（key_data_dump: false）",
    "phase_off": "未采集 {phase}（{switch}: false）",
    "optimizer_state_off": "未采集优化器状态（optimizer_state: false）",
    "parameters_off": "未采集权重（parameters: false）",
    "part_off": "未采集 {part}（parts: {parts}）",
    "no_operators": "未采集算子（level: L0）",
    "no_cells": "未采集 Cell（level: L1）",
    "direction_off": "未采集 {direction}（directions: {directions}）",
    "rank_off": "未采集 rank {rank}（ranks: {ranks}）",
    "before_start": "该采集结果从 step {step} 开始（initial_step）",
    "step_not_chosen": "step {step} 不在采集的 step 中（steps: {steps}）",
    "step_interval": "不在采集之列的 step（step_interval: {interval}，自 step {first} 起）",
    "thinned_tensors": "较早 step 的真实数据，已按 keep_mb 清理",
    "thinned_layers": "较早 step 的层数据，已按 keep_mb 清理",
    "thinned_key_data": "较早 step 的关键数据，已按 keep_mb 清理",
    "step_outside": "step {step} 不在 step_start {first} … step_end {last} 范围内",
    "steps_outside": "step_start {first} … step_end {last} 之外各 step 的层数据",
    "steps_not_chosen": "steps 所列 {steps} 之外各 step 的层数据",
    "thinned_steps": _thinned_steps,
    "token_outside": "token {token} 不在 token_range_start {first} … token_range_end {last} 范围内",
    "cells_left_out": "被 include/exclude 排除的 Cell",
    "entries_left_out": "被 entries 排除的条目：{entries}",
    "outside_scope": "条目可能不在 scope {first} … {last} 范围内",
    "not_reached": "未执行到：训练在 step {step} 已停止",
    "msprobe_no_gradient": "msprobe 不采集为 None 的梯度",
    "msprobe_no_root": "msprobe 不采集最外层 Cell",
    "msprobe_never_saved": "msprobe 在另一侧所有 step 中均未保存的关键数据",
    "monitor_never_saved": "MindFormers 监控在另一侧所有 step 中均未写入的标量",
    "other_framework_value": "另一个框架以其他形式传递、或不传递的值",
    "other_framework_operator": "另一个框架在该处没有调用的算子",
    "of_micro_batch": "单个 micro_batch 的关键数据：另一侧的 micro_batch 划分不同",
    "other_framework_cell": "另一个框架没有对应 Cell 的 Cell",
    "other_framework_buffer": "滑动均值与方差：msprobe 不采集 PyTorch 的 buffer",
    "shared_parameter": "两个 Cell 共用一个权重时的梯度：另一侧只记录一次",
    "other_framework_gradient": "算子输入的梯度：PyTorch 上 msprobe 记录的是算子内部最后一步的",
    "outside_network": "两侧共有网络之外的 Cell",
    "no_gradient_flowed": "没有梯度经过的条目",
    "gradients_beside_nan": "因 NaN 或 Inf 无法得出的梯度",
    "gradients_at_optimizer": (
        "权重梯度：一侧是反向得到的原始梯度，另一侧是进入优化器时的梯度（若训练中有 loss scale "
        "还原或梯度裁剪，则已处理过）"
    ),
    "gradients_in_several_places": (
        "同一张量多次作为 Cell 的输入或被原样返回时的梯度：一侧合并采集，另一侧逐个采集"
    ),
    "values_of_type": "类型为 {type} 的值无法比对",
    "varies_among_repetitions": "在标杆的各次重复采集中也并非每次都有的调用和关键数据",
    "records_left_out": "被 --include/--exclude 排除的记录",
    "only_one_has_steps": "仅一侧有的 step 和 rank（--common）",
    "only_one_has_phases": "仅一侧有的阶段（--common）",
    "only_one_has_cells": "仅一侧有的 Cell、调用和值（--common）",
    "only_one_has_keys": "仅一侧有的关键数据（--common）",
    "only_one_has_saves": "仅一侧有的关键数据保存（--common）",
    "phase_without_backward": "反向的记录：另一个阶段没有反向",
    "phase_with_fewer_calls": "另一个阶段没有的调用",
    "phase_without_cells": "另一个阶段不执行的 Cell",
    "texts_beside_tokens": "一侧保存为文本、另一侧保存为 token id 的关键数据",
    "batch_statistics": "batch 大小不同且只有统计量的张量（task: tensor 可使其可比）",
    "batch_no_rows": "不含样本维、可能随 batch 大小变化的值",
    "batch_other_sizes": "除样本数外还有其他维度不同的张量",
    "batch_uneven_calls": "每个 batch 执行次数不一致的 Cell",
    "batch_operators": "算子：无法确定 batch 的样本在其张量中的位置",
    "batch_gradients": "梯度：取决于 batch 中的所有样本",
    "batch_after_update": "阶段内权重更新（或可能更新）之后的调用",
    "batch_unknown_rows": "另一个阶段没有处理过其样本的 micro_batch",
    "key_unknown_rows": "只含另一侧部分样本的关键数据，且无法确定是哪些样本",
}
