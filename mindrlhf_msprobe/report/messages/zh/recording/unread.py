"""采集结果中无法读取的内容：接在文件名之后的半句话。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.zh.words import some


def _damaged_lines(count: int, lines: Sequence[tuple[int, str]] = ()) -> str:
    """说明 records.jsonl 中哪些行损坏：每行对应一个条目，行首可能仍留有条目名。"""
    said = f"流水文件（records.jsonl）中有 {count} 行损坏"
    named = [f"第 {number} 行（{entry or '条目名也已丢失'}）" for number, entry in lines]
    return f"{said}，每行对应的一个条目已丢失：{some(named, count - len(named))}" if named else said


def _no_dump_files(count: int, files: Sequence[str]) -> str:
    """列出形式未知的文件。"""
    return f"中有 {count} 个不是 MindSpore Dump 写入的文件：{some(files, count - len(files))}"


def _no_columns(columns: Sequence[str]) -> str:
    """列出 statistic.csv 缺少的列。"""
    return f"不是 MindSpore Dump 的 statistic.csv：缺少列 {'、'.join(columns)}"


TEXTS = {
    "at": "{path}：{why}",
    "of_file": "{file} {why}",
    "of_file_colon": "{file}：{why}",
    # 任意文件
    "failed": "无法读取：{why}",
    "raised": "{error}：{why}",
    "unlisted": "无法列出目录内容：{why}",
    "nested": "嵌套层数过多",
    "link_leaves": "是指向采集目录之外的符号链接",
    "a_link_leaves": "有符号链接指向采集目录之外",
    "no_file": "不是普通文件",
    "too_large": "大小为 {size} 字节，超过可读取的上限 {most}",
    "no_json": "不是有效的 JSON：{why}",
    "no_object": "不是 JSON 对象",
    "missing": "缺失",
    # 真实数据
    "another_file": "比对期间被换成了另一个文件",
    "file_missing": "文件缺失",
    "too_much_data": "数据为 {size} 字节，超过可读取的上限 {most}",
    "cut_short": "文件截断：文件头标明数据为 {size} 字节，实际只有 {present} 字节",
    "not_mapped": "无法按 shape {shape} 映射：{why}",
    "no_npy": "没有有效的 .npy 文件头：开头不符",
    "npy_version": ".npy 格式版本为 {version}，应为 1.0 或 2.0",
    "npy_cut_short": "没有有效的 .npy 文件头：文件头截断",
    "npy_header": "没有有效的 .npy 文件头：{why}",
    "claimed_shape": "标明的 shape 为 {shape}",
    "framework": "来自未知的框架 {name}；已知的有 {known}",
    "other_form": "来自未知的版本：条目中有 {found}，没有 {known}",
    "no_pt": "不是 torch.save 写出的单个张量的 .pt 文件（{why}）",
    "pt_head": "元素之外的内容超过 {most}，单个张量的 .pt 文件不会如此",
    "pt_compressed": "经过压缩或加密；torch.save 按原样存放元素",
    "pt_order": "在字节序不同的机器上保存",
    "pt_pickle": "内容为 {what}，应为 torch.save 写出的单个张量；不会反序列化",
    "pickled": "内容是 pickle 序列化的 Python 对象，不会加载",
    "held_dtype": "dtype 为 {dtype}，不支持",
    "statistics_alone": "仅采集了统计量（task: tensor 才采集真实数据）",
    "other_shape": "文件中的 shape 为 {held}，采集时为 {recorded}",
    "other_dtype": "文件中的 dtype 为 {held}，采集时为 {recorded}",
    "other_signs": "文件中的符号数据为 {held}，应为 uint8，{size} 个元素各占一位",
    "part_head": "开头不符，不是行摘要文件",
    "part_cut_short": "文件截断：行摘要应到第 {end} 字节，文件只有 {present} 字节",
    "no_sketch": "没有采集行摘要（task: sketch 才采集）",
    "sketch_place": "行摘要的位置为 {shown}，应包含算法、块大小与偏移",
    "sketch_algorithm": "行摘要的算法为 {held!r}，此版本无法读取",
    "sketch_block": "行摘要每块 {held} 列，应为 64 或 0",
    "sketch_offset": "行摘要标明位于第 {offset} 字节，该处不可能有行摘要",
    "of_pytorch": "是 PyTorch 的文件，只有 PyTorch 能读；请另存为 .npy",
    "no_signs": "内容为 {held}，应为 bool，即梯度的符号",
    "outside": "其文件 {file!r} 位于采集目录之外，未打开",
    "not_stored": "真实数据未能落盘：{why}",
    "sketch_not_stored": "行摘要未能落盘：{why}",
    "not_handed_over": "计算图没有输出该值",
    "first_space": "{file} 无法说明其是否以空格开头",
    # 描述信息
    "too_many_values": "包含的值超过 {most} 个",
    "long_name_of_value": "其中一个值的名称长达 {length} 个字符",
    "long_name": "名称长达 {length} 个字符",
    "shape": "shape 为 {shown}，应为各维大小的列表",
    "statistic": "某个统计量为 {shown}，应为数值",
    "value": "某个值为 {shown}，应为数值或文本",
    "deep_values": "值的嵌套超过 {most} 层",
    "description": "应为一个值的描述，实际为 {shown}",
    "no_data": "不是关键数据的描述：没有 `data`",
    "no_entries": "{file} 的 'data' 下没有条目",
    "no_stacks": "其中没有成对的条目与调用栈",
    # MindSpore 自身的 Dump，MindFormers 的事件文件
    "no_dump": "中既没有 MindSpore Dump 的张量，也没有 statistic.csv",
    "no_dump_files": _no_dump_files,
    "no_columns": _no_columns,
    "no_csv": "不是合法的 CSV：{why}",
    "damaged_rows": "{count} 行已损坏，每行对应的一个张量丢失",
    "event_cut_short": "在第 {number} 个事件处被截断：其后的内容丢失",
    "event_damaged": "第 {number} 个事件已损坏：该事件及其后的内容无法读取",
    # 采集结果
    "no_manifest": "不是 run.json：应为 JSON 对象",
    "not_whole": "不是完整的 run.json：以下内容缺失或形式不符：{fields}",
    "same_place": "另有目录属于同一 step 和 rank",
    "same_save": "另有目录属于同一 step、rank 和 micro_step",
    "damaged_lines": _damaged_lines,
    "fewer_entries": "只有 {count} 个条目，而 {manifest} 列出了 {listed} 个",
    "no_times": "其中 step {step} 的一行不是有效的时间记录",
    "many_steps": "其中的 step 超过 {most} 个",
    "long_line": "其中有一行超过 {most}",
    "more_entries": "另有 {count} 个条目无法读取",
    "more_records": "另有 {count} 条记录无法读取",
    "no_journal": "缺失：改为读取同目录的 {file}，其中没有条目的执行时刻和所属 token",
    "manifest_missing": "缺失：它说明采集了什么、丢失了什么",
    "listed": "缺失：{manifest} 中列有该文件",
    "entries_missing": "缺失：{manifest} 中列有此处的条目",
    "saves_missing": "缺失：{manifest} 中列有此处的关键数据",
    "steps_of_entries_missing": "直到 step {last} 均缺失：{manifest} 中列有此处的条目",
    "steps_of_saves_missing": "直到 step {last} 均缺失：{manifest} 中列有此处的关键数据",
    "fewer_saves": "只有 {count} 次保存，而 {manifest} 列出了 {listed} 次",
}
