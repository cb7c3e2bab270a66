"""MindRLHF's older PPO on one CPU process: its own configs, networks, experience and updates.

    python mindrlhf_ppo_on_cpu.py actor.yaml MODE     with MINDRLHF_PATH: a checkout of MindRLHF

It was written for MindFormers of its day and for Ascend. What MindFormers 1.6 no longer has (models
that are not used here) and what a CPU lacks is replaced here, before MindRLHF runs as it is:
kernels, the sinking of data (by a loop that does what it does), the sum over devices, of which
there is one. `write_files` makes what it reads. Its train.py is not run: it hands `train` an
argument that `train` does not take.
"""

import hashlib
import inspect
import os
import sys
import types
from pathlib import Path

import mindspore as ms
import numpy as np

PROMPT, RESPONSE, VOCABULARY, ROLLOUTS = 8, 4, 17, 4


def write_files(folder, section=None):
    """Write the models' YAML, with or without a section, and the prompts; return the YAML."""
    import yaml
    from mindspore.mindrecord import FileWriter

    folder.mkdir(parents=True)
    float32 = ("compute_dtype", "layernorm_compute_type", "softmax_compute_type", "rotary_dtype")
    model = {
        "type": "LlamaConfig",
        "batch_size": 2,
        "seq_length": PROMPT + RESPONSE,
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": VOCABULARY,
        "multiple_of": 8,
        "use_past": False,
        "use_flash_attention": False,
        "fused_rms_norm": False,
        "use_rope_slice": True,
        **dict.fromkeys((*float32, "param_init_type"), "float32"),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_decode_length": RESPONSE,
        "do_sample": False,
        "checkpoint_name_or_path": "",
    }
    content = {
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama"},
        "use_parallel": False,
        "parallel": {"parallel_mode": 0},
        "parallel_config": {"data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1},
        "model": {"model_config": model, "arch": {"type": "LlamaForCausalLM"}},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(content))
    if section is not None:
        content["msprobe_config"] = section
    (folder / "actor.yaml").write_text(yaml.safe_dump(content))
    prompts = FileWriter(str(folder / "prompts.mindrecord"), 1, overwrite=True)
    columns = {"prompt_ids": "int32", "pretrain_ids": "int32", "loss_mask": "float32"}
    prompts.add_schema({name: {"type": kind, "shape": [-1]} for name, kind in columns.items()})
    random = np.random.default_rng(0)
    for row in range(ROLLOUTS):
        prompt = np.zeros(PROMPT, np.int32)
        prompt[: 3 + row % 3] = random.integers(3, VOCABULARY, 3 + row % 3)
        pretrain = random.integers(3, VOCABULARY, PROMPT + RESPONSE + 1).astype(np.int32)
        mask = np.ones(PROMPT + RESPONSE + 1, np.float32)
        prompts.write_raw_data(
            [{"prompt_ids": prompt, "pretrain_ids": pretrain, "loss_mask": mask}]
        )
    prompts.commit()
    return folder / "actor.yaml"


def replace_what_is_not_there():
    """Put small replacements in place; MindRLHF must not have been imported yet."""
    _models_that_are_gone()
    from mindformers import LlamaConfig
    from mindspore.nn.wrap.cell_wrapper import _VirtualDatasetCell
    from mindspore.nn.wrap.loss_scale import TrainOneStepWithLossScaleCell

    LlamaConfig.items = lambda self: self.to_dict().items()  # MindRLHF 0.3.0 asks so
    LlamaConfig.enable_offload = False
    ms.mint.argmax = lambda x, dim=None, keepdim=False: ms.ops.argmax(x, dim, keepdim)
    ms.data_sink = data_sink
    _VirtualDatasetCell.construct = hand_on
    TrainOneStepWithLossScaleCell.start_overflow_check = no_check
    TrainOneStepWithLossScaleCell.get_overflow_status = no_overflow


def hand_on(self, *inputs):
    """Stand in for the construct of _VirtualDatasetCell."""
    return self._backbone(*inputs)


def no_check(self, before, inputs):
    """Stand in for the check for overflow, which has kernels on Ascend only."""
    return ms.Tensor(0), inputs


def no_overflow(self, status, outputs):
    """Stand in for what the check answers."""
    return ms.Tensor(False)


def data_sink(function, dataset, sink_size=1, *_):
    """Call a function with `sink_size` batches at each call, as MindSpore's does on a device."""
    dataset.get_dataset_size()

    def batches():
        while True:
            yield from dataset.create_tuple_iterator()

    left = batches()

    def sink_process():
        for _ in range(sink_size):
            result = function(*next(left))
        return result

    return sink_process


def _models_that_are_gone():
    import mindformers.core.loss
    import mindformers.tools.utils

    stubs = {
        "mindformers.models.bloom": ("BloomLMHeadModel", "BloomConfig"),
        "mindformers.models.gpt2": ("GPT2Config", "GPT2LMHeadModel"),
        "mindformers.models.pangualpha": ("PanguAlphaHeadModel", "PanguAlphaConfig"),
        "mindrlhf.models.baichuan2": ("Baichuan7BReward",),
        "mindrlhf.models.baichuan2.baichuan2_7b": ("Baichuan7BV2ForCausalLM",),
        "mindrlhf.models.baichuan2.baichuan2_13b": ("Baichuan13BV2ForCausalLM",),
    }
    for name, classes in stubs.items():
        module = types.ModuleType(name)
        vars(module).update({each: type(each, (), {}) for each in classes})
        sys.modules[name] = module
    mindformers.tools.utils.get_use_rope_self_define = lambda: False
    mindformers.core.loss.CompareLoss = type("CompareLoss", (), {})


def main(actor_yaml, mode, shared):
    """Make experience and train with it, once; print what came of it."""
    sys.path.insert(0, os.environ["MINDRLHF_PATH"])
    replace_what_is_not_there()
    ms.set_context(mode=mode, device_target="CPU")
    import mindrlhf.trainer.ppo_trainer as ppo_trainer
    from mindrlhf.utils.configs import init_configs, init_network_and_optimizer, init_ppo_dataset

    ppo_trainer.get_rank = lambda: 0
    folder = Path(actor_yaml).parent
    others = str(folder / "model.yaml")
    arguments = types.SimpleNamespace(
        dataset_dir=str(folder / "prompts.mindrecord"),
        sft_model_path=str(actor_yaml),
        critic_model_path=others,
        reward_model_path=others,
        save_data_file="",
        align_type="rlhf",
    )
    configs = init_configs(arguments)
    vars(configs[0]).update(
        is_shared_backbone=shared,
        num_rollouts=ROLLOUTS,
        chunk_size=2,
        batch_size=2,
        sink_size=1,
        epochs=1,
        warmup_step=1,
        start_lr=1e-2,
        save_ckpt_dir=str(folder),
    )
    ms.set_seed(1)
    trainer = ppo_trainer.PPOTrainer(*configs)
    train_step = init_network_and_optimizer(trainer)
    train_step.clip.global_norm.merge_op = ms.ops.operations.Identity()
    trainer.make_experience(num_rollouts=ROLLOUTS)
    given = {"epoch": 0} if "epoch" in inspect.signature(trainer.train).parameters else {}
    trainer.train(train_step, init_ppo_dataset(trainer), **given)
    weights = b"".join(p.asnumpy().tobytes() for p in trainer.ppo_model.get_parameters())
    sys.stdout.write(f"weights: {hashlib.sha256(weights).hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), shared="shared" in sys.argv[3:])
