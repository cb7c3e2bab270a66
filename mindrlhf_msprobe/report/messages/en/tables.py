"""Names of sheets, headers and labels of our own sheets; one quantity over the steps (`trend`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import count
from mindrlhf_msprobe.report.messages.templates import joined

TREND_PIECES: Mapping[str, Any] = {
    "nearest_names": joined("near", ", "),
    "n_values": count("count", "value"),
    "n_saves": count("count", "save"),
    "n_updates": count("count", "update"),
    "all_updates": count("updates", "update"),
    "n_places": count("count", "place"),
    "n_steps": count("steps", "step"),
    "n_parameters": count("parameters", "parameter"),
    "all_names": joined("names", " and no "),
}
