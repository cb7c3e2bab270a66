"""采集过程中丢失的内容。"""

from __future__ import annotations

TEXTS = {
    "records": "rank {rank} 丢失 {count} 条记录：{what}",
}
