"""What the checks of ranks say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "calls": "this rank recorded {count} entries, most others {usual}",
}
