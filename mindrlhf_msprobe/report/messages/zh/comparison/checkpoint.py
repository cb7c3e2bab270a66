"""What is said of checkpoints that are read and compared, in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import some


def _several(path: str, names: Sequence[str]) -> str:
    return (
        f"{path} 中有多个 checkpoint（{'、'.join(names)} 等），无法确定用哪一个；请给出文件路径。"
    )


def _only_pickles(path: str, names: Sequence[str]) -> str:
    return (
        f"{path} 中没有可读取的 checkpoint，只有 {'、'.join(names)}：PyTorch 的 pickle 文件。"
        f"加载 pickle 会执行其中的代码，因此从不加载。请另存为 safetensors。"
    )


def _some(count: int, names: Sequence[str]) -> str:
    return some(list(names), count - len(names))


def _unlisted(names: Sequence[str], count: int) -> str:
    return f"文件中有 {count} 个权重未列入索引：{_some(count, names)}"


def _in_another_file(names: Sequence[str], count: int, file: str, said: str) -> str:
    return (
        f"有 {count} 个权重，索引所指的文件不对：{_some(count, names)}；"
        f"{names[0]} 在 {file} 中，而不在 {said} 中。已按实际位置读取"
    )


def _last_step(epoch: int, step: int, others: int) -> str:
    older = f"（另有 {others} 个更早的未读取）" if others else ""
    return f"有多个 checkpoint，取所有 rank 都有的最后一个：epoch {epoch}、step {step}{older}"


def _of_role(role: str, others: Sequence[str], step: int | None) -> str:
    when = "首次采集时的值" if step is None else f"step {step} 的值"
    said = f"{role} 的权重，{when}"
    if others:
        said += f"；如需 {'、'.join(others)}，请给出其某个阶段的目录"
    return said


def _below(a: str, b: str) -> str:
    sides = [f"{side} 侧前缀 {prefix!r}" for side, prefix in (("A", a), ("B", b)) if prefix]
    return f"已去掉 {' 和 '.join(sides)}"


def _only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"仅 {side} 侧有的权重 {count} 个：{_some(count, names)}"


def _optimizer_only_in(side: str, count: int, names: Sequence[str]) -> str:
    other = "B" if side == "A" else "A"
    return f"优化器状态仅 {side} 侧有（{count} 个：{_some(count, names)}），{other} 侧没有"


def _texts_only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"仅 {side} 侧有的非张量条目 {count} 个：{_some(count, names)}"


TEXTS: dict[str, Text] = {
    # a file
    "of_file": "{path}：{why}",
    "none": "{path} 不存在；应为 .ckpt、.safetensors，或含有 checkpoint 的目录。",
    "no_file": "不是普通文件",
    "changed": "读取期间被修改或替换",
    "ends": "在第 {present} 字节处结束，应到第 {end} 字节",
    "empty": "是空文件：0 字节，应为 checkpoint",
    # MindSpore's
    "zip": (
        "是 zip 压缩包（torch.save 或 numpy 的格式）：其中是 pickle，加载会执行其中的代码，"
        "因此从不加载。请另存为 safetensors"
    ),
    "pickle": "是 pickle 文件：加载会执行其中的代码，因此从不加载。请另存为 safetensors",
    "gzip": "是 gzip 压缩文件；应为 MindSpore 保存的 checkpoint。请先解压",
    "compressed": "是压缩文件；应为 MindSpore 的 checkpoint 或 safetensors。请先解压",
    "git_lfs": ("是 Git LFS 的指针文件，真正的内容尚未下载。请在克隆所在处用 `git lfs` 下载"),
    "json": (
        "是 JSON 文件；应为 MindSpore 的 .ckpt 或 safetensors。"
        "safetensors 的索引，文件名须以 .safetensors.index.json 结尾"
    ),
    "gguf": "是 GGUF 文件（llama.cpp）；应为 MindSpore 的 .ckpt 或 safetensors",
    "hdf5": "是 HDF5 文件；应为 MindSpore 的 .ckpt 或 safetensors",
    "encrypted": "是加密的 checkpoint（enc_key），无法读取；请保存为不加密的文件",
    "no_ckpt": "既不是 MindSpore 的 checkpoint，也不是 safetensors：文件开头为 {head}",
    "field": (
        "不是完整的 MindSpore 的 checkpoint：第 {at} 字节处为字段 {number}（类型 {kind}），"
        "该处不应有此字段"
    ),
    "field_cut_short": (
        "文件被截断：第 {at} 字节处的内容应有 {size} 字节，只有 {present} 字节。请重新复制或保存"
    ),
    "number": "文件被截断或损坏：第 {at} 字节处不是完整的整数",
    "too_many": "权重或其分片超过 {most} 个",
    "long_name": "文件损坏：第 {at} 字节处的名称长达 {length} 字节",
    "no_tag": "文件损坏：第 {at} 字节处的条目没有名称或没有值",
    "no_content": "文件损坏：第 {at} 字节处的张量没有内容",
    "dimensions": "文件损坏：第 {at} 字节处的张量超过 {most} 维",
    "crc": ("文件损坏：其中记录的 CRC-32 为 {stored}，按内容计算为 {found}。请重新拷贝或保存"),
    "map": "是 MapTensor，不支持比对",
    "twice": "在文件中出现两次，且不是同一权重的连续分片",
    "unlike_slices": "各分片的 dtype 或 shape 不同",
    "dtype": "元素类型为 {dtype}，无法比对",
    "size": "按 shape 和 dtype 应有 {size} 字节，实有 {present} 字节",
    # safetensors
    "no_safetensors": "不是 safetensors 文件：开头不是文件头长度和 {{",
    "header_long": "文件头声称有 {size} 字节；最多读取 {most} 字节",
    "header_cut_short": "文件被截断：文件头应有 {size} 字节，只有 {present} 字节",
    "header": "文件头不是有效的 JSON：{why}",
    "name_twice": "文件头中 {name!r} 出现两次",
    "entry": "文件头中 {name!r} 为 {shown}，应为 dtype、shape 和两个 data_offsets",
    "entry_size": "{name!r} 占 {size} 字节，与 shape {shape}、dtype {dtype} 不符",
    "outside": (
        "{name!r} 应位于数据的第 {begin} 到 {end} 字节，而数据只有 {present} 字节：文件被截断或损坏"
    ),
    "overlap": "{name!r}（数据的第 {begin} 到 {end} 字节）与 {before!r} 重叠",
    "hole": "数据的第 {at} 到 {begin} 字节不属于任何权重（在 {name!r} 之前）",
    "rest": "数据有 {present} 字节，文件头只描述了 {size} 字节",
    "index": "不是 safetensors 索引：应有 weight_map，为每个权重给出文件名",
    "leaves": "指定的文件 {name!r} 不在索引所在目录中；目录以外的文件一律不打开",
    "in_two_files": "含有 {name!r}，而 {other} 中也有；每个权重应只出现一次",
    "not_in_file": "索引称其位于 {file}，但该文件中没有",
    "unlisted": _unlisted,
    "in_another_file": _in_another_file,
    # directories
    "link_leaves": "是指向目录之外的符号链接，不予打开",
    "several": _several,
    "files_missing": (
        "{path} 缺少 {count} 个文件 {name}-00001-of-{count:05}.safetensors 等中的第 {missing} 个。"
        "请一并拷贝。"
    ),
    "none_there": (
        "{path} 中没有 checkpoint；应有 .ckpt、.safetensors，或含有它们的目录 rank_0、rank_1 等，"
        "或为采集了权重的采集结果。"
    ),
    "only_pickles": _only_pickles,
    "no_common_step": "{path}：各 rank 没有同一 epoch、step 的 checkpoint。",
    "last_step": _last_step,
    # several ranks
    "by_strategy": "{ranks} 个 rank，按 {file} 合并",
    "no_strategy": "不是 MindSpore 的策略文件：没有任何权重的切分方式",
    "strategy_json": "不是 MindSpore 的策略文件：{why}",
    "two_strategies": "对 {name!r} 切分方式的描述与同一 stage 的另一策略文件不同",
    "other_strategy": (
        "{path}：策略文件（{file}）对应 {expected} 个 rank（stage {stages}），"
        "而目录中有 rank {ranks}。请提供所有 stage 的策略文件和所有 rank。"
    ),
    "layout": "策略文件中的切分方式无法识别",
    "uneven": "策略文件为不均匀切分，不支持",
    "unlike_ranks": "各 rank 的 dtype 或 shape 不同",
    "other_axes": "策略文件中的维数与之不同",
    "shard_missing": "应由 rank {ranks} 保存的切片缺失",
    "copies_differ": "本应持有相同 {name!r} 的各 rank，内容不同",
    "other_ranks": (
        "A 侧有 rank {a}，B 侧有 rank {b}，且不知道权重如何切分。"
        "请将 MindSpore 的策略文件放入 rank_0 旁的 strategy/ 目录。"
    ),
    "one_rank": (
        "只有 rank {rank}，而 {file} 描述 {expected} 个 rank：shape 不同的权重可能只是切片。"
        "若是，请把其他 rank 的目录放在一起"
    ),
    "rank_twice": lambda path, rank, names: (
        f"{path} 中有两个目录属于 rank {rank}：{'、'.join(names)}，"
        f"无法确定用哪一个；请移走其中一个。"
    ),
    "parts": (
        "{path} 是 {ranks} 个 rank 的权重切片（{name!r} 与另一侧不符），"
        "且没有策略文件说明切分方式。"
        "请将 MindSpore 的策略文件放入 rank_0 旁的 strategy/ 目录，或保存完整的 checkpoint。"
    ),
    # a run
    "no_parameters": "{path} 没有采集权重；请设置 parameters: true 并开启某个阶段后采集。",
    "no_parameters_in_step": "{path} 在 step {step} 没有采集权重。",
    "of_role": _of_role,
    "two_runs": "{a} 和 {b} 都是采集结果；请用 compare_runs 比对。",
    # what is asked for
    "same": "{path} 同时作为 {first} 和 {second} 给出；应为两个 checkpoint。",
    "two_to_one": "{side} 侧的 {first!r} 和 {second!r} 对应到同一名称 {name!r}；请修改映射文件。",
    "option": "{option} 用于采集结果，不用于 checkpoint；请去掉。",
    "one_step": "--steps 为 {value!r}；应为采集结果的一个 step，比对该 step 的权重。",
    # names
    "below": _below,
    "unlike_names": "大多数名称在另一侧没有对应；请用 --mapping 指定对应关系",
    # notes
    "transposed": lambda to: "转置后相同：" + (f"舍入到 {to} 后相等" if to else "所有元素相等"),
    "rounded": "{a} 对 {b}：舍入到 {to} 后相等",
    "no_noise": "没有重复 checkpoint 含有相同 dtype 和 shape 的元素：噪声未知",
    # coverage
    "perhaps_cut": (
        "{side} 侧可能被截断：缺少 {count} 个权重，且文件恰在两个条目之间结束；"
        "未以 crc_check=True 保存的 .ckpt 在此处截断不留痕迹"
    ),
    "left_out": "{count} 个权重因 --include、--exclude 未比对",
    "only_in": _only_in,
    "optimizer_only_in": _optimizer_only_in,
    "texts_only_in": _texts_only_in,
    "of_side": "{side}：{what}",
    # the answer
    "headline_identical": "一致（逐位）：{compared} 个权重全部相等。",
    "headline_within_tolerance": "容差内一致：{compared} 个权重全部一致，但并非全部逐位一致。",
    "headline_diverged": "存在差异：{compared} 个权重中 {different} 个不一致。",
    "headline_incomparable": (
        "无法比对：A 侧没有任何权重出现在 B 侧。如果只是名称不同，请用 --mapping。"
    ),
    "no_fused": "融合权重的模式 {pattern!r} 不是 A 或 B 中任何权重所在的 Cell。",
    "no_part": "按映射，{name} 由多个权重组成；另一侧没有 {part}。",
    "parts_unlike": (
        "{name} 的 shape 为 {shape}，其各部分在 {groups} 组时不能拼成它：{parts}。"
        "应当 dtype 相同，行数之和相等且能按组数整除。"
    ),
    "side_a": "A（标杆）：{path}（{kind}）",
    "side_b": "B（待比对）：{path}（{kind}）",
    "differing": "{count} 个权重不同：",
    "only_in_a": "{count} 个权重仅 A 侧有：",
    "only_in_b": "{count} 个权重仅 B 侧有：",
    "suspicious": "{count} 个权重一致但可疑：",
    "of_rank": "{name}（rank {rank}）",
    "apart": (
        "余弦 {cosine}，l2 {l2:.3g}（相对 {relative:.3g}），最大绝对误差 {largest:.3g}，"
        "{elements} 个元素中 {percent:.3g} % 不同"
    ),
    "no_cosine": "无",
    "more": "  …… 另有 {count} 个",
    "optimizer": "优化器状态：{count} 个张量，{agreeing} 个一致",
    "coverage": "未比对：{what}",
    "remark": "说明：{what}",
    "rule": "容差：{rule}：{records} 个权重，其中 {passed} 个仅因容差一致",
    "tables": "表格：{output}：{tables}、verdict.json",
    "summary": "比对 {elements} 个元素，用时 {seconds:.1f} 秒：{counts}",
}
