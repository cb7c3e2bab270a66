"""What the checks of what reinforcement learning must satisfy say, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

BOTH_RANDOM = "；两者都没有加载 checkpoint，均为随机初始权重"


def _reference(mean: float, random: bool) -> str:
    said = (
        f"reference 不是初始 actor：首次更新之前，ref_log_prob 与 old_log_prob 平均相差 {mean:.3g}"
    )
    return said + BOTH_RANDOM * random


def _rollout_gap(mean: float, p99: float, probability: float, limit: float, float32: bool) -> str:
    said = (
        f"训推不一致：已采样 token 的 log_prob 平均相差 {mean:.3g}（p99 为 {p99:.3g}），"
        f"概率平均相差 {probability:.3g}；"
    )
    if float32:
        return said + f"float32 网络应在 {limit:g} nat 以内"
    return said + f"舍入误差造成的概率之差应在 {limit:g} 以内"


def _advantages(mean: float, grouped: bool) -> str:
    over = "同一 prompt 的样本" if grouped else "白化后的 advantages"
    return f"advantages 未中心化：{over}的均值为 {mean:.3g}"


def _identical(count: int, all: bool) -> str:
    if all:
        return f"{count} 条 responses 完全相同"
    return "每个 prompt 的各条 responses 都完全相同"


TEXTS: dict[str, Text] = {
    "reference": _reference,
    "rows_unknown": "无法确定 {keys} 中哪些行互相对应",
    "rollout_gap": _rollout_gap,
    "ratio": (
        "首个 micro_step 的策略不是旧策略：ratio 与 1（或 log_prob 与 old_log_prob）平均相差 "
        "{mean:.3g}"
    ),
    "kl_negative": "{key} 为负（最小 {least:.3g}），且从未为正",
    "clip_fraction": "连续 {steps} 个 step，{fraction:.0%} 的 ratio 超出 {low:g} 至 {high:g}",
    "entropy_collapse": "策略的熵从每 token {before:.3g} nat 降到 {now:.3g} nat",
    "advantages": _advantages,
    "groups_unknown": "无法确定哪些样本属于同一 prompt",
    "advantages_unknown": "advantages 既不是每个样本一个值，也未经白化，均值不必为 0",
    "equal_rewards": "{count} 组中有 {equal} 组的奖励全部相等，没有学习信号",
    "identical": _identical,
    "empty": "{count} 条 responses 中有 {empty} 条为空",
    "no_eos": "没有采集到 eos 与 pad 的 token id",
    "cut": "{count} 条 responses 中有 {cut} 条在 {limit} 个 token 处被截断",
    "pad_inside": "{count} 条 responses 中有 {bad} 条在 eos 或 pad 之后还有其他 token",
    "same_prompts": "与上一个 step 相同的 {count} 个 prompts",
    "repeated_prompts": "{count} 个 prompts 中有 {repeated} 个的出现次数多于其他 prompts",
    "mask_empty": "mask 没有选中任何位置",
    "mask_unknown": "没有以 token id 的形式采集到 mask 对应的 token 或 responses",
    "mask_wrong": "mask 选中的不是 response 的 token：第 {row} 行为 {tokens}",
    "cause_reference_weights": "reference 与 actor 加载的 checkpoint 不同",
    "cause_reference_settings": "reference 的运行设置不同（精度、dropout、mask）",
    "cause_old_weights": "旧策略的权重不是本次更新之前 actor 的权重",
    "cause_dropout": "两次前向之一启用了 dropout 或训练模式",
    "cause_temperature": "两次前向的温度、mask 或样本顺序不同",
    "cause_not_synchronised": "生成所用的网络没有同步上一次更新的权重",
    "cause_rollout_dtype": (
        "两侧网络某处 dtype 不同：lm_head、旋转位置编码的缓存、采样器的 softmax"
    ),
    "cause_cache": "逐 token 生成时的位置、mask 或 KV cache 有误",
    "cause_kl_sign": "估计量的符号有误，或两个输入的顺序颠倒",
    "cause_kl_rows": "相减的 log_prob 对应不同的 token",
    "cause_learning_rate": "学习率过大，或同一 batch 更新次数过多",
    "cause_entropy_bonus": "没有熵奖励，或 KL 系数过小",
    "cause_centring": "没有减去组内（或整个 batch）的均值",
    "cause_groups": "把不同 prompt 的样本当作一组",
    "cause_greedy": "生成时没有采样（do_sample、temperature、top_k）",
    "cause_same_seed": "每个样本都用同一个随机种子生成",
    "cause_eos_ignored": "生成没有在 eos 处停止",
    "cause_shift": "mask 相对 token 错位（下一个 token 与当前 token 混淆）",
    "cause_lengths": "构造 mask 所用的 prompt 或 response 长度有误",
}
