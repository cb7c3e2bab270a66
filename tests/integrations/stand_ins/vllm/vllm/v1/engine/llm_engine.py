import numpy as np

from vllm.executor.uniproc_executor import ExecutorWithExternalLauncher
from vllm.outputs import CompletionOutput, Logprob, RequestOutput


class LLMEngine:
    def __init__(self, model_config):
        self.model_config = model_config
        self.model_executor = ExecutorWithExternalLauncher(model_config)
        self.model_executor.collective_rpc("determine_available_memory")
        self.generator = np.random.RandomState(model_config.seed)

    def run(self, prompts, params):
        """Answer each prompt; the first pass takes the prompts, the others a token of each."""
        runner = self.model_executor.driver_worker.worker.model_runner
        asked = params.logprobs is not None
        answers = [CompletionOutput(0, [], [] if asked else None) for _ in prompts]
        fed = prompts
        unfinished = list(range(len(prompts)))
        for _ in range(params.max_tokens):
            log_probs = runner.execute_model(fed)
            for place, log_prob in zip(list(unfinished), log_probs):
                answer = answers[place]
                chances = np.exp(log_prob.astype(np.float64) / params.temperature)
                token = int(self.generator.choice(len(chances), p=chances / chances.sum()))
                answer.token_ids.append(token)
                if asked:
                    likeliest = {int(log_prob.argmax()): Logprob(float(log_prob.max()))}
                    answer.logprobs.append({**likeliest, token: Logprob(float(log_prob[token]))})
                if token in (params.stop_token_ids or ()):
                    unfinished.remove(place)
            if not unfinished:
                break
            fed = [answers[place].token_ids[-1:] for place in unfinished]
        return [RequestOutput(str(i), p, [a]) for i, (p, a) in enumerate(zip(prompts, answers))]
