"""训练采集期间的日志。"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.log import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.lists import Joined


def _behind_verb(words: str) -> str:
    return words if "\u4e00" <= words[:1] <= "\u9fff" else f" {words}"


_GOES_ON = "训练继续，丢失的内容会计数。"

_PIECES: Mapping[str, Text] = {
    "verb_what": lambda what, **_: _behind_verb(what),
    "each": joined("what", "；"),
    "kinds": lambda lost, **_: "，".join(f"{what} {count} 次" for what, count in lost),
    "n_left": " 等，另有 {left} 项",
    "n_texts_left": "；另有 {left} 项",
    "see_run_file": "（见 run.json）",
    "all_steps": "所有 step",
    "steps_after": "自 step {first} 起的所有 step",
    "trainer_there": " {where} 中",
    "trainer_of_mindrlhf": " MindRLHF ",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "recording": Joined("采集到 {root}，自 step {step} 起：{what}", "；"),
        "continuing": Joined("续接 {root} 中的采集结果，自 step {step} 起：{what}", "；"),
        "layers": Joined("{phases} 的层数据（{steps}）", "、"),
        "configurations": "训练配置",
        "nothing_on": "没有打开任何采集开关",
        "every_nth_step": "{steps}中每 {interval} 个取一个",
        "steps": "step {first} 到 {last}",
        "steps_from": "{which_steps}",
        "no_network": (
            "阶段 {phase}：未 watch 该角色的网络。算子照常采集；采集 cell 请调用 watch({role}=cell)"
        ),
        "resumes": "训练自 step {step} 恢复",
        "fault": (
            "未能采集{verb_what}（step {step}）：{kind}：{error}。训练继续；此后同类丢失计入 "
            "run.json。"
        ),
        "hold_lost": (
            "dump_path {root} {how}。采集在 step {step} 停止：不再写入，此后的丢失会计数，并在采集"
            "关闭时列出。训练继续。如需重新采集，请使用运行期间不会被改动的 dump_path 启动作业。"
        ),
        "loss_removed": "在采集期间被删除",
        "loss_moved": "在采集期间被移走",
        "loss_replaced": "已不是本作业最初使用的目录",
        "loss_lock_gone": "不再由本作业独占：锁文件被删除",
        "loss_lock_taken": "在采集期间被另一个作业占用",
        "loss_manifest_gone": "中的 {manifest} 在采集期间被删除",
        "loss_manifest_replaced": "中的 {manifest} 已不是本作业写入的文件",
        "place_removed": (
            "{path} 在采集期间被删除（发现于 step {step}）：此前采集到其中的 {steps} 个 step 已丢"
            "失。后续采集写入新目录。" + _GOES_ON
        ),
        "place_taken": (
            "{path} 在采集期间被替换（发现于 step {step}）：此前采集到其中的 {steps} 个 step 已丢"
            "失。不会写入现有内容；如需继续采集，请将其移走。" + _GOES_ON
        ),
        "silent": (
            "阶段 {phase}，step {step}：所监测的 {role} 网络中没有 Cell 在该阶段内执行，未采集到任"
            "何内容。请确认：阶段包住了正确的调用；执行的网络就是传给 watch() 的网络；include 和 "
            "exclude 没有排除它的全部 Cell；watch() 在首次编译之前调用。"
        ),
        "text": "{path} 的类型为 {kind}，按文本写入：{text}",
        "texts": "训练配置：{each}{and_texts_left}",
        "changes_training": (
            "训练已被改变：handler_type: fix 用第二次运行的结果（{task}，{pert_mode}）"
            "代替训练自身的结果。run.json 的 changed_training 对此有记录。"
        ),
        "closer": "step {step}：{phase} 中 {cell} 的张量元素也会采集",
        "nothing_closer": (
            "on_divergence: record：从 step {step} 起不再采集，"
            "因此不采集 {phase} 中 {cell} 的张量元素。"
            "请以更大的 step_end 重新训练，或对该处使用 task: tensor"
        ),
        "played": (
            "训练已被改变：训练使用 {path} 记录的 {name}，"
            "而不是自己的结果。run.json 的 played 对此有记录。"
        ),
        "generators_not_put_back": (
            "step {step}：{path} 未记录所回放 rollout 之后全部随机数生成器的状态：此后抽取的随机数"
            "（如 dropout）与其不同"
        ),
        "played_other_batch": (
            "step {step} 播放的是 step {source} 第 {call} 次调用的 rollout，"
            "它由另一个 batch 生成：{difference}。训练使用的是对其他 prompt 的回答。若非有意，"
            "请让数据顺序与记录一致，或用 rollout_order: same（不一致即报错）。此提示只出现一次。"
        ),
        "left_out": lambda what, why: f"未采集{_behind_verb(what)}：{'；'.join(why)}",
        "layers_of": "{phase} 的层数据",
        "needs_mindspore": "依赖 MindSpore 的 {name} 的内容",
        "gap": Joined("{cell}：{why}", "；"),
        "gaps": Joined(
            "{role} 网络已编译，以下 Cell 有内容无法采集（见 run.json 的 coverage.graph_mode）："
            "{cells}",
            "；",
        ),
        "lost": "采集过程中有记录丢失{where_noted}：{kinds}",
        "operators_replaced": Joined(
            "以下算子并非 MindSpore 自身的实现，其调用按算子的名称采集"
            "（run.json 的 coverage.operators）：{operators}",
            "，",
        ),
        "operators_held": Joined(
            "以下位置保存的算子，其调用不会被采集；请作为模块或 Cell 的属性保存"
            "（run.json 的 coverage.operators）：{places}",
            "，",
        ),
        "step_forgotten": (
            "从未调用 step()，而阶段 {phase} 打开了 {times} 次：全部计入 step {step}。请在每个训练 "
            "step 结束时调用 probe.step()。"
        ),
        "configurations_forgotten": (
            "configurations_dump 为 true，但从未调用 save_configs()，因此没有 configurations.json。"
            "请调用一次 probe.save_configs({{name: configuration, …}})，或将 configurations_dump 设"
            "为 false。"
        ),
        "nothing_recorded": (
            "阶段 {phase} 已打开采集，并在 step {first} 到 {last} 执行，但没有采集到任何内容：{why}"
        ),
        "no_forward": "directions 不含 forward，且其中没有计算梯度",
        "meets_none": "{what} 与这些 step 没有交集",
        "look_at": Joined("请检查 {what}", "、"),
        "no_cell_ended": "其网络中没有 Cell 执行完毕",
        "took": lambda step, size, parts: (
            f"step {step} 在本 rank 占用 {size}（{'，'.join(map(' '.join, parts))}）"
        ),
        "room": "{took}；{root} 剩余空间 {free}",
        "room_for_rest": (
            "{took}；到 step_end {last} 为止，{ranks} 个 rank 还需 {needed}，{root} 剩余空间 {free}"
        ),
        "no_room_for_rest": (
            "{took}；到 step_end {last} 为止，{ranks} 个 rank 还需 {needed}，{root} 剩余空间 "
            "{free}。放不下的内容会丢失：请减少采集的 step、阶段或 Cell，或换用空间更大的 "
            "dump_path。"
        ),
        "missing_ranks": (
            "{ranks} 个 rank 中有 {count} 个尚未开始写入 {root}（{shown}）。如果一直没有写入：其节"
            "点没有共享该存储，或 dump_path 不同；作业结束后可用 `mindrlhf-msprobe merge` 合并它们"
            "的结果。"
        ),
        "no_section": "{trainer}：其配置中没有 {section} 一节，不采集。",
        "ignored": "{trainer}：{what}未知的键已忽略，训练继续。",
        "ray_actor": (
            "{trainer}：{role} 运行在单独的 Ray actor 中，无法得知其 rank，不训练时也无法得知 step "
            "何时结束：其记录单独存放在 {place}。"
        ),
        "not_recorded_there": (
            "dump_path {root} 中有并非采集写入的内容：{shown}{and_left}。保留不动。"
        ),
        "sketches_on_host": (
            "task: sketch 尚没有 {target} 上的算子：每个张量都取回主机计算行摘要。"
        ),
        "keeps": (
            "keep_mb 为 {keep}：{root} 中本 rank 的数据超过该值后，会清理较早 step 的数据（见文档 "
            "files）。如需全部保留，请设置 keep_mb: 0。"
        ),
        "keep_too_small": (
            "keep_mb 为 {keep}，但始终保留的内容（首个 step、最近 {last} 个 step、有检查发现的 "
            "step 及其前后）在本 rank 的 {steps} 个 step 中占用 {taken}。请增大 keep_mb，或减少采集"
            "的阶段或 Cell。"
        ),
        "overflow": (
            "NaN/Inf 首次出现在 {entry}（step {step}），其真实数据已落盘（见 overflow_nums）；后续"
            "传播用 mindrlhf-msprobe check 查看"
        ),
        "waits": (
            "采集正在等待磁盘：有 {held:.0f} MB 等待写入（buffer_mb: {budget}），训练随之等待；时长"
            "见 run.json。请减少采集内容、换用更快的磁盘，或增大 buffer_mb。"
        ),
        "no_trainer": "没有采集到任何内容：没有导入{trainer_of}的 trainer（支持 {known}）。",
        "no_probe": (
            "调用了 {call}，但没有正在采集的 Probe：在此之前不保存任何内容，其他调用也是如此。请先"
            "以 `msprobe: true` 创建 Probe。"
        ),
        "level": (
            "{name} 为 {value!r}；应为 0（debug）、1（info）、2（warning）、3（error）或 4（不输"
            "出）。按 1 输出日志。"
        ),
        "of_call": "{call}：{why}",
        "in_graph": "{call}（在被编译的图中）",
        "no_constant": "{call}() 在图中收到的名称为 {name}；应为常量文本。",
        "no_gradient": "{call} 收到{what}；应为可求梯度的浮点或复数张量。未保存任何内容。",
        "a_value": "类型为 {type} 的值",
        "a_tensor": " dtype 为 {dtype} 的张量",
        "saved_without_probe": "未采集关键数据 {keys}：{why}",
        "disk_unknown": "无法得知磁盘上的内容：{why}",
        "rule_failed": "规则 {rule} 执行失败",
        "debugger_again": (
            "PrecisionDebugger({given})：本进程中已有一个，创建时为 ({known})；本次所给的值不生效。"
        ),
        "config_init_again": "MsProbe.config_init() 使用了另一份配置：当前采集到此结束。",
        "no_phase": (
            "{call}(tag={tag})：不是已知阶段，不采集。{nearest}可用的阶段：{phases}。自定义阶段在 "
            "msprobe_config.phases 中声明。"
        ),
        "monitor_in_graph": (
            "{call}：静态图模式下，只采集 start(model) 与 stop() 之间的梯度，请在网络编译之前调用 "
            "start(model)"
        ),
        "still_open_start": "{call}：开始 {phase} 时 {open} 尚未结束，{open} 到此结束。",
        "still_open_step": "{call}：step 结束时 {open} 尚未结束，{open} 到此结束。",
        "of_gradients": "{call}：权重梯度：{why}",
        "single_no_dict": (
            "SingleSave.{call}() 收到 {kind}；应为名称到数据的 dict。未保存任何内容。"
        ),
        "single_no_text": "SingleSave.{call}() 忽略了名称 {name}：不是文本。",
        "single_continues": (
            "SingleSave：{place} 中已有采集结果，自 step {step} 续接。如需分开保存，请为每次采集指"
            "定各自的 dump_path。"
        ),
        "import_unnoticed": "无法感知 {name} 的导入：{loader}",
        "not_prepared": "未能为 {name} 准备采集：{kind}：{error}。按原样导入，不采集。",
        "installed_before": "install() 已调用过，不会重复安装。",
        "other_version": Joined(
            "{trainer} 不是本集成所适配的版本。{missing}。其余内容照常采集。", "；"
        ),
        "around_failed": (
            "在 {where} 前后的采集失败：{kind}：{error}。训练继续；同类问题只提示一次。"
        ),
        "no_parameter_gradients": "未采集权重梯度：{why}",
        "no_key_data": Joined("未采集关键数据 {keys}：{why}", "、"),
        "vllm_failed": (
            "出现该异常时正在构建 vLLM，且其网络已打开采集。如果插入探针后无法编译，请设置 "
            "actor_infer_dump: false，使其保持原样。"
        ),
        "no_section_in_file": "{trainer}：{path} 中没有 {section} 一节，不采集",
        "left_to_mindrlhf": (
            "{path}：{section} 中的 {keys} 只有 MindRLHF 认识，本工具不使用，交由 MindRLHF 处理。"
        ),
        "switched_off": Joined("{trainer}：未采集 {keys}：{why}", " 和 "),
        "no_each_reward": "{trainer}：未采集各奖励函数的结果：{why}",
        "step_not_called": (
            "{trainer}：没有调用 MsProbe.step()；下一次生成 experience 时视为上一个 step 结束。"
        ),
        "steps_from_0": "{trainer}：如果是断点续训，step 将从 0 计数：{why}",
        "sink_mode": (
            "dataset_sink_mode：MindSpore 一次调用执行 {steps} 个训练 step，采集时合并为一个 step，"
            "依次排列，loss 为最后一个的。如需逐 step 采集，请使用 dataset_sink_mode=False 或 "
            "sink_size=1。"
        ),
    },
)
