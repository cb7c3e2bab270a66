"""The phases of a reinforcement-learning step, and where each kind of key data belongs.

A new phase is one line in `PHASES`; everything else reads this table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

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

#: verl's, of the network that scores the responses: it runs before the updates.
_REWARD_PHASE = "compute_rm_score"
_PHASE_ORDER: dict[str, float] = {phase.name: place for place, phase in enumerate(PHASES)}
_PHASE_ORDER[_REWARD_PHASE] = _PHASE_ORDER["actor_update"] - 0.5
UPDATE_PHASES = ("actor_update", "critic_update")
ROLES = tuple(dict.fromkeys(phase.role for phase in PHASES))


def phase_table(own: Mapping[str, str]) -> dict[str, Phase]:
    """Return every phase by name: the standard ones and a trainer's own (name → role)."""
    table = {phase.name: phase for phase in PHASES}
    table.update({name: Phase(name, role, None) for name, role in own.items()})
    return table


#: The phase of dumps that lie in no phase's directory (msprobe's PrecisionDebugger).
UNNAMED_PHASE = "dump"


#: What verl, slime and the guides of msprobe call the directories of the phases in their dumps.
_OTHER_NAMES = {
    **dict.fromkeys(("generate_sequences", "generate_sequence", "generate"), GENERATE),
    **dict.fromkeys(("old_log_prob", "compute_log_prob"), "actor_compute_log_prob"),
    **dict.fromkeys(("ref_compute_log_prob", "ref_log_prob"), "reference_compute_log_prob"),
    "compute_values": "critic_compute_values",
    **dict.fromkeys(("update_actor", "actor_train"), "actor_update"),
    **dict.fromkeys(("update_critic", "critic_train"), "critic_update"),
}


def standard_phase(name: str) -> str:
    """Return the standard phase that another trainer calls by a name; any other name is its own."""
    return _OTHER_NAMES.get(name, name)


def role_of(name: str) -> str:
    """Return the role of a standard phase; any other name, such as a role's, is its own."""
    return next((phase.role for phase in PHASES if phase.name == name), name)


def phase_order(name: str) -> float:
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
        forward: the forward pass of an update makes them, so they stand before its gradients.
    """

    phase: str | None
    after_updates: bool = False
    before_phase: bool = False
    forward: bool = False

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

#: How many updates the policy of the trainer has had, and the one that generates; and a digest of
#: the weights of the latter.
POLICY_VERSION, WORKER_VERSION = "policy_version", "worker_policy_version"
POLICY_VERSIONS = (POLICY_VERSION, WORKER_VERSION, "worker_policy_fingerprint")

#: What a step begins with: nothing of it has run before them.
PROMPTS = ("prompts", "prompt")
_HOMES = {
    **dict.fromkeys(PROMPTS, KeyDataHome(GENERATE, before_phase=True)),
    f"{ROLLOUT}{BATCH}": KeyDataHome(GENERATE, before_phase=True),
    **dict.fromkeys(POLICY_VERSIONS, KeyDataHome(GENERATE, before_phase=True)),
    **dict.fromkeys(("responses", ROLLOUT), KeyDataHome(GENERATE)),
    **dict.fromkeys(
        ("rollout_prompts", "rollout_tokens", "rollout_log_prob"), KeyDataHome(GENERATE)
    ),
    **dict.fromkeys(("old_log_prob_tokens", "old_log_prob"), KeyDataHome("actor_compute_log_prob")),
    "ref_log_prob": KeyDataHome("reference_compute_log_prob"),
    "values": KeyDataHome("critic_compute_values"),
    "rewards.": KeyDataHome(None),  # what each reward function gave
    **dict.fromkeys(("rewards", "reward", "advantages", "returns", LOSS_INPUTS), KeyDataHome(None)),
    **dict.fromkeys(
        ("log_prob", "entropy", "ratio", "kl", "kl_loss", "actor_loss"),
        KeyDataHome("actor_update", forward=True),
    ),
    **dict.fromkeys(
        ("local_loss", "device_loss", "loss"),
        KeyDataHome("actor_update", after_updates=True, forward=True),
    ),
    **dict.fromkeys(
        ("local_norm", "device_norm", "overflow", "loss_scale", "lr", "grad_norm"),
        KeyDataHome("actor_update", after_updates=True),
    ),
    **dict.fromkeys(("value_loss", "critic_loss"), KeyDataHome("critic_update", forward=True)),
}
_KEY_ORDER = {key: position for position, key in enumerate(_HOMES)}

#: What trainers call the same thing: as key data, and as an argument of their loss.
LOG_PROB = ("log_prob", "log_probs", "per_token_logps")
OLD_LOG_PROB = ("old_log_prob", "old_log_probs", "old_per_token_logps", "old_logps")
#: Those of the network that generated: of MindRLHF's vLLM, of verl and slime, TRL, ms-swift.
ROLLOUT_LOG_PROB = (
    *("rollout_log_prob", "rollout_log_probs", "sampling_per_token_logps"),
    *("rollout_per_token_logps", "rollout_logprobs", "rollout_logps"),
)
REF_LOG_PROB = ("ref_log_prob", "ref_log_probs", "ref_per_token_logps", "ref_logps")
MASK = (
    *("response_mask", "responses_mask", "completion_mask", "loss_mask", "action_mask"),
    *("responses_loss_mask", "mask"),
)
RESPONSES = ("responses", "response", "completions")
ATTENTION_MASK = ("attention_mask",)
#: How many tokens each response has.
LENGTHS = ("response_lengths", "response_length", "completion_lengths", "completion_length")
#: The tokens that the rollout's log-probabilities are of, in their shape, and their
#: prompts, a row each; −1 behind the end.
ROLLOUT_TOKENS, ROLLOUT_PROMPTS = ("rollout_tokens",), ("rollout_prompts",)
#: The tokens that the training network's are of, a sample a row, padded before or behind: in the
#: shape of old_log_prob, or one more column, then it is of the next token.
OLD_TOKENS = ("old_log_prob_tokens",)

_STANDARD_KEYS = {
    name: names[0]
    for names in (PROMPTS, RESPONSES, LOG_PROB, OLD_LOG_PROB, ROLLOUT_LOG_PROB, REF_LOG_PROB)
    for name in names
}

#: All names of key data that rules, trends, mismatch and the order of a step give a meaning to.
KEY_NAMES = frozenset(
    (
        *(key for key in _HOMES if not key.startswith("probe_") and not key.endswith(".")),
        *(*LOG_PROB, *OLD_LOG_PROB, *ROLLOUT_LOG_PROB, *REF_LOG_PROB, *MASK, *RESPONSES),
        *(*ATTENTION_MASK, *LENGTHS, *ROLLOUT_TOKENS, *ROLLOUT_PROMPTS, *OLD_TOKENS),
        *("entropy", "scores", "pad_token_id", "eos_token_id"),
    )
)


#: Keys that enter the step from outside its computation.
INPUT_KEYS = frozenset((*PROMPTS, *RESPONSES))
#: What a trainer calls it that a step overflowed, and so was not applied.
OVERFLOW = "overflow"
#: Keys of an update that trainers also make of the experience, before any update.
OR_EARLIER = ("kl", "ratio", "entropy")
#: Keys that are set for an update, not computed in it.
SET_KEYS = frozenset({"lr"})
#: Keys that only say how large gradients are, and how they are scaled.
SCALE_KEYS = frozenset({"grad_norm", "loss_scale", OVERFLOW})
_NEAR, _LEAST_LETTERS = 0.9, 5  # likeness, 0 to 1, and letters of a name with a wrong letter
_LETTERS = 8  # of a name with one letter for another: lm_loss is not meant to be kl_loss
_MASK = re.compile("mask|bias", re.IGNORECASE)


def may_be_mask(name: str) -> bool:
    """Return whether key data of this name may be made of -inf."""
    return _MASK.search(name) is not None


def key_data_home(key: str) -> KeyDataHome | None:
    """Return where data saved under `key` belong in a step, or None for an unknown key."""
    return _HOMES.get(_kind_of(key))


def names_of(phases: Iterable[Phase]) -> str:
    """Return what phases that are open together are called in messages."""
    return " and ".join(phase.name for phase in phases)


def nearest_key(name: str) -> str | None:
    """Return the known name that a name of key data was probably meant to be; None: it is none.

    `Rewards` is meant to be `rewards`, `old_logprob` to be `old_log_prob`. Names with a dot or a
    number behind them are a trainer's own.
    """
    import difflib  # slow to import, and only unknown names need it

    if name in KEY_NAMES or "." in name or name[-1:].isdigit():
        return None
    known = defaultdict(list)
    for key in sorted(KEY_NAMES):
        known[_plain(key)].append(key)
    plain = _plain(name)
    if plain not in known:
        wanted = [word for word in (plain, _letters(name)) if len(word) >= _LEAST_LETTERS]
        near = [n for w in wanted for n in difflib.get_close_matches(w, known, n=1, cutoff=_NEAR)]
        if not near and len(plain) >= _LETTERS:
            as_long = [key for key in known if len(key) == len(plain)]
            near = difflib.get_close_matches(plain, as_long, n=1, cutoff=1 - 1 / len(plain))
        plain = near[0] if near else ""
    return next(iter(difflib.get_close_matches(name.lower(), known[plain], n=1, cutoff=0)), None)


def _plain(name: str) -> str:
    """Return a name without case, separators and plural."""
    singular = re.sub("(?<=ss)es$|(?<!s)s$", "", _letters(name))
    return re.sub("logp$", "logprob", singular)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


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


def standard_key(name: str) -> str:
    """Return the name that this package uses for a key; any other name is its own."""
    return _STANDARD_KEYS.get(name, name)


def _kind_of(key: str) -> str:
    """Return what stands for a key in the tables: of one by a name of its own, its beginning."""
    beginning = key[: key.find(".") + 1]
    return beginning if beginning in _HOMES else standard_key(key)
