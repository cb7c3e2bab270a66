"""What the colours of cells look like."""

from __future__ import annotations

PLAIN = ""
DIFFERS = "differs"
MISSING = "missing"
SUSPICIOUS = "suspicious"
CLOSE = "close"

#: Each colour's name and its fill, as RRGGBB: two reds, orange and yellow.
FILLS = {
    DIFFERS: "FFC7CE",
    MISSING: "FF9999",
    SUSPICIOUS: "FFCC99",
    CLOSE: "FFEB9C",
}
