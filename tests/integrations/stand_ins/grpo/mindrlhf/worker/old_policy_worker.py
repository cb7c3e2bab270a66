"""Scores with the policy that generated."""

import mindspore as ms

from mindrlhf.models.grpo_models import CausalLMHybrid


class OldPolicyWorker:
    def __init__(self, grpo_config, args):
        self.grpo_config = grpo_config
        self.old_policy_model = CausalLMHybrid()

    def compute_old_log_prob(self, prompt_completion_ids_tensor, samples, actual_sequence_length):
        entropy = ms.Tensor([0.0])
        return entropy, self.old_policy_model(prompt_completion_ids_tensor, samples)


class DummyOldPolicyWorker:
    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def get_old_policy_worker(*args, **kwargs):
    enabled = kwargs["grpo_config"].rl_config.enable_oldpolicy
    return (OldPolicyWorker if enabled else DummyOldPolicyWorker)(*args, **kwargs)
