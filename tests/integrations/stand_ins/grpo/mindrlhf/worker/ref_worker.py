"""Scores with the reference."""

from mindrlhf.models.grpo_models import CausalLMHybrid


class RefWorker:
    def __init__(self, grpo_config, args):
        self.grpo_config = grpo_config
        self.ref_model = CausalLMHybrid()

    def compute_ref_log_prob(
        self, prompt_completion_ids_tensor, attention_mask_tensor, samples, actual_sequence_length
    ):
        return self.ref_model(prompt_completion_ids_tensor, samples)
