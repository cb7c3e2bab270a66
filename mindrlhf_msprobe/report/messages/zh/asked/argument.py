"""argparse 的用语；% 为其自身的占位符。"""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "usage": "用法：",
    "positional": "位置参数",
    "options": "选项",
    "help": "显示帮助并退出",
    "of_argument": "参数 %(argument_name)s：%(message)s",
    "unrecognized": "无法识别的参数：%s",
    "ambiguous": "选项 %(option)s 不明确，可能是 %(matches)s",
    "choice": "不支持的取值 %(value)r（可选：%(choices)s）",
    "command": "不支持的命令 %(parser_name)r（可选：%(choices)s）",
    "one": "应给出一个值",
    "at_most_one": "最多给出一个值",
    "at_least_one": "至少给出一个值",
    "several": "应给出 %s 个值",
    "kind": "取值 %(value)r 不是有效的 %(type)s",
    "required": "缺少必需的参数：%s",
    "one_of": "%s 中须给出一个",
    "not_with": "不能与参数 %s 同时使用",
    "takes_none": "该选项不带取值，却给出了 %r",
}
