"""比对结论：控制台与 summary.xlsx。"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.lists import clauses, either
from mindrlhf_msprobe.report.messages.zh.words import few, section_words, side, spans


def _scope(steps: int, ranks: int, phases: int) -> str:
    return f"{steps} 个 step、{ranks} 个 rank" + (f"、{phases} 个阶段" if phases else "")


def _within(compared: int, close: int, scope: str, non_finite: str) -> str:
    which = f"均一致，其中 {close} 条" if compared > 1 else "一致，但"
    return (
        f"容差内一致（WITHIN TOLERANCE）：{scope}，共 {compared} 条记录{which}仅在容差内一致，"
        f"或仅统计量一致{non_finite}。"
    )


def _non_finite(
    records: int, several: bool, step: int | None, phase: str | None, rank: int | None, record: str
) -> str:
    where = "，".join(filter(None, (f"step {step}", phase, f"rank {rank}")))
    which = f"其中 {records} 条" if several else "该记录"
    return f"；{which}两侧均含 NaN 或 Inf，最早一处：{where}：{record}"


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


def _max_abs(absolute: float, relative: float | None) -> str:
    behind = "" if relative is None else f"，最大相对误差 {relative:.2g}"
    return f"最大绝对误差 {absolute:.2g}{behind}"


def _agreed_before(agreed: str, last: str | None) -> str:
    return f"此前：{agreed}" + (f"最后一条一致的记录：{last}" if last else "")


def _look_closer(unless: str, one_run: bool, size: str) -> str:
    begin = {
        "": "进一步定位",
        "meant": "如果上述差异是有意为之，进一步定位",
        "unexplained": "如果上述差异不足以解释该问题，进一步定位",
    }[unless]
    again = (
        "再采集一次，换一个 dump_path" if one_run else "两侧各重新采集一次，使用各自的 dump_path"
    )
    return f"{begin}：{again}{size}，配置为"


def _not_compared(records: int, only_in: str, reason: str) -> str:
    if only_in == "both":
        return f"{reason}：{records} 条。"
    return f"{records} 条记录仅 {side(only_in)}有：{reason}。"


def _summary(scope: str, compared: int, seconds: float | None, counts: Sequence[str]) -> str:
    took = "" if seconds is None else f"，用时 {seconds:.1f} s"
    return f"{scope} · {compared} 条记录{took}：{'，'.join(counts) or '无'}"


def _place(
    step: int, phase: str | None, rank: int, micro_step: int | None, call: int | None
) -> str:
    occasion = "" if micro_step is None else f"micro_step {micro_step}"
    if call is not None:
        occasion = f"该阶段第 {call} 次调用"
    return "，".join(filter(None, (f"step {step}", phase, f"rank {rank}", occasion)))


def _parted(
    ranks: Sequence[int],
    first: bool,
    step: int,
    phase: str | None,
    micro_step: int | None,
    record: str,
) -> str:
    when = "最先出现差异" if first else "随后出现差异"
    micro = f"micro_step {micro_step}" if micro_step else None
    where = "，".join(filter(None, (f"step {step}", phase, micro)))
    return f"rank {spans(sorted(ranks))} {when}：{where}：{record}"


def _stopped(state: str, step: int, phase: str | None, ranks: Sequence[int], error: str) -> str:
    place = f"step {step}" + (f"，{phase}" if phase else "")
    place += "" if tuple(ranks) == (0,) else f"，rank {spans(ranks)}"
    what = {
        "running": f"仍在运行，当前位于 {place}",
        "killed": f"在 {place} 被强制终止，未留下任何信息",
        "interrupted": f"在 {place} 中途结束，未调用 close()",
    }.get(state, f"在 {place} 中断")
    return f"{what}：{error}" if error else what


def _before(records: int, phases: int, steps: int, step: int) -> str:
    earlier = _earlier_steps(steps, step)
    if not records:
        return f"{earlier}一致。" if earlier else ""
    of_phases = f"{phases} 个阶段及 " if phases else ""
    behind = f"，{earlier}也一致" if earlier else ""
    return f"step {step} 的 {of_phases}{records} 条记录一致{behind}。"


def _earlier_steps(steps: int, step: int) -> str:
    if not steps:
        return ""
    if steps != step:  # some were not recorded, or the first is not step 0
        return f"更早的 {steps} 个 step 全部"
    return "step 0 全部" if step == 1 else f"step 0 至 step {step - 1} 全部"


_REPEATABLE = "请用相同配置采集两次，确认训练本身是否可复现"


def _earlier(
    path: str,
    relation: str,
    status: str,
    named: str,
    step: int | None,
    phase: str | None,
    all_cells: bool,
    agreed: int,
) -> str:
    place = "，".join(filter(None, [f"step {step}", phase]))
    named = f"{named}（{place}）"
    looked = "，且当时已采集全部 Cell" if all_cells else ""
    before = f"，该 step 此前 {agreed} 条记录一致" if agreed else ""
    said = {
        "same": f"当时定位到同一处{looked}{before}",
        "inside": f"当时定位到 {named}，它由本次定位到的差异引起",
        "before": f"当时定位到 {named}；本次定位到的是同一 step 的另一阶段",
        "elsewhere": f"当时定位到另一处：{named}；{_REPEATABLE}",
        "new": f"当时结论为 {status}：现在的差异当时未采集，或者训练不可复现；{_REPEATABLE}",
        "not_seen": f"当时定位到 {named}，而本次采集到的内容没有差异；{_REPEATABLE}",
        "agreed": f"当时结论同样为 {status}",
    }
    return f"此前的比对 {path}：{said[relation]}"


def _size_of_next(size: str, one_run: bool, estimated: bool) -> str:
    each = "" if one_run else "每侧"
    behind = "，按其 Cell 估算" if estimated else ""
    return f"（{each}每个 rank 约 {size}{behind}）"


def _weights(compared: int, different: int, only_in_a: int, only_in_b: int) -> str:
    if compared and not (different or only_in_a or only_in_b):
        return f"全部 {compared} 个权重逐位一致"
    if not (compared or only_in_a or only_in_b):
        return "没有可比对的权重"
    parts = [f"{compared} 个权重中有 {different} 个不同"]
    parts += [f"{only_in_a} 个仅 A（标杆）有"] if only_in_a else []
    parts += [f"{only_in_b} 个仅 B（待比对）有"] if only_in_b else []
    return "，".join(parts)


def _difference(section: str, name: str, a: str, b: str) -> str:
    chinese = section_words(section)
    section = section if chinese == section else f"{chinese}（{section}）"
    named = f"{section}：{name}" if name else section
    return f"{named}：A（标杆）为 {a}，B（待比对）为 {b}"


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

TEXTS: dict[str, Any] = {
    "scope": _scope,
    "identical": "一致（IDENTICAL）：{scope}，共 {compared} 条记录逐位一致{non_finite}。",
    "within_tolerance": _within,
    "unread": (
        "无法比对（INCOMPARABLE）：{scope}，已比对的 {compared} 条记录一致，但部分已采集的内容无法"
        "读取，因此不能判定两侧一致："
    ),
    "restore": "请从备份恢复这些文件，或重新采集，然后再次比对。",
    "incomparable": (
        "无法比对（INCOMPARABLE）：两份采集结果没有可比对的共同内容。请确认两侧采集了相同的阶段、"
        "step 与关键数据，且路径没有给错。"
    ),
    "diverged": "存在差异（DIVERGED），首个差异点：{place}",
    "non_finite": _non_finite,
    "agree_non_finite": "一致的记录{non_finite}。",
    "more": "… 另有 {number} 项",
    "in_summary": "，见 summary.xlsx",
    "in_verdict": "，见 {file}",
    "cause": lambda cause, explanation: (
        f"原因：{CAUSES.get(cause, cause)}（{cause}）。{explanation}"
    ),
    "max_abs": _max_abs,
    "inside": "差异规律：{words}",
    "source": "代码位置：{source}",
    "agreed_before": _agreed_before,
    "check_first": "请先检查：以下内容两侧不同，且可能造成该差异",
    "meant": "如果该差异是有意为之：{file} 中的 next_step 给出进一步定位所需的采集配置。",
    "look_closer": _look_closer,
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
    "gap": _not_compared,
    "tolerance": "容差：{rules}",
    "rule_use": "{rule}：{records} 条记录，其中 {passed} 条仅因该规则通过",
    "sides": "标杆（A）：{a}；待比对（B）：{b}",
    "tables": "表格：{file}",
    "tables_and_more": "表格：{file} 等，另有 {more} 个",
    "machine_readable": "机器可读结论：{file}",
    "summary": _summary,
    "place": _place,
    "parted": _parted,
    "agreeing_ranks": lambda ranks: f"rank {spans(sorted(ranks))} 全程一致",
    "stopped": _stopped,
    "stopped_run": lambda run, stopped: f"{side(run)}{stopped}",
    "more_stops": "… 另有 {number} 处 rank 中断",
    "before": _before,
    "earlier": _earlier,
    "compared_only": _COMPARED_ONLY,
    "left_out": _LEFT_OUT,
    "size_of_next": _size_of_next,
    "size_of_next_unknown": (
        "（所需空间未知：先采集一个 step，再用 mindrlhf-msprobe estimate 估算）"
    ),
    "bisection": (
        "采集全部可疑 Cell 约需 {size}：本次是按层二分的其中一轮，比对后会给出下一轮的采集配置。"
    ),
    "weights": _weights,
    "before_any_tensor": "比对张量之前，以下内容已经不同：",
    "load_checkpoint": "{weights}：请检查所加载的权重文件",
    "initial_weights": "{role} 的初始权重：{weights}（{names}）",
    "difference": _difference,
    "withheld": "<可能涉密，未落盘>",
    "another_withheld": "<可能涉密，未落盘>，取值不同",
    "other_on_each_rank": "各 rank 取值不同",
    "no_value": "无",
    "comparing": "比对中",
    "unit_records": "条记录",
}
