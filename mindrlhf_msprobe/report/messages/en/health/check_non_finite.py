"""What the check for NaN and infinity says, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "born": "{direction}: the inputs and parameters are finite, the output is not",
}
