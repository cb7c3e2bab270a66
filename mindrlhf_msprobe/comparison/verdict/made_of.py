"""What key data were made of, where that was recorded: the logits, or other key data."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.names import OUTER, ROOT
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, configs
from mindrlhf_msprobe.comparison.verdict.history import of_entries
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.phases import key_data_home, standard_key
from mindrlhf_msprobe.storage.records import Entry, Record

#: What a trainer makes of what its network returns.
_OF_OUTPUTS = ("old_log_prob", "ref_log_prob", "log_prob", "entropy", "values")
#: What it makes of what it was given, what the networks gave, and what it is set to.
_REWARDS = ("rewards", "reward")
_OWN = (*_REWARDS, "advantages", "returns")


def output_before(first: FirstDifference) -> tuple[Entry, Record] | None:
    """Return the call whose output a key was made of, with its logits, else its first output.

    It is the last one of the key's phase with no cell around it, but one that trains it. None where
    anything of the phase does not agree bit for bit, or was not recorded.
    """
    key, phase = standard_key(first.finding.key or ""), first.event.phase
    if key not in _OF_OUTPUTS or first.finding.status is Status.UNREADABLE:
        return None
    outputs: list[tuple[Entry, Record]] = []
    for pair, finding, entry in of_entries(first.before):
        if finding is None or entry.phase != phase:
            continue
        if finding.status is not Status.IDENTICAL:
            return None
        outermost = entry.cell == ROOT or (entry.parent is None and entry.cell != OUTER)
        if entry.direction == "forward" and outermost and pair.record.io == "output":
            outputs.append((entry, pair.record))
    last = [record for entry, record in outputs if entry is outputs[-1][0]]
    if not last:
        return None
    return outputs[-1][0], next((r for r in last if _is_of_vocabulary(r, first.record)), last[0])


def _is_of_vocabulary(output: Record, key: Record) -> bool:
    """Return whether an output has an axis more than what was made of it: one for each token id."""
    shapes = output.leaf.shape, key.leaf.shape
    return None not in shapes and len(shapes[0] or ()) == len(shapes[1] or ()) + 1


def made_of_output(first: FirstDifference) -> Message | None:
    """Say that a key differs while what its network returned does not; None where it is unknown."""
    found = output_before(first)
    if found is None:
        return None
    _, output = found
    code = "made_of_logits" if _is_of_vocabulary(output, first.record) else "made_of_output"
    names = {"key": first.finding.key, "phase": first.event.phase, "record": output.name}
    return message(f"explanation.{code}", **names)


def own_arithmetic(first: FirstDifference) -> Message | None:
    """Say that the trainer itself made a key differ, and that no recording tells more of it.

    Only where all that was recorded before agrees bit for bit, the responses or what a network gave
    for them among it, and no phase of the trainer's own may have made it. None elsewhere.
    """
    key = first.finding.key or ""
    kind = key.partition(".")[0]  # rewards.format is what one reward function gave
    before = [(pair, found) for pair, found in first.before if found is not None]
    if kind not in _OWN or any(found.status is not Status.IDENTICAL for _, found in before):
        return None
    keys = [*dict.fromkeys(found.key for _, found in before if found.key is not None)]
    homes = [home for home in map(key_data_home, keys) if home is not None]
    if not any(home.phase and not home.before_phase for home in homes):
        return None
    recorded = {pair.entry.phase for pair, _ in before if pair.entry is not None}
    if any(config and {*config.phases} - recorded for config in configs(first.runs)):
        return None
    return message("explanation.own_arithmetic", key=key, keys=keys, rewards=kind in _REWARDS)
