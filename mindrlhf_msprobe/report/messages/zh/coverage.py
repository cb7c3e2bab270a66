"""为什么没有采集，或没有比对。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import few_ranges, spans
from mindrlhf_msprobe.report.messages.templates import Joined
from mindrlhf_msprobe.report.messages.zh.words import reasons, some


def _graph_mode(why: object) -> str:
    return f"静态图模式下未采集：{reasons(why)}"


def _left_out(what: object, why: object) -> str:
    return f"{what} 未采集：{reasons(why)}"


_REMOVED = {"tensors": "层数据的真实数据", "layers": "层数据", "key_data": "关键数据"}


def _thinned_steps(what: str, ranks: Sequence[int], steps: Sequence[Sequence[int]]) -> str:
    on = f"rank {spans(ranks)} 的 " if [*ranks] != [0] else ""
    return f"{on}step {few_ranges(steps)} 的{_REMOVED[what]}已清理（keep_mb）"


TEXTS: Mapping[str, Any] = {
    "graph_mode": _graph_mode,
    "left_out": _left_out,
    "thinned_steps": _thinned_steps,
}


def _damaged_lines(count: int, lines: Sequence[tuple[int, str]] = ()) -> str:
    """说明 records.jsonl 中哪些行损坏：每行对应一个条目，行首可能仍留有条目名。"""
    if not lines:
        return f"有 {count} 行损坏，未予采用"
    named = [f"第 {number} 行（{entry or '条目名也已丢失'}）" for number, entry in lines]
    said = f"流水文件（records.jsonl）中有 {count} 行损坏"
    return f"{said}，每行对应的一个条目已丢失：{some(named, count - len(named))}"


def _no_dump_files(count: int, files: Sequence[str]) -> str:
    """列出形式未知的文件。"""
    return f"中有 {count} 个不是 MindSpore Dump 写入的文件：{some(files, count - len(files))}"


#: 采集结果中无法读取的内容：接在文件名之后的半句话。
UNREAD: Mapping[str, Any] = {
    "no_dump_files": _no_dump_files,
    "no_columns": Joined("不是 MindSpore Dump 的 statistic.csv：缺少列 {columns}", "、"),
    "damaged_lines": _damaged_lines,
}
