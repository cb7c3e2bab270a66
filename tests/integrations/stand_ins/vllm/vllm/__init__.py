from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
