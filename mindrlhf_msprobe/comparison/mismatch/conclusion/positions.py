"""The positions that both networks were given, against the places of the tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.tokens.sequences import PhaseTokens


def position_drift(walk: Walk) -> Message | None:
    """Say that the positions the rollout was given jump inside a sequence; None if they do not.

    Padding may count: then all positions of a sequence are shifted alike, which rotary embeddings
    do not see.
    """
    tokens = walk.rollout.tokens
    shifts: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(tokens.calls):
        if call.given is None:
            continue
        known = np.flatnonzero(call.sequence >= 0)
        for row in known.tolist():
            sequence, position = int(call.sequence[row]), int(call.position[row])
            shift = int(call.given[row]) - position
            before, at = shifts.setdefault(sequence, (shift, position))
            if shift != before and position > at:
                given, right = int(call.given[row]), position + before
                where = {"sample": walk.sample(sequence), "position": position, "call": number}
                return message("mismatch.positions", given=given, right=right, **where)
    return None


def other_count(walk: Walk) -> Message | None:
    """Say that both networks were given positions that are apart by a constant; None if not.

    Rotary embeddings do not see it; where one network is given none, it counts for itself.
    """
    mine, theirs = _shifts(walk.rollout.tokens), _shifts(walk.training.tokens)
    apart = []
    for sequence, partner in enumerate(walk.matched.sequences.tolist()):
        rollout, training = mine.get(sequence), theirs.get(partner)
        if rollout is None or partner < 0:
            continue
        if rollout != (training or 0):
            apart.append((sequence, rollout, training))
    if not apart:
        return None
    sequence, rollout, training = apart[0]
    counts = {"count": len(apart), "of": len(walk.matched.sequences)}
    values = {"rollout": rollout, "training": training, "sample": walk.sample(sequence)}
    return message("mismatch.other_count", **values, **counts)


def _shifts(tokens: PhaseTokens) -> Mapping[int, int]:
    """Return by how much all positions of a sequence are above its tokens' places."""
    found: dict[int, set[int]] = {}
    for call in tokens.calls:
        if call.given is None:
            continue
        known = np.flatnonzero(call.sequence >= 0)
        shifts = call.given[known] - call.position[known]
        pairs = np.unique(np.stack([call.sequence[known], shifts]), axis=1)
        for sequence, shift in pairs.T.tolist():
            found.setdefault(sequence, set()).add(shift)
    return {sequence: shifts.pop() for sequence, shifts in found.items() if len(shifts) == 1}
