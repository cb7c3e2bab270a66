"""训练过程中对发现的问题的说明。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

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


TEXTS: dict[str, Text] = {
    "finding": _finding,
    "diverged": _diverged,
    "cause": lambda cause, reasons: f"原因：{cause}。{''.join(map(str, reasons))}",
    "not_compared": _not_compared,
    "nothing_in_common": (
        "step {step} 中没有可与 {path} 比对的内容：两侧采集的内容没有相同的名称，或配置为不采集。"
        "请给出同一网络、相同阶段、key 和级别的运行"
    ),
    "compared_run_is_damaged": "{path} 的 step {step} 无法读取（{why}）：从该 step 起不再比对",
    "compared_run_is_gone": "{path} 已不存在：从 step {step} 起不再比对",
    "nothing_closer": "on_divergence: record：{record} 不属于任何 cell，不再采集更多内容",
    "more": "另有 {count} 个问题，多由上述问题引起，见 {file}",
    "not_observed": (
        "step {first} 到 {last} 中有 {count} 个已采集，但训练过程中未检查：检查落后过多或已出错。"
        "可用 `mindrlhf-msprobe check` 检查全部 step。"
    ),
    "stops": _stops,
    "ranks_apart": (
        "on_divergence: stop：有 rank 未及时到达本 step 的结尾："
        "之后的 step 结束时各 rank 不再互相等待，"
        "出现差异时所有 rank 晚一个 step 一起结束"
    ),
    "cannot_stop": (
        "训练应停止，但本任务的 rank {ranks} 未参与：它们的 dump_path、on_finding 或 "
        "on_divergence 不同，或已结束。单个 rank 退出会使其他 rank 停在集合通信中，因此训练继续。"
    ),
}
