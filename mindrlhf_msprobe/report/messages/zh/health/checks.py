"""What checks say whatever the rule, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.checks import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.lists import named

_LACKS = {
    "numbers": "采集结果中没有张量的统计量",
    "layers": "采集结果中没有逐层数据",
    "parameters": "采集结果中没有权重（采集时需 parameters: true）",
    "gradients": "采集结果中没有权重梯度",
    "backward": "采集结果中没有反向条目",
    "fingerprints": "采集结果中没有指纹（采集时需 fingerprint: true）",
    "elements": "采集结果中没有激活值的真实数据（采集时需 task: tensor）",
    "opinions": "没有复算的结论（采集时需 task: accuracy_check）",
    "healthy": "未给出健康的采集结果（--healthy RUN）",
    "key": "未采集以下任一关键数据：{names}",
    "phase": "未采集以下任一阶段：{names}",
    "ranks": "至少需要 {count} 张卡（rank）",
    "steps": "至少需要 {count} 个 step",
}


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "错误"), (warning, "告警"), (note, "提示")]
    return f"不健康 {path}：" + "，".join(f"{n} 个{what}" for n, what in found if n)


_PIECES: Mapping[str, Text] = {
    "n_notes": "，{note} 个提示",
    "on_these_ranks": "，涉及 rank {ranks}",
    "line_of_file": " 第 {line} 行",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "lacks": named("kind", _LACKS),
        "failed": "规则运行失败：{kind}: {error}",
        "cut_off": "step {step} 没有结束：训练在其中中断，或仍在运行",
        "too_many": "另有 {count} 个发现未保留：最多保留 {most} 个",
        "no_rule": "{name} 是 {found}；应为函数或类，或由 @rule 修饰得到的对象",
        "rule_form": "--rule {given!r}：应为 MODULE:FUNCTION，例如 my_checks:reward_in_range",
        "not_loaded": "规则 {named} 无法加载：{kind}: {error}",
        "same_name": "有两条规则都叫 {name}；请给其中一条改名",
        "no_run": "未给出采集结果；至少需要一个目录",
        "rule_file": "规则文件",
        "settings_of_rules": "规则到其设置",
        "in_file": "{path}{of_line}：",
        "no_such_rule": "{where}没有名为 {name!r} 的规则或规则组。{hint}",
        "bad_setting": "{where}{name} 的值为 {value}；应为 on、off 或一组设置",
        "no_such_key": (
            "{where}{name} 的值为 {value}，但没有这个键；应为以下之一：{expected}。{hint}"
        ),
        "bad_value": "{where}{name} 的值为 {value}；应为{expected}。{hint}",
        "a_number": "非负的有限数",
        "patterns": "一个正则表达式，或最多 {most} 个正则表达式的列表",
        "bad_pattern": "{where}{name}：模式 {value!r} 不可用：{error}",
        "checking": "检查中",
        "unit_steps": "step",
        "run_healthy": "健康 {path}：无错误、无告警{notes}",
        "run_unhealthy": _unhealthy,
        "run_not_checked": "未检查 {path}：没有可运行的规则",
        "at_step": "step {step}",
        "at_rank": "rank {rank}",
        "at_micro_step": "micro_step {micro_step}",
        "comma": "，",
        "again": "共出现 {times} 次，最后一次在 step {last}{on_ranks}",
        "more": "…… 另有 {count} 个",
        "not_read": "未能读取（{count}）：",
        "not_checked": "未检查（{count}）：",
        "scope": (
            "已运行 {rules} 条规则：{steps} 个 step，{ranks} 张卡，{entries} 个条目，{saves} 份关键"
            "数据"
        ),
        "took": "{runs} 份采集结果，耗时 {seconds:.1f} 秒",
        "severity_error": "错误",
        "severity_warning": "告警",
        "severity_note": "提示",
        "causes": "可能的原因：{causes}",
        "stack": "调用栈：",
        "look_closer": "进一步定位：msprobe_config: {settings}",
        "followed_by": "由此引起（{count}）：",
    },
)
