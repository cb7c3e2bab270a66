"""不可用的设置：msprobe_config，以及 msprobe 的 config.json。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import section_words


def _unknown_keys(items: Sequence[Sequence[str]], hints: Sequence[str], known: str) -> str:
    each = (f"{key}（值为 {value}）。{hint}" for (key, value), hint in zip(items, hints))
    return f"msprobe_config 中有未知的键：{''.join(each)}可用的键：{known}。"


TEXTS: Mapping[str, Any] = {
    "unknown_keys": _unknown_keys,
    "either": lambda choices: f" {' 或 '.join(choices)}",
}

#: preflight 的提示：命令行有误、采集和比对的内容。
COLLECT: Mapping[str, Any] = {
    "holds": lambda section, count: f"  {section_words(section)}：{count}",
}

#: msprobe 映射文件中应有的内容。
MAPPING: Mapping[str, Any] = {
    "one_of": lambda names, hint: f"以下之一：{names}{f'（{hint}）' if hint else ''}",
}
