"""What stands beside the status of a record, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages.lists import Joined
from mindrlhf_msprobe.report.messages.zh.words import non_finite


def _in_one(side: str, nan: int, inf: int) -> str:
    return f"仅 {side} 侧含 {non_finite(nan, inf)}"


def _in_both(nan_a: int, inf_a: int, nan_b: int, inf_b: int) -> str:
    return f"A 侧含 {non_finite(nan_a, inf_a)}；B 侧含 {non_finite(nan_b, inf_b)}"


def _tries(first: str, second: str) -> str:
    why = f"两次均为 {first}" if first == second else f"第一次 {first}，第二次 {second}"
    return f"尝试两次均未能比对：{why}"


def _parts_differ(side: str, ranks: Sequence[int], others: Sequence[int]) -> str:
    rest = f"，rank {few_numbers(others)} 的分片相同" if others else ""
    return f"{side} 侧 rank {few_numbers(ranks)} 的分片不同{rest}"


def _sum_differs(side: str, ranks: Sequence[int]) -> str:
    return f"{side} 侧 rank {few_numbers(ranks)} 所持部分之和不同，出自其中一个或多个"


def _copies_differ(side: str, ranks: Sequence[int]) -> str:
    return f"{side} 侧 rank {few_numbers(ranks)} 与持有同一分片的其他 rank 不同"


def _copies_added(side: str, ranks: Sequence[int], how: str) -> str:
    what = {"partial": "和", "mean": "平均值"}[how]
    return (
        f"但 {side} 侧 rank {few_numbers(ranks)} 所持内容之{what}与另一次运行相同："
        f"若本就在之后才归约，请在布局文件中将该记录写为 `{how}`，否则就是缺少归约"
    )


TEXTS = {
    "all": Joined("{notes}", "；"),
    # by statistics and fingerprints
    "by_statistics": "仅依据统计量：统计量相等不能证明逐位一致",
    "fingerprints_equal": "指纹相同，但 max 或 min 不同",
    "no_elements": "没有元素",
    "nothing_to_compare": "既无统计量，也无可比的指纹",
    "rounded_statistics": "依据统计量：其中一侧由两个梯度相减得到，精度为 {error:.1e}",
    "rounded": "其中一侧由两个梯度相减得到，精度为 {error:.1e}",
    "bytes_differ": "仅依据统计量：逐位不同",
    "fingerprints_differ": "指纹不同",
    "statistics_equal": "指纹不同，统计量相等",
    "no_statistic_tells": "含 NaN 或 Inf，统计量无法反映差异大小",
    "two_tools": "两种工具的统计量，舍入方式不同",
    "all_nan": "依据统计量：两侧所有元素均为 NaN",
    "nan_beside_infinity": "一侧为 NaN，另一侧为 Inf",
    "nan_hides": "两侧均含 NaN，其余元素没有可用的统计量，也没有同一算法的指纹：无法判断",
    "infinities": "仅依据统计量，两侧均含 Inf",
    "infinities_hide": "两侧均含 Inf，其余元素没有可用的统计量，也没有同一算法的指纹：无法判断",
    "statistics_differ": "仅依据统计量",
    # by values
    "in_one": _in_one,
    "in_both": _in_both,
    "unlike_infinities": "Inf 符号相反，或一侧为 NaN、另一侧为 Inf",
    "value_in_one": "仅 {side} 侧为 NaN/Inf：A 为 {a}，B 为 {b}",
    "dtypes": "A 为 {a}，B 为 {b}",
    "shapes": "A 为 {a}，B 为 {b}",
    "values": "A 为 {a}，B 为 {b}",
    "lengths": "A 为 {a} 字节，B 为 {b} 字节",
    "same_values": "数值相同，dtype 分别为 {a} 和 {b}",
    # of records that several ranks hold
    "parts_differ": _parts_differ,
    "sum_differs": _sum_differs,
    "copies_differ": _copies_differ,
    "copies_added": _copies_added,
    "file_changed": "指纹相同，说明文件在落盘后被改动过",
    "texts": "从第 {token} 个 token（第 {character} 个字符）起不同：A 为 {a!r}，B 为 {b!r}",
    "tokens": "从 token {token} 起不同：A 为 {a}，B 为 {b}",
    "tokens_of_row": "第 {row} 行从 token {token} 起不同：A 为 {a}，B 为 {b}",
    "zero_gradient": "一侧没有梯度，另一侧梯度全为 0",
    "no_gradient": "{side} 侧没有梯度：None",
    # not compared
    "unreadable_side": "{side} 侧：{why}",
    "unreadable": "{why}",
    "not_saved": "类型 {type} 的值没有保存，无法比对",
    "not_compared": "未比对",
    "failed": "无法比对：{error}",
    "two_tries": _tries,
    "worker": "执行比对的进程{what}",
    "worker_stopped": "被暂停，一直没有恢复",
    "worker_killed": "被终止（{by}）",
    "no_answer": "没有响应",
    "ended": "提前退出（退出码 {code}）",
    "ended_unknown": "提前退出（原因未知：当前进程忽略 SIGCHLD）",
    "sigkill": "SIGKILL，例如内存不足",
    "sigbus": "SIGBUS：文件变小，或无法继续读取",
    "ray_worker_lost": "执行比对的 Ray worker 丢失（{kind}）",
    # against the noise
    "noise_unknown": "噪声基线未知：{error}",
    "no_repetition": "A 的重复采集中均没有该记录",
    "repetitions_identical": "A 与其 {repetitions} 次重复采集在此逐位一致",
    "repetitions_identical_but": "A 与其 {repetitions} 次重复采集在此除 NaN 和 Inf 外一致",
    "repetitions_alike": "A 与其 {repetitions} 次重复采集在此一致",
    "repetitions_finite": "A 与其 {repetitions} 次重复采集没有这样的 NaN 或 Inf 元素",
    "repetitions_unlike_non_finite": (
        "A 与其 {repetitions} 次重复采集的 NaN 和 Inf 都不在相同位置"
    ),
    "repetitions_differ_otherwise": "A 与其 {repetitions} 次重复采集在此也有差异，但不是这种差异",
    "repetitions_differ": "A 与其 {repetitions} 次重复采集在此也互有差异",
    "noise_non_finite": "含 NaN 或 Inf，没有可与噪声基线比较的量",
    "noise_too_large": "距离超出浮点数范围",
    "noise": (
        "为 {repetitions} 次重复采集噪声基线的 {ratio:.3g} 倍（噪声基线 {spread:.2g}；"
        "{margin:.3g} 倍以内视为一致）"
    ),
    # a row that stands for many
    "records_agree": "{records} 条一致的记录",
    "agreeing": "{identical} 条 identical，{within_tolerance} 条 within_tolerance",
}
