"""Train a small Llama by MindFormers' Trainer, with and without the callback: a program."""

import sys

import mindspore as ms
import numpy as np
from mindformers import LlamaConfig, LlamaForCausalLM, MindFormerConfig, Trainer
from mindformers.wrapper import MFTrainOneStepCell
from mindspore.dataset import NumpySlicesDataset

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.integrations.mindformers import ProbeCallback


def no_check(self, before, inputs):
    """Stand in for the check for overflow, which has kernels on Ascend only."""
    return ms.Tensor(0), inputs


def no_overflow(self, status, outputs):
    return ms.Tensor(False)


MFTrainOneStepCell.start_overflow_check = no_check
MFTrainOneStepCell.get_overflow_status = no_overflow

float32 = {f"{of}_type": "float32" for of in ("layernorm_compute", "softmax_compute", "param_init")}
model = {
    "batch_size": 2,
    "seq_length": 8,
    "vocab_size": 17,
    "use_past": False,
    **float32,
    "compute_dtype": "float32",
    "rotary_dtype": "float32",
    "use_flash_attention": False,
    "fused_rms_norm": False,
    "use_rope_slice": True,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "multiple_of": 8,
}
config = {
    "seed": 1,
    "output_dir": "out",
    "run_mode": "train",
    "load_checkpoint": "",
    "use_parallel": False,
    "micro_batch_interleave_num": 1,
    "moe_config": {},
    "parallel": {"parallel_mode": 0, "full_batch": False},
    "recompute_config": {},
    "parallel_config": {"data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1},
    "context": {"mode": int(sys.argv[2]), "device_target": "CPU"},
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama2_7b"},
    "runner_config": {"epochs": 1, "batch_size": 2, "sink_mode": False},
    "runner_wrapper": {"type": "MFTrainOneStepCell", "scale_sense": 1.0},
    "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1e-8},
    "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 1e-2, "warmup_steps": 0},
    "callbacks": [{"type": "MFLossMonitor"}],
    "train_dataset": {"data_loader": {"type": "GeneratorDataset"}, "batch_size": 2},
    "train_dataset_task": {"type": "CausalLanguageModelDataset"},
    "model": {
        "model_config": {"type": "LlamaConfig", **model},
        "arch": {"type": "LlamaForCausalLM"},
    },
}


def train(*callbacks):
    ms.set_context(mode=int(sys.argv[2]), device_target="CPU")
    ms.set_seed(1)
    tokens = (np.arange(4 * 9).reshape(4, 9) * 5 % 17).astype(np.int32)
    data = NumpySlicesDataset({"input_ids": tokens}, shuffle=False).batch(2)
    network = LlamaForCausalLM(LlamaConfig(**model))
    Trainer(
        args=MindFormerConfig(**config),
        task="text_generation",
        model=network,
        train_dataset=data,
        callbacks=list(callbacks),
    ).train()
    return [p.asnumpy().tobytes() for p in network.get_parameters()]


section = {"msprobe": True, "key_data_dump": True, "actor_train_dump": True, "step_end": 9}
assert train() == train(ProbeCallback(section)), "the probe changed the weights"
run = open_run("msprobe_dump")
assert run.steps == [0, 1], run.steps
entries = {entry.name for entry in run.entries(step=1)}
for name in (
    "root.LlamaForCausalLM.forward.0",
    "lm_head.Linear.backward.0",
    "model.layers.1.attention.wo.Linear.parameters_grad.0",
):
    assert f"Cell.{name}" in entries, (name, entries)
losses = [float(datum.value.reshape(-1)[0]) for datum in run.key_data("loss")]
assert losses[1] < losses[0], losses
