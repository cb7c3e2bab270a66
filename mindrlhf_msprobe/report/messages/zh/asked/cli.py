"""命令行提示：参数错误、工具自身故障、merge。"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _two_runs(runs: Sequence[str], hint: str) -> str:
    given = f"：{' '.join(runs)}" if runs else ""
    return f"应给出两份采集结果，实际为 {len(runs)} 份{given}{hint}"


TEXTS: dict[str, Any] = {
    "see_help": "{prog}: {error}。用法见 {prog} --help。",
    "interrupted": "已中止",
    "fault": "工具自身出错，无法继续：{kind}: {text}{where}。请附上调用栈反馈该问题{advice}。",
    "missing": (
        "此处无法导入 {name}（{error}），而该命令需要它。请在运行本工具的环境里安装："
        "pip install {package}"
    ),
    "fault_where": "（{file} 第 {line} 行）",
    "fault_advice": "；设置环境变量 {variable}=0 可显示调用栈",
    "no_tables": "未写出表格：{error}结论直接打印如下。",
    "empty_path_of_a_run": "采集结果的路径为空；应为某次采集的 dump_path",
    "code_of_entry": lambda name: (
        f"--code 显示调用某个条目的代码：请给出条目名"
        f"{f'，而不是 {name}' if name else ''}（show RUN PHASE 会列出条目）"
    ),
    "empty_path": "采集结果的路径为空；应为某次采集的 dump_path",
    "two_runs": _two_runs,
    "one_run_hint": "；使用 --phases、--ranks 或 --keys X=Y 时给一份即可",
    "two_names": "两个名称，以逗号分隔",
    "two_ranks": "两个 rank 号，以逗号分隔，例如 0,1",
    "option": "{option} 为 {value}；应为{expected}",
    "address": "--address 是 Ray 集群的地址；请同时给出 --engine ray",
    "at_least_1": "--{option} 为 {number}；应为不小于 1 的整数",
    "beside_config": (
        "--{options} 不能与 --config 同时使用，配置文件中已有这些设置；请只用其一，或修改配置文件的"
        "副本"
    ),
    "nothing_on": (
        "{file} 没有打开任何采集开关，因此不占空间；应包含 msprobe: true 以及某个阶段的开关，或 "
        "key_data_dump: true"
    ),
    "merge_left_out": "{number} 个文件或目录不属于任何采集结果，未纳入：{shown}",
    "merged": lambda path, directories, ranks, steps, files, copied: (
        f"{path}：合并 {directories} 个目录，rank {ranks}，step {steps or '无'}，"
        f"{files} 个文件（其中复制 {copied} 个）"
    ),
    "merge_missing": "作业的 rank {ranks} 不在其中任何一个目录里",
}
