"""训练采集期间的日志。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.templates import Joined, joined


def _behind_verb(words: str) -> str:
    return words if "\u4e00" <= words[:1] <= "\u9fff" else f" {words}"


PIECES: Mapping[str, Any] = {
    "verb_what": lambda what, **_: _behind_verb(what),
    "each": joined("what", "；"),
    "kinds": lambda lost, **_: "，".join(f"{what} {count} 次" for what, count in lost),
}

TEXTS: Mapping[str, Any] = {
    "recording": Joined("采集到 {root}，自 step {step} 起：{what}", "；"),
    "continuing": Joined("续接 {root} 中的采集结果，自 step {step} 起：{what}", "；"),
    "layers": Joined("{phases} 的层数据（{steps}）", "、"),
    "left_out": lambda what, why: f"未采集{_behind_verb(what)}：{'；'.join(why)}",
    "gap": Joined("{cell}：{why}", "；"),
    "gaps": Joined(
        "{role} 网络已编译，以下 Cell 有内容无法采集（见 run.json 的 coverage.graph_mode）："
        "{cells}",
        "；",
    ),
    "operators_replaced": Joined(
        "以下算子并非 MindSpore 自身的实现，其调用按算子的名称采集"
        "（run.json 的 coverage.operators）：{operators}",
        "，",
    ),
    "operators_held": Joined(
        "以下位置保存的算子，其调用不会被采集；请作为模块或 Cell 的属性保存"
        "（run.json 的 coverage.operators）：{places}",
        "，",
    ),
    "look_at": Joined("请检查 {what}", "、"),
    "took": lambda step, size, parts: (
        f"step {step} 在本 rank 占用 {size}（{'，'.join(map(' '.join, parts))}）"
    ),
    "other_version": Joined(
        "{trainer} 不是本集成所适配的版本。{missing}。其余内容照常采集。", "；"
    ),
    "no_key_data": Joined("未采集关键数据 {keys}：{why}", "、"),
    "switched_off": Joined("{trainer}：未采集 {keys}：{why}", " 和 "),
}

_SEVERITY = {"error": "错误", "warning": "告警", "note": "提示"}


def _finding(severity: str, rule: str, step: int, phase: str, name: str, said: str) -> str:
    at = "，".join(filter(None, (f"step {step}", phase, name)))
    return f"{_SEVERITY.get(severity, severity)}（{at}）：{said} [{rule}]"


def _stops(rule: str) -> str:
    if rule == "compare_to":
        return "on_divergence: stop：训练与 compare_to 的运行已不同，在此结束"
    if not rule:
        return (
            "其他 rank 发现问题（on_finding: stop）或训练已不同（on_divergence: stop），"
            "训练在此结束"
        )
    return f"on_finding: stop：发现问题 {rule}，训练在此结束"


def _diverged(step: int, phase: str, record: str, path: str, why: str) -> str:
    at = "，".join(filter(None, (f"step {step}", phase)))
    return f"与 {path} 首次不同（{at}）：{record}：{why}"


def _not_compared(step: int, last: int, path: str, running: bool = False) -> str:
    holds = "没有本 rank 的 step" if last < 0 else f"只有到 {last} 为止的完整 step"
    still = "，且仍在采集" if running else ""
    return f"{path} 中{holds}{still}：从 step {step} 起不再比对"


#: 训练过程中对发现的问题的说明。
LIVE: Mapping[str, Any] = {
    "finding": _finding,
    "diverged": _diverged,
    "cause": lambda cause, reasons: f"原因：{cause}。{''.join(map(str, reasons))}",
    "not_compared": _not_compared,
    "stops": _stops,
}


#: 训练程序中取不到数据的原因。
TRAINER: Mapping[str, Any] = {
    "no_vllm_network": Joined(
        "没有找到 vLLM 生成所用的网络。已在 {worker} 中查找：{looked}。prompt 和 response 仍会采集",
        "；",
    ),
    "no_variables": Joined("{of} 没有变量 {names}", " 或 "),
    "no_keys": Joined("不采集 {keys}", "、"),
}
