"""What of two runs could not be compared before any tensor, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.numbers import few_numbers
from mindrlhf_msprobe.report.messages.zh.words import section_words, some


def _only_one_side(side: str, names: Sequence[str], more: int) -> str:
    return f"{some([section_words(name) for name in names], more)}：仅 {side} 侧有采集"


def _ranks_alone(side: str, ranks: Sequence[int], more: int) -> str:
    return f"rank {some(ranks, more)}：仅 {side} 侧有采集"


def _no_manifest(sides: Sequence[str], ranks: Sequence[int], more: int) -> str:
    what = f"{sides[0]} 侧没有" if len(sides) == 1 else "两侧都没有"
    of = f"（rank {some(ranks, more)}）" if ranks else ""
    return f"版本、配置和初始权重：{what}可读取的 run.json{of}"


def _configurations(file: str, sides: Sequence[str]) -> str:
    return f"训练配置：{'、'.join(sides)} 侧的 {file} 无法读取"


def _attempt(number: int, side: str, sections: Sequence[str]) -> str:
    what = "、".join(map(section_words, sections))
    first = f"比对使用的是首次启动的{what}，详见其 run.json"
    return f"{side} 侧第 {number} 次启动的{what}与首次启动不同，{first}"


def _more_differences(section: str, count: int) -> str:
    return f"{section_words(section)}：另有 {count} 处不同，未列出"


def _only_in(section: str, side: str, names: Sequence[str], more: int) -> str:
    return f"{section_words(section)}：仅 {side} 侧采集了 {some(names, more)}"


def _neither(names: Sequence[str]) -> str:
    return f"{'、'.join(map(section_words, names))}：两侧均未采集"


def _early_seed(names: Sequence[str], more: int) -> str:
    return (
        f"随机种子：{some(names, more)} 是在采集启动时读取的，可能早于训练脚本的设置，"
        f"或与另一侧不在同一阶段"
    )


def _key_data_left_out(names: Sequence[str], more: int, why: str) -> str:
    return f"{some(names, more)}：A、B 两侧均未采集：{why}"


def _withheld(section: str, names: Sequence[str], more: int) -> str:
    return f"{section_words(section)}：{some(names, more)} 可能涉密，两侧均未落盘"


def _nested(section: str, levels: int) -> str:
    return f"{section_words(section)}：嵌套超过 {levels} 层，更深处未比对"


def _weights_only_in(side: str, names: Sequence[str], more: int) -> str:
    return f"{some(names, more)} 的初始权重：仅 {side} 侧有采集"


def _name(
    setting: str,
    more: int,
    kind: str,
    phases: Sequence[str],
    of_phase: bool,
    step: int | None,
    ranks: Sequence[int],
) -> str:
    cells = f" {kind} Cell" if kind else " Cell"
    what = setting + (f" 等 {more + 1} 个{cells}" if more else "")
    shown = "、".join(phases)
    if of_phase:
        what = "：".join(filter(None, [shown, what]))
    elif phases:
        what += f"（{shown}）"
    what += "" if step is None else f"（从 step {step} 起）"
    of = f"rank {few_numbers(ranks)}"
    return what if not ranks else f"{what}（{of}）" if what else of


TEXTS = {
    "sections": lambda names: " / ".join(map(section_words, names)),
    "section": lambda name: section_words(name),
    "name": _name,
    "only_one_side": _only_one_side,
    "only_in": _only_in,
    "neither": _neither,
    "more": "……另有 {count} 项无法比对",
    "ranks_alone": _ranks_alone,
    "no_common_rank": "配置和初始权重：两侧没有相同的 rank",
    "no_manifest": _no_manifest,
    "configurations_unread": _configurations,
    "whose_rank": "{side} 侧有一个 run.json 未说明属于哪个 rank",
    "two_manifests": "{side} 侧的 rank {rank} 有两个 run.json；使用第一个",
    "newer_schema": (
        "{side} 侧 run.json 的 schema 为 {schema}，当前版本支持到 {known}：只比对了能读取的内容"
    ),
    "early_seed": _early_seed,
    "attempt": _attempt,
    "key_data_left_out": _key_data_left_out,
    "more_differences": _more_differences,
    "nested": _nested,
    "withheld": _withheld,
    "weights_unreadable": "{role} 的初始权重：{side} 侧没有可读取的",
    "weights_only_in": _weights_only_in,
    "weights_without_fingerprint": "{role} 的初始权重：{count} 个权重在一侧没有指纹",
    "weights_other_algorithm": "{role} 的初始权重：{count} 个权重两侧的指纹算法不同",
}
