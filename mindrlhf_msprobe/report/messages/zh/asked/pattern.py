"""正则表达式或名称模式不可用的原因。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

_LINEAR = "无法在线性时间内匹配"

TEXTS: dict[str, Text] = {
    "assert": f"含前后断言（(?=…) 或 (?<=…)），{_LINEAR}；请把断言的内容写进表达式本身",
    "assert_not": (
        f"含否定断言（(?!…) 或 (?<!…)），{_LINEAR}；请用单独的表达式排除：写在 exclude 中，"
        f"或作为排在前面的规则"
    ),
    "groupref": f"含反向引用（\\1 或 (?P=name)），{_LINEAR}；请写出各种可能，以 | 分隔",
    "groupref_exists": f"含条件分组（(?(1)…)），{_LINEAR}；请写出两种情况，以 | 分隔",
    "atomic_group": f"含原子分组（(?>…)），{_LINEAR}；请写成 (?:…)",
    "possessive_repeat": f"含占有量词（a++、a*+ 或 a?+），{_LINEAR}；请去掉第二个 +",
    "name_taken": "分组名 'inside' 已被占用，请换一个名称",
    "too_large": "表达式过大：{why}。请缩短",
    "too_long": "长 {length} 个字符；最多 {most} 个",
    "too_deep": "嵌套过深：分组超过 {most} 层",
    "nested": "嵌套过深",
    "too_deep_or_large": "嵌套过深，或其中的数字过大",
    "no_unicode": "不是有效的 Unicode 文本",
    "no_expression": "不是正则表达式：{error}",
    "unknown_part": "含有不支持的成分（{name}）",
    "surrogate": "含有单独的代理码位，它不是字符",
    "wrong_target": "目标名称有误：{why}",
    "no_group": "目标名称有误：没有分组 {group}",
}
