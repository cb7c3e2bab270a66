"""What is said of what is to blame beyond a cell: a message that holds its details."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding

#: What does not decide: what is known of the record itself is said as well.
_UNDECIDED = (CulpritCode.GRADIENTS_NOT_RECORDED, CulpritCode.UPDATE_NOT_RECORDED)


def culprit_reasons(
    culprit: Culprit, finding: Finding, why: Sequence[Message]
) -> tuple[Message, ...]:
    """Return what is to blame, and why.

    Args:
        finding: the first record that differs.
        why: what is said of the record where nothing else is known.
    """
    params = dict(culprit.details)
    if culprit.code is CulpritCode.EARLIER_UPDATE:
        params |= {"key": finding.key, "step": finding.step}
    said = Message(f"culprit.{culprit.code.value}", params)
    return (*why, said) if culprit.code in _UNDECIDED else (said,)
