"""Why something of a trainer could not be had."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import reasons


def _no_vllm_network(worker: object, looked: object) -> str:
    return (
        f"the network with which vLLM generates was not found. Looked for in {worker}: "
        f"{reasons(looked)}. Prompts and responses are recorded"
    )


TEXTS: dict[str, Text] = {
    # MindRLHF.
    "rewards_by_functions": (
        "MindRLHF's GRPO computes rewards by functions, no network runs; key data hold what each "
        "of them gave, as rewards.<function>"
    ),
    "no_old_policy": "rl_config.enable_oldpolicy is False, so no old policy runs",
    "no_reference": "rl_config.beta is 0, so no reference runs",
    "not_returned": "{of} returns no {key}",
    "shared_backbone": (
        "is_shared_backbone: there is no critic; values come from a head of the actor, whose "
        "layers are in actor_compute_log_prob and actor_update"
    ),
    "no_logprobs": (
        "vLLM returns log-probabilities where its SamplingParams ask for them, and MindRLHF's do "
        "not: with logprobs=1 in InferWorker.__init_use_vllm they are recorded, and the tokens "
        "stay the same"
    ),
    "no_vllm_network": _no_vllm_network,
    "not_called": "{what}, which was not called",
    "raised": "{what} ({error})",
    "holds_no_cell": "{what}, which is {kind} and holds no cell",
    # Names of a trainer, and its source.
    "no_network": "{where}: {error}",
    "missing": "{what} is missing in the installed version",
    "no_method": "{of} has no method {method}",
    "no_variable": "{of} has no variable {name}",
    "decorated": "{of} is wrapped by a decorator",
    "closure": "{of} uses variables of a function around it, or super()",
    "no_source": "the source of {of} cannot be read: {error}",
    "no_plain_function": "{of} is no plain function",
    "mangled_names": "{of} uses names with two leading underscores, of its class alone",
}
