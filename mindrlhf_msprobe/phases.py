"""The phases of a reinforcement-learning step, and where each kind of key data belongs.

A new phase is one line in `PHASES`; everything else reads this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mindrlhf_msprobe.common.frozen import dataclass


@dataclass(frozen=True)
class Phase:
    """One phase of the step.

    Attributes:
        name: the phase, and the directory its records lie in.
        role: the network that runs in it (actor, reference, critic, or a trainer's own).
        switch: the configuration key that turns it on; None for a trainer's own phase, which is
            on because it was declared.
        counts_tokens: whether each pass through the network is one generated token.
    """

    name: str
    role: str
    switch: str | None
    counts_tokens: bool = False


#: The phase in which the responses are generated.
GENERATE = "actor_generate_sequences"

#: In the order in which a step usually runs them.
PHASES: tuple[Phase, ...] = (
    Phase(GENERATE, "actor", "actor_infer_dump", counts_tokens=True),
    Phase("actor_compute_log_prob", "actor", "actor_train_dump"),
    Phase("reference_compute_log_prob", "reference", "reference_dump"),
    Phase("critic_compute_values", "critic", "critic_train_dump"),
    Phase("actor_update", "actor", "actor_train_dump"),
    Phase("critic_update", "critic", "critic_train_dump"),
)

_PHASE_ORDER = {phase.name: position for position, phase in enumerate(PHASES)}
UPDATE_PHASES = ("actor_update", "critic_update")
ROLES = tuple(dict.fromkeys(phase.role for phase in PHASES))


def phase_table(own: Mapping[str, str]) -> dict[str, Phase]:
    """Return every phase by name: the standard ones and a trainer's own (name → role)."""
    table = {phase.name: phase for phase in PHASES}
    table.update({name: Phase(name, role, None) for name, role in own.items()})
    return table


#: The phase of dumps that lie in no phase's directory (msprobe's PrecisionDebugger).
UNNAMED_PHASE = "dump"


def role_of(name: str) -> str:
    """Return the role of a standard phase; any other name, such as a role's, is its own."""
    return next((phase.role for phase in PHASES if phase.name == name), name)


def phase_order(name: str) -> int:
    """Return a phase's usual position in a step; phases that are not standard come last."""
    return _PHASE_ORDER.get(name, len(PHASES))


@dataclass(frozen=True)
class KeyDataHome:
    """Where a key's data stand in a step: before or after a phase, or before the first update.

    Attributes:
        phase: after which they stand; None for before the first update.
        after_updates: they may come from any update, so they stand after all that ran before they
            were saved.
        before_phase: they are what the phase is given, so they stand before it.
    """

    phase: str | None
    after_updates: bool = False
    before_phase: bool = False

    @property
    def before_update(self) -> bool:
        """Whether they are of no phase, and stand before the first update."""
        return self.phase is None


#: The key of what the loss of an update is given.
LOSS_INPUTS = "loss_inputs"

#: The key of the metrics that `mismatch` writes; they follow from other key data of the step.
ROLLOUT_CORR = "rollout_corr"

#: The keys of what `probe.rollout` and `probe.replace` return, and of the batch of a rollout.
ROLLOUT, REPLACED, BATCH = "probe_rollout", "probe_replace", ".batch"

#: The key of the tokens that `phase.tokens` gives.
PHASE_TOKENS = "phase_tokens"

#: What a step begins with: nothing of it has run before them.
PROMPTS = ("prompts", "prompt")
_HOMES = {
    **dict.fromkeys(PROMPTS, KeyDataHome(GENERATE, before_phase=True)),
    f"{ROLLOUT}{BATCH}": KeyDataHome(GENERATE, before_phase=True),
    **dict.fromkeys(("responses", "response", ROLLOUT), KeyDataHome(GENERATE)),
    **dict.fromkeys(
        ("rollout_prompts", "rollout_tokens", "rollout_log_prob"), KeyDataHome(GENERATE)
    ),
    **dict.fromkeys(("old_log_prob_tokens", "old_log_prob"), KeyDataHome("actor_compute_log_prob")),
    "ref_log_prob": KeyDataHome("reference_compute_log_prob"),
    "values": KeyDataHome("critic_compute_values"),
    "rewards.": KeyDataHome(None),  # what each reward function gave
    **dict.fromkeys(("rewards", "reward", "advantages", "returns", LOSS_INPUTS), KeyDataHome(None)),
    **dict.fromkeys(
        ("log_prob", "ratio", "kl", "kl_loss", "actor_loss"), KeyDataHome("actor_update")
    ),
    **dict.fromkeys(
        ("loss", "overflow", "loss_scale", "lr", "grad_norm"),
        KeyDataHome("actor_update", after_updates=True),
    ),
    **dict.fromkeys(("value_loss", "critic_loss"), KeyDataHome("critic_update")),
}
_KEY_ORDER = {key: position for position, key in enumerate(_HOMES)}

#: Keys that enter the step from outside its computation.
INPUT_KEYS = frozenset({"prompts", "prompt", "responses", "response"})
#: What a trainer calls it that a step overflowed, and so was not applied.
OVERFLOW = "overflow"
#: Keys that only say how large gradients are, and how they are scaled.
SCALE_KEYS = frozenset({"grad_norm", "loss_scale", OVERFLOW})
_MASK = re.compile("mask|bias", re.IGNORECASE)


def may_be_mask(name: str) -> bool:
    """Return whether key data of this name may be made of -inf."""
    return _MASK.search(name) is not None


def key_data_home(key: str) -> KeyDataHome | None:
    """Return where data saved under `key` belong in a step, or None for an unknown key."""
    return _HOMES.get(_kind_of(key))


def usual_place(key: str) -> float:
    """Return where in a step data saved under `key` belong, as a position among the phases."""
    home = key_data_home(key)
    if home is None:
        return float(len(PHASES))
    if home.phase is None:
        return phase_order(UPDATE_PHASES[0]) - 0.5
    return phase_order(home.phase) - (0.5 if home.before_phase else 0.0)


def key_order(key: str) -> int:
    """Return a key's position among the keys of the same place; unknown keys come last."""
    return _KEY_ORDER.get(_kind_of(key), len(_KEY_ORDER))


def _kind_of(key: str) -> str:
    """Return what stands for a key in the tables: of one by a name of its own, its beginning."""
    beginning = key[: key.find(".") + 1]
    return beginning if beginning in _HOMES else key
