"""Updates the policy."""

import mindspore as ms
from mindspore import nn

from mindrlhf.configs.grpo_configs import SHIPS_MSPROBE
from mindrlhf.models.grpo_models import (
    CausalLMHybrid,
    GRPOModelTrain,
    TrainOneStepWithLossScaleGRPO,
)


class TrainWorker:
    def __init__(self, grpo_config, args):
        self.grpo_config = grpo_config
        self.grpo_model_train = GRPOModelTrain(grpo_config, CausalLMHybrid())
        self.grpo_model_train.set_train(True)
        optimizer = nn.Adam(
            self.grpo_model_train.trainable_params(), grpo_config.actor_config.learning_rate
        )
        self.grpo_with_grad = TrainOneStepWithLossScaleGRPO(self.grpo_model_train, optimizer)
        if SHIPS_MSPROBE:  # one a pack level
            self.grpo_with_grad = [
                TrainOneStepWithLossScaleGRPO(self.grpo_model_train, optimizer),
                self.grpo_with_grad,
            ]
        self.store = []
        self.losses = []

    def push_to_store(self, data):
        self.store = data

    def train(self):
        for level, inputs in enumerate(self.store):
            cell = self.grpo_with_grad[level] if SHIPS_MSPROBE else self.grpo_with_grad
            out = cell(*map(ms.Tensor, inputs))
            if self.grpo_config.rl_config.enable_full_monitor:
                self.kl = float(self.grpo_model_train.grpo_model_train.get_klloss())
            self.losses.append(out[0].asnumpy().tobytes())
