"""The colours of the tables' rows: what they are, and which record has which."""

from __future__ import annotations

from mindrlhf_msprobe.findings import Finding, Status

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

_MISSING = (Status.UNREADABLE, Status.ONLY_IN_A, Status.ONLY_IN_B)


def colour_of(status: Status, suspicious: bool = False) -> str:
    """Return the name of the colour of a record that ended in `status`."""
    if status in _MISSING:
        return MISSING
    if not status.agrees:
        return DIFFERS
    if suspicious:
        return SUSPICIOUS
    return CLOSE if status is Status.WITHIN_TOLERANCE else PLAIN


def colour_of_finding(finding: Finding) -> str:
    """Return the name of the colour of a finding's row."""
    return colour_of(finding.status, bool(finding.suspicions))
