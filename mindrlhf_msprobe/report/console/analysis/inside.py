"""What differs inside the first divergence, as a sentence."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.findings import Inside
from mindrlhf_msprobe.report.messages import say


def inside_words(inside: Inside | None) -> str:
    """Return what differs inside a record as one sentence, "" where nothing certain is known."""
    if inside is None:
        return ""
    axes = dict(inside.axes)
    where = [
        message("inside.axis", **some.to_json(), name=axes.get(some.axis))
        if some.what == "axis"
        else message("inside.element", **some.to_json())
        for some in inside.where
    ]
    change = None
    if inside.change is not None:
        known = inside.change.parameters
        of_axis = {"name": axes.get(known["axis"])} if "axis" in known else {}
        params = {**known, "basis": inside.basis, **of_axis}
        change = Message(f"inside.{inside.change.kind}", params)
    return say(
        "inside.differs",
        where=where,
        prompts=list(inside.prompts),
        change=change,
        elements=inside.elements,
        size=inside.size,
    )
