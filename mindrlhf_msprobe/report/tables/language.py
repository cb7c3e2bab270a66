"""The fixed words of our own sheets in Chinese.

msprobe's tables keep msprobe's headers; statuses, causes and the keys of settings are keywords and
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet

#: Names of sheets, headers and labels. What is not in here stands as it is.
_CHINESE = {
    "overview": "总览",
    "verdict": "结论",
    "preflight": "比对前检查",
    "coverage": "未比对范围",
    "tolerance": "容差",
    "legend": "说明",
    "section": "类别",
    "item": "项目",
    "value": "值",
    "different": "不一致",
    "compared": "已比对",
    "max_abs_err": "最大绝对误差",
    "max_rel_err": "最大相对误差",
    "factor": "放大倍数",
    "name": "名称",
    "note": "备注",
    "kind": "类别",
    "what": "内容",
    "only in": "仅一侧有",
    "records": "记录数",
    "rule": "规则",
    "passed only by it": "仅因该规则通过",
    "counts": "计数",
    "spread": "差异传播",
    "ranks": "各 rank",
    "chosen": "比对范围",
    "status": "状态",
    "run A": "A",
    "run B": "B",
    "where": "位置",
    "record": "记录",
    "origin": "起点",
    "source": "代码位置",
    "cause": "原因",
    "explanation": "说明",
    "inside": "内部规律",
    "culprit": "定位",
    "agreed before": "此前一致",
    "agreed_before (records of this step)": "此前一致的记录数（本 step）",
    "agreed_phases": "此前一致的阶段数",
    "agreed_steps": "此前一致的 step 数",
    "last_agreeing": "最后一条一致的记录",
    "opening (of the phase in this step)": "阶段在本 step 中第几次打开",
    "next step": "进一步定位",
    "next step: bytes of one rank": "进一步定位：单个 rank 的字节数",
    "check first": "先检查",
    "argument": "参数名",
    "earlier": "此前的比对",
    "of those that agree, suspicious": "一致但可疑",
    "steps": "step 数",
    "phases": "阶段数",
    "initial_weights": "初始权重",
    "unknown": "未知",
    "not compared": "未比对",
    "problem": "问题",
    "phase or key": "阶段或关键数据",
}
_LABELLED = ("verdict", "counts")  # sections whose items are labels, not names of the user's
_KEYWORDS = frozenset(status.value for status in Status)  # no labels; `different` is a header, too


def in_language(sheet: Sheet, lang: str) -> Sheet:
    """Return a sheet of ours with its name, headers and labels in `lang`."""
    if lang != "zh":
        return sheet
    rows = sheet.rows

    def labelled() -> Iterator[Row]:
        for colour, (first, *others) in rows():
            if first in _LABELLED and others and others[0] not in _KEYWORDS:
                others[0] = _CHINESE.get(others[0], others[0])
            yield colour, (_CHINESE.get(first, first), *others)

    return replace(
        sheet,
        name=_CHINESE.get(sheet.name, sheet.name),
        stem=sheet.name,
        header=tuple(_CHINESE.get(header, header) for header in sheet.header),
        rows=labelled,
    )
