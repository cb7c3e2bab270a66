"""训练程序中取不到数据的原因。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.lists import Joined
from mindrlhf_msprobe.report.messages.zh.words import reasons


def _no_vllm_network(worker: object, looked: object) -> str:
    return (
        f"没有找到 vLLM 生成所用的网络。已在 {worker} 中查找：{reasons(looked)}。"
        f"prompt 和 response 仍会采集"
    )


TEXTS: dict[str, Text] = {
    "rewards_by_functions": (
        "MindRLHF 的 GRPO 用函数计算奖励，没有网络执行；各函数的结果采集为关键数据 rewards.<函数名>"
    ),
    "no_old_policy": "rl_config.enable_oldpolicy 为 False，不执行 old policy",
    "no_reference": "rl_config.beta 为 0，不执行 reference",
    "not_returned": "{of} 没有返回 {key}",
    "shared_backbone": (
        "is_shared_backbone：没有独立的 critic，values 由 actor 的一个 head 给出，"
        "其各层在 actor_compute_log_prob 和 actor_update 中"
    ),
    "no_logprobs": (
        "只有 SamplingParams 请求时 vLLM 才返回 log_prob，而 MindRLHF 没有请求："
        "在 InferWorker.__init_use_vllm 中设置 logprobs=1 即可采集，生成的 token 不变"
    ),
    "no_vllm_network": _no_vllm_network,
    "not_called": "{what} 未被调用",
    "raised": "{what}（{error}）",
    "holds_no_cell": "{what} 是 {kind}，不含 Cell",
    "no_network": "{where}：{error}",
    "missing": "所装版本缺少 {what}",
    "no_method": "{of} 没有方法 {method}",
    "no_variable": "{of} 没有变量 {name}",
    "no_variables": Joined("{of} 没有变量 {names}", " 或 "),
    "decorated": "{of} 被装饰器包装",
    "closure": "{of} 使用了外层函数的变量或 super()",
    "no_source": "读不到 {of} 的源码：{error}",
    "no_plain_function": "{of} 不是普通函数",
    "mangled_names": "{of} 使用了双下划线开头的类私有名称",
    "is_none": "{path} 为 None",
    "no_cell_of": "{inner} 不是 {network} 中的 Cell",
    "other_process": "模型在其他进程中运行（{count} 个 worker）",
    "grpo": "MindRLHF 的 GRPO trainer",
    "ppo": "MindRLHF 的 PPO trainer",
    "means": "缺少 {what}：{otherwise}",
    "no_recording": "不采集任何内容",
    "no_layers": "不采集 {phase} 的层数据",
    "no_layers_no_step": "不采集 {phase} 的层数据，且下一个 step 开始时才视为上一个 step 结束",
    "no_keys": Joined("不采集 {keys}", "、"),
    "no_generation": "不采集 {phase} 的层数据以及 prompts、responses",
    "no_experience": "不采集 experience 阶段的层数据和关键数据",
    "no_update": "不采集权重更新",
    "nothing_returned": "不采集训练 Cell 的返回值",
    "no_configurations": "不采集训练配置，断点续训时 step 从 0 计数",
    "one_step": "如果同时缺少 TrainWorker.train，所有 step 将合并为一个",
    "dump_path_late": "网络构建之后才会发现 dump_path 不可用",
    "no_vllm_generate": "不采集 vLLM 的采样设置和 {key}",
    "no_log_prob": "不采集 {key}",
    "no_postprocess": "此处 MindFormers 不在 `postprocess` 中选择 token（如束搜索）",
    "other_tokens": "`postprocess` 选出的 token 与 `generate` 返回的不同",
    "sample_acceleration": "启用 is_sample_acceleration 时网络只返回概率最大的若干 token",
}
