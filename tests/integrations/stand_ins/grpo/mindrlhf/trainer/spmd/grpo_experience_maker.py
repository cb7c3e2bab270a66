"""One step's experience."""

import numpy as np
from mindspore import Tensor

from mindrlhf.configs.grpo_configs import SHIPS_MSPROBE

if SHIPS_MSPROBE:
    from mindrlhf.utils.utils import MsProbe


def share_of_solution(responses, solutions):
    return (responses == solutions[:, None]).mean(axis=1)


def number_of_sample(responses, _):
    return np.arange(len(responses))


class GRPOExperienceMaker:
    def __init__(
        self,
        train_model,
        infer_model,
        ref_model,
        old_policy_model,
        grpo_config,
        tokenizer,
        tensor_writer,
        dataset_ignore_step,
    ):
        self.train = train_model
        self.infer = infer_model
        self.ref = ref_model
        self.old_policy = old_policy_model
        self.grpo_config = grpo_config
        self.step_num = 2
        self.i_step = dataset_ignore_step
        self.verifier_function = [share_of_solution, number_of_sample]

    def generate_sequence(self, micro_bs, micro_num, prompt_tensors_full):
        self.infer.load()
        max_tokens = self.grpo_config.generate_config.sampling_config.max_tokens
        results = []
        for idx in range(micro_num):
            part = prompt_tensors_full[idx * micro_bs : (idx + 1) * micro_bs, :]
            results.append(self.infer.generate(part, max_tokens=max_tokens))
        self.infer.offload()
        return [np.concatenate(parts) for parts in zip(*results, strict=True)]

    def compute_rewards(
        self, left_padding_prompts, right_padding_responses, repeat_solution_ids, sample_size
    ):
        rewards_per_func = np.zeros((sample_size, len(self.verifier_function)), dtype=np.float32)
        for i, reward_func in enumerate(self.verifier_function):
            rewards_per_func[:, i] = reward_func(right_padding_responses, repeat_solution_ids)
        if SHIPS_MSPROBE:
            MsProbe.save_string_list("responses", [str(r) for r in right_padding_responses])
        return rewards_per_func.sum(axis=1), {}

    def compute_advantages(self, all_rewards, metrics, num_generations, eps=1e-6):
        return (all_rewards - all_rewards.mean()) / (all_rewards.std() + eps)

    def compute_ref_log_probs(self, packed_samples):
        ids = packed_samples["ids"]
        return self.ref.compute_ref_log_prob(
            Tensor(ids[:, :-1]), None, samples=Tensor(ids[:, 1:]), actual_sequence_length=None
        ).asnumpy()

    def _generate_old_logps(self, packed_samples):
        ids = packed_samples["ids"]
        _, log_prob = self.old_policy.compute_old_log_prob(
            Tensor(ids[:, :-1]), samples=Tensor(ids[:, 1:]), actual_sequence_length=None
        )
        return None, log_prob.asnumpy()

    def make_experience(self, num_rollouts: int = 1, num_generations: int = 16):
        prompts = np.repeat([[1, 2 + self.i_step % 3]], 2 * num_generations, axis=0)
        solutions = np.full(len(prompts), 3)
        responses, _, prompts, _ = self.generate_sequence(2, num_generations, prompts)
        rewards, metrics = self.compute_rewards(prompts, responses, solutions, len(prompts))
        advantages = self.compute_advantages(rewards, metrics, num_generations)
        if SHIPS_MSPROBE:
            MsProbe.save_data("advantages", advantages)
            MsProbe.save_data("of_its_own", metrics)
        ids = np.concatenate([prompts, responses], axis=1).astype(np.int32)
        mask = np.ones((len(ids), ids.shape[1] - 1), np.float32)
        samples = {"ids": ids}
        ref_log_prob = self.compute_ref_log_probs(samples)
        old_log_prob = np.zeros_like(ref_log_prob)
        if self.grpo_config.rl_config.enable_oldpolicy:
            _, old_log_prob = self._generate_old_logps(samples)
        valid = np.full(len(ids), mask.shape[1], np.int32)
        columns = (
            ids,
            mask,
            ref_log_prob,
            np.repeat(advantages[:, None], mask.shape[1], 1).astype(np.float32),
            valid,
            old_log_prob,
        )
        half = len(ids) // 2
        self.train.push_to_store([[c[:half] for c in columns], [c[half:] for c in columns]])
        self.i_step += 1
