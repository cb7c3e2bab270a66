"""采集过程中的异常说明。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

_LOSSES = {
    "removed": "被删除",
    "moved": "被移走",
    "replaced": "被替换",
    "lock_gone": "锁文件被删除",
    "lock_taken": "被另一个作业占用",
    "manifest_gone": "run.json 被删除",
    "manifest_replaced": "run.json 被替换",
}

TEXTS: dict[str, Text] = {
    "folder_full": (
        "计算图写出的数据未读取即被删除：已有 {size} 等待读取（上限为 buffer_mb）。请减少同时采集"
        "的 Cell、阶段或 token，改用 task: statistics，或增大 buffer_mb"
    ),
    "cut_short": "计算图写出的 {file} 在 {size} 字节处截断，磁盘可能已满",
    "no_files": "计算图已有 {waited:.0f} s 没有写出数据，且最后的文件缺失，磁盘可能已满",
    "late": "到达时已晚了 {most} 次以上调用",
    "step_ended": "到达时其所属的 step {step} 已结束",
    "unseen": "{name} 在被发现之前已执行过；从下一次调用起采集",
    "second_order": "不采集还会再次求导的梯度",
    "changed": "{parameter} 有少量元素发生变化，无法确定各次调用使用的是哪一份",
    "no_numbers": "dtype {dtype} 不是数值类型",
    "objects": "dtype {dtype} 含有 Python 对象，不会以 pickle 保存",
    "statistics": "统计量的 shape 为 {shape}；应为 {expected}",
    "hold_lost": lambda loss: f"dump_path 已不是本作业最初使用的目录（{_LOSSES.get(loss, loss)}）",
    "place_replaced": "目录 {place} 在采集期间被替换",
    "place_removed": "目录 {place} 在采集期间被删除",
    "removed": "{directory} 在写入期间被删除",
    "removed_before_end": "{directory} 在 step 结束之前被删除",
    "symbolic_link": "采集目录中的符号链接不予跟随",
    "of_others": "该处已有其他来源的文件",
    "process_ended": "该进程已退出，退出码 {code}",
    "names_taken": "其临时文件名均已被占用",
    "shared_elements": "与之共用的真实数据未能落盘：{why}",
}
