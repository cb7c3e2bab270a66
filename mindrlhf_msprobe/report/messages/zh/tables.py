"""我们自己的各工作表的名称、表头与标签；一个量随 step 的变化（`trend`）。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.templates import joined

TREND_PIECES: Mapping[str, Any] = {
    "nearest_names": joined("near", "、"),
    "all_names": joined("names", "、"),
}
