"""What recording lost, in English."""

from __future__ import annotations

TEXTS = {
    "records": "rank {rank} lost {count} record(s): {what}",
}
