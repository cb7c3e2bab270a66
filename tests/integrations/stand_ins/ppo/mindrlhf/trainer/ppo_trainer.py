"""PPOTrainer, the networks it builds and the cell that trains them."""

from dataclasses import dataclass
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

PROMPT, RESPONSE, VOCABULARY, SIZE = 3, 2, 7, 4


@dataclass
class PPOConfig:
    sft_model_path: str = ""
    is_shared_backbone: bool = False
    num_rollouts: int = 4
    chunk_size: int = 2
    ppo_epochs: int = 1


@dataclass
class PPOData:
    response_tensors: np.ndarray
    logprobs: np.ndarray
    rewards: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray


class LanguageModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, SIZE)
        self.layer = nn.Dense(SIZE, SIZE)
        self.lm_head = nn.Dense(SIZE, VOCABULARY)
        self.config = SimpleNamespace(is_sample_acceleration=False)

    def construct(self, tokens):
        return self.lm_head(self.backbone(tokens))

    def backbone(self, tokens):
        return ops.tanh(self.layer(self.embedding(tokens)))

    def generate(self, prompts, max_new_tokens):
        tokens = np.asarray(prompts)
        for _ in range(max_new_tokens):
            context = Tensor(tokens[:, -PROMPT:], ms.int32)
            chosen, *_ = self.postprocess(
                input_ids=tokens,
                is_finished=[False] * len(tokens),
                res=self(context),
                generation_config=None,
                valid_length_each_example=np.full(len(tokens), tokens.shape[1]),
                current_index=PROMPT - 1 + np.arange(context.size, step=PROMPT),
            )
            tokens = np.concatenate([tokens, np.array(chosen, tokens.dtype)[:, None]], axis=1)
        return tokens

    def postprocess(
        self,
        input_ids,
        is_finished,
        res,
        generation_config,
        valid_length_each_example,
        current_index,
        logits_processor=None,
        logits_warper=None,
        need_gather_logits=True,
    ):
        logits = res.asnumpy().reshape(-1, VOCABULARY)[current_index]
        return logits.argmax(-1).tolist(), None, None, is_finished


class CausalLMHydraWithValueHead(nn.Cell):
    def __init__(self):
        super().__init__()
        self.model = LanguageModel()
        self.v_head = nn.Dense(VOCABULARY, 1)

    def construct(self, input_ids, samples=None, return_value=False):
        logits = self.model(input_ids)
        chosen = ops.one_hot(samples, VOCABULARY, Tensor(1.0), Tensor(0.0))
        logprobs = (ops.log_softmax(logits, -1) * chosen).sum(-1)
        if return_value:
            return logprobs, self.v_head(logits).squeeze(-1)
        return logprobs


class CriticModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.model = LanguageModel()
        self.v_head0 = nn.Dense(VOCABULARY, 1).to_float(ms.float16)

    def construct(self, input_ids):
        return ops.cast(self.v_head0(self.model(input_ids)).squeeze(-1), ms.float32)


class RewardFn(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reward_model = nn.Dense(PROMPT + RESPONSE, 1)

    def construct(self, samples):
        return self.reward_model(ops.cast(samples, ms.float32)).squeeze(-1)


class PPO_model(nn.Cell):
    def __init__(self, ppo_config, policy_model, critic_model):
        super().__init__()
        self.is_shared_backbone = ppo_config.is_shared_backbone
        self.policy_model = policy_model
        if not self.is_shared_backbone:
            self.critic_model = critic_model

    def construct(self, tokens, logprobs, advantages, returns):
        old_logprobs = logprobs
        if self.is_shared_backbone:
            logprobs, values = self.policy_model(tokens, samples=tokens, return_value=True)
        else:
            logprobs = self.policy_model(tokens, samples=tokens)
            values = self.critic_model(ops.depend(tokens, logprobs))
        logprobs = logprobs[:, PROMPT:]
        vf_loss, pg_loss, approx_kl = self.get_vfloss_and_pgloss(
            logprobs=logprobs,
            values=values[:, PROMPT:],
            old_logprobs=old_logprobs,
            advantages=advantages,
            returns=returns,
        )
        return ops.depend(pg_loss + vf_loss, approx_kl)

    def get_vfloss_and_pgloss(self, logprobs, values, old_logprobs, advantages, returns):
        ratio = ops.exp(logprobs - old_logprobs)
        approx_kl = (ratio - 1 - (logprobs - old_logprobs)).mean()
        return ((values - returns) ** 2).mean(), -(ratio * advantages).mean(), approx_kl


class TrainOneStepWithLossScaleCell(nn.TrainOneStepCell):
    def construct(self, *inputs):
        loss = super().construct(*inputs)
        return loss, Tensor(0.1), Tensor(False), Tensor(1.0)


class PPOTrainer:
    def __init__(
        self,
        ppo_config=None,
        sft_model_config=None,
        ref_model_config=None,
        critic_model_config=None,
        rm_model_config=None,
    ):
        ms.set_seed(1)
        self.ppo_config = ppo_config
        self.is_shared_backbone = ppo_config.is_shared_backbone
        policy_model = CausalLMHydraWithValueHead()
        critic_model = None if self.is_shared_backbone else CriticModel()
        self.ppo_model = PPO_model(ppo_config, policy_model, critic_model)
        self.ref_model = CausalLMHydraWithValueHead()
        self.reward_fn = RewardFn()
        self.random = np.random.default_rng(1)
        self.store = []
        self.losses = []

    def generate(self, input_ids, attn_masks=None):
        prompts = input_ids.asnumpy()
        samples = self.ppo_model.policy_model.model.generate(prompts, max_new_tokens=RESPONSE)
        return Tensor(samples, ms.int32), Tensor(samples[:, PROMPT:], ms.int32), input_ids

    def make_experience(self, num_rollouts=4, iter_count=0, rank_id=0):
        elements = []
        while len(elements) < num_rollouts:
            shape = (self.ppo_config.chunk_size, PROMPT)
            prompts = Tensor(self.random.integers(0, VOCABULARY, shape), ms.int32)
            all_tokens, _, _ = self.generate(prompts)
            scores = self.reward_fn(all_tokens).asnumpy()
            if self.is_shared_backbone:
                logprobs, values = self.ppo_model.policy_model(
                    all_tokens, samples=all_tokens, return_value=True
                )
            else:
                logprobs = self.ppo_model.policy_model(all_tokens, samples=all_tokens)
                values = self.ppo_model.critic_model(all_tokens)
            ref_logprobs = self.ref_model(all_tokens, samples=all_tokens)
            kl = 0.1 * (logprobs.asnumpy() - ref_logprobs.asnumpy())
            for row in range(len(kl)):
                rewards = scores[row] - kl[row, PROMPT:]
                advantages = rewards - values.asnumpy()[row, PROMPT:]
                elements.append(
                    PPOData(
                        response_tensors=all_tokens.asnumpy()[row],
                        logprobs=logprobs.asnumpy()[row, PROMPT:],
                        rewards=rewards,
                        advantages=advantages,
                        returns=rewards,
                    )
                )
        self.push_to_store(elements)

    def push_to_store(self, data):
        self.store = data

    def train(self, ppo_with_grad, dataset):
        for _ in range(self.ppo_config.ppo_epochs):
            for batch in dataset:
                out = ppo_with_grad(*batch)
                self.losses.append(out[0].asnumpy().tobytes())
