"""不可用的设置：msprobe_config，以及 msprobe 的 config.json。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text


def _unknown_keys(items: Sequence[Sequence[str]], hints: Sequence[str], known: str) -> str:
    each = (f"{key}（值为 {value}）。{hint}" for (key, value), hint in zip(items, hints))
    return f"msprobe_config 中有未知的键：{''.join(each)}可用的键：{known}。"


TEXTS: dict[str, Text] = {
    "wrong": "{setting} 为 {shown}（{kind}）；应为{expected}。{hint}",
    "unusable": "{wrong}该表达式不可用：{error}。",
    "unknown_key": "{where}：未知的键 {name!r}（值为 {value}）。{hint}",
    "unknown_keys": _unknown_keys,
    "no_section": (
        "文件中没有 msprobe_config 一节。请加入\nmsprobe_config:\n  msprobe: true\n"
        "  dump_path: ./msprobe_dump\n  key_data_dump: true"
    ),
    "no_mapping": "msprobe_config 应为映射，或以各设置为属性的对象，实际为 {shown}（{kind}）。",
    "no_backward": (
        "msprobe_config.directions 为 {directions}，而 task: grad_probe 采集的是梯度，应包含 "
        "backward。请删去 directions，或设置 directions: [backward]。"
    ),
    "inverted_range": (
        "msprobe_config.{last} 为 {end}，小于 {first} 的 {start}；范围包含两端，因此 {last} "
        "应不小于 {start}（只采集这一个时：{first}: {start}, {last}: {start}）。"
    ),
    "steps_outside": (
        "msprobe_config.steps 为 {steps}，均不在 step 范围内（step_start {first} … step_end "
        "{last}），不会采集任何内容。请设置 step_end: {needed}。"
    ),
    "steps_and_interval": (
        "msprobe_config.steps 与 step_interval {interval} 都用于选择 step；"
        "只能设置其中之一。请去掉 steps 或 step_interval。"
    ),
    "too_many_patterns": "{setting} 有 {count} 个表达式；最多 {most} 个。请用 | 合并。",
    "section": (
        "{path}：msprobe_config 一节为 {shown}；应为映射，首行为 `msprobe: true` 或 `msprobe: "
        "false`。"
    ),
    "keys": (
        "{path}：msprobe_config 的键应为文本，实际有 {found}。YAML 会把 on、off、yes、no 读成 "
        "true 和 false，把数字读成数值：请加引号。"
    ),
    # 应为
    "true_or_false": " true 或 false",
    "whole_number": "不小于 {least} 的整数",
    "file": "规则文件的路径",
    "on_finding": " warn、stop 或 module:function",
    "no_such_function": "on_finding：{named} 无法导入：{kind}: {error}",
    "number_or_all": "不小于 1 的整数，或 -1（不限次数）",
    "directory": "目录路径",
    "seconds": "不小于 0 的秒数（0 表示不限）",
    "one_of": "以下之一：{choices}",
    "either": lambda choices: f" {' 或 '.join(choices)}",
    "this": " {value!r}",
    "list_of": "由以下各项组成的列表：{choices}",
    "one_at_least": "由以下各项组成的列表，至少含一项：{choices}",
    "list_of_ranks": " rank 号的列表，[] 表示全部",
    "list_of_steps": " step 编号的列表，[] 表示全部",
    "list_of_texts": "文本的列表",
    "patterns": "匹配 Cell 名称的正则表达式的列表",
    "pattern": "匹配 Cell 名称的正则表达式",
    "texts": "文本的列表，文本为条目名称的一部分",
    "text": "文本，为条目名称的一部分",
    "positive": "大于 0 的数值",
    "thresholds": (
        "float16、bfloat16、float32 或 float64 到大于 0 的数值的映射，如 {{float16: 0.002}}"
    ),
    "for_fix": "{value}：handler_type: fix 只支持该取值",
    "bounds": "由小到大的数值列表，至少一个，绝对值不超过 2**63",
    "scope": " []，或两个条目的名称，即采集范围的首个与最后一个",
    "entry": "条目名称，例如 {example}",
    "phases": "阶段名到角色的映射，例如 {{reward_compute: reward}}",
    "step_window": "[]，或首尾两个 step，例如 [0, 9]",
    "replace": "值的名称到运行目录的映射，例如 {{advantages: ./run_a}}",
    "value_name": "由字母、数字和下划线组成的名称",
    "phase_name": "由字母、数字和下划线组成的阶段名",
    "free_name": "未被占用的名称",
    "role": "角色名",
    "section_of_task": "含 scope、list 和 data_mode 的对象",
    "all_or_others": ' ["all"]，或由其余各项组成的列表',
    "numbers_and_ranges": '整数与范围（如 "3-5"）的列表，[] 表示全部',
    "is_none": "{expected}；{item} 不符合",
    "empty_section": "空",
}
