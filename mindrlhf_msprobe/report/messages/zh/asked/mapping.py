"""msprobe 映射文件中应有的内容。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "two_names": "一对名称",
    "layer": "层的类名，以及其内部各部分的映射",
    "api_item": "含 ms_api 和 pt_api 的映射",
    "one_of": lambda names, hint: f"以下之一：{names}{f'（{hint}）' if hint else ''}",
    "api": " dump.json 中的 API 名（{{api_type}}.{{api_name}}），如 Functional.abs",
    "places": "编号或名称的列表，每个只出现一次",
    "as_many": "与 {key} 相同的个数（{count}）",
}
