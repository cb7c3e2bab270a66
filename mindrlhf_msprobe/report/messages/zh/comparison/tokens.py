"""Which token each row of a record belongs to, in Chinese."""

from __future__ import annotations

TEXTS = {
    "no_entries": "没有采集到前向数据",
    "no_ids": (
        "{entry} 的输入中没有形如 [批次, 序列] 的整数张量，无法得知各行对应的 token。"
        "请采集接收 token id 的网络：include 和 exclude 不能排除其最外层 Cell"
    ),
    "not_stored": ("token id（{record}）没有保存：{why}。请用 task: tensor 或 task: sketch 采集"),
    "too_many": "{count} 个元素超过一次可读取的上限 {most}",
    "other_block": (
        "{entry} 的输入中，批内样本 {sample} 的首个块为 {block}，此前为 {before}；"
        "其位置与下一个 token 相符"
    ),
    "unknown_samples": (
        "{entry} 为 {count} 个样本各输入了一个 token，但无法得知它们接续之前的哪些样本："
        "这些行不参与比对"
    ),
    "no_beginning": (
        "{entry} 接续 {of} 个样本，其中 {count} 个样本之前的 token 没有采集，"
        "以 token id 保存的 prompts 和 responses 中没有或不止一个与之相符：这些行不参与比对"
    ),
    "padding": (
        "{entry}：由其长度和位置无法得知样本在哪一侧填充：这些行不参与比对。"
        "请输入掩码，或为填充使用其他位置"
    ),
    "padding_let_in": (
        "{entry}：按已保存的 prompts，其掩码在 {of} 行中的 {count} 行使 prompt 之前的填充可见"
    ),
    "unlike_saved": (
        "以 token id 保存的 {rows} 行 prompts 和 responses 中有 {missing} 行（包括 {key} 的行）"
        "不在网络输入的任何序列中：被当作 token id 的可能是别的内容（可用 phase.tokens 指明），"
        "或者保存的内容属于其他 prompt 或由另一个 tokenizer 得出"
    ),
    "drafts": "被拒绝的草稿共 {count} 行：由保存的响应可知，它们不是任何样本的 token",
    "padding_behind": "rollout 中有 {count} 行位于样本结束之后：属于填充，不参与比较",
    "refilled": "有 {count} 个序列以已有的全部 token 重新开始：缓存被重新填充（抢占）",
    "gap": (
        "{entry} 输入了序列中位置 {given} 的 token，而该序列只见过 {have} 个 token："
        "这些行不参与比对。"
        "请从该阶段的第一次调用开始采集（token_range_start: 0），"
        "或以 token id 保存 prompts 和 responses"
    ),
}
