"""What the checks of ranks say, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "calls": "该卡采集到 {count} 个条目，多数卡为 {usual} 个",
}
