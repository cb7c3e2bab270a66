from dataclasses import dataclass


@dataclass
class Logprob:
    logprob: float


@dataclass
class CompletionOutput:
    index: int
    token_ids: list
    logprobs: list


class RequestOutput:
    def __init__(self, request_id, prompt_token_ids, outputs):
        self.request_id, self.prompt_token_ids = request_id, prompt_token_ids
        self.outputs = outputs
