"""What checks say whatever the rule, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

_LACKS = {
    "numbers": "采集结果中没有张量的统计量",
    "layers": "采集结果中没有逐层数据",
    "parameters": "采集结果中没有权重（采集时需 parameters: true）",
    "gradients": "采集结果中没有权重梯度",
    "backward": "采集结果中没有反向条目",
    "fingerprints": "采集结果中没有指纹（采集时需 fingerprint: true）",
    "healthy": "未给出健康的采集结果（--healthy RUN）",
}


def _lacks(kind: str, names: str, count: int) -> str:
    if kind == "key":
        return f"未采集以下任一关键数据：{names}"
    if kind == "phase":
        return f"未采集以下任一阶段：{names}"
    if kind == "ranks":
        return f"至少需要 {count} 张卡（rank）"
    if kind == "steps":
        return f"至少需要 {count} 个 step"
    return _LACKS.get(kind, kind)


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "错误"), (warning, "告警"), (note, "提示")]
    return f"不健康 {path}：" + "，".join(f"{n} 个{what}" for n, what in found if n)


def _healthy(path: str, error: int, warning: int, note: int) -> str:
    notes = f"，{note} 个提示" if note else ""
    return f"健康 {path}：无错误、无告警{notes}"


def _not_checked(path: str, error: int, warning: int, note: int) -> str:
    return f"未检查 {path}：没有可运行的规则"


def _again(times: int, last: int, ranks: str) -> str:
    on = f"，涉及 rank {ranks}" if ranks else ""
    return f"共出现 {times} 次，最后一次在 step {last}{on}"


def _scope(rules: int, steps: int, ranks: int, entries: int, saves: int) -> str:
    held = f"{steps} 个 step，{ranks} 张卡，{entries} 个条目，{saves} 份关键数据"
    return f"已运行 {rules} 条规则：{held}"


def _took(runs: int, seconds: float) -> str:
    return f"{runs} 份采集结果，耗时 {seconds:.1f} 秒"


def _in_file(path: str, line: int | None) -> str:
    return f"{path} 第 {line} 行：" if line else f"{path}："


TEXTS: dict[str, Text] = {
    "lacks": _lacks,
    "failed": "规则运行失败：{kind}: {error}",
    "too_many": "另有 {count} 个发现未保留：最多保留 {most} 个",
    "no_rule": "{name} 是 {found}；应为函数或类，或由 @rule 修饰得到的对象",
    "rule_form": "--rule {given!r}：应为 MODULE:FUNCTION，例如 my_checks:reward_in_range",
    "not_loaded": "规则 {named} 无法加载：{kind}: {error}",
    "same_name": "有两条规则都叫 {name}；请给其中一条改名",
    "no_run": "未给出采集结果；至少需要一个目录",
    "rule_file": "规则文件",
    "settings_of_rules": "规则到其设置",
    "in_file": _in_file,
    "no_such_rule": "{where}没有名为 {name!r} 的规则或规则组。{hint}",
    "bad_setting": "{where}{name} 的值为 {value}；应为 on、off 或一组设置",
    "no_such_key": "{where}{name} 的值为 {value}，但没有这个键；应为以下之一：{expected}。{hint}",
    "bad_value": "{where}{name} 的值为 {value}；应为{expected}。{hint}",
    "a_number": "非负的有限数",
    "patterns": "一个正则表达式，或最多 {most} 个正则表达式的列表",
    "bad_pattern": "{where}{name}：模式 {value!r} 不可用：{error}",
    "not_written": "无法写入 {path}：{why}",
    "checking": "检查中",
    "unit_steps": "step",
    "run_healthy": _healthy,
    "run_unhealthy": _unhealthy,
    "run_not_checked": _not_checked,
    "at_step": "step {step}",
    "at_rank": "rank {rank}",
    "at_micro_step": "micro_step {micro_step}",
    "comma": "，",
    "again": _again,
    "more": "…… 另有 {count} 个",
    "not_read": "未能读取（{count}）：",
    "not_checked": "未检查（{count}）：",
    "scope": _scope,
    "took": _took,
    "severity_error": "错误",
    "severity_warning": "告警",
    "severity_note": "提示",
    "causes": "可能的原因：{causes}",
    "stack": "调用栈：",
    "look_closer": "进一步定位：msprobe_config: {settings}",
    "followed_by": "由此引起（{count}）：",
}
