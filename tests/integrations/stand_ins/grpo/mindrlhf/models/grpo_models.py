"""A policy, and the loss around it."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf.configs.grpo_configs import SHIPS_MSPROBE

ENABLE_MSPROBE = SHIPS_MSPROBE
save = None
if SHIPS_MSPROBE:
    del save  # without msprobe the name does not exist, and no graph compiles
    try:
        from msprobe.mindspore import save
    except ImportError:
        ENABLE_MSPROBE = False

VOCABULARY, WIDTH = 7, 4


def _weights(rows, columns, seed):
    return Tensor(np.random.RandomState(seed).randn(rows, columns).astype(np.float32))


class Dense(nn.Cell):
    def __init__(self, rows, columns, seed):
        super().__init__()
        self.weight = Parameter(_weights(rows, columns, seed), name="weight")

    def construct(self, x):
        return ops.matmul(x, self.weight)


class Backbone(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = Dense(VOCABULARY, WIDTH, 1)
        self.layers = nn.CellList([Dense(WIDTH, WIDTH, 2), Dense(WIDTH, WIDTH, 3)])

    def construct(self, tokens):
        states = self.tok_embeddings(
            ops.one_hot(tokens, VOCABULARY, ms.Tensor(1.0), ms.Tensor(0.0))
        )
        for layer in self.layers:
            states = ops.tanh(layer(states))
        return states


class LanguageModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.model = Backbone()
        self.lm_head = Dense(WIDTH, VOCABULARY, 4)
        self.config = SimpleNamespace(is_sample_acceleration=False)

    def construct(self, tokens):
        return self.lm_head(self.model(tokens))

    def generate(self, prompts, max_new_tokens):
        """Append the likeliest token, one pass through the network each, as MindFormers does."""
        tokens = np.asarray(prompts)
        for _ in range(max_new_tokens):
            lengths = np.full(len(tokens), tokens.shape[1])
            chosen, *_ = self.postprocess(
                input_ids=tokens,
                is_finished=[False] * len(tokens),
                res=self(Tensor(tokens, ms.int32)),
                generation_config=None,
                valid_length_each_example=lengths,
                current_index=lengths - 1 + np.arange(tokens.size, step=tokens.shape[1]),
            )
            tokens = np.concatenate([tokens, np.array(chosen)[:, None]], axis=1)
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


class CausalLMHybrid(nn.Cell):
    def __init__(self):
        super().__init__()
        self.model = LanguageModel()
        self.backbone = self.model.model
        self.lm_head = self.model.lm_head

    def construct(self, tokens, samples=None):
        log_prob = ops.log_softmax(self.lm_head(self.backbone(tokens)), axis=-1)
        return ops.gather_elements(log_prob, 2, samples.expand_dims(-1)).squeeze(-1)


class GRPOModel(nn.Cell):
    def __init__(self, grpo_config, policy_model):
        super().__init__()
        self.grpo_config = grpo_config
        self.beta = grpo_config.rl_config.beta
        self.enable_full_monitor = grpo_config.rl_config.enable_full_monitor
        self.policy_model = policy_model
        self.kl_loss = Parameter(Tensor(0.0), name="kl_loss", requires_grad=False)

    def masked_mean(self, data, mask, sample_index, pack_sample_num, sample_valid_length, dim=None):
        return (data * mask).sum(axis=dim) / sample_valid_length

    def compute_approx_kl(self, log_probs, log_probs_base):
        log_ratio = log_probs_base - log_probs
        return ops.exp(log_ratio) - 1 - log_ratio

    def get_klloss(self):
        return self.kl_loss.value()

    def construct(self, ids, mask, ref_log_prob, advantages, valid_length, old_log_prob):
        per_token_logps = self.policy_model(ids[:, :-1], ids[:, 1:])
        per_token_logps = per_token_logps * mask
        log_ratio = self.compute_approx_kl(per_token_logps, ref_log_prob)
        kl_mean = self.masked_mean(log_ratio, mask, None, 1, valid_length, dim=-1)
        kl_loss = kl_mean.sum() / (valid_length != 1).astype(ms.float32).sum()
        if self.enable_full_monitor:
            ops.assign(self.kl_loss, kl_loss)
        ratio = ops.exp(per_token_logps - old_log_prob)
        loss = -ratio * advantages
        actor_loss = self.masked_mean(loss, mask, None, 1, valid_length, dim=-1).mean()
        loss = actor_loss + self.beta * kl_loss
        if ENABLE_MSPROBE and self.grpo_config.msprobe_config.key_data_dump:
            save(self.grpo_config.msprobe_config.dump_path, "log_prob", per_token_logps)
            save(self.grpo_config.msprobe_config.dump_path, "kl_loss", kl_loss)
            save(self.grpo_config.msprobe_config.dump_path, "loss", loss)
        return loss


class GRPOModelInfer(nn.Cell):
    def __init__(self, grpo_config, policy_model):
        super().__init__()
        self.grpo_model = GRPOModel(grpo_config, policy_model)


class GRPOModelTrain(nn.Cell):
    def __init__(self, grpo_config, policy_model):
        super().__init__()
        self.grpo_model_train = GRPOModel(grpo_config, policy_model)

    def construct(self, *inputs):
        return self.grpo_model_train(*inputs)


class TrainOneStepWithLossScaleGRPO(nn.Cell):
    def __init__(self, network, optimizer):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        loss = ops.depend(loss, self.optimizer(grads))
        return loss, False, 1.0, 0.1, None
