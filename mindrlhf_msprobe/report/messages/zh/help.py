"""--help 的内容，以及命令行提示：参数错误、工具自身故障、merge。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _two_runs(runs: Sequence[str], hint: str) -> str:
    given = f"：{' '.join(runs)}" if runs else ""
    return f"应给出两份采集结果，实际为 {len(runs)} 份{given}{hint}"


CLI: Mapping[str, Any] = {
    "code_of_entry": lambda name: (
        f"--code 显示调用某个条目的代码：请给出条目名"
        f"{f'，而不是 {name}' if name else ''}（show RUN PHASE 会列出条目）"
    ),
    "two_runs": _two_runs,
    "merged": lambda path, directories, ranks, steps, files, copied: (
        f"{path}：合并 {directories} 个目录，rank {ranks}，step {steps or '无'}，"
        f"{files} 个文件（其中复制 {copied} 个）"
    ),
}
