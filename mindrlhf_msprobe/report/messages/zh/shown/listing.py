"""采集结果的内容（show）与所需空间（estimate）。"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import spans

_STATES = {
    "running": "采集中（running）",
    "finished": "已完成（finished）",
    "failed": "异常中断（failed）",
    "interrupted": "中途结束（interrupted）",
    "killed": "被强制终止（killed）",
    "unknown": "状态未知（unknown）",
}


def _changes(first: str | None, then: Sequence[tuple[int, str]], left: int) -> str:
    """Return a setting's values in time; `left` changes before the last one are not listed."""
    parts = [f"自 step {step} 起为 {value}" for step, value in then]
    if left:
        parts.insert(-1, f"… 另有 {left} 次变化 …")
    return "，".join(([] if first is None else [first]) + parts)


def _holds_none(path: str, what: str, number: int, held: Sequence[int]) -> str:
    there = f"其中有 {what} {spans(held)}" if held else f"其中没有任何 {what}"
    return f"{path} 中没有 {what} {number}；{there}。"


def _inside(cell: str | None) -> str:
    if cell is None:
        return ""
    return f"（位于 {cell} 内）" if cell else "（不在任何 Cell 内）"


TEXTS: dict[str, Any] = {
    "without": "不含：{what}",
    "block": "{head}：",
    "states": lambda state: _STATES.get(state, str(state)),
    "columns_of_run": "\tstep\trank\t保存次数/条目数\t记录数\t大小",
    "columns_of_entries": "条目\tstep\trank\t记录数",
    "columns_of_entries_in_time": "条目\ttoken\t记录数\t输出\tnorm\tNaN\tInf",
    "columns_of_saves": "step\trank\tmicro_step\t内容\tmax\tmin\tmean\tnorm\tNaN\tInf",
    "columns_of_estimate": "\trank\t张量数\t去重后\t每个 step",
    "key_data": "关键数据",
    "incomplete": "不完整：{problem}",
    "left_out": "未纳入：{path}：本次采集之前已存在",
    "more_left_out": "未纳入：另有 {number} 个目录在本次采集之前已存在",
    "rank_stopped": "rank {rank} {stopped}",
    "cost": "采集开销，rank {rank}，{steps} 个 step：",
    "cost_seconds": "占用训练时间 {seconds:.2f} s，其中等待缓冲区 {waited:.2f} s",
    "cost_written": "后台落盘 {size}，用时 {seconds:.2f} s",
    "cost_of_phase": "{phase}：每个 step {seconds:.3f} s",
    "cost_compiling": "编译 {probed} 张带探针的图：{probed_seconds:.2f} s；其中 {plain} 张另编译了"
    "不带探针的版本：{plain_seconds:.2f} s",
    "cost_host": "图的 host 回调：{calls} 次，{seconds:.2f} s，传出 {size}；不含图内的拷贝",
    "times": "step 用时，rank {rank}，{steps} 个 step 的平均：{seconds:.2f} s",
    "times_of_step": "step {step} 用时，rank {rank}：{seconds:.2f} s",
    "times_of_phase": "{phase}：{seconds:.3f} s，打开 {openings} 次",
    "of_run": "{path}：{state}，{size}",
    "hint_entries": "加 --step N（及 --rank N）：按时间顺序列出，并给出各条目的输出。",
    "code_of": lambda entry, cell, phases, steps, ranks: (
        f"{entry}{_inside(cell)}  step {steps}，{phases}，rank {ranks}"
    ),
    "code_called": lambda line, cell: f"调用处{_inside(cell)}：{line}",
    "code_inside": lambda cell: f"调用处{_inside(cell)}",
    "attributes": "属性：{attributes}",
    "code_in": "{place}（{function}）",
    "code_caller": "上层调用：{line}",
    "code_missing": "本机没有 {file}：以上为采集时记录的内容",
    "code_changed": "{file} 第 {line} 行已被修改：以上为采集时记录的内容",
    "code_unknown": "采集时未记录代码位置",
    "hint_saves": "加 --step N：列出每条记录的统计量与前几个元素。",
    "no_entry": "没有可读取的条目",
    "in_time": "step {step}，rank {rank}，按时间顺序：",
    "and_more": "{what} 等，另有 {more} 个",
    "unreadable": "无法读取：{why}",
    "nothing": "无",
    "text": "文本",
    "text_is": "文本 {value}",
    "first_values": "前几个元素 {values}",
    "of_record": "step {step}，{phase}，rank {rank}",
    "generation": "{phase} 的生成参数，自 step {step} 起",
    "of_ranks": "，rank {ranks}",
    "changes": _changes,
    "no_settings": "无设置项",
    "states_in": "{names}（step {steps}）",
    "states_noted": "已采集的随机数状态：{states}",
    "estimated": "单个 rank 每个 step：{step_size}。{steps} 个 step、{ranks} 个 rank 共 {total}；"
    "{path} 剩余空间 {free}。",
    "does_not_fit": "空间不足。请减少采集的 step（step_start、step_end）、阶段、rank 或 Cell"
    "（include、exclude），或换用空间更大的 dump_path。",
    "not_certain": "不确定：{remark}",
    "missing_ranks": "作业的 rank {ranks} 在此没有任何采集结果",
    "holds_none": _holds_none,
}
