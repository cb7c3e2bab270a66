"""用法错误，或无法完成的操作。"""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.zh.words import few


def _holds_runs(path: object, runs: Sequence[str]) -> str:
    return f"{path} 不是采集结果，其中有采集结果：{few(runs)}。请给出其中之一。"


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
    "lang": "lang 为 {lang_!r}；应为{join}。",
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
        "输出目录 {output} {where}：表格不应写入被比对的目录。请用 -o 另给一个目录。"
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
    "mapping_form": "{where}：{found}；应为{expected}。示例：{value!r}。",
    "mapping_given": "{value} 为 {given!r}；应为 YAML 文件的路径{more}。",
    "mapping_empty": "{path}：文件为空；应有类似 {value!r} 的行。",
    "names_form": "{path}：{source!r}：{target!r}；应为名称模式和名称。",
    "names_circle": "{path}：名称形成循环：{names}；应为从 A 的名称指向 B 的名称",
    "suggestion_exists": "{path} 已存在；请改名，或用 -o 指定其他目录",
    "suggestion_unwritten": "{path} 无法写入：{why}",
    "nothing_to_suggest": (
        "{a} 与 {b}：没有哪个 rank 的同一 step 双方都采集了 Cell；应为同一网络的两次采集"
    ),
    "names_pattern": "{path}：{source!r}：{target!r} 不是一对名称模式：{error}。",
    "no_earlier": "after 为 {path}，其中没有 {verdict_file}；应为先前比对的输出目录。",
    "earlier_unusable": "{file} 不能作为先前比对的结论：{reason}。请给出一次比对所写的输出目录。",
    "foreign_output": (
        "{value}{more} 不是比对写出的原样：原本就存在，或之后被修改过，因此保留不动。请移走它，"
        "或用 -o 另给一个目录。"
    ),
    "file_unwritten": "无法写入 {path}：{why}",
    "output_unwritten": "输出目录 {output} 无法写入：{reason}。请用 -o 另给一个目录。",
    "manifest_unread": "{path} {why_unread}。",
    "merge_two": "应给出同一次采集的两个或更多目录，实际为 {len} 个",
    "merge_exists": "{target} 已存在。请给出一个由合并创建的目录。",
    "merge_no_run": "{root} 不是本工具的采集结果：其中没有 {run_file}。",
    "merge_unmade": "{target} 无法创建：{value}{at}。",
    "part_of_run": "{path} 是采集结果 {root} 的一部分。请给出后者。",
    "holds_runs": _holds_runs,
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
    "estimate_no_cell": lambda path, given, of, cell, phase: (
        f"{path}：{' 和 '.join(given)} 没有留下已采集的 {of} 个 Cell 中的任何一个（例如 {cell}）；"
        f"应为能匹配 Cell 名称的正则表达式，名称可用 `mindrlhf-msprobe show {path} {phase}` 列出。"
    ),
    "no_record": "{path} 中没有名为 {name!r} 的阶段、条目、记录或关键数据{where}。{hint}",
    "no_run": (
        "{path} 不是采集结果：其中既没有 {run_file}，也没有层数据（<phase>/step<N>/rank<N>）或关"
        "键数据（{key_data_dir}/<key>/step<N>）。{empty}"
    ),
    "msadapter_dump": (
        "{path} 是 MSAdapter 的 dump（framework 为 {framework}），不予读取：其算子既不是 MindSpore "
        "的，也不是 PyTorch 的。请在 MindSpore 或 PyTorch 上采集该网络，或用 `probe.save_data` "
        "保存要比较的内容并比较关键数据。"
    ),
    "kernel_dump": (
        "{path} 是 kernel 级 dump（level 为 {level}），不予读取：其输入不属于网络的任何 Cell 或算"
        "子。请用 level L0、L1 或 mix 采集；对于图，也可用 MindSpore 的 "
        "Dump（MINDSPORE_DUMP_CONFIG，e2e_dump_settings.enable: true）。"
    ),
    "acl_dump": (
        "{path} 中是 kernel 的 ACL dump（{file}），不予读取：其格式取决于写入它的 CANN 版本。请用 "
        "level L0、L1 或 mix 采集；对于图，也可用 MindSpore 的 Dump 写成 .npy"
        "（MINDSPORE_DUMP_CONFIG，e2e_dump_settings.enable: true）。"
    ),
    "nearest": "是否想写 {name!r}？",
    "itself_a": "就是 A 本身",
    "itself_b": "就是 B 本身",
    "given_twice": "给了两次",
    "output_is": "就是采集结果 {run}",
    "output_lies_inside": "位于采集结果 {run} 之内",
    "two_phases": "两个阶段的名称",
    "two_numbers": "两个数字",
    "no_phase_at_all": "没有阶段",
    "no_step_at_all": "没有 step",
    "no_keys_at_all": "无",
    "some": "{names}{more}",
    "more": " 等，另有 {count} 个",
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
    "at_line": "{path}：第 {line} 行",
    "yaml_values": "包含的值超过 {most} 个，此类文件不会这么大",
    "yaml_levels": "不是有效的 YAML：嵌套超过 {most} 层",
    "yaml_itself": "第 {line} 行：某个值包含了自身，请去掉该别名",
    "yaml_number": "第 {line} 行：数字长 {length} 个字符；最多 {most} 个",
    "yaml_keys": "第 {line} 行：同一映射中有超过 {most} 个键不是文本",
    "yaml_aliases": (
        "第 {line} 行：展开别名后包含的值超过 {most} 个。请减少别名（&、*、<<）的使用"
    ),
    "is_directory": "是目录",
    "ray_cluster": "Ray 集群 {address}",
    "ray_here": "本机的 Ray",
    "on_machine": "{what}（位于 {machine}）",
    "of_machine": "{what}，位于 {machine}",
    "merge_taken": "{target} 无法创建：合并期间已有其他进程创建了它。",
    "earlier_no_number": "其首个差异点的 {name} 不是整数",
    "earlier_no_name": "其首个差异点的 {name} 不是名称",
    "left_of_step": "dump_path {path}：被中断的那次启动留下的 step {step} 数据无法删除：{why}。",
    "callback_phase": (
        "ProbeCallback(phase={phase})：阶段未知。{nearest}已有阶段：{known}。自定义阶段在 "
        "msprobe_config.phases 中声明。"
    ),
    "holds_dumps": "dump_path {root} 中已有 rank {rank} 直到 step {last} 的数据",
    "what_was_recorded": "已采集的内容",
    "what_a_journal_names": "{journal} 所列的内容；其他工具的数据保留",
    "own_rank_written": (
        "dump_path {root} 正由仍在运行的作业写入（{holder}，rank {rank}）。请为本作"
        "业另给 dump_path，或等其结束后再启动。如果两者属于同一作业，各进程须在采集"
        "启动时已知自己的 rank：请设置 RANK_ID，或先调用 mindspore.communication.in"
        "it()。"
    ),
    "unknown_time": "时间未知",
    "another_world": "{shown}，本作业为 {world}",
    "started_before": "{state}，启动于 {started}，早于本进程",
    "merge_other_configurations": "{path} 与 {taken} 的内容不同，以后者为准",
    "no_config": (
        "Probe() 收到 {name}，应为 ProbeConfig。YAML 路径、映射或训练脚本自己的配置请用 "
        "Probe.from_config(…)。"
    ),
    "start_at": "start_at({step!r})：应为 step 编号，不小于 0。",
    "phases_of_a_role": "phase({name!r})：应为不同角色的阶段，每个阶段采集各自的网络。",
    "unknown_phase": (
        "{call}({name!r})：阶段未知。{nearest}已有阶段：{join}。自定义阶段在 "
        "msprobe_config.phases 中声明。"
    ),
    "no_configurations": "save_configs() 收到 {as_text}（{name}）；应为名称到配置的映射。",
    "after_close": "close() 之后调用了 {call}()：本次采集已结束。请用另一个 dump_path 新建 Probe。",
    "no_network": (
        "phase({name!r}) 之前没有 watch 该角色的网络：请先调用 probe.watch({role}=cell)，或使用 "
        "phase({name!r}, model=cell)。"
    ),
    "unknown_role": (
        "watch() 的角色为 {role!r}；应为 {join} 之一。{nearest}自定义角色在 "
        "msprobe_config.phases 中声明。"
    ),
    "model_of_phases": "phase({name!r}, model=…)：model 只能用于单个阶段。",
    "step_in_phase": (
        "在阶段 {name!r} 内调用了 step()：step 应在其各阶段之后结束。请将调用移到 `with "
        "probe.phase({name!r})` 之后。"
    ),
    "nested_phase": (
        "阶段 {name2!r} 尚未结束时调用了 phase({name!r})：阶段不能嵌套，"
        "被装饰的函数也不能调用自身。请先结束 {name2!r}；同一次调用属于多个阶段时请一并给出："
        "phase([{name2!r}, {name!r}])。"
    ),
    "resume_without_manifest": (
        "{what}，但没有它们的 {name}，因此没有可续接的采集结果。请恢复 {name}，或另给 dump_path，"
        "或设置 existing: overwrite 以替换 {replaced}。"
    ),
    "foreign_dumps": (
        "dump_path {root} 中已有其他工具的数据，或没有 {run_file} 的关键数据，而 existing: "
        "overwrite 不会删除其他工具的数据。请另给 dump_path，或将其移走。"
    ),
    "resume_foreign": (
        "{what}。它们属于其他工具，因此没有可续接的采集结果，existing: overwrite 也不会删除它们。"
        "请另给 dump_path，或将其移走。"
    ),
    "holds_a_run": "dump_path {root} 中已有采集结果，开始于 {started}。{advice}",
    "holds_journals": (
        "dump_path {root} 中已有缺少 {run_file} 的采集结果。请另给 dump_path，或设置 existing: "
        "overwrite 以替换其流水文件（records.jsonl）所列的内容。"
    ),
    "foreign_manifest": (
        "{value} 不是本工具的 run.json，因此不会删除。请将其移走，或另给 dump_path。"
    ),
    "resume_foreign_manifest": (
        "{path} 不是本工具的 run.json，因此没有可续接的采集结果。请将其移走，或另给 dump_path。"
    ),
    "being_written": (
        "dump_path {root} 正由另一个仍在运行的作业写入（{holder_in_words}，rank {rank}；{name} "
        "中为 {why}）。请为本作业另给 dump_path，或等其结束后再启动。"
    ),
    "of_another_job": "dump_path {root} 中已有另一个作业的采集结果（{name} 中为 {why}）。{advice}",
    "link_in_run": (
        "dump_path {root}：{relative_to} 是符号链接，采集不会跟随链接："
        "其所指内容会与本次采集混在一起。请移除该链接，或给出它所指磁盘上的 dump_path。"
    ),
    "key_no_text": "关键数据按名称保存，收到 {key!r}（{name}）；应为文本，例如 'advantages'。",
    "key_no_directory": (
        "关键数据名 {key!r} 不能作为 {key_data_dir}/ 下的目录名；不应含 '/'、'\\' 或控制字符，"
        "也不应为 '.' 或 '..'。"
    ),
    "key_too_long": (
        "关键数据名 {value!r}… 长 {length} 字节；最多 {max_key_bytes} 字节，"
        "因为它是文件名的一部分。"
    ),
    "key_no_unicode": "关键数据名 {key!r} 不是有效的 Unicode 文本。",
    "dump_path_unwritten": "dump_path {root} 无法写入：{value}。请给出本进程可创建文件的目录。",
    "token_range": "{call} 为 {token_range!r}；应为两个不小于 0 的整数：首个与最后一个 token。",
    "key_without_data": (
        "save_data() 只收到 {name!r}，没有数据；应为 save_data('loss', loss)、"
        "save_data({{'loss': loss}}) 或 save_data(loss=loss)。"
    ),
    "no_mindspore": "{call} 收到 {name}，它在此处不是 Cell：无法导入 MindSpore（{error}）。",
    "tokens_shapes": (
        "phase({name!r}).tokens(…)：形状为 {given}；ids 应为 [批次, 长度] 或 "
        "[token 数]，lengths 应为 [批次]，positions 的形状应与 ids 相同。"
    ),
    "no_function": "phase({name!r}) 不能装饰 {function!r}；应为函数。",
    "late_function": (
        "phase({name!r}) 不能装饰 {qualname}，其函数体在返回之后才运行；请在其内部使用 `with "
        "probe.phase(…)`。"
    ),
    "compiled_already": (
        "{call} 收到 {name}，但{where}已经编译，编译后的计算图无法插入采集。请在网络构建之后、"
        "首次运行、训练或编译之前调用 probe.watch()。"
    ),
    "no_cell": (
        "{call} 收到 {kind}，它不是 Cell；应为 mindspore.nn.Cell（网络本身，而不是其类、参数或 "
        "trainer）。"
    ),
    "data_after_close": (
        "close() 之后收到数据 {key!r}：本次采集已结束。请用另一个 dump_path 新建 Probe。"
    ),
    "start_too_late": (
        "start_at({step}) 时 step {step2} 已有采集内容；请在首个阶段和首次 save_data() 之前调用。"
    ),
    "advice": (
        "请另给 dump_path，或设置 existing: resume 续接该采集结果，或 existing: overwrite 替换它。"
    ),
    "compare_distributed": (
        "compare_distributed(dir1={dir1!r}, dir2={dir2!r}, output_path={output_path!r})；"
        "应为两个要比对的目录和一个输出目录。"
    ),
    "compare_input": "compare(input_param={input_param!r})；应为含 {value} 和 {value2} 的 dict。",
    "compare_dump": "compare()：input_param 的 {value} 为 {dump!r}；应为 dump.json 的路径。",
    "unknown_option": "{call}() 收到未知选项 {name}={value!r}。{nearest}",
    "debugger_first": (
        "PrecisionDebugger(config_path=…) 之前调用了 PrecisionDebugger.{call}()：没有说明采集什么。"
    ),
    "config_path": "config_path 为 {path!r}；应为 msprobe 的 config.json 的路径。",
    "no_json_object": "{path}：应为 JSON 对象，实际为 {name}。",
    "task": "{where}：task 为 {task!r}，不支持；应为{join}。该任务请使用 msprobe。",
    "level": "{where}：level 为 {level!r}，不支持；应为{level2}。{level} 请使用 msprobe。",
    "no_config_json": "{path}：文件不存在。请给出 msprobe 的 config.json 的路径。",
    "unread_json": "{path}：无法按 JSON 读取：{error}",
    "not_offered": "{where}：{name} 为 {value!r}，不支持；请删除。",
    "not_offered_there": "{where}.{name} 为 {value!r}，不支持；请删除。",
    "string_list": "save_string_list({name!r}, {string_list!r})；应为文本列表。",
    "seed": "seed_all(seed={seed!r})；应为 0 到 {largest} 的整数。",
    "seed_flag": "seed_all({name}={value!r})；应为 True 或 False。",
    "empty_list": "{call} 收到空列表；应含有 Cell。",
    "model_item": "{call}：model[{number}] 为 {name}；应为 mindspore.nn.Cell。",
    "no_model": "{call} 没有给出 model；首次调用时应为 mindspore.nn.Cell 或其列表。",
    "micro_batch": (
        "SingleSave.save_ex(micro_batch={given!r})；应为 0 到 {largest_micro_step} 的整数，或 "
        "None。"
    ),
    "no_key_data": (
        "{directory} 中没有关键数据：不存在 {value}。请给出含关键数据的采集结果的 "
        "dump_path（{key_data_dir}/<key>/step<N>/rank<N>）。"
    ),
    "fmk": "SingleSave(fmk={fmk!r})；应为 {join} 之一。该参数仅为兼容旧脚本：张量类型会自动识别。",
    "single_dump_path": "SingleSave(dump_path={dump_path!r})；应为目录路径。",
    "single_first": "SingleSave(dump_path) 之前调用了 SingleSave.{call}()：没有说明保存到哪里。",
    "num_processes": "num_processes 为 {num_processes!r}；应为 1 到 {most_processes} 的整数。",
    "no_script": (
        "{script!r} {what}；应为启动训练的 Python 脚本，例如 main.py，其后是脚本自己的参数。"
    ),
    "callback_network": (
        "ProbeCallback(network=…) 收到 {name}，它不是所训练的 {name2} 中的 Cell；"
        "应为该网络或其中的 Cell。"
    ),
    "callback_again": (
        "该 ProbeCallback 已采集过另一个网络的训练：{error}两次训练是两份采集结果："
        "请各用一个回调，并给出各自的 dump_path。"
    ),
    "it": "它",
    "inside": "它（在 {of} 中）",
    "shapes": "shape {a} 与 {b} 不同",
    "elements": "dtype 为 {dtype} 的元素无法比对",
    "no_finding": "没有这条比对结果",
    "no_msprobe_name": lambda module, name, names: (
        f"模块 {module!r} 没有 {name!r}：未安装 msprobe，由 mindrlhf_msprobe 代替，只提供 "
        f"{names or '其中的模块'}"
    ),
    "compare_to_ranks": (
        "compare_to：{path} 由 {recorded} 个 rank 的任务采集，本任务有 {own} 个："
        "各 rank 与同号 rank 比对，而那里的数据或网络切分不同。"
        "请给出 rank 数相同的采集结果，"
        "或在采集完成后用 `mindrlhf-msprobe compare` 和 --layout 比对。"
    ),
    "compare_to_itself": (
        "compare_to：{path} 就是本次运行自己的 dump_path。请给出另一次运行的 dump_path。"
    ),
    "playback_itself": (
        "{path} 就是本次运行自己的 dump_path，不能回放自己的值。请给出另一次运行的 dump_path。"
    ),
    "playback_nothing": "无",
    "playback_no_calls": (
        "{path} 中没有 rank {rank} 的 {key}，无可回放；"
        "其中的关键数据有：{keys}。请设置 key_data_dump: true，"
        "并用调用 probe.rollout(…) 或 probe.replace(…) 的训练脚本（或 MindRLHF 的 GRPO）采集。"
    ),
    "playback_no_steps": (
        "rollout_steps: [{first}, {last}]：{path} 中没有这些 step 的 rollout，只有 step {steps}。"
    ),
    "playback_unread": (
        "{path}：step {step} 第 {call} 次调用的 {key} "
        "无法回放：{why}。请重新采集，或用 rollout_steps 排除该 step。"
    ),
    "playback_no_call": (
        "step {step} 需要 {path} 中 step {source} "
        "第 {call} 次调用的 {key}，而该 step 只有 {calls} 次；"
        "该运行含 step {first} 至 {last}。请回放同样长的运行，或设置 rollout_order: cycle，"
        "或 rollout_steps: [{first}, {last}]。"
    ),
    "playback_no_batch": (
        "{path} 未记录 step {step} 第 {call} 次 rollout 的输入 batch。请重新采集该运行。"
    ),
    "playback_difference": "{at}：记录为 {a}，实际为 {b}",
    "playback_differs": lambda name, path, step, call, differences, more, batch: (
        f"{'batch' if batch else name} 与 {path} 中 step {step} 第 {call} 次调用的不同："
        + "；".join(map(str, differences))
        + (f"；另有 {more} 处" if more else "")
        + "。请让两次训练按相同顺序使用相同数据，或回放另一次运行。"
    ),
    "playback_items": "{count} 个元素的 {kind}",
    "playback_tensor": "张量",
    "playback_text": "文本",
    "playback_whole": "整个值",
    "playback_form": "记录的内容不是可回放的值：{form}",
    "playback_no_generator": (
        "rollout() 的 generators：{name} 不是可保存状态的随机数生成器。应为由 random.Random、"
        "numpy.random.Generator 或 RandomState、mindspore.Generator、torch.Generator 组成的列表"
    ),
    "playback_generators": (
        "rollout() 的 generators：采集时给出的是 [{a}]，本次是 [{b}]。请按相同顺序给出相同的类型。"
    ),
    "playback_class": (
        "记录的类型 {name} 不是本次训练已导入且字段一致的 dataclass "
        "或 namedtuple。请在首次 rollout 之前导入它。"
    ),
    "playback_opaque": (
        "类型为 {name} 的值无法回放；请返回张量、数组、文本和数字，"
        "可放在列表、元组、字典、dataclass 或 namedtuple 中。"
    ),
    "playback_name": "replace({name!r}, …)：名称应由字母、数字和下划线组成，例如 advantages。",
}
