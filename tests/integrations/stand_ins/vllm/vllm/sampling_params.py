class SamplingParams:
    __struct_fields__ = (
        "n",
        "temperature",
        "top_k",
        "seed",
        "max_tokens",
        "stop_token_ids",
        "logprobs",
    )

    def __init__(
        self,
        n=1,
        temperature=1.0,
        top_k=-1,
        seed=None,
        max_tokens=16,
        stop_token_ids=None,
        logprobs=None,
    ):
        self.n, self.temperature, self.top_k, self.seed = n, temperature, top_k, seed
        self.max_tokens, self.stop_token_ids = max_tokens, stop_token_ids
        self.logprobs = logprobs
