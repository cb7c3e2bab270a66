import numpy as np
from mindspore import Tensor, ops


class GPUModelRunner:
    def __init__(self, model_config):
        self.model_config = model_config
        self.model = None

    def load_model(self):
        from vllm_mindspore.model_executor.models.mf_models.qwen2 import Qwen2ForCausalLM

        self.model = Qwen2ForCausalLM()

    def get_model(self):
        return self.model

    def execute_model(self, requests):
        """Return the log-probabilities of the next token of each request, as numpy."""
        tokens = Tensor(np.concatenate(requests).astype(np.int32))
        last = Tensor(np.cumsum([len(r) for r in requests]).astype(np.int32) - 1)
        logits = self.model.compute_logits(self.model.forward(tokens), last)
        return ops.log_softmax(logits, axis=-1).asnumpy()
