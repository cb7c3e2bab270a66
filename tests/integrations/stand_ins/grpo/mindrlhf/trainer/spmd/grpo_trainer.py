"""The trainer."""

import mindspore as ms
from mindspore import Tensor

from mindrlhf.configs.grpo_configs import SHIPS_MSPROBE, GRPOConfig
from mindrlhf.trainer.spmd.grpo_experience_maker import GRPOExperienceMaker
from mindrlhf.worker.infer_worker import InferWorker
from mindrlhf.worker.old_policy_worker import get_old_policy_worker
from mindrlhf.worker.ref_worker import RefWorker
from mindrlhf.worker.train_worker import TrainWorker

if SHIPS_MSPROBE:
    from mindrlhf.utils.utils import MsProbe


class GRPOTrainer:
    def __init__(self, no_patch_tensor_shape, args=None):
        self.args = args
        self.grpo_config = self._init_grpo_configs(args)
        if SHIPS_MSPROBE:
            MsProbe.config_init(self.grpo_config.msprobe_config)
            MsProbe.save_configs({"actor": self.grpo_config.actor_config.__dict__, "own": 1})
        ms.set_context(mode=self.grpo_config.context.mode)
        self.infer = InferWorker(grpo_config=self.grpo_config, args=args, tokenizer=None)
        self.ref = RefWorker(grpo_config=self.grpo_config, args=args)
        self.train = TrainWorker(grpo_config=self.grpo_config, args=args)
        self.old_policy = get_old_policy_worker(grpo_config=self.grpo_config, args=args)
        self._compile()
        self.i_step = 0
        self.n_epoch = 0
        if args.resume_training:
            self.n_epoch, self.i_step = 1, 1
        self.experience_maker = GRPOExperienceMaker(
            self.train,
            self.infer,
            self.ref,
            self.old_policy,
            self.grpo_config,
            None,
            None,
            self.i_step,
        )
        self.step_num = self.experience_maker.step_num

    def _init_grpo_configs(self, args):
        return GRPOConfig(args.config)

    def _compile(self):
        """As MindRLHF does: what is compiled here can be given no probes any more."""
        if ms.get_context("mode") == ms.GRAPH_MODE:
            tokens = Tensor(shape=(4, 4), dtype=ms.int32)
            self.ref.ref_model.compile(tokens, tokens)

    def run_grpo_train(self):
        while self.n_epoch < self.grpo_config.rl_config.epochs:
            while self.i_step < self.step_num:
                self.experience_maker.make_experience(
                    num_generations=self.grpo_config.rl_config.num_generations
                )
                self.train.train()
                self._reshard_train_to_infer()
                self.i_step += 1
                if SHIPS_MSPROBE:
                    MsProbe.step()
            self.i_step = 0
            self.n_epoch += 1

    def _reshard_train_to_infer(self):
        networks = [self.infer.policy_model]
        if self.grpo_config.rl_config.enable_oldpolicy:
            networks.append(self.old_policy.old_policy_model)
        trained = self.train.grpo_model_train.grpo_model_train.policy_model
        for network in networks:
            for into, source in zip(network.get_parameters(), trained.get_parameters()):
                into.set_data(Tensor(source.asnumpy().copy()))
