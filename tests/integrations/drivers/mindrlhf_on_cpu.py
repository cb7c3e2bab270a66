"""MindRLHF's own GRPO example on one CPU process.

    python mindrlhf_on_cpu.py --config grpo.yaml      with MINDRLHF_PATH: a checkout of MindRLHF

What MindRLHF needs and a CPU has not is replaced here, before its example runs as it is: kernels,
collective communication, and the resharding of weights, which one process does not need.
`write_files` makes what the example reads.
"""

import os
import runpy
import sys
import types
from pathlib import Path

import numpy as np

PAD, END, VOCABULARY = 255, 253, 256


def replace_what_a_cpu_lacks():
    """Put small replacements in place; MindRLHF must not have been imported yet."""
    _models_of_mindformers_research()
    import mindspore as ms
    from mindspore import mint, nn, ops

    _one_process(ms)
    mint.topk = lambda x, k, dim=-1, largest=True, sorted=True: ops.topk(x, k, dim, largest, sorted)
    mint.sort = lambda x, dim=-1, descending=False, stable=False: ops.sort(x, dim, descending)
    mint.argmax = lambda x, dim=None, keepdim=False: ops.argmax(x, dim, keepdim)
    mint.cumsum = lambda x, dim, dtype=None: ops.cumsum(x, dim)
    mint.full = lambda size, value, dtype=None: ms.Tensor(np.full(size, float(value)), dtype)

    build = nn.TrainOneStepWithLossScaleCell.__init__

    def checks_overflow_by_isfinite(self, *args, **kwargs):
        build(self, *args, **kwargs)
        self.ascend_910b_target, self.enable_allfinite = True, False

    nn.TrainOneStepWithLossScaleCell.__init__ = checks_overflow_by_isfinite


def _models_of_mindformers_research():
    """Models that are in MindFormers' repository and not in its package, and not needed here."""
    names = {
        "deepseek3.deepseek3_config": "DeepseekV3Config",
        "deepseek3.deepseek3_model_infer": "InferenceDeepseekV3ForCausalLM",
        "deepseek3.deepseek3_model_train": "TrainingDeepseekV3ForCausalLM",
        "qwen2_5.infer.qwen2_5": "ParallelQwenForCausalLM",
    }
    for path, name in names.items():
        parts = ["research", *path.split(".")]
        for end in range(1, len(parts) + 1):
            module = types.ModuleType(".".join(parts[:end]))
            module.__path__ = []
            sys.modules.setdefault(module.__name__, module)
        setattr(sys.modules[".".join(parts)], name, type(name, (), {}))


def _one_process(ms):
    from mindspore import communication
    from mindspore.communication import management

    for module in (communication, management):
        module.get_rank = lambda *_: 0
        module.get_group_size = lambda *_: 1
        module.create_group = lambda *_: None
    ms.mint.distributed.barrier = communication.comm_func.barrier = lambda *_: None
    communication.comm_func.all_gather_into_tensor = lambda tensor, *_, **__: (tensor, None)
    ms.merge_pipeline_strategys = ms.hal.memory_stats = lambda *_: {}
    ms.set_auto_parallel_context = ms.context.set_auto_parallel_context = lambda **_: None


def replace_parts_of_mindrlhf():
    """Put replacements into MindRLHF's modules."""
    import mindspore as ms
    from mindrlhf.models.qwen2_5 import qwen2_5_tokenizer
    from mindrlhf.trainer.spmd import grpo_experience_maker, grpo_trainer
    from mindrlhf.worker import train_worker, transform_worker

    class Soc:
        get_instance = classmethod(lambda cls: cls())

        def get_ascend_soc_version(self):
            return "ascend910b"

    class WithoutSharding(train_worker._VirtualDatasetCell):
        def construct(self, *inputs):
            return self._backbone(*inputs)

    class Copies:
        def __init__(self, source, into, _from, _to, match_func, reshard_mode=0):
            names = dict(into.parameters_and_names())
            self.pairs = [
                (parameter, names[other])
                for name, parameter in source.parameters_and_names()
                for other in names
                if match_func(name, other)
            ]
            assert self.pairs

        def transform(self, _on_device=None):
            for source, into in self.pairs:
                into.set_data(ms.Tensor(source.asnumpy().copy()))

    grpo_trainer.MSContext = Soc
    train_worker._VirtualDatasetCell = WithoutSharding
    transform_worker.TransformParametersD2D = Copies
    qwen2_5_tokenizer.ENDOFTEXTID = PAD
    grpo_experience_maker.format_reward = format_reward


def format_reward(completions, **_):
    """Reward samples by their numbers: a CPU generates the same for each, without an advantage."""
    return [(len(set(text)) + number) / 8 for number, text in enumerate(completions)]


def write_files(root, mindrlhf, *, mode=0, section=None, **rl_config):
    """Write everything that a tiny training reads, and return its YAML file.

    Args:
        mindrlhf: a checkout, whose example's configuration is taken.
        mode: MindSpore's mode.
        section: the msprobe_config; None for none.
        rl_config: settings of that section.
    """
    import json

    import yaml
    from mindspore.mindrecord import FileWriter

    root = Path(root)
    (root / "tokenizer").mkdir(parents=True)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = [*printable, *range(256, 256 + VOCABULARY - len(printable))]
    vocabulary = {chr(code): index for index, code in enumerate(sorted(characters))}
    (root / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    (root / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    writer = FileWriter(str(root / "train.mindrecord"), shard_num=1)
    columns = {"prompt_ids": 8, "pretrain_ids": 12, "loss_mask": 12}
    writer.add_schema({name: {"type": "int64", "shape": [-1]} for name in columns})
    for number in range(2):
        texts = {"prompt_ids": f"{number}+{number}=", "pretrain_ids": f"{2 * number}"}
        sample = {name: np.full(length, PAD, np.int64) for name, length in columns.items()}
        for name, text in texts.items():
            sample[name][: len(text)] = [vocabulary[character] for character in text]
        writer.write_raw_data([sample])
    writer.commit()
    model = {
        **{"type": "LlamaConfig", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
        **{"vocab_size": VOCABULARY, "multiple_of": 8, "qkv_has_bias": True},
        **{"compute_dtype": "float32", "param_init_type": "float32"},
        **{"layernorm_compute_type": "float32", "softmax_compute_type": "float32"},
        **{"rotary_dtype": "float32", "use_flash_attention": False, "fused_rms_norm": False},
        **{"use_rope_slice": True, "use_past": False, "top_k": 3, "top_p": 1.0, "do_sample": True},
        **{"bos_token_id": 254, "eos_token_id": END, "pad_token_id": PAD},
        **{"repetition_penalty": 1, "checkpoint_name_or_path": ""},
    }
    for name in ("finetune", "predict"):
        content = {"model_config": model, "arch": {"type": "LlamaForCausalLM"}}
        (root / f"{name}.yaml").write_text(yaml.safe_dump({"run_mode": name, "model": content}))
    example = Path(mindrlhf) / "examples" / "grpo" / "qwen_grpo_tutorial" / "grpo_config.yaml"
    config = yaml.safe_load(example.read_text(encoding="utf-8"))
    config["context"].update(mode=mode, device_target="CPU")
    config["rl_config"].update(
        dataset_file=str(root / "train.mindrecord"),
        tokenizer_dir=str(root / "tokenizer"),
        save_strategy_dir=str(root / "strategy"),
        **{"epochs": 2, "seq_length": 12, "use_parallel": False, "load_ckpt_format": "ckpt"},
        **{"save_data_file": "", "save_prompt_completions_data": False, "deterministic": "ON"},
        **{"num_generations": 2, "num_rollouts": 1, "seed": 1},
    )
    config["rl_config"].update(rl_config)
    one = {"data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1, "context_parallel": 1}
    for name, file in (("actor", "finetune"), ("ref", "finetune"), ("generate", "predict")):
        config[f"{name}_config"].update(
            model_config=str(root / f"{file}.yaml"),
            parallel_config=one,
            use_eod_attn_mask_compression=False,
        )
    config["actor_config"].update(
        save=str(root / "trained"),
        recompute_config={"recompute": False},
        enable_parallel_optimizer=False,
        lr_schedule={"lr": 1e-2, "min_lr": 1e-3, "warmup_step": 0, "lr_decay_style": "cosine"},
    )
    config["ref_config"]["ref_model_batch_size"] = 1
    config["generate_config"].update(use_vllm=0, max_prompt_length=8)
    config["generate_config"]["sampling_config"].update(
        max_tokens=4, min_tokens=2, bos_token_id=254, eos_token_id=[END], pad_token_id=PAD
    )
    if section is not None:
        config["msprobe_config"] = section
    path = root / "grpo.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


if __name__ == "__main__":
    checkout = Path(os.environ["MINDRLHF_PATH"])
    sys.path.insert(0, str(checkout))
    replace_what_a_cpu_lacks()
    replace_parts_of_mindrlhf()
    example = checkout / "examples" / "grpo" / "qwen_grpo_tutorial" / "main.py"
    runpy.run_path(str(example), run_name="__main__")
