"""用法错误，或无法完成的操作。"""

from __future__ import annotations

TEXTS = {
    "together": lambda of: "".join(of),
    "too_large_yaml": "{path}：超过 {value} MiB，{of}的文件不会这么大。请给出{file}的路径。",
    "no_mapping": "{path}：文件顶层应为{of}的映射{either}，实际为{kind}。",
    "no_rules": "{path}：没有任何{kind}；应有类似 {example!r} 的行。",
    "no_such_file": "{path}：文件不存在。请给出{file}的路径。",
    "no_utf8": "{path}：无法按 UTF-8 文本读取：{error}",
    "of_file": "{path}：{error}",
    "nested_yaml": "{path}：不是有效的 YAML：嵌套层数过多",
    "no_yaml": "{path}：不是有效的 YAML：{why}",
    "repeated_key": (
        "{path}：第 {line} 行：{value!r} 在第 {value2} 行已出现过。YAML 只保留最后一个，"
        "请只写一次。"
    ),
    "no_record_left": "include {list} 与 exclude {list2} 没有留下可比对的记录；至少应留下一条。",
    "keys_and_phases": "keys 与 phases 同时给出；只能给其中一个：phases 不包含关键数据。",
    "two_mappings": "mapping 与 {value} 同时给出；只能给其中一个。",
    "lang": "lang 为 {lang_!r}；应为 {join}。",
    "engine": "engine 为 {engine!r}；应为 local 或 ray。{nearest}",
    "workers": "workers 为 {workers!r}；应为不小于 1 的整数。",
    "workers_least": "workers 为 {workers}；应不小于 1。",
    "expected": "{name} 为 {value!r}；应为{what}。",
    "same_directory_key": (
        "A 和 B 是同一目录 {a}，且 keys 只给了 {value}：与自身比对没有意义。"
        "应给出两个关键数据名，例如 {value}=OTHER。"
    ),
    "same_directory": (
        "A 和 B 是同一目录 {a}：与自身比对没有意义。请给出两份采集结果的 dump_path，"
        "或该结果中的两个阶段（--phases X,Y）、两个 rank（--ranks M,N）或两个关键数据（--keys "
        "X=Y）。"
    ),
    "inside_each_other": (
        "{a} 与 {b} 中一个位于另一个之内。请给出各自独立目录中的两份采集结果的 dump_path，"
        "或两份结果中同一阶段的目录。"
    ),
    "rule_unused": (
        "容差规则 {pattern!r} 没有匹配任何一侧的记录。它是正则表达式，在记录名中搜索；"
        "`mindrlhf-msprobe show RUN` 会列出这些名称。"
    ),
    "name_unused": (
        "名称模式 {pattern!r} 没有匹配 A（{path}）中的任何 Cell。映射由 A 的名称指向 B 的名称；"
        "模式须匹配完整名称。"
    ),
    "tables_unwritten": "无法将表格写入 {output}：{name}：{error}。",
    "empty_path": "{name} 为 ''，路径为空；应为文件或目录的路径。",
    "no_phase": "{path} 没有采集阶段 {name!r}。{nearest}其中有：{value}。",
    "no_rank": "{path} 没有采集 rank {rank}。其中有：{join}{value}。",
    "repetition": "重复采集 {path} {what}；应为与 A 同配置的另一次采集。",
    "output_inside": (
        "输出目录 {output} {where}采集结果 {evidence}：表格不应写入被比对的目录。请用 -o "
        "另给一个目录。"
    ),
    "ray_fails": "Ray 集群无法比对：{why}。{install}",
    "ray_other_copy": (
        "Ray 的 worker 使用的 mindrlhf_msprobe（{where}）与本进程的（{value}，{value2}）不同，"
        "结果可能不一致。{install}如果 worker 能读取本进程的版本，可使用 "
        "ray.init(runtime_env={{'env_vars': {{'PYTHONPATH': {str!r}}}}})。"
    ),
    "ray_begins": "Ray 集群无法比对：worker 启动即失败（{why}）。详情见其所在机器上的 Ray 日志。",
    "no_ray": "engine 为 ray 需要安装 ray（{error}）：pip install 'mindrlhf_msprobe[ray]'",
    "ray_unreached": "{where} 无法连接：{error}",
    "no_tokenizers": (
        "使用 tokenizer 需要安装 tokenizers（{error}）：pip install 'mindrlhf_msprobe[tokenizer]'"
    ),
    "no_tokenizer": "{file} 不是 tokenizer：{error}。请给出 tokenizer.json 或其所在目录。",
    "tolerance": (
        "tolerance 为 {tolerance!r}；应为 Tolerance(rtol=…, atol=…)、Tolerances，或规则 YAML "
        "文件的路径。"
    ),
    "rule_form": (
        "{path}：{text!r}：{values!r}；应为模式及其容差，例如 'lm_head: "
        "{{rtol: 1e-3, atol: 1e-6}}'。"
    ),
    "rule_key": "{path}：{text!r} 含有键 {name!r}；应为 rtol 和 atol。{nearest}",
    "rule_pattern": "{path}：模式 {text!r} 不可用：{error}。",
    "rule_value": "{path}：{text!r}：{error}。",
    "steps_none": "steps 为 {given!r}，没有指定任何 step；应为{steps}。",
    "pattern_unused": (
        "{option} {text!r} 没有匹配任何一侧的记录。它是正则表达式，在记录名中搜索；"
        "记录名见比对表格。{hint}"
    ),
    "flag": "{name} 为 {flag!r}；应为 True 或 False。",
    "steps": "steps 为 {given!r}；应为{steps}。",
    "steps_order": "steps 为 {given!r}：{last} 在 {first} 之前；应为{steps}。",
    "pattern": "{name} 为 {text!r}；应为正则表达式，在记录名中搜索。",
    "key_twice": "keys 为 {given!r}，其中 {left!r} 出现两次；应只出现一次。",
    "keys": "keys 为 {given!r}；应为{keys}。",
    "steps_unknown": "steps 指定了 {asked}，两侧都没有采集。已采集的有：{value}。",
    "pattern_unusable": "{name} 为 {text!r}，不可用：{error}。",
    "no_key": "{who} {name!r}。{nearest}已有关键数据：{value}。",
    "mapping_form": "{where}{found}；应为 {expected}，例如 {value!r}。",
    "mapping_given": "{value} 为 {given!r}；应为 YAML 文件的路径{more}。",
    "mapping_empty": "{path}：文件为空；应有类似 {value!r} 的行。",
    "names_form": "{path}：{source!r}：{target!r}；应为名称模式和名称。",
    "names_pattern": "{path}：{source!r}：{target!r} 不是一对名称模式：{error}。",
    "no_earlier": "after 为 {path}，其中没有 {verdict_file}；应为先前比对的输出目录。",
    "earlier_unusable": "{file} 不能作为先前比对的结论：{reason}。请给出一次比对所写的输出目录。",
    "foreign_output": (
        "{value}{more} 不是比对写出的原样：原本就存在，或之后被修改过，因此保留不动。请移走它，"
        "或用 -o 另给一个目录。"
    ),
    "output_unwritten": "输出目录 {output} 无法写入：{reason}。请用 -o 另给一个目录。",
    "manifest_unread": "{path} {why_unread}。",
    "merge_two": "应给出同一次采集的两个或更多目录，实际为 {len} 个",
    "merge_exists": "{target} 已存在。请给出一个由合并创建的目录。",
    "merge_no_run": "{root} 不是本工具的采集结果：其中没有 {run_file}。",
    "merge_unmade": "{target} 无法创建：{value}{at}。",
    "no_run_there": "{root} {what}。请给出采集结果的 dump_path。",
    "merge_inside": "{target} 位于要合并的 {root} 之内。请另给一个目录。",
    "merge_rank": "{path} 没有说明属于 rank {rank}，而是 {world}。",
    "merge_running": (
        "{root} 正由仍在运行的作业写入（{holder_in_words}，rank {rank}）。请在其结束后合并。"
    ),
    "unread": "{value} 无法读取：{value2}。",
    "merge_link": "{name} 是符号链接，采集结果中不应有链接。请放入它所指的内容。",
    "merge_same": "{root} 与 {other} 是同一目录，或一个位于另一个之内",
    "merge_other_job": (
        "{where}：{name} 在一个中为 {short}，在另一个中为 {short2}。只能合并同一作业的采集结果；"
        "两份采集结果请用 `mindrlhf-msprobe compare` 比对。"
    ),
    "merge_step_twice": (
        "rank {rank} 的 step {step} 同时位于两个目录：{value} 和 {path}。每个 rank 的每个 step "
        "须由同一进程写入。"
    ),
    "merge_rank_twice": (
        "{root} 与 {root2} 都属于 rank {rank}，且其中一个不含它的任何 step。每个 rank "
        "须由同一进程写入。"
    ),
    "merge_a_link": "{path} 是符号链接，采集结果中不应有链接。",
    "merge_array": "{path} {error}。",
    "merge_no_file": "{path} 既不是文件也不是目录，采集结果中不应有这类内容。",
    "estimate_nothing": "{path} 中没有可用于估算的内容：{what}。",
    "estimate_no_cell": (
        "{path}：{join} 没有留下已采集的 {len} 个 Cell 中的任何一个（例如 {min}）；应为能匹配 "
        "Cell 名称的正则表达式，名称可用 `mindrlhf-msprobe show {path} {value2}` 列出。"
    ),
    "no_record": "{path} 中没有名为 {name!r} 的阶段、条目、记录或关键数据{where}。{hint}",
    "no_run": (
        "{path} 不是采集结果：其中既没有 {run_file}，也没有层数据（<phase>/step<N>/rank<N>）或关"
        "键数据（{key_data_dir}/<key>/step<N>）。{empty}"
    ),
    "nearest": "是否想写 {name!r}？",
    "itself_a": "就是 A 本身",
    "itself_b": "就是 B 本身",
    "given_twice": "给了两次",
    "output_is": "就是",
    "output_lies_inside": "位于",
    "two_phases": "两个阶段的名称",
    "two_numbers": "两个数字",
    "no_phase_at_all": "没有阶段",
    "no_step_at_all": "没有 step",
    "no_keys_at_all": "无",
    "some": "{names}{more}",
    "more": "，… 另有 {count} 个",
    "steps_form": " step 编号或范围，例如 2-5 或 2,4-6",
    "keys_form": "关键数据名，例如 loss,rewards，或互相比对的两个：values=returns",
    "nearest_names": "最接近的名称：{names}。",
    "nearest_records": "最接近的名称：{names}。",
    "neither_holds": "两侧都没有关键数据",
    "a_does_not_hold": "A 没有关键数据",
    "b_does_not_hold": "B 没有关键数据",
    "or_true": "，或 True",
    "or_dict": "，或 dict",
    "no_directory": "不是目录",
    "no_path": "不存在",
    "no_data": "既没有层数据，也没有关键数据",
    "none_of": "没有 {names}",
    "in_step": "（step {number}）",
    "in_rank": "（rank {number}）",
    "empty": "该目录为空。",
    "and_more": "（另有 {count} 个）",
    "path_no_directory": "{path} 不是目录",
    "path_directory": "{path} 是目录",
    "held_by": "{host} 上的进程 {pid}",
    "held_by_another": "另一个进程",
    "not_one_job": "{root} 与 {other} 中的 rank {rank} 不属于同一作业",
    "install": "请在其每台机器上安装同一版本的 mindrlhf_msprobe。",
    "kind_empty": "空文件",
    "kind_a": " {kind}",
    "or_items": "或{items}",
    "trainers_file": "训练脚本的 YAML 文件",
    "settings": "配置",
    "rules_file": "{kind} YAML 文件",
    "rules": "{kind}",
    "rule": "容差规则",
    "name_pattern": "名称模式",
    "mapping_file": "msprobe 的 {kind}",
    "names": "名称",
    "list_of_apis": " API 列表",
    "no_tag": "有值与其标签不符（{kind}）",
    "too_large": "超过 {most} 字节",
    "earlier_no_object": "其中没有 JSON 对象",
    "earlier_status": "其 status 不是比对结论",
    "earlier_divergence": "其首个差异点不是 JSON 对象",
}
