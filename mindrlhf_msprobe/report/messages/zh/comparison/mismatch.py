"""Training against inference, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.zh.words import listed, some

_WHERE = {
    "all": "全部 {rows} 个已对齐的行",
    "prompt": "{rows} 个已对齐的行中的 {born} 个，均为 prompt",
    "decode": "{rows} 个已对齐的行中的 {born} 个，均为生成的 token",
    "some": "{rows} 个已对齐的行中的 {born} 个",
}


def _weights(
    name: str,
    parts: Sequence[str],
    count: int,
    relative: float | None,
    since: int | None,
    stale: int | None,
) -> str:
    of = f"（在训练网络中为 {'、'.join(parts)}）" if parts else ""
    far = "" if relative is None else f"，相对其范数相差 {relative:.2g}"
    more = f"，另有 {count - 1} 个" if count > 1 else ""
    when = "" if since is None else f"，自 step {since} 起"
    old = "" if stale is None else f"；其值仍是 step {stale} 的"
    return f"推理网络的 {name}{of}与训练网络不同{far}{when}{more}{old}：请检查更新后的权重同步"


def _other_count(rollout: int, training: int | None, sample: int, count: int, of: int) -> str:
    other = "训练网络没有收到位置" if training is None else f"训练网络偏移 {training:+d}"
    return (
        f"样本 {sample} 中，推理网络收到的位置相对 token 所在位置偏移 {rollout:+d}，{other}；"
        f"{of} 个序列中有 {count} 个如此。旋转位置编码不受常数偏移（如计入填充）影响，"
        "绝对位置编码会受影响"
    )


def _also_temperature(rollout: float, training: float | None) -> str:
    other = "训练侧是否也除以该温度未知"
    if training is not None:
        other = f"训练侧的对应其自身 logits 的温度 {training:g}"
    return f"推理侧的 log-prob 对应其自身 logits 的温度 {rollout:g}，{other}"


def _rows(
    where: str, born: int, rows: int, samples: int, of_samples: int, padded: bool = False
) -> str:
    head = _WHERE[where].format(born=born, rows=rows)
    only = "：恰为前面有填充的序列" if padded else ""
    return f"涉及{head}，分布在 {of_samples} 条序列中的 {samples} 条{only}"


def _shifted(by: int) -> str:
    side = "后" if by > 0 else "前"
    return f"推理侧的行与训练网络中往{side} {abs(by)} 个位置的行相同：请检查 decode 时位置的计算"


def _no_phase(run: str, phase: str, known: str, hint: str, switch: str = "", first: int = 0) -> str:
    why = ""
    if switch:
        why = f"未要求采集：{switch} 未打开。"
    elif first:
        why = f"只要求采集从 {first} 开始的 token（token_range_start），而没有生成这样的 token。"
    return f"{run} 中没有阶段 {phase}{hint}。{why}已有的阶段：{known}。"


_LETS_IN = {
    "padding": "使 {rows} 行可见{other}侧所屏蔽的填充",
    "later": "使 {rows} 行可见{other}侧所屏蔽的后续 token",
    "others": "使 {rows} 行可见{other}侧所屏蔽的其他样本的 token",
    "hidden": "对 {rows} 行屏蔽了{other}侧可见的先前 token",
}


def _lets_in(name: str, rows: int, side: str, kind: str) -> str:
    sides = {"rollout": "推理", "training": "训练"}
    other = sides["training" if side == "rollout" else "rollout"]
    return f"{sides[side]}侧 {name} 处的掩码{_LETS_IN[kind].format(rows=rows, other=other)}"


_STATUSES = {
    "identical": "逐位一致",
    "within_rounding": "在舍入误差内一致",
    "parted": "不一致",
    "undecided": "无法判定",
}


def _of_rank(rank: int, status: str, name: str, cause: str) -> str:
    what = "，".join(part for part in (name, cause) if part)
    return f"rank {rank} {_STATUSES[status]}" + (f"：{what}" if what else "")


def _rounded_weights(name: str, count: int, dtypes: Sequence[str]) -> str:
    which = f"{name} 等 {count} 个权重" if count > 1 else name
    return (
        f"推理网络的 {which} 是训练网络的值舍入到 {listed(dtypes)} 的结果：此外没有不同。"
        f"请检查同步权重时所用的 dtype"
    )


def _weights_undecided(cell: str, names: Sequence[str]) -> str:
    shown = some(names[:4], len(names) - 4)
    return (
        f"{cell} 的不一致可能来自其权重，也可能来自其计算：无法比对 {shown} "
        f"在另一网络中是否相同。请在映射中写明这些 Cell（--mapping）"
    )


def _weights_alone(rollout: Sequence[str], training: Sequence[str]) -> str:
    sides = [
        f"{side} {len(names)} 个（{some(names[:3], len(names) - 3)}）"
        for side, names in (("推理侧", rollout), ("训练侧", training))
        if names
    ]
    return f"权重：未比对，因为另一网络没有该名称和形状的权重：{listed(sides)}"


def _mapping_shapes(source: str, cell: str, shape: object, parts: Sequence[str]) -> str:
    return (
        f"映射：{source}：{cell} 的权重为 {shape}，其各部分为 {listed(parts)}。"
        f"应与各部分的行数之和相同（权重为 [输入, 输出] 时为列数），且各部分都能分成映射所写的组数"
    )


def _reordered(count: int, call: int, row: int, sample: int, left: int) -> str:
    which = "另一样本" if sample < 0 else f"样本 {sample}"
    more = f"；另有 {left} 行不属于训练侧的任何序列" if left else ""
    return (
        f"由计算结果可知，推理侧有 {count} 行接续的不是其所在位置的样本，首次在第 {call} 次调用："
        f"其批次的第 {row} 行接续的是{which}{more}"
    )


def _reordered_or_wrong(count: int, call: int, row: int, sample: int, left: int) -> str:
    return (
        f"{_reordered(count, call, row, sample, left)}。缓存可能被重新排列（如束搜索），"
        f"也可能被混淆：token 与两者都相符，无法判定。"
        f"请保存 rollout_log_prob 和 old_log_prob，或检查缓存各行的排列"
    )


TEXTS = {
    "reordered": lambda **values: f"{_reordered(**values)}；已按此对齐",
    "reordered_or_wrong": _reordered_or_wrong,
    "weights": _weights,
    "rounded_weights": _rounded_weights,
    "weights_undecided": _weights_undecided,
    "mapping_no_cell": (
        "映射：{source} 与推理网络的任何 Cell 都不匹配，因此不起作用。"
        "左侧应为其中一个 Cell 的名称，例如 {example}{hint}"
    ),
    "mapping_no_part": "映射：{source}：训练网络没有 {what} {part}{hint}，因此不起作用",
    "mapping_shapes": _mapping_shapes,
    "positions": (
        "推理网络在第 {call} 次调用中为样本 {sample} 的第 {position} 个 token 输入了位置 {given}，"
        "按之前的 token 应为 {right}"
    ),
    "non_finite": lambda cell, sides: (
        f"{'和'.join({'rollout': '推理侧', 'training': '训练侧'}[s] for s in sides)}的 {cell} "
        "出现 NaN 或 Inf"
    ),
    "numbers": (
        "{cell} 恰好在出现差异的 token 上收到了不同的整数：样本 {sample} 的第 {position} 个 token，"
        "{value} 在推理侧为 {rollout}，在训练侧为 {training}。若这是位置，请检查其计算方式"
    ),
    "lower_dtype": (
        "推理侧以 {rollout} 计算 {cell}，训练侧以 {training} 计算；差异与较低精度的舍入相当"
    ),
    "gradual": "没有单个 Cell 超出舍入误差，但到 {cell} 为止的累积已超出",
    "returned": "{cell} 的输出不同；其输入均无法比对",
    "no_sequences": (
        "{phase}：无法得知任何 token 之前的 token。"
        "请采集输入 prompt 的首次调用（token_range_start: 0），"
        "或以 token id 保存 prompts 和 responses（key_data_dump）"
    ),
    "computation": "{cell} 的输入一致，输出不一致",
    "computation_or_given": lambda cell, values: (
        f"{cell} 的输出不一致，而 {some(values[:4], len(values) - 4)} 一致："
        f"原因在其计算，或在未比对的其他输入"
    ),
    "beyond_rounding": lambda name, cell, io, around, growth, usual, dtype: (
        f"{dtype} 的舍入不能解释 {name}：其差异是传入差异的 {growth:.2g} 倍，"
        f"其他层最多为 {usual:.2g} 倍。请同时检查"
        + (f"生成该值的 {around} 的代码" if io == "input" else f" {cell} 的计算")
    ),
    "handed_on": lambda cell, around, rounded=False, left=0: (
        f"{cell} 之前{'可比对的' if left else ''}各 Cell "
        f"{'除微小误差外' if rounded else ''}均一致，"
        f"而它的输入不一致：该输入由 {around} 中各 Cell 之间的代码产生"
        + ("，或由未比对的值产生" if left else "")
    ),
    "rows": _rows,
    "shifted": _shifted,
    "from_borders_on": (
        "这些序列都从缓存块（每块 {size} 个 token）的第一个 token 开始不同："
        "请检查 block_tables 与 slot_mapping"
    ),
    "unseen": lambda cell, values: (
        f"{cell} 的输入中未比对的有：{some(values[:4], len(values) - 4)}。其中可能有不同的掩码等"
    ),
    "unread": lambda values: (
        f"其内部 cell 的输出中未比对的有：{some(values[:4], len(values) - 4)}。差异可能出在那里"
    ),
    "other_tokens": (
        "推理侧 {of} 条序列中有 {count} 条的后续 token 与训练侧不同："
        "样本 {sample} 的位置 {position} 为 token {rollout}，"
        "训练侧最接近的序列为 {training}；此后的行无法比对。"
        "原因可能是另一个 tokenizer，或 id 因填充而错位"
    ),
    "log_prob_not_finite": lambda row, place, rollout, training, count: (
        f"第 {row} 条回答的第 {place} 个 token 的 log-prob，推理侧为 {rollout:.4g}，"
        f"训练侧为 {training:.4g}" + (f"；共有 {count} 个这样的 token" if count > 1 else "")
    ),
    "rows_exchanged": (
        "推理侧的若干行 log-prob 是训练侧其他回答的：第 {row} 行是第 {other} 行（共 {count} 行）。"
        "请检查拼接时的顺序"
    ),
    "log_probs_shifted": lambda by: (
        f"推理侧的 log-prob 是训练侧{'后' if by > 0 else '前'}一个 token 的：有一侧错位了一个 token"
    ),
    "other_response": (
        "已保存的 {of} 条回答中有 {count} 条的后续 token 与训练侧不同："
        "样本 {sample} 的位置 {position} 为 token {saved}，训练网络的输入为 {training}。"
        "原因可能是另一个 tokenizer，或 id 因填充而错位"
    ),
    "worst_sampled": lambda row, place, id, rollout, training: (
        f"差异最大的采样 token：第 {row} 条回答的第 {place} 个 token"
        f"{'' if id is None else f'，id {id}'}：推理侧 {rollout:.4g}，训练侧 {training:.4g}"
    ),
    "few_aligned": ("推理侧 {tokens} 个 token 中仅 {rows} 个能够对齐：其余的无从得知"),
    "few_saved": (
        "已保存的 prompts 和 responses 的 {tokens} 个 token 中仅 {rows} 个能够对齐：其余的无从得知"
    ),
    "log_probs_apart": (
        "采样 token 的 log-prob 平均相差 {mean:.2g} nats，而能够对齐的 token 太少，无法得知始于何处"
    ),
    "other_count": _other_count,
    "also": "另外不同：{what}",
    "also_beyond": ("{name} 相差 {apart:.2g}，输入差异为 {entered:.2g}，舍入到 {dtype} 不能解释"),
    "also_dtype": "推理侧以 {rollout} 计算 {cell}，训练侧以 {training} 计算",
    "also_temperature": _also_temperature,
    "temperature": (
        "logits 一致；推理侧的 log-prob 对应温度 {rollout:g}，训练侧对应 {training:g}"
        "（平均相差 {mean:.2g} nats）"
    ),
    "sampling": (
        "logits 一致，而采样 token 的 log-prob 平均相差 {mean:.2g} nats："
        "请检查网络之后对 logits 的处理（温度、惩罚项、屏蔽的 token、采样器的 log-softmax）"
    ),
    "fused_form": (
        "{path}：{source}: {target} 不是 Cell 的映射。应为一个名称、至少两个名称的列表，或 "
        "{{parts: [名称], groups: 数}}。"
    ),
    "lets_in": _lets_in,
    "mask_or_scores": "它在一侧是掩码，在另一侧不是",
    "packed_mask": (
        "掩码使同一行中的各样本互相可见：是否另有输入（如传给 attention 的各样本末尾位置）"
        "将其隔开，无从得知"
    ),
    "shared_mask": ("所有样本共用该掩码，其中填充可见：是否另有输入将填充隐藏，无从得知"),
    "mask_convention": ("无法确定两个取值中哪一个表示可见：各 token 对自身的取值不一致"),
    "keys_not_stored": "其各列是 token，只有元素才能区分；请用 task: tensor 采集",
    "keys_or_features": "最后一个轴与序列等长，无法确定它是特征还是 token",
    "heads": "推理侧有 {rollout} 个头，训练侧有 {training} 个",
    "no_layout": "由形状无法得知哪个轴是 token",
    "no_rows": "没有可配对的行",
    "no_sums": "只有各行的指纹，没有求和值",
    "fused_sketch": "其各部分交错排列，sketch 无法区分；请用 task: tensor 采集",
    "columns": "每行的值在推理侧有 {rollout} 个，在训练侧有 {training} 个",
    "kind": "元素类型 {dtype} 不是数值",
    "unaligned": "{phase}：{why}",
    "nothing_compared": (
        "token 已知，但两个网络没有可比对的值：请用 task: tensor 或 task: sketch 采集两个阶段"
    ),
    "no_common_tokens": (
        "推理侧没有任何序列与训练侧的序列开头相同："
        "两侧第一条序列分别以 {rollout} 和 {training} 开头。"
        "原因可能是其他 prompt、另一个 tokenizer，或 id 因填充而错位。"
        "若一侧有左填充，其网络的输入须有说明填充的位置、长度或掩码"
    ),
    "no_metrics": "没有 log-prob 指标：{why}",
    "no_phase": _no_phase,
    "no_rank": (
        "没有同时具有两个阶段的 rank：{rollout} 采集于 rank {a}，{training} 采集于 rank {b}。"
        "请在相同的 rank 上采集两个阶段。"
    ),
    "ranks": "step {step} 的各 rank",
    "of_rank": _of_rank,
    "no_step": (
        "没有同时具有两个阶段的 step：{rollout} 采集于 step {a}，{training} 采集于 step {b}。"
        "请在同一 step 中采集两者：比对的是同一 token 在两者中的行。"
    ),
    "step": "step {step} 不同时具有两个阶段；具有的有：{there}。",
    "headline_identical": "逐位一致（AGREE）：{rollout} 与 {training}",
    "headline_within_rounding": "在舍入误差内一致（AGREE）：{rollout} 与 {training}",
    "headline_parted": "不一致（PARTED），step {step}，rank {rank}：{rollout} 与 {training}",
    "headline_undecided": "无法判定（UNDECIDED）：{rollout} 与 {training}",
    "cause": "原因：{cause}",
    "apart": (
        "相对行范数相差 {apart:.2g}（均方根；最大 {most:.2g}），输入相差 {entered:.2g}，"
        "舍入可解释 {allowed:.2g}"
    ),
    "worst": "差异最大的 token：样本 {sample}，位置 {position}（{role}），id {id}{text}",
    "role_prompt": "提示词中",
    "role_padding": "prompt，紧接填充之后",
    "role_first": "回答的第一个",
    "role_block": "回答中，缓存块的第一个",
    "role_response": "回答中",
    "text": "，…{text!r}",
    "births": "误差产生于",
    "birth": "{name}：{apart:.2g}，输入 {entered:.2g}",
    "grows": "误差的增长",
    "shown_step": "以下为相差最大的 step {step}、rank {rank}：",
    "weights_differ": "权重：{compared} 个中有 {different} 个不同",
    "weights_agree": "权重：{compared} 个全部一致",
    "weights_some_agree": "权重：推理侧 {of} 个中比对了 {compared} 个，这些一致",
    "weights_alone": _weights_alone,
    "weights_unknown": "权重：{count} 个无法比对（{names}）",
    "metrics": "采样 token 的 log-prob",
    "steps": lambda agree, parted, undecided: "，".join(
        f"{count} 个{word}"
        for count, word in ((agree, "一致"), (parted, "不一致"), (undecided, "无法判定"))
        if count
    ),
    "scope": "推理侧 {tokens} 行中已对齐 {rows} 行，比对了 {values} 个值，{left} 个未比对",
    "note": "注意：{note}",
    "written": "已写入：{files}",
    "one_or_two_runs": "应给出一份采集结果，或依次给出推理侧和训练侧两份；给出的是 {runs}。",
    "a_step": "step 的编号，例如 3",
    "more": "… 另有 {count} 个",
}
