"""A small but complete PPO trainer, and the example of how a trainer uses the probe.

What a trainer does for the probe, in the order of the code below: `watch` the networks once they
are built, `save_configs`, open every phase with `with probe.phase(...)`, naming the network where
it is not the one that is watched, hand over the data worth comparing with `save_data`, and end each
training step with `step`.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.demo import task
from mindrlhf_msprobe.demo.networks import build_networks
from mindrlhf_msprobe.demo.rollout import BUCKET, RolloutNetwork


@dataclass(frozen=True)
class ActorBatch:
    """What the actor learns from; int32 tokens, everything else float32.

    tokens are [batch, prompt_length + response_length], the others [batch, response_length]. mask
    is 1 for the tokens of the response, its END included, and 0 for the padding behind it.
    """

    tokens: np.ndarray
    mask: np.ndarray
    old_log_prob: np.ndarray
    ref_log_prob: np.ndarray
    advantages: np.ndarray


@dataclass(frozen=True)
class CriticBatch:
    """What the critic learns from; shapes and dtypes as in ActorBatch."""

    tokens: np.ndarray
    mask: np.ndarray
    old_values: np.ndarray
    returns: np.ndarray


class PPOTrainer:
    """Train the actor to add two digits.

    Two trainers with the same configuration and seed compute the same bits.

    Args:
        config: the trainer's YAML: rl_config, actor_config, critic_config; see
            yaml_examples/ppo_demo.yaml.
        probe: records the training, or does nothing if it is disabled.
        seed: fixes the weights, the prompts and the sampling.
    """

    def __init__(self, config: Mapping[str, Any], probe: Probe, seed: int) -> None:
        self.rl = config["rl_config"]
        self.probe = probe
        self.rng = np.random.default_rng(seed)
        self.global_step = 0

        ms.set_seed(seed)
        self.networks = build_networks(
            config["actor_config"]["model_config"],
            config["critic_config"]["model_config"],
            vocab_size=task.VOCAB_SIZE,
            seq_length=task.PROMPT_LENGTH + self.rl["response_length"],
            seed=seed,
        )
        self.rollout = RolloutNetwork(self.networks["actor"].config)
        self.synchronise()
        self.actor_optimizer = build_optimizer(self.networks["actor"], config["actor_config"])
        self.critic_optimizer = build_optimizer(self.networks["critic"], config["critic_config"])
        self.actor_loss_and_gradients = ms.value_and_grad(
            self.actor_loss, None, self.actor_optimizer.parameters, has_aux=True
        )
        self.critic_loss_and_gradients = ms.value_and_grad(
            self.critic_loss, None, self.critic_optimizer.parameters
        )

        probe.watch(**self.networks)
        probe.save_configs(
            {
                "actor": config["actor_config"],
                "critic": config["critic_config"],
                "rl": config["rl_config"],
                "seed": seed,
            }
        )

    def train(
        self, steps: int, on_step: Callable[[int, dict[str, float]], None] | None = None
    ) -> list[dict[str, float]]:
        """Run `steps` training steps and return the metrics of each.

        Args:
            steps: how many steps to run.
            on_step: called after each step with its number, from 0 on, and its metrics.
        """
        history = []
        for _ in range(steps):
            metrics = self.train_step()
            history.append(metrics)
            if on_step is not None:
                on_step(self.global_step - 1, metrics)
        return history

    def train_step(self) -> dict[str, float]:
        """Write answers, score them, update actor and critic.

        Returns:
            The mean reward, and loss, kl_loss and critic_loss, each the mean over the minibatches.
        """
        actor_batch, critic_batch, mean_reward = self.make_experience()

        losses = []
        for _ in range(self.rl["ppo_epochs"]):
            order = self.rng.permutation(len(actor_batch.tokens))
            for rows in np.array_split(order, self.rl["minibatches"]):
                loss, kl_loss = self.update_actor(actor_batch, rows)
                critic_loss = self.update_critic(critic_batch, rows)
                losses.append((loss, kl_loss, critic_loss))

        self.probe.step()
        self.global_step += 1
        self.synchronise()

        loss, kl_loss, critic_loss = np.mean(losses, axis=0).tolist()
        return {"reward": mean_reward, "loss": loss, "kl_loss": kl_loss, "critic_loss": critic_loss}

    def synchronise(self) -> None:
        """Bring the rollout network's weights up to date with the actor's."""
        self.rollout.synchronise(self.networks["actor"])

    def make_experience(self) -> tuple[ActorBatch, CriticBatch, float]:
        """Let the actor answer a batch of prompts, and score the answers with every network.

        Returns:
            What actor and critic learn from, and the mean reward.
        """
        prompts = task.sample_prompts(self.rl["batch_size"], self.rng)

        with self.probe.phase("actor_generate_sequences", model=self.rollout):
            tokens, rollout_log_prob = self.generate(prompts)
        responses = [task.decode(row) for row in tokens[:, task.PROMPT_LENGTH :].tolist()]
        mask = response_mask(tokens[:, task.PROMPT_LENGTH :])
        self.probe.save_data({"prompts": prompts, "responses": responses})
        self.probe.save_data({"rollout_log_prob": rollout_log_prob, "response_mask": mask})

        with self.probe.phase("actor_compute_log_prob"):
            old_log_prob = self.compute_log_prob(self.networks["actor"], Tensor(tokens))
        self.probe.save_data("old_log_prob", old_log_prob)

        with self.probe.phase("reference_compute_log_prob"):
            ref_log_prob = self.compute_log_prob(self.networks["reference"], Tensor(tokens))
        self.probe.save_data("ref_log_prob", ref_log_prob)

        with self.probe.phase("critic_compute_values"):
            values = self.compute_values(Tensor(tokens))
        self.probe.save_data("values", values)

        rewards = np.array(list(map(task.reward, prompts, responses)), np.float32)
        advantages, returns = generalized_advantages(
            rewards, values.asnumpy(), mask, self.rl["gamma"], self.rl["lam"]
        )
        advantages = whiten(advantages, mask)
        self.probe.save_data({"rewards": rewards, "advantages": advantages, "returns": returns})

        actor_batch = ActorBatch(
            tokens, mask, old_log_prob.asnumpy(), ref_log_prob.asnumpy(), advantages
        )
        critic_batch = CriticBatch(tokens, mask, values.asnumpy(), returns)
        return actor_batch, critic_batch, float(rewards.mean())

    def generate(self, prompts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Sample an answer to each prompt.

        The first pass of the rollout network takes the prompts, which fills its cache; each further
        one takes the last token of all answers. An answer that has ended goes on with END.

        Returns:
            Prompts and responses as tokens, int32 [batch, prompt_length + response_length], and the
            log-probabilities of the responses' tokens, float32 [batch, response_length].
        """
        prompt_tokens = np.array([task.encode(prompt) for prompt in prompts], np.int32)
        tokens, positions = left_padded(prompt_tokens)
        lengths = np.full(len(prompts), task.PROMPT_LENGTH, np.int32)
        ended = np.zeros(len(prompts), bool)
        responses, log_probs = [], []
        self.rollout.clear_cache()
        for _ in range(self.rl["response_length"]):
            logits = self.rollout(Tensor(tokens), Tensor(positions), Tensor(lengths))
            sampled, log_prob = self.sample(logits[:, -1], ended)
            ended |= sampled == task.END
            tokens, positions = sampled[:, None], positions[:, -1:] + 1
            lengths = lengths + np.where(ended, 0, 1).astype(np.int32)
            responses.append(sampled)
            log_probs.append(log_prob)
        return np.column_stack([prompt_tokens, *responses]), np.column_stack(log_probs)

    def sample(self, logits: Tensor, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the next token of each answer.

        The sampling is the Gumbel-max trick: the argmax of log-probabilities plus Gumbel noise is
        distributed as they say.

        Args:
            logits: float32 [batch, vocab_size].
            ended: which answers get END, bool [batch].

        Returns:
            The tokens, int32 [batch], and their log-probabilities, float32 [batch].
        """
        log_probs = ops.log_softmax(logits / self.rl["temperature"], -1).asnumpy()
        sampled = np.argmax(log_probs + self.rng.gumbel(size=log_probs.shape), axis=-1)
        tokens = np.where(ended, task.END, sampled).astype(np.int32)
        return tokens, log_probs[np.arange(len(tokens)), tokens]

    def compute_log_prob(self, network: nn.Cell, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of the response's tokens, float32 [batch, response_length].

        Args:
            network: actor or reference.
            tokens: prompts and responses, int32 [batch, prompt_length + response_length].
        """
        logits = network(tokens)[0][:, task.PROMPT_LENGTH - 1 : -1]
        log_probs = ops.log_softmax(logits / self.rl["temperature"], -1)
        chosen = tokens[:, task.PROMPT_LENGTH :].expand_dims(-1)
        return ops.gather_elements(log_probs, -1, chosen).squeeze(-1)

    def compute_values(self, tokens: Tensor) -> Tensor:
        """Return the critic's value before each token of the response, shaped as its log-probs."""
        return self.networks["critic"](tokens)[:, task.PROMPT_LENGTH - 1 : -1, 0]

    def update_actor(self, batch: ActorBatch, rows: np.ndarray) -> tuple[float, float]:
        """Update the actor on some rows of the batch; return its loss and the KL part of it."""
        with self.probe.phase("actor_update"):
            (loss, kl_loss, log_prob), gradients = self.actor_loss_and_gradients(
                *(Tensor(array[rows]) for array in astuple(batch))
            )
            self.actor_optimizer(gradients)
        self.probe.save_data({"log_prob": log_prob, "kl_loss": kl_loss, "loss": loss})
        return float(loss), float(kl_loss)

    def update_critic(self, batch: CriticBatch, rows: np.ndarray) -> float:
        """Update the critic on some rows of the batch; return its loss."""
        with self.probe.phase("critic_update"):
            loss, gradients = self.critic_loss_and_gradients(
                *(Tensor(array[rows]) for array in astuple(batch))
            )
            self.critic_optimizer(gradients)
        self.probe.save_data("critic_loss", loss)
        return float(loss)

    def actor_loss(
        self,
        tokens: Tensor,
        mask: Tensor,
        old_log_prob: Tensor,
        ref_log_prob: Tensor,
        advantages: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the clipped policy loss plus the KL divergence from the reference.

        The policy loss is equation 7 of Schulman et al. 2017, "Proximal Policy Optimization
        Algorithms". The divergence is estimated by k3 = r - 1 - log r, r = p_reference / p_actor,
        of Schulman 2020, "Approximating KL Divergence".

        Args: the fields of ActorBatch.

        Returns:
            loss and kl_loss, both float32 scalars, and log_prob, float32 [batch, response_length].
        """
        log_prob = self.compute_log_prob(self.networks["actor"], tokens)

        ratio = ops.exp(log_prob - old_log_prob)
        clipped = ops.clamp(ratio, 1 - self.rl["clip_range"], 1 + self.rl["clip_range"])
        policy_loss = -masked_mean(ops.minimum(ratio * advantages, clipped * advantages), mask)

        log_ratio = ref_log_prob - log_prob
        kl_loss = masked_mean(ops.exp(log_ratio) - 1 - log_ratio, mask)

        return policy_loss + self.rl["kl_coef"] * kl_loss, kl_loss, log_prob

    def critic_loss(
        self, tokens: Tensor, mask: Tensor, old_values: Tensor, returns: Tensor
    ) -> Tensor:
        """Compute half the squared error of the values, clipped around the old ones.

        The clipping is that of the reference implementation of PPO (OpenAI baselines, ppo2).

        Args: the fields of CriticBatch.

        Returns:
            The loss, a float32 scalar.
        """
        values = self.compute_values(tokens)
        value_clip_range = self.rl["value_clip_range"]
        clipped = old_values + ops.clamp(values - old_values, -value_clip_range, value_clip_range)
        errors = ops.maximum(ops.square(values - returns), ops.square(clipped - returns))
        return 0.5 * masked_mean(errors, mask)


def build_optimizer(network: nn.Cell, config: Mapping[str, Any]) -> nn.Optimizer:
    """Build AdamW for the network's trainable parameters."""
    return nn.AdamWeightDecay(
        network.trainable_params(),
        learning_rate=config["learning_rate"],
        weight_decay=config["weight_decay"],
    )


def left_padded(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pad prompts on the left to a multiple of BUCKET tokens.

    Args:
        tokens: int32 [batch, prompt_length].

    Returns:
        Tokens and their positions, from 0 on behind the padding; int32 [batch, padded length].
    """
    batch, length = tokens.shape
    padding = ((0, 0), (-length % BUCKET, 0))
    positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    return np.pad(tokens, padding, constant_values=task.END), np.pad(positions, padding)


def response_mask(responses: np.ndarray) -> np.ndarray:
    """Mark the tokens up to and including the first END.

    Args:
        responses: tokens, int32 [batch, response_length].

    Returns:
        float32 [batch, response_length], 1 for the answer and 0 for what follows it.
    """
    ends = responses == task.END
    ends_before = np.cumsum(ends, axis=1) - ends
    mask: np.ndarray = (ends_before == 0).astype(np.float32)
    return mask


def generalized_advantages(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate advantages and returns of every token.

    A_t = sum over l of (gamma lam)^l delta_(t+l) with delta_t = r_t + gamma V_(t+1) - V_t: equation
    16 of Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation". The reward is paid for the last token; returns are A_t + V_t.

    Args:
        rewards: of whole answers, float32 [batch].
        values: before each token, float32 [batch, response_length].
        mask: 1 for the tokens of the answer, float32 [batch, response_length].
        gamma: discount.
        lam: lambda, between 0 (only the next value counts) and 1 (only the rewards count).

    Returns:
        advantages and returns, both float32 [batch, response_length], 0 where mask is 0.
    """
    values = values * mask
    next_values = np.pad(values[:, 1:], ((0, 0), (0, 1)))
    next_mask = np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    token_rewards = rewards[:, None] * (mask - next_mask)
    deltas = token_rewards + gamma * next_values - values

    advantages = np.zeros_like(deltas)
    advantage = np.zeros_like(rewards)
    for position in reversed(range(deltas.shape[1])):
        advantage = deltas[:, position] + gamma * lam * advantage
        advantages[:, position] = advantage
    return advantages, advantages + values


def whiten(advantages: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Shift and scale the advantages of the answers' tokens to mean 0 and variance 1."""
    answered = advantages[mask == 1]
    whitened: np.ndarray = (advantages - answered.mean()) / (answered.std() + 1e-8) * mask
    return whitened


def masked_mean(tensor: Tensor, mask: Tensor) -> Tensor:
    """Average the elements where mask is 1."""
    return (tensor * mask).sum() / mask.sum()
