"""Starts a training as MindRLHF's examples do, and prints what came of it."""

import argparse
import hashlib
import sys

from mindspore import Tensor

no_patch_tensor_shape = Tensor.shape
from mindrlhf.trainer.spmd.grpo_trainer import GRPOTrainer


def train(config, resume_training=False):
    """Return the losses, and the trained weights, as bytes."""
    args = argparse.Namespace(config=str(config), resume_training=resume_training)
    trainer = GRPOTrainer(no_patch_tensor_shape=no_patch_tensor_shape, args=args)
    trainer.run_grpo_train()
    weights = [p.asnumpy().tobytes() for p in trainer.train.grpo_model_train.get_parameters()]
    return trainer.train.losses, weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--resume_training", action="store_true")
    arguments = parser.parse_args()
    losses, weights = train(arguments.config, arguments.resume_training)
    sys.stdout.write(hashlib.sha256(b"".join([*losses, *weights])).hexdigest() + "\n")
