"""What of an update is not of its network: its loss, how a number is made of its tokens, its lr."""

from __future__ import annotations

import math
from typing import Any

from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    event,
    key,
    of_saves,
    status,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status
from mindrlhf_msprobe.phases import (
    LOG_PROB,
    LOSS_INPUTS,
    MASK,
    OLD_LOG_PROB,
    REF_LOG_PROB,
    SET_KEYS,
)

#: What a loss makes of what it is given and of the policy's log-probabilities alone.
_OF_LOSS = ("ratio", "kl", "kl_loss", "actor_loss")
_MADE_BEFORE = (*LOG_PROB, "entropy", "ratio", "kl", "kl_loss", "actor_loss")
#: Numbers that are made of the tokens' log-probabilities; of a critic's, others.
_NUMBERS = ("kl_loss", "actor_loss", "loss")
#: What a loss is the sum of, each with a coefficient.
_PARTS = ("actor_loss", "kl_loss", "entropy")
#: What a loss may be given, in the words of messages; what it is set to stands in none of them.
_NAMED = {"masks": MASK, "advantages": ("advantages",)}
_GIVEN = (LOSS_INPUTS, *_NAMED["advantages"], *MASK, *OLD_LOG_PROB, *REF_LOG_PROB)
_OF_CRITIC = ("value_loss", "critic_loss")


_OTHER = status(Status.DIFFERENT, Status.NON_FINITE, Status.SHAPE_MISMATCH)


@rule(_OTHER, event(DATA), key(SET_KEYS))
def schedule(first: FirstDifference) -> Culprit | None:
    """Return that a key was set for the update; the details: `phase`."""
    phase = first.event.phase
    return None if phase is None else Culprit(CulpritCode.SCHEDULE, {"phase": phase})


@rule(_OTHER, event(DATA), key(_NUMBERS))
def aggregation(first: FirstDifference) -> Culprit | None:
    """Return that another number was made of tokens that agree bit for bit.

    They agree in its micro-step. The details: `key`, `agree` (the keys of these), `inputs` (whether
    what the loss is given was recorded, and agrees), what else it may be given: `given` (the keys
    that agree bit for bit), `unlike` (those that do not) and `missing` (what was not saved), what
    `means_of` tells, and `parts`: the numbers that a loss is the sum of, where these agree.
    """
    phase, number, statuses = first.event.phase, first.finding.key, _statuses(first)
    agree = [one for one in _MADE_BEFORE if statuses.get(one) and _identical(statuses[one])]
    if phase is None or not {*LOG_PROB} & {*agree}:
        return None
    if any(math.prod(record.leaf.shape or ()) != 1 for record in first.both):
        return None
    # A loss may have the critic's in it: that must agree where there is a critic.
    critics = [found for name in _OF_CRITIC for found in statuses.get(name, [])]
    has_critic = number == "loss" and any("values" in run.keys for run in first.runs)
    if not _identical(critics) or (has_critic and not critics):
        return None
    inputs = statuses.get(LOSS_INPUTS, [])
    known: dict[str, Any] = {"phase": phase, "key": number, "agree": agree}
    known["inputs"] = bool(inputs) and _identical(inputs)
    # What is known of that which a loss may be given beside the policy's values.
    whole = _statuses(first, all_micro_steps=True)
    saved = [name for name in _GIVEN if whole.get(name)]
    known["given"] = [name for name in saved if _identical(whole[name])]
    known["unlike"] = [name for name in saved if name not in known["given"]]
    unsaved = {} if LOSS_INPUTS in saved else _NAMED
    known["missing"] = [name for name, keys in unsaved.items() if not {*keys} & {*saved}]
    if number == "loss" and "actor_loss" in agree:
        known["parts"] = [part for part in _PARTS if part in agree]
        if known["parts"] == [*_PARTS[:2]]:
            known |= _coefficients(first)
        return Culprit(CulpritCode.AGGREGATION, known)
    # It reads the tokens, for which much is loaded.
    from mindrlhf_msprobe.comparison.verdict.means import means_of

    return Culprit(CulpritCode.AGGREGATION, known | means_of(first))


@rule(_OTHER, event(DATA), key(_OF_LOSS))
def loss(first: FirstDifference) -> Culprit | None:
    """Return that the loss made another key of what it was given and of log_prob.

    Both agree bit for bit; the details: `phase`, and `agree`, how many records these are.
    """
    phase, statuses = first.event.phase, _statuses(first)
    inputs = statuses.get(LOSS_INPUTS, [])
    log_probs = [found for name in LOG_PROB for found in statuses.get(name, [])]
    made_of = [*inputs, *log_probs]
    if phase is None or not (inputs and log_probs and _identical(made_of)):
        return None
    return Culprit(CulpritCode.LOSS, {"phase": phase, "agree": len(made_of)})


def _coefficients(first: FirstDifference) -> dict[str, Any]:
    """Return run → with what it multiplies kl_loss, as its loss says where actor_loss is added."""
    from mindrlhf_msprobe.comparison.verdict.means import number_of

    saves = of_saves(first.pairs, micro_step=first.event.micro_step)
    pairs = {pair.event.name: pair for pair, _ in saves}
    found = {}
    for side in "ab":
        records = [getattr(pairs[name], side) for name in (*_PARTS[:2], "loss")]
        actor, kl, loss = map(number_of, records)
        if not (actor is not None and kl and loss is not None and math.isfinite(loss / kl)):
            return {}
        found[side.upper()] = (loss - actor) / kl
    return {"coefficients": found}


def _identical(statuses: list[Status]) -> bool:
    return all(found is Status.IDENTICAL for found in statuses)


def _statuses(first: FirstDifference, *, all_micro_steps: bool = False) -> dict[str, list[Status]]:
    """Return what was found of each key in the micro-step of the first difference."""
    found: dict[str, list[Status]] = {}
    micro_step = None if all_micro_steps else first.event.micro_step
    for pair, finding in of_saves(first.pairs, micro_step=micro_step):
        if finding is not None:
            found.setdefault(pair.event.name, []).append(finding.status)
    return found
