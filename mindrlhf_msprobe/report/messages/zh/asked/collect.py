"""preflight 的提示：命令行有误、采集和比对的内容。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.zh.words import section_words

TEXTS: dict[str, Text] = {
    "a_configuration": "配置文件",
    "a_number": "1 到 999999 的整数",
    "a_time": "大于 0 的秒数",
    "no_path": "{option} {path}：没有该文件或目录；应为 PATH 或 NAME=PATH",
    "same_name": "{option}：{first} 与 {second} 同名（{name}）；请用 NAME=PATH 分别命名",
    "directory": "{path} 是目录；应为 YAML 或 JSON 文件",
    "too_large": "{path} 超过 {most}，不可能是此类文件；请换一个文件",
    "no_json_configuration": "{path} 不是 JSON：{why}。应为一个对象；请改正该文件。",
    "no_object": "{path} 的内容是 {kind}；应为一个对象",
    "unread": "无法读取 {path}：{why}",
    "no_regular_file": "{path} 不是普通文件；应为权重文件",
    "many_files": "{path} 中的文件多于 {most} 个；请给出单个权重的目录",
    "empty_checkpoint": "{path} 中没有文件；应为权重文件，或存放权重文件的目录",
    "checkpoint_as_files": "{name}：读不出其中的权重，因此只对整个文件取指纹：{why}",
    "data_form": "--data 为 {source!r}；应为 MODULE:FUNCTION，如 my_data:batches",
    "data_import": (
        '--data {source}：无法导入该模块：{why}。应为在当前目录下 `python -c "import …"` '
        "可以导入的模块。"
    ),
    "no_function": "--data {source}：{module} 中没有 {name}；应为该模块的函数",
    "data_not_callable": "--data {source} 是 {kind}；应为无需传值、返回各批数据的函数",
    "data_raised": "--data {source} 出错：{why}。应为无需传值、返回各批数据的函数。",
    "data_nothing": "--data {source} 返回了 None；应返回各批数据：请在末尾加上 `return`",
    "data_kind": "--data {source} 返回了 {kind}；应为列表、生成器或数据集",
    "data_empty": "--data {source} 没有返回任何一批数据；至少应有一批",
    "no_command": (
        "-- 之后没有命令；应为可执行的命令，如 -- python main.py。是否有变量为空？"
        "不运行命令时请去掉 --"
    ),
    "no_program": "找不到程序 {program}；-- 之后应为可执行的命令",
    "no_program_python": ("找不到程序 {program}；-- 之后应为可执行的命令，如 -- python {program}"),
    "not_started": "无法启动 {program}：{why}",
    "no_output": "-o {path}：应为文件名",
    "exists": "{path} 已存在；请换一个文件，或用 --overwrite 替换",
    "unwritten": "无法写入 {path}：{why}",
    "above": "{above} 不是可写的目录",
    "no_file": "没有文件 {path}；应为 `preflight collect` 写出的文件，或一份采集结果的 dump_path",
    "no_json": "{path} 无法按 JSON 读取：{why}。文件可能不完整；请重新采集。",
    "other_file": "{path} 不是 `preflight collect` 写出的文件；应为此类文件或一份采集结果",
    "no_pack": "{path} 不是可读取的 msprobe config_check_pack.zip：{why}",
    "other_archive": (
        "{path} 是压缩包，但不是 msprobe 的 config_check_pack.zip；"
        "应为此类文件、`preflight collect` 写出的文件，或一份采集结果"
    ),
    "schema": (
        "{path} 的格式版本为 {schema}，本版本读取 {known}；请用本版本重新采集，或用写出它的版本比对"
    ),
    "no_manifest": "{path} 没有 run.json，无从得知其运行设置",
    "empty_path": "有一侧的路径为空；应为 `preflight collect` 写出的文件或一份采集结果",
    "same_file": "A 和 B 都是 {path}；应为两份",
    "script_failed": "脚本失败，退出码为 {code}；此前的内容已采集",
    "nothing_noted": (
        "没有 Python 进程报告随机操作：该命令没有启动 Python，或以 -I、-E、-S 启动，"
        "或清除了 PYTHONPATH"
    ),
    "written": "已采集：{file}",
    "holds": lambda section, count: f"  {section_words(section)}：{count}",
    "script_ended": "  脚本已结束，退出码为 {code}",
    "script_stopped": "  脚本在 {seconds} s 后被停止",
    "different": "不同：{count} 处",
    "same": "相同：双方都有的内容没有差异。",
    "not_compared": "未比对：",
    "in_the_table": "；-o DIR 可写出全部",
    "tables": "表格：{files}",
}
