"""What the check for NaN and infinity says, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "born": "{direction}：输入与参数均为有限值，输出出现 NaN/Inf",
}
