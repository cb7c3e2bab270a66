"""What recording lost, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "records": "rank {rank} lost {count} record(s): {what}",
}
