"""训练采集期间的日志。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.recording.lost import kind_words, thing_words


def _started(template: str) -> Text:
    def text(root: str, step: int, what: Sequence[str]) -> str:
        return template.format(root=root, step=step, what="；".join(what))

    return text


def _fault(what: str, step: int, kind: str, error: str) -> str:
    return (
        f"未能采集{thing_words(what)}（step {step}）：{kind}：{error}。训练继续；此后同类丢失计入 "
        f"run.json。"
    )


def _texts(what: Sequence[str], left: int) -> str:
    return f"训练配置：{'；'.join(what)}{f'；另有 {left} 项' if left else ''}"


def _lost(lost: Sequence[Sequence[object]], noted: bool) -> str:
    kinds = "，".join(f"{kind_words(str(what))} {count} 次" for what, count in lost)
    return f"采集过程中有记录丢失{'（见 run.json）' if noted else ''}：{kinds}"


def _steps_from(first: int) -> str:
    return f"自 step {first} 起的所有 step" if first else "所有 step"


def _not_recorded_there(root: str, shown: str, left: int) -> str:
    more = f" 等，另有 {left} 项" if left else ""
    return f"dump_path {root} 中有并非采集写入的内容：{shown}{more}。保留不动。"


_GOES_ON = "训练继续，丢失的内容会计数。"

TEXTS: dict[str, Text] = {
    "recording": _started("采集到 {root}，自 step {step} 起：{what}"),
    "continuing": _started("续接 {root} 中的采集结果，自 step {step} 起：{what}"),
    "layers": lambda phases, steps: f"{'、'.join(phases)} 的层数据（{steps}）",
    "configurations": "训练配置",
    "nothing_on": "没有打开任何采集开关",
    "steps": "step {first} 到 {last}",
    "steps_from": _steps_from,
    "resumes": "训练自 step {step} 恢复",
    "fault": _fault,
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
        "{path} 在采集期间被删除（发现于 step {step}）：此前采集到其中的 {steps} 个 step 已丢失。"
        "后续采集写入新目录。" + _GOES_ON
    ),
    "place_taken": (
        "{path} 在采集期间被替换（发现于 step {step}）：此前采集到其中的 {steps} 个 step 已丢失。"
        "不会写入现有内容；如需继续采集，请将其移走。" + _GOES_ON
    ),
    "silent": (
        "阶段 {phase}，step {step}：所监测的 {role} 网络中没有 Cell 在该阶段内执行，未采集到任何"
        "内容。请确认：阶段包住了正确的调用；执行的网络就是传给 watch() 的网络；include 和 exclude "
        "没有排除它的全部 Cell；watch() 在首次编译之前调用。"
    ),
    "text": "{path} 的类型为 {kind}，按文本写入：{text}",
    "texts": _texts,
    "left_out": lambda what, why: f"未采集{thing_words(what)}：{'；'.join(why)}",
    "gap": lambda cell, why: f"{cell}：{'；'.join(why)}",
    "gaps": lambda role, cells: (
        f"{role} 网络已编译，以下 Cell 有内容无法采集（见 run.json 的 coverage.graph_mode）："
        f"{'；'.join(cells)}"
    ),
    "lost": _lost,
    "step_forgotten": (
        "从未调用 step()，而阶段 {phase} 打开了 {times} 次：全部计入 step {step}。请在每个训练 "
        "step 结束时调用 probe.step()。"
    ),
    "configurations_forgotten": (
        "configurations_dump 为 true，但从未调用 save_configs()，因此没有 configurations.json。"
        "请调用一次 probe.save_configs({{name: configuration, …}})，"
        "或将 configurations_dump 设为 false。"
    ),
    "nothing_recorded": (
        "阶段 {phase} 已打开采集，并在 step {first} 到 {last} 执行，但没有采集到任何内容：{why}"
    ),
    "no_forward": "directions 不含 forward，且其中没有计算梯度",
    "meets_none": "{what} 与这些 step 没有交集",
    "look_at": lambda what: f"请检查 {'、'.join(what)}",
    "no_cell_ended": "其网络中没有 Cell 执行完毕",
    "took": "step {step} 在本 rank 占用 {size}（{parts}）",
    "room": "{took}；{root} 剩余空间 {free}",
    "room_for_rest": (
        "{took}；到 step_end {last} 为止，{ranks} 个 rank 还需 {needed}，{root} 剩余空间 {free}"
    ),
    "no_room_for_rest": (
        "{took}；到 step_end {last} 为止，{ranks} 个 rank 还需 {needed}，{root} 剩余空间 {free}。"
        "放不下的内容会丢失：请减少采集的 step、阶段或 Cell，或换用空间更大的 dump_path。"
    ),
    "missing_ranks": (
        "{ranks} 个 rank 中有 {count} 个尚未开始写入 {root}（{shown}）。如果一直没有写入："
        "其节点没有共享该存储，或 dump_path 不同；"
        "作业结束后可用 `mindrlhf-msprobe merge` 合并它们的结果。"
    ),
    "no_section": "{trainer}：其配置中没有 {section} 一节，不采集。",
    "ignored": "{trainer}：{what}未知的键已忽略，训练继续。",
    "ray_actor": (
        "{trainer}：{role} 运行在单独的 Ray actor 中，无法得知其 rank，不训练时也无法得知 step 何时"
        "结束：其记录单独存放在 {place}。"
    ),
    "not_recorded_there": _not_recorded_there,
    "waits": (
        "采集正在等待磁盘：有 {held:.0f} MB 等待写入（buffer_mb: {budget}），训练随之等待；时长见 "
        "run.json。请减少采集内容、换用更快的磁盘，或增大 buffer_mb。"
    ),
    "no_trainer": lambda where, known: (
        f"没有采集到任何内容：没有导入{f' {where} 中' if where else ' MindRLHF '}的 trainer"
        f"（支持 {known}）。"
    ),
    "no_probe": (
        "调用了 {call}，但没有正在采集的 Probe：在此之前不保存任何内容，其他调用也是如此。请先以 "
        "`msprobe: true` 创建 Probe。"
    ),
}
