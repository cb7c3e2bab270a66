"""Why something of a trainer could not be had."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import reasons
from mindrlhf_msprobe.report.messages.lists import Joined


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
    "no_variables": Joined("{of} has no variable {names}", " or "),
    "decorated": "{of} is wrapped by a decorator",
    "closure": "{of} uses variables of a function around it, or super()",
    "no_source": "the source of {of} cannot be read: {error}",
    "no_plain_function": "{of} is no plain function",
    "mangled_names": "{of} uses names with two leading underscores, of its class alone",
    "is_none": "{path} is None",
    "no_cell_of": "{inner} is no cell of {network}",
    "other_process": "the model runs in another process, {count} worker(s)",
    # What is missing in a version, and what that means.
    "grpo": "MindRLHF's GRPO trainer",
    "ppo": "MindRLHF's PPO trainer",
    "means": "{what} is missing: {otherwise}",
    "no_recording": "nothing is recorded",
    "no_layers": "the layers of {phase} are not recorded",
    "no_layers_no_step": (
        "the layers of {phase} are not recorded, and a step ends where the next begins"
    ),
    "no_keys": Joined("{keys} are not recorded", " and "),
    "no_generation": "the layers of {phase}, prompts and responses are not recorded",
    "no_experience": "the layers and key data of the experience are not recorded",
    "no_update": "the update is not recorded",
    "nothing_returned": "what the train cell returns is not recorded",
    "no_configurations": (
        "configurations are not recorded, and the steps of a resumed training count from 0"
    ),
    "one_step": "without TrainWorker.train too, all steps are recorded as one",
    "dump_path_late": (
        "a dump_path that cannot be used is noticed only when a network has been built"
    ),
    "no_vllm_generate": "what vLLM draws with and {key} are not recorded",
    "no_log_prob": "{key} is not recorded",
    "no_postprocess": (
        "MindFormers chooses tokens elsewhere than in `postprocess` here, as in beam search"
    ),
    "other_tokens": "the tokens of `postprocess` are not those that `generate` returned",
    "sample_acceleration": (
        "with is_sample_acceleration the network returns the likeliest tokens alone"
    ),
}
