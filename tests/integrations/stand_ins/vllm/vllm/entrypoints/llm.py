from types import SimpleNamespace

from vllm.v1.engine.llm_engine import LLMEngine


class LLM:
    def __init__(self, model, seed=0, **_):
        self.llm_engine = LLMEngine(SimpleNamespace(model=model, seed=seed))

    def generate(self, prompts=None, sampling_params=None, prompt_token_ids=None, use_tqdm=True):
        return self.llm_engine.run(prompt_token_ids, sampling_params)

    def apply_model(self, func):
        return self.llm_engine.model_executor.apply_model(func)
