"""Training against inference, in Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.zh.words import listed, some

_WHERE = {
    "all": "全部 {rows} 个已对齐的行",
    "prompt": " {rows} 个已对齐的行中的 {born} 个，均为 prompt",
    "decode": " {rows} 个已对齐的行中的 {born} 个，均为生成的 token",
    "some": " {rows} 个已对齐的行中的 {born} 个",
}


def _weights(
    name: str,
    parts: Sequence[str],
    count: int,
    relative: float | None,
    since: int | None,
    stale: int | None,
    call: int | None = None,
    token: int | None = None,
    brought: bool = False,
    lacks: Sequence[str] = (),
) -> str:
    of = f"（在训练网络中为 {'、'.join(parts)}）" if parts else ""
    far = "" if relative is None else f"，相对其范数相差 {relative:.2g}"
    more = f"，另有 {count - 1} 个" if count > 1 else ""
    when = "" if since is None else f"，自 step {since} 起"
    old = "" if stale is None else f"；其值仍是 step {stale} 的"
    look = "请检查更新后的权重同步"
    if lacks:
        old = f"；它是训练网络的权重，但未合入其 adapter（{'、'.join(lacks)}）{old}"
        look = "请检查 adapter 合入推理权重的环节"
    if call is not None:
        place = "" if token is None else f"（输入为回答的第 {token} 个 token）"
        begin = f"从推理的第 {call} 次调用{place}起"
        old = old and f"{old}（在此之前）"
        old = f"；{begin}与训练网络相同{old}" if brought else f"，{begin}如此{old}"
        when = ""
        look = "权重在推理生成过程中被更新，请检查权重同步的时机"
    return f"推理网络的 {name}{of}与训练网络不同{far}{when}{more}{old}：{look}"


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


def _of_router(cell: str, tokens: int, others: int, before: int, by: int) -> str:
    given = [
        f"其中 {count} 个{where}"
        for count, where in (
            (before, "在路由之前已不同（路由输入已经不同）"),
            (by, "由路由本身造成（路由输入在舍入误差内一致）"),
        )
        if count
    ]
    if unknown := others - before - by:
        given.append(f"其中 {unknown} 个的路由输入未比对")
    return f"{cell}：{tokens} 个 token 中有 {others} 个去了其他专家；{'，'.join(given)}"


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
    if not known:
        return f"{run} 中只有关键数据，没有层数据：mismatch 比较两个阶段的层数据。"
    return f"{run} 中没有阶段 {phase}。{hint}{why}已有的阶段：{known}。"


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


def _weights_undecided(cell: str, names: Sequence[str], io: str = "output") -> str:
    shown = some(names[:4], len(names) - 4)
    which = (
        f"{cell} 的输入不一致，可能来自其之前 Cell 的"
        if io == "input"
        else f"{cell} 的不一致可能来自其"
    )
    return (
        f"{which}权重，也可能来自其计算：无法比对 {shown} "
        f"在另一网络中是否相同。请在映射中写明这些 Cell（--mapping）"
    )


def _ran_alone(
    cell: str, io: str, cells: Sequence[str], first: str, side: str, skipped: bool
) -> str:
    sides = {"rollout": "推理", "training": "训练"}
    other = sides["training" if side == "rollout" else "rollout"]
    shown = some(cells[:4], len(cells) - 4)
    where = f"{cell} 之前" if io == "input" else f"{cell} 内部"
    head = f"{where}，仅{sides[side]}侧执行了 {shown}：{other}侧没有采集到这样的 Cell"
    if skipped:
        return f"{head}，后续直接使用了 {first} 的输入"
    return f"{head}。请检查{other}侧在该处执行了什么；若其名称不同，请在映射中写明（--mapping）"


def _modes(rollout: str, training: str, cells: Sequence[str], dropping: Sequence[str]) -> str:
    words = {"training": "训练", "evaluation": "推理（evaluation）"}
    active = (
        f"；以下 Cell 的 dropout 生效：{some(dropping[:3], len(dropping) - 3)}" if dropping else ""
    )
    look = "在该阶段之前调用 set_train(False) 可排除 dropout 等的影响"
    if rollout == training:
        what = f"两个网络都以{words[rollout]}模式运行"
        if cells:
            what += f"，但 {some(cells[:3], len(cells) - 3)} 仅在一侧如此"
        return f"{what}{active}：{look}"
    return (
        f"推理网络以{words[rollout]}模式运行，训练网络以{words[training]}模式运行{active}：{look}"
    )


def _weights_alone(rollout: Sequence[str], training: Sequence[str]) -> str:
    sides = [
        f"{side} {len(names)} 个（{some(names[:3], len(names) - 3)}）"
        for side, names in (("推理侧", rollout), ("训练侧", training))
        if names
    ]
    return f"权重：未比对，因为另一网络没有该名称和形状的权重：{listed(sides)}"


def _merged(
    name: str, names: Sequence[str], of_training: bool, factor: float | None, count: int = 1
) -> str:
    merged, other = ("推理", "训练")[:: 1 if of_training else -1]
    more = f"，另有 {count - 1} 个也是如此" if count > 1 else ""
    if factor is None:
        return (
            f"{name} 在两个网络中不同，而{other}网络在其旁有适配器（{listed(names)}）："
            f"该 Cell 的输出一致，可见{merged}网络已将其合并{more}。"
            f"用 task: tensor 采集元素可以证实"
        )
    return (
        f"{merged}网络的 {name} 是{other}网络的权重合并适配器后的结果："
        f"加上了 {listed(names)} 之积的 {factor:.3g} 倍{more}"
    )


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


TEXTS: Mapping[str, Any] = {
    "reordered": lambda **values: f"{_reordered(**values)}；已按此对齐",
    "reordered_or_wrong": _reordered_or_wrong,
    "weights": _weights,
    "rounded_weights": _rounded_weights,
    "weights_undecided": _weights_undecided,
    "ran_alone": _ran_alone,
    "modes": _modes,
    "merged": _merged,
    "merged_otherwise": lambda cell, **merged: (
        f"{cell} 的输入一致，输出不一致：{_merged(**merged)}。"
        f"请检查两个网络加入适配器时的系数（alpha / r）及其 dropout"
    ),
    "mapping_shapes": _mapping_shapes,
    "non_finite": lambda cell, sides: (
        f"{'和'.join({'rollout': '推理侧', 'training': '训练侧'}[s] for s in sides)}的 {cell} "
        "出现 NaN 或 Inf"
    ),
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
    "unseen": lambda cell, values: (
        f"{cell} 的输入中未比对的有：{some(values[:4], len(values) - 4)}。其中可能有不同的掩码等"
    ),
    "unread": lambda values: (
        f"其内部 cell 的输出中未比对的有：{some(values[:4], len(values) - 4)}。差异可能出在那里"
    ),
    "other_tokens": lambda sample, position, rollout, training, count, of, packed=False: (
        f"推理侧 {of} 条序列中有 {count} 条的后续 token 与训练侧不同："
        f"样本 {sample} 的位置 {position} 为 token {rollout}，"
        f"训练侧最接近的序列为 {training}；此后的行无法比对。"
        + (
            "训练侧的一行中有多个样本：请给网络重新起算的位置，"
            "或用 `phase.tokens(ids, positions=...)` 指明"
            if packed
            else "原因可能是另一个 tokenizer，或 id 因填充而错位"
        )
    ),
    "log_prob_not_finite": lambda row, place, rollout, training, count: (
        f"第 {row} 条回答的第 {place} 个 token 的 log-prob，推理侧为 {rollout:.4g}，"
        f"训练侧为 {training:.4g}" + (f"；共有 {count} 个这样的 token" if count > 1 else "")
    ),
    "log_probs_shifted": lambda by: (
        f"推理侧的 log-prob 是训练侧{'后' if by > 0 else '前'}一个 token 的：有一侧错位了一个 token"
    ),
    "worst_sampled": lambda row, place, id, rollout, training: (
        f"差异最大的采样 token：第 {row} 条回答的第 {place} 个 token"
        f"{'' if id is None else f'，id {id}'}：推理侧 {rollout:.4g}，训练侧 {training:.4g}"
    ),
    "leak": lambda side, rows: (
        f"样本之间互相泄漏：{'推理侧' if side == 'rollout' else '训练侧'}的掩码使 {rows} 行"
        f"能看到同一行中排在前面的其他样本的 token"
    ),
    "other_count": _other_count,
    "also_temperature": _also_temperature,
    "lets_in": _lets_in,
    "no_phase": _no_phase,
    "of_rank": _of_rank,
    "experts": lambda routers, apart, **first: (
        f"{routers} 个路由中有 {apart} 个选择不同，首先是 {_of_router(**first)}"
    ),
    "routers": lambda routers, apart: (
        f"专家：{routers} 个路由中有 {apart} 个选择不同"
        if apart
        else f"专家：{routers} 个路由的选择全部相同"
    ),
    "of_router": _of_router,
    "weights_alone": _weights_alone,
    "steps": lambda agree, parted, undecided: "，".join(
        f"{count} 个{word}"
        for count, word in ((agree, "一致"), (parted, "不一致"), (undecided, "无法判定"))
        if count
    ),
}
