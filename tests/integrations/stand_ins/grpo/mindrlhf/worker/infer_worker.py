"""Generates responses."""

from importlib.util import find_spec

import numpy as np
from mindspore.common.api import _pynative_executor

from mindrlhf.configs.grpo_configs import VllmMode
from mindrlhf.models.grpo_models import CausalLMHybrid, GRPOModelInfer


class InferWorker:
    def __init__(self, grpo_config, args, **kwargs):
        self.grpo_config = grpo_config
        self.use_vllm = VllmMode(grpo_config.generate_config.use_vllm)
        if self.use_vllm != VllmMode.ORIGIN and find_spec("vllm") is not None:
            self.policy_model = self.__init_use_vllm()
        else:
            self.policy_model = CausalLMHybrid()
        self.grpo_model_infer = GRPOModelInfer(grpo_config, self.policy_model)
        self.grpo_model_infer.set_train(False)
        self.on_device = True

    def __init_use_vllm(self):
        from vllm import LLM, SamplingParams

        sampling = self.grpo_config.generate_config.sampling_config
        self.inference_engine = LLM(model="", seed=0)
        self.sampling_params = SamplingParams(
            temperature=sampling.temperature, max_tokens=sampling.max_tokens, stop_token_ids=[5]
        )
        executor = self.inference_engine.llm_engine.model_executor
        return executor.driver_worker.worker.model_runner.model.network

    def _vllm_generate(self, prompts):
        _pynative_executor.set_async_for_graph(True)
        outputs = self.inference_engine.generate(
            prompts=None,
            sampling_params=self.sampling_params,
            prompt_token_ids=prompts.tolist(),
            use_tqdm=False,
        )
        _pynative_executor.set_async_for_graph(False)
        return outputs

    def load(self):
        self.on_device = True

    def offload(self):
        self.on_device = False

    def generate(self, input_ids_numpy, max_tokens=0):
        assert self.on_device
        if hasattr(self, "inference_engine") and self.use_vllm == VllmMode.VLLM:
            responses = np.zeros((len(input_ids_numpy), max_tokens), np.int32)
            for row, output in zip(responses, self._vllm_generate(input_ids_numpy)):
                row[: len(output.outputs[0].token_ids)] = output.outputs[0].token_ids
        else:
            model = self.grpo_model_infer.grpo_model.policy_model.model
            tokens = model.generate(input_ids_numpy, max_tokens)
            responses = tokens[:, input_ids_numpy.shape[1] :].astype(np.int32)
        prompts = input_ids_numpy.astype(np.int32)
        return responses, np.ones_like(responses), prompts, np.ones_like(prompts)
