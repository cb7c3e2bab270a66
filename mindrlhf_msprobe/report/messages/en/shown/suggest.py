"""A proposed mapping, in English."""

from __future__ import annotations

TEXTS = {
    "head": (
        "Proposed by structure, shapes and equal statistics: check every line.\n"
        "confidence, and how many of the parameters and outputs compared have equal statistics"
    ),
    "line": "{confidence}: {values} of {compared} equal, {cells} cell(s)",
    "order": "the parts are taken to stand behind each other: full tensors would tell",
    "alone": "without partner in {side}: {names}",
    "written": (
        "Mapping proposed: {path}, {count} line(s); each says how sure it is. Check it, then\n"
        "  mindrlhf-msprobe compare {a} {b} --mapping {path}"
    ),
}
