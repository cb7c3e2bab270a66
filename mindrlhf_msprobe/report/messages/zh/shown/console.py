"""比对结论：控制台与 summary.xlsx。"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.console import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.lists import clauses, either
from mindrlhf_msprobe.report.messages.zh.words import few, section_words, side, spans

CAUSES = {
    "computation": "计算",
    "parameter": "权重",
    "input": "输入",
    "data": "关键数据",
    "missing": "缺失",
    "shape": "shape 不同",
    "dtype": "dtype 不同",
    "non_finite": "NaN/Inf",
    "unreadable": "无法读取",
    "stopped": "中断",
    "file": "文件被改动",
}

_either = partial(either, word="或")
_KEY = clauses(
    "（{clauses}）",
    "；",
    {"absolute": "最大绝对误差", "relative": "× 为相对距离的倍数，首个差异点为 ×1"},
)
_COMPARED_ONLY = clauses(
    "比对范围：{clauses}",
    "；",
    {
        "steps": "step {}",
        "keys": "关键数据 {}",
        "include": "匹配 {} 的记录",
        "exclude": "不含匹配 {} 的记录",
        "common": "仅两侧都有的内容（--common）",
        "first_only": "到首个差异点为止（--first-only）",
    },
    {"keys": "、".join, "include": _either, "exclude": _either},
)
_LEFT_OUT = clauses(
    "未纳入比对：{clauses}",
    "；",
    {
        "steps": "step {}",
        "cells": "全部 Cell",
        "keys": "关键数据 {}",
        "steps_after": "首个差异点之后的 step {}",
    },
    {"steps": spans, "keys": few, "steps_after": spans},
)


def _section(section: str, **_: Any) -> str:
    chinese = section_words(section)
    return section if chinese == section else f"{chinese}（{section}）"


_PIECES: Mapping[str, Text] = {
    **VALUES,
    "of_gradient": "（反向）",
    "inside_cell": "，位于 {cell} 内",
    "outside_cells": "，不在任何 Cell 内",
    "on_line": "，{line}",
    "n_phases": "、{phases} 个阶段",
    "some_close": "均一致，其中 {close} 条",
    "one_close": "一致，但",
    "in_phase": "，{phase}",
    "some_hold": "其中 {records} 条",
    "it_holds": "该记录",
    "max_relative": "，最大相对误差 {relative:.2g}",
    "last_that_agrees": "最后一条一致的记录：{last}",
    "begin": "进一步定位",
    "begin_meant": "如果上述差异是有意为之，进一步定位",
    "begin_unexplained": "如果上述差异不足以解释该问题，进一步定位",
    "one_again": "再采集一次，换一个 dump_path",
    "both_again": "两侧各重新采集一次，使用各自的 dump_path",
    "in_both": "{reason}：{records} 条。",
    "in_one": "{records} 条记录仅 {that_side}有：{reason}。",
    "that_side": lambda only_in, **_: side(only_in),
    "took_seconds": "，用时 {seconds:.1f} s",
    "each_count": joined("counts", "，"),
    "none": "无",
    "of_micro_step": "，micro_step {micro_step}",
    "nth_call": "，该阶段第 {call} 次调用",
    "at_first": "最先出现差异",
    "later": "随后出现差异",
    "there": "step {step}{of_phase}{on_other_ranks}",
    "on_ranks": "，rank {rank_spans}",
    "stop_running": "仍在运行，当前位于 {there}",
    "stop_killed": "在 {there} 被强制终止，未留下任何信息",
    "stop_interrupted": "在 {there} 中途结束，未调用 close()",
    "stop": "在 {there} 中断",
    "its_error": "：{error}",
    "that_run": lambda run, **_: side(run),
    "some_earlier_steps": "更早的 {steps} 个 step 全部",
    "step_0": "step 0 全部",
    "steps_from_0": "step 0 至 step {step_before} 全部",
    "steps_before": "{earlier_steps}一致。",
    "records_before": "step {step} 的 {phases_before}{records} 条记录一致{and_earlier}。",
    "phases_and": "{phases} 个阶段及 ",
    "earlier_too": "，{earlier_steps}也一致",
    "repeatable": "请用相同配置采集两次，确认训练本身是否可复现",
    "named_there": "{named}（step {step}{of_phase}）",
    "looked_at_all": "，且当时已采集全部 Cell",
    "agreed_before_it": "，该 step 此前 {agreed} 条记录一致",
    "then_same": "当时定位到同一处{looked}{agreed_then}",
    "then_inside": "当时定位到 {named_there}，它由本次定位到的差异引起",
    "then_before": "当时定位到 {named_there}；本次定位到的是同一 step 的另一阶段",
    "then_elsewhere": "当时定位到另一处：{named_there}；{repeatable}",
    "then_new": "当时结论为 {status}：现在的差异当时未采集，或者训练不可复现；{repeatable}",
    "then_not_seen": "当时定位到 {named_there}，而本次采集到的内容没有差异；{repeatable}",
    "then_agreed": "当时结论同样为 {status}",
    "each_run": "每侧",
    "estimated_from_cells": "，按其 Cell 估算",
    "all_weights_agree": "全部 {compared} 个权重逐位一致",
    "no_weights": "没有可比对的权重",
    "some_weights_differ": "{compared} 个权重中有 {different} 个不同{alone_in_a}{alone_in_b}",
    "n_only_in_a": "，{only_in_a} 个仅 A（标杆）有",
    "n_only_in_b": "，{only_in_b} 个仅 B（待比对）有",
    "in_words": _section,
    "with_name": "：{name}",
    "cause_words": lambda cause, **_: CAUSES.get(cause, cause),
    "again_micro_step": lambda micro_step, **_: f"，micro-step {micro_step}" if micro_step else "",
    "first_place": "step {step}{of_phase}，rank {rank}",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "scope": "{steps} 个 step、{ranks} 个 rank{and_phases}",
        "identical": "一致（IDENTICAL）：{scope}，共 {compared} 条记录逐位一致{non_finite}。",
        "within_tolerance": (
            "容差内一致（WITHIN TOLERANCE）：{scope}，共 {compared} 条记录{how_close}仅在容差内一"
            "致，或仅统计量一致{non_finite}。"
        ),
        "unread": (
            "无法比对（INCOMPARABLE）：{scope}，已比对的 {compared} 条记录一致，但部分已采集的内容"
            "无法读取，因此不能判定两侧一致："
        ),
        "restore": "请从备份恢复这些文件，或重新采集，然后再次比对。",
        "incomparable": (
            "无法比对（INCOMPARABLE）：两份采集结果没有可比对的共同内容。请确认两侧采集了相同的阶"
            "段、step 与关键数据，且路径没有给错。"
        ),
        "diverged": "存在差异（DIVERGED），首个差异点：{place}",
        "non_finite": "；{which_hold}两侧均含 NaN 或 Inf，最早一处：{first_place}：{record}",
        "suspicious": (
            "可疑（SUSPICIOUS）：{records} 条记录两侧一致，但不应含 NaN 或 Inf；最早一处："
            "{first_place}{again_micro_step}：{record}（{what}）。其产生位置可用 `mindrlhf-msprobe "
            "check RUN` 查找。"
        ),
        "agree_non_finite": "一致的记录{non_finite}。",
        "more": "… 另有 {number} 项",
        "in_summary": "，见 summary.xlsx",
        "in_verdict": "，见 {file}",
        "operator": "{entry}：{operator}{its_gradient}{where_called}{at_line}",
        "cause": "原因：{cause_words}（{cause}）。{explanation}",
        "max_abs": "最大绝对误差 {absolute:.2g}{relative_too}",
        "inside": "差异规律：{words}",
        "source": "代码位置：{source}",
        "agreed_before": "此前：{agreed}{the_last}",
        "check_first": "请先检查：以下内容两侧不同，且可能造成该差异",
        "meant": "如果该差异是有意为之：{file} 中的 next_step 给出进一步定位所需的采集配置。",
        "look_closer": "{beginning}：{again}{size}，配置为",
        "compare_after": "采集后比对时加上 --after {output}",
        "chain": "差异传播（{where}）{key}：{chain}",
        "chain_key": _KEY,
        "of_step": "step {step}",
        "spread": "{place}{size}（{compared} 条记录中 {different} 条不一致）",
        "ranks": "各 rank：{line}",
        "more_places": "… 另有 {number} 处",
        "note": "备注：{line}",
        "not_compared": "未比对：{line}",
        "incomplete": "不完整：{line}",
        "gap": "{where_alone}",
        "tolerance": "容差：{rules}",
        "rule_use": "{rule}：{records} 条记录，其中 {passed} 条仅因该规则通过",
        "sides": "标杆（A）：{a}；待比对（B）：{b}",
        "tables": "表格：{file}",
        "tables_and_more": "表格：{file} 等，另有 {more} 个",
        "machine_readable": "机器可读结论：{file}",
        "summary": "{scope} · {compared} 条记录{took}：{all_counts}",
        "place": "{first_place}{occasion}",
        "parted": (
            "rank {sorted_ranks} {at_what_time}：step {step}{of_phase}{in_micro_step}：{record}"
        ),
        "agreeing_ranks": "rank {sorted_ranks} 全程一致",
        "stopped": "{how_stopped}{with_error}",
        "stopped_run": "{that_run}{stopped}",
        "more_stops": "… 另有 {number} 处 rank 中断",
        "before": "{what_agreed}",
        "earlier": "此前的比对 {path}：{found_then}",
        "compared_only": _COMPARED_ONLY,
        "left_out": _LEFT_OUT,
        "size_of_next": "（{of_each}每个 rank 约 {size}{from_cells}）",
        "size_of_next_unknown": (
            "（所需空间未知：先采集一个 step，再用 mindrlhf-msprobe estimate 估算）"
        ),
        "bisection": (
            "采集全部可疑 Cell 约需 {size}：本次是按层二分的其中一轮，比对后会给出下一轮的采集配"
            "置。"
        ),
        "weights": "{of_weights}",
        "before_any_tensor": "比对张量之前，以下内容已经不同：",
        "load_checkpoint": "{weights}：请检查所加载的权重文件",
        "initial_weights": "{role} 的初始权重：{weights}（{names}）",
        "difference": "{in_words}{of_name}：A（标杆）为 {a}，B（待比对）为 {b}",
        "withheld": "<可能涉密，未落盘>",
        "another_withheld": "<可能涉密，未落盘>，取值不同",
        "other_on_each_rank": "各 rank 取值不同",
        "no_value": "无",
        "comparing": "比对中",
        "unit_records": "条记录",
    },
)
