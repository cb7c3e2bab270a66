"""首个差异记录之外的问题所在，及其依据。"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.numbers import other_run
from mindrlhf_msprobe.report.messages.zh.words import listed, side

_PARAMETER = "此前的记录均一致，但该 Cell 的权重已经不同"
_TOKENS = "随机种子、temperature、top-p、top-k、后处理"
_LOADING = "权重加载、权重同步、权重转换"


def _earlier_update(
    key: str,
    step: int,
    phase: str,
    micro_step: int,
    number: int,
    record: Sequence[str],
    batch_agrees: bool = False,
    **_: Any,
) -> str:
    forward = f" micro_step {micro_step + 1} 的{'' if batch_agrees else ' batch 或'}前向"
    agrees = "（其 batch 一致：loss_inputs）" if batch_agrees else ""
    return (
        f"{key} 在 micro_step {micro_step} 一致，在 micro_step {micro_step + 1} 存在差异：问题出在"
        f"第 {number} 次更新（micro_step {micro_step} 的 {phase}：其梯度或优化器更新），或出在"
        f"{forward}{agrees}；仅凭关键数据无法区分：请在两侧采集 step {step} 中 {listed(record)} 的"
        f" Cell（含梯度）以确定。"
    )


def _update(phase: str, step: int, micro_step: int, updates: int, **_: Any) -> str:
    """Return which update it is."""
    return f"step {step} {f'micro_step {micro_step} ' if updates > 1 else ''}的 {phase}"


def _optimizer_step(
    phase: str, step: int, micro_step: int, updates: int, clipped: bool, **_: Any
) -> str:
    settings = ["lr", "weight decay", *([] if clipped else ["梯度裁剪"]), "优化器状态"]
    of = f"micro_step {micro_step} 之后" if updates > 1 else ""
    return f"step {step} 中 {phase} {of}的优化器更新（{'、'.join(settings)}）"


def _before_optimizer(phase: str, gradients: int, backward: int, **_: Any) -> str:
    return (
        f"进入优化器的 {gradients} 个梯度全部存在差异，而 {phase} 反向过程的 {backward} 条记录逐位"
        f"一致：请检查两者之间的环节（梯度裁剪、loss scale、梯度累积、跨卡规约），而不是该 Cell。"
    )


def _unmoved(unmoved: str | None, **_: Any) -> str:
    if unmoved is None:
        return ""
    return f"{side(unmoved)}的这次更新没有改变任何权重：lr 为 0，或该次更新被跳过。"


def _unseen(filtered: bool, ranks_unseen: bool, **_: Any) -> str:
    """Return what else may be to blame, because it was not recorded."""
    unseen = []
    if filtered:
        unseen.append("被 include/exclude 过滤掉的 Cell")
    if ranks_unseen:
        unseen.append("未采集的 rank")
    if not unseen:
        return ""
    return f"但{listed(unseen)}的梯度可能不同，并通过求和或范数产生影响。"


def _optimizer(parameters: int, of: int, after: bool = True, **details: Any) -> str:
    or_else = (
        f"，或出在把权重从训练网络同步到此处的环节。{details['phase']} 更新后的权重未采集，因此无法"
        f"区分。"
    )
    return (
        f"此前一次更新（{_update(**details)}）的梯度和更新前的权重均逐位一致；"
        f"{'更新后' if after else '此处'} {of} 个权重中有 {parameters} 个不同：问题出在 "
        f"{_optimizer_step(**details)}{'。' if after else or_else}"
        f"{_unmoved(**details)}{_unseen(**details)}"
    )


def _update_close(**details: Any) -> str:
    return (
        f"{_PARAMETER}：此前一次更新（{_update(**details)}）的梯度或更新前的权重仅在容差内或仅统计量"
        f"一致，因此或是这些微小误差被放大，或是问题出在 {_optimizer_step(**details)}。"
        f"{_unmoved(**details)}"
    )


def _gradients_not_recorded(weights: bool, **details: Any) -> str:
    what = "梯度" if weights else "梯度和更新前的权重"
    return (
        f"其在 {_update(**details)} 中的{what}未在两侧都采集；请配置 directions: "
        f"[forward, backward] 采集该 step，以区分是优化器还是梯度的问题。{_unmoved(**details)}"
    )


def _by(exact: bool) -> str:
    return "" if exact else "（仅依据统计量，没有指纹，不能作为定论）"


def _state(step: int | None = None, micro_step: int | None = None, **_: Any) -> str:
    if step is None:
        return "初始权重"
    return f" step {step} {'' if micro_step is None else f'micro_step {micro_step} '}的权重"


def _other(run: str, other: Any, trained: str) -> str:
    """Return what the network has in the other run."""
    whose = side(other_run(run))
    if other == "current":
        return f"{whose}中为{trained}。"
    if other:
        return f"{whose}中为{_state(**other)}。"
    return ""


def _not_synchronised(
    run: str,
    phase: str,
    trained: str,
    parameters: int,
    of: int,
    other: Any,
    exact: bool,
    **state: Any,
) -> str:
    return (
        f"{_PARAMETER}。在 {side(run)}中，{phase} 的网络 {of} 个权重里有 {parameters} 个仍是"
        f"{_state(**state)}，而 {trained} 中此时已更新{_by(exact)}：权重未同步。"
        + _other(run, other, f" {trained} 的权重，符合预期")
    )


def _follows_trained(
    run: str, phase: str, trained: str, parameters: int, of: int, other: Any, exact: bool, **_: Any
) -> str:
    return (
        f"{_PARAMETER}。在 {side(run)}中，{phase} 的网络 {of} 个权重里有 {parameters} 个变成了 "
        f"{trained} 的权重{_by(exact)}：它随训练网络一起被更新，或两者本就是同一个网络。"
        + _other(run, other, f" {trained} 的权重，两侧相同")
    )


def _synchronisation(
    run: str | None, phase: str, trained: str, parameters: int, of: int, **_: Any
) -> str:
    whose = ""
    if run is not None:
        right = side(other_run(run))
        whose = f"{right}中该网络的权重与 {trained} 相同，{side(run)}中不同。"
    return (
        f"{_PARAMETER}，涉及 {of} 个权重中的 {parameters} 个。此时 {trained} 的权重一致：问题出在把"
        f"权重送到 {phase} 网络的环节（{_LOADING}）。{whose}"
    )


def _not_moved(
    run: str,
    trained: str | None,
    step: int,
    parameters: int,
    of: int,
    exact: bool,
    trained_agrees: bool,
    **_: Any,
) -> str:
    still, moved = side(run), side(other_run(run))
    fact = (
        f"{_PARAMETER}。在 {still}中，{of} 个权重自 step {step} 起均未变化{_by(exact)}，"
        f"而在 {moved}中有 {parameters} 个发生了变化"
    )
    if trained is None:
        return (
            f"{fact}。没有阶段训练该网络：请检查 {moved}中是什么改变了它（权重加载、权重同步、"
            f"直接给权重赋值），或 {still}为何没有执行这一步。"
        )
    if trained_agrees:
        return f"{fact}，而 {trained} 的权重一致：{still}未做权重同步，或 {moved}不应同步。"
    return f"{fact}：{still}未做权重同步或未更新，或 {moved}不应更新。其间的更新未采集。"


def _changed_between(run: str, since: str, parameters: int, of: int, **_: Any) -> str:
    return (
        f"{_PARAMETER}，涉及 {of} 个权重中的 {parameters} 个。在本 step 更早的 {since} 中该权重"
        f"一致，且在 {side(other_run(run))}中至今未变：在 {side(run)}中，它在两个阶段之间被改变，"
        f"而其间没有权重更新（{_LOADING}）。"
    )


def _sampling(phase: str, token: int, last: bool, prompt: bool, **_: Any) -> str:
    if last:
        return (
            f"{phase} 采集到的所有 Cell 均一致，最后一个 token（token {token}）的输出逐位一致：差异"
            f"产生于最后一个 token 的采样（{_TOKENS}），或之后对 token 的处理。"
        )
    return (
        f"网络在 token {token} 的输出（logits）逐位一致，而下一次输入的 token 不同：差异产生于 "
        f"token 的采样（{_TOKENS}）{'，或由此开始了新的 prompt' if prompt else ''}。"
    )


def _sampling_or_logits(token: int, last: bool, **_: Any) -> str:
    what = "生成的 responses " if last else "下一次输入的 token "
    return (
        f"网络在 token {token} 的输出（logits）仅在容差内或仅统计量一致，而{what}不同：或是这些微小"
        f"误差改变了某个 token，或是差异产生于 token 的采样（{_TOKENS}）。"
    )


TEXTS: Mapping[str, Any] = {
    "earlier_update": _earlier_update,
    "optimizer": _optimizer,
    "before_optimizer": _before_optimizer,
    "optimizer_or_synchronisation": partial(_optimizer, after=False),
    "update_close": _update_close,
    "gradients_not_recorded": _gradients_not_recorded,
    "update_not_recorded": (
        "此前一次更新（step {step} 的 {phase}）未采集：请同时采集 step {step}，以区分权重加载、权重"
        "同步和优化器的问题。"
    ),
    "not_synchronised": _not_synchronised,
    "synchronisation": _synchronisation,
    "follows_trained": _follows_trained,
    "not_moved": _not_moved,
    "changed_between": _changed_between,
    "sampling": _sampling,
    "sampling_or_logits": _sampling_or_logits,
    "loss": (
        "本 micro_step 中 loss 的输入（loss_inputs）和 log_prob 共 {agree} 条记录逐位一致：问题出在"
        " loss 的计算（其代码，或其配置：beta、裁剪、求平均的方式），而不是网络的前向。"
    ),
    "schedule": (
        "它不是 {phase} 中任何 Cell 算出来的：它由优化器的学习率调度设定，或取决于已更新的次数。"
    ),
}
