"""Generates responses."""

import numpy as np

from mindrlhf.configs.grpo_configs import VllmMode
from mindrlhf.models.grpo_models import CausalLMHybrid, GRPOModelInfer


class InferWorker:
    def __init__(self, grpo_config, args, **kwargs):
        self.grpo_config = grpo_config
        self.use_vllm = VllmMode(grpo_config.generate_config.use_vllm)
        self.policy_model = CausalLMHybrid()
        self.grpo_model_infer = GRPOModelInfer(grpo_config, self.policy_model)
        self.grpo_model_infer.set_train(False)
        self.on_device = True

    def load(self):
        self.on_device = True

    def offload(self):
        self.on_device = False

    def generate(self, input_ids_numpy, max_tokens=0):
        assert self.on_device
        model = self.grpo_model_infer.grpo_model.policy_model.model
        tokens = model.generate(input_ids_numpy, max_tokens)
        responses = tokens[:, input_ids_numpy.shape[1] :].astype(np.int32)
        prompts = input_ids_numpy.astype(np.int32)
        return responses, np.ones_like(responses), prompts, np.ones_like(prompts)
