"""采集过程中丢失的内容。"""

from __future__ import annotations

import re

from mindrlhf_msprobe.report.messages import Text


def _records(rank: object, count: object, what: str) -> str:
    return f"rank {rank} 丢失 {count} 条记录：{kind_words(what)}"


def kind_words(kind: str) -> str:
    """Return what a kind of run.json's `lost` stands for: a thing, and the error behind it."""
    thing, colon, why = kind.rpartition(": ")
    if not colon:
        return kind
    return f"{_worded(thing, _THINGS)}：{_worded(why, _WHY)}"


def thing_words(thing: str) -> str:
    """Return what is recorded, as the code names it, as words that stand behind a verb."""
    words = _worded(thing, _THINGS)
    return words if "\u4e00" <= words[:1] <= "\u9fff" else f" {words}"


def _worded(text: str, table: dict[str, str]) -> str:
    for known, words in table.items():
        if (found := re.fullmatch(known, text)) is not None:
            return words.format(*found.groups())
    return text


#: run.json 中 `lost` 的键（采集代码中的名称）→ 中文。
_THINGS = {
    "a tensor": "张量",
    "a gradient": "梯度",
    "an entry": "条目",
    "a step": "step",
    "an initial weight": "初始权重",
    "configurations": "训练配置",
    "random states": "随机数状态",
    "second-order gradients": "二阶梯度",
    "the optimizers": "优化器",
    "the configuration": "采集配置",
    "the end of a step": "step 结束处理",
    "the end of the run": "采集结束处理",
    "the entries of a phase": "阶段的条目",
    "the inputs of a cell": "Cell 的输入",
    "the output of a cell": "Cell 的输出",
    "the gradients of a cell": "Cell 的梯度",
    "the gradient of a parameter": "权重梯度",
    "a parameter that changed while its phase was open": "阶段内发生变化的权重",
    "a cell that did not return": "未返回的 Cell",
    "a cell that was put into the network in its phase": "阶段内加入网络的 Cell",
    "the cells of a network that (?:is|was) compiled": "已编译网络的 Cell",
    "what a compiled graph (?:wrote|handed over)": "计算图传出的数据",
    "(?:files that a graph writes|a file that a graph wrote)": "计算图写出的文件",
    "key data of compiled graphs": "计算图中的关键数据",
    "the choice between a graph with probes and one without": "带探针与不带探针的图之间的选择",
    "the moments in which MindSpore compiles": "MindSpore 的编译时机",
    "what this process runs with": "本进程的运行环境",
    "what is generated with": "生成参数",
    "a checkpoint": "checkpoint 路径",
    "what msprobe's tools read": "供 msprobe 工具读取的文件",
    "what needs MindSpore's (.*)": "依赖 MindSpore 的 {0} 的内容",
    "the settings of networks": "网络配置",
    "the settings of (.*)": "{0} 的配置",
    "the optimizer of (.*)": "{0} 的优化器",
    "the states of random generators": "随机数生成器的状态",
    "the state of (.*)'s random generator": "{0} 随机数生成器的状态",
    "the initial weights of (.*)": "{0} 的初始权重",
    "the cells of (.*) where they are compiled": "编译时 {0} 的 Cell",
    "the layers of (.*)": "{0} 的层数据",
    "the (.*) of this process": "本进程的 {0}",
    "key data (.*)": "关键数据 {0}",
    "steps in (.*)": "{0} 中的 step",
    "phase (.*)": "阶段 {0}",
}
_WHY = {
    "the dump_path was lost": "dump_path 已丢失",
    "the directory was replaced": "目录被替换",
    "the directory was removed": "目录被删除",
}

TEXTS: dict[str, Text] = {
    "records": _records,
}
