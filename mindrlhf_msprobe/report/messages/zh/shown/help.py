"""--help 的内容。"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "accuracy": "显示以 float64 复算后发现的错误（task: accuracy_check）",
    "accuracy_describes": (
        "显示以 task: accuracy_check 采集的结果在更高精度下复算的结论：排序表，以及最先出错的算子"
        "或 Cell。退出码：0 正常，1 错误，2 无法判断。"
    ),
    "accuracy_path": "一份采集结果的 dump_path",
    "accuracy_output_path": "将 accuracy_check.xlsx 和 verdict.json 写入该目录",
    "accuracy_json": "以 JSON 输出结果",
    "check": "不依赖标杆检查一份采集结果：NaN、RL 不变量、权重、历史、各 rank",
    "check_describes": (
        "逐份检查采集结果，无需标杆：NaN/Inf 首次产生的位置、RL 必须满足的关系、权重、历史趋势、"
        "各 rank。退出码：0 未发现问题，1 有错误或告警，2 没有可检查的内容。"
    ),
    "check_runs": "一份采集结果的 dump_path",
    "check_rules": "YAML：关闭的规则、阈值、级别",
    "check_rule": "自定义规则，一个 Python 函数（可重复给出）",
    "check_healthy": "一份已知健康的采集结果（可重复给出）",
    "check_output_path": "将结果写入该目录下的 checks.xlsx，或写入该 .xlsx 文件",
    "check_json": "以 JSON 输出结果",
    "compare": "比对两份采集结果，定位首个差异点",
    "compare_describes": (
        "比对两份采集结果，写出表格和 verdict.json，给出首个差异点及其原因。退出码：0 一致，"
        "1 存在差异（或 --fail-on 所指情况），2 无法判定。"
    ),
    "compare_runs": "两份采集结果的 dump_path，或两个 checkpoint：A 为标杆，B 为待比对",
    "compare_target_path": "B（待比对），msprobe 的叫法",
    "compare_golden_path": "A（标杆），msprobe 的叫法",
    "compare_output_path": "表格和 verdict.json 的输出目录（默认：%(default)s）",
    "compare_rtol": "相对容差（默认：0）",
    "compare_atol": "绝对容差（默认：0）",
    "compare_tolerance": (
        "容差规则的 YAML：记录名的正则表达式 → {{rtol, atol}}；取最先匹配的一条，其余记录用 "
        "--rtol 和 --atol"
    ),
    "compare_noise": ("与 A 配置相同的另一次采集结果，用来得到噪声基线（可重复给出）"),
    "compare_mapping": "YAML：A 侧 Cell 名的模式 → B 侧的名称；suggest：生成一份建议",
    "compare_data_mapping": "msprobe 的映射文件，YAML：B 侧（NPU）的记录 → A 侧（Bench）的记录",
    "compare_tokenizer": "tokenizer.json，把 token id 显示为文本",
    "compare_phases": "A 侧的阶段 X 与 B 侧（或 A 自身）的阶段 Y 比对",
    "compare_ranks": "A 侧的 rank M 与 B 侧（或 A 自身）的 rank N 比对",
    "compare_layout": "YAML：A 与 B 的并行布局不同时，各 rank 如何分担",
    "compare_steps": "只比对这些 step，例如 2-5 或 2,4-6",
    "compare_keys": ("只比对这些关键数据；X=Y 表示 A 侧的 X 与 B 侧（或 A 自身）的 Y 比对"),
    "compare_first_only": "到首个差异点为止，只写该处的表格",
    "compare_common": "仅一侧有的内容（step、rank、阶段、关键数据、Cell）不算差异",
    "compare_after": "上一轮比对的输出目录，本次采集由它建议：利用其结论",
    "compare_csv": "同时把表格写成 CSV",
    "compare_all_rows": (
        "表格逐条列出所有记录；否则超过 50 000 条时，一致的 Cell 记录按阶段、step 和 rank 合"
        "并为一行"
    ),
    "compare_workers": "比对进程数（默认：每个核一个）",
    "compare_engine": "执行方式（默认：%(default)s）",
    "compare_address": "Ray 集群的地址（默认：在本机启动一个）",
    "compare_fail_on": (
        "何时以退出码 1 结束：`diverged`（默认）为存在差异；`suspicious` 还包括"
        "两侧一致的 NaN 或 Inf"
    ),
    "compare_json": "打印 verdict.json 而不是文字",
    "show": "列出采集结果的内容，或查看某个阶段、关键数据、条目、记录",
    "show_describes": (
        "列出采集结果的阶段、step、rank、关键数据和大小。给出阶段时列出其条目；给出关键数据时"
        "每次保存一行；给出条目或记录时显示统计量和前几个元素，关键数据加 --step 时也是如此。"
        "退出码：0；有内容无法读取，或没有这个名称时为 2，其余内容照常显示。"
    ),
    "show_path": "采集结果的 dump_path",
    "show_name": "阶段、关键数据、条目或记录的名称",
    "show_step": "只看该 step",
    "show_rank": "只看该 rank",
    "show_code": "显示调用该条目的用户代码及前后几行；静态图模式下为该 Cell 的 construct",
    "show_json": "打印 JSON 而不是文字",
    "merge": "合并各节点分别采集的目录",
    "merge_describes": (
        "没有共享存储时，把一个作业各节点分别采集的目录合并为一份采集结果。文件以硬链接合并，"
        "无法链接时复制；MERGED 要么完整出现，要么不出现。退出码：0 已合并，2 拒绝合并。"
    ),
    "merge_runs": "各节点的 dump_path，两个或更多",
    "merge_output_path": "要创建的目录",
    "merge_json": "打印 JSON 而不是文字",
    "estimate": "估算落盘真实数据所需的空间",
    "estimate_describes": (
        "根据一份 task: statistics、一个 step 的采集结果，估算换用其他设置时单个 rank 每个 "
        "step 的字节数，以及 RUN 所在文件系统是否放得下。退出码：0 放得下，1 放不下，2 无法判"
        "定。"
    ),
    "estimate_path": "采集结果的 dump_path",
    "estimate_config": ("计划采集所用的 YAML 文件：以下各项均取自其中的 msprobe_config"),
    "estimate_task": "同 task（默认：tensor）",
    "estimate_directions": "同 directions，以逗号分隔（默认：forward,backward）",
    "estimate_steps": "训练的 step 数（默认：1，或 FILE 中指定的个数）",
    "estimate_ranks": "rank 数（默认：与采集时相同，或 FILE 中指定的个数）",
    "estimate_json": "打印 JSON 而不是文字",
    "run": "运行 MindRLHF 脚本，并按其 msprobe_config 采集",
    "run_describes": (
        "像 `python SCRIPT …` 一样运行 Python 脚本，并采集 YAML 文件中带 msprobe_config 的 "
        "MindRLHF 训练。SCRIPT 之后的参数全部交给脚本，脚本的退出码和异常原样返回。使用 "
        "msrun 时：\n  msrun … $(command -v mindrlhf-msprobe) run SCRIPT …"
    ),
    "run_script": "启动训练的脚本",
    "demo": "真实地跑两次 PPO 训练，在第二次中植入错误并定位",
    "demo_describes": (
        "在 CPU 上把一个小型 PPO 训练跑两次，在第二次的某个 Cell 中植入微小错误，比对两次训练"
        "并定位该 Cell。退出码：0 定位结果与植入的错误相符，1 不符，2 无法判定。"
    ),
    "demo_output": "采集结果和表格的目录",
    "demo_steps": "训练的 step 数（默认：%(default)s）",
    "demo_seed": "随机种子（默认：%(default)s）",
    "demo_fault": (
        "植入错误的位置，例如 actor_update:lm_head（默认：reference 第二层中的一个线性层）；"
        "actor_generate_sequences 中的 Cell 是推理网络的 Cell。也可以植入一种训推不一致：\n"
        "not-synchronised：训练更新后，推理网络最后一层的权重没有同步\n"
        "rotary-off-by-one：decode 时旋转位置编码的位置多 1\n"
        "lm-head-dtype：推理网络以 float16 计算 logits\n"
        "mask-padding：推理网络的 mask 没有屏蔽 prompt 的填充\n"
        "temperature：采样时 logits 除以 0.8，训练时没有"
    ),
    "demo_no_fault": (
        "不植入错误：两次训练应一致；不给 --config 时以 task: sketch 采集，供 mismatch 使用"
    ),
    "demo_fault_step": "从哪个 step 起植入错误（默认：1；--steps 1 时为 0）",
    "demo_config": "训练的 YAML（默认：yaml_examples/ppo_demo.yaml）",
    "compare_of_msprobe": ("msprobe 的映射文件，YAML：{what}；不给 FILE 时使用无需文件的对应关系"),
    "compare_cell_mapping": "B 侧（NPU）Cell 的名称和类名 → A 侧（Bench）的",
    "compare_api_mapping": "B 侧（NPU）的 API → A 侧（Bench）的",
    "compare_layer_mapping": (
        "B 侧（NPU）某层的类名 → 其内部各部分在 B 侧 → 在 A 侧（Bench）的名称"
    ),
    "compare_include": "只比对名称匹配该正则表达式的记录（可重复给出）",
    "compare_exclude": "不比对名称匹配该正则表达式的记录（可重复给出）",
    "estimate_include": "同 include（可重复给出）",
    "estimate_exclude": "同 exclude（可重复给出）",
    "version": "显示版本号并退出",
    "lang": "结论与写出内容的语言（默认：跟随系统语言）",
    "describes": "定位两次 MindSpore 训练的首个差异点及其原因。",
    "trend": "一份或两份采集结果中一个量随 step 的变化；两份采集结果的梯度相似度",
    "trend_describes": (
        "画出一个量随 step 的变化，一份或两份采集结果，也可写成 CSV 或 TensorBoard 文件。"
        "不作选择时："
        "每种关键数据的均值，以及各派生量：ratio、clip_fraction、kl_k1、kl_k3、response_length、"
        "gradient_norm、update_to_weight、adam_first_moment、adam_second_moment、rollout_corr。"
        "退出码：0 已给出，2 没有可给出的或有文件无法读取；--gradients 时 0 相似，1 可疑，"
        "2 无可比对。"
    ),
    "trend_run": "一份采集结果的 dump_path，或 msprobe 的 dump 目录",
    "trend_run2": "另一份采集结果，画在同一张图、写在同一张表中",
    "trend_record": "名字匹配该正则表达式的记录",
    "trend_key": "该名字的关键数据（可重复）",
    "trend_derived": "派生量，含各层（可重复）",
    "trend_statistic": "mean、max、min、norm、nan_count 或 inf_count（默认：关键数据取均值，"
    "记录取范数）",
    "trend_phase": "只看该阶段",
    "trend_rank": "只看该 rank",
    "trend_csv": "把每个值写入该文件，一行一个",
    "trend_tensorboard": "在该目录下写 TensorBoard 的 event 文件（需要 tensorboardX）",
    "trend_plots": "最多画几条曲线（默认 12）",
    "trend_json": "以 JSON 输出",
    "trend_gradients": "RUN 与 RUN2 的梯度相似度，按更新次数和权重给出",
    "trend_first": "配合 --gradients：首次相似度低于该值即可疑（默认 0.97）",
    "trend_fall": "配合 --gradients：相似度下降超过该值即可疑（默认 0.03）",
    "trend_measure": "配合 --gradients：真实数据的余弦，或相同符号的占比（默认："
    "两侧都有真实数据时用余弦）",
    "report": "写出一个离线 HTML 页面：一份采集结果，或两份及其比对",
    "report_describes": (
        "写出一个无需网络即可打开的 HTML 文件：结论、按运行顺序的 step、网络中的位置、训练过程、"
        "文本、检查结果。一份采集结果：其检查。两份：比对（A 为标杆）以及各自的检查。"
        "退出码与 check、compare 相同。"
    ),
    "report_runs": "一份采集结果的 dump_path，或 A 与 B 的",
    "report_output_path": "要写的文件，例如 report.html",
    "report_rtol": "相对容差（默认：0）",
    "report_atol": "绝对容差（默认：0）",
    "report_tolerance": "容差规则的 YAML，同 compare",
    "report_noise": "与 A 同配置的另一份采集结果（可重复给出），同 compare",
    "report_mapping": "YAML：A 的 cell 名模式 → 在 B 中的名字",
    "report_tokenizer": "tokenizer.json，用于将 token id 显示为文本",
    "report_rules": "YAML：关闭的规则、阈值、级别，同 check",
    "report_healthy": "一份已知健康的采集结果（可重复给出），同 check",
    "compare_html": "将比对写成一个离线 HTML 页面",
    "check_html": "将检查写成一个离线 HTML 页面（只能有一份采集结果）",
    "mismatch": "按 token 比对推理与训练：从哪里开始不一致",
    "mismatch_describes": (
        "将生成阶段与计算 log-prob 的阶段按同一 token 逐行比对：先权重，再输入，"
        "然后是第一个不一致的 Cell 及原因。退出码：0 一致，1 不一致，2 无法判定。"
    ),
    "mismatch_runs": "一份采集结果的 dump_path；或推理侧、训练侧两份",
    "mismatch_step": "只比对这些 step（可重复给出，或 2,3）",
    "mismatch_phases": "推理和训练的阶段（默认 actor_generate_sequences,actor_compute_log_prob）",
    "mismatch_mapping": "YAML：推理侧 Cell 的名称模式 → 在训练侧的名称",
    "mismatch_tokenizer": "tokenizer.json，用于把 token 显示为文本",
    "mismatch_output_path": "将 mismatch.xlsx 和 mismatch.json 写入该目录",
    "mismatch_html": "将结果写成一个离线 HTML 页面",
    "mismatch_json": "以 JSON 输出结果",
    "preflight": "不运行训练，采集并比对训练将使用的设置",
    "preflight_describes": "采集训练将使用的设置，并比对两份设置，或与一份采集结果比对。",
    "preflight_collect": "将训练将使用的设置写入一个文件",
    "preflight_collect_describes": (
        "将版本、软件包、环境变量、确定性设置、配置文件、权重指纹、数据集的前几批，"
        "以及 -- 之后的命令的随机种子和随机操作写入一个 JSON 文件。"
        "退出码：0 已写入，1 已写入但脚本失败，2 未写入。"
    ),
    "preflight_collect_output": "写出的文件",
    "preflight_collect_config": "YAML 或 JSON 配置文件；NAME=F 为其命名（可重复给出）",
    "preflight_collect_checkpoint": "权重文件或目录；NAME=C 为其命名（可重复给出）",
    "preflight_collect_data": "不带参数、返回数据集各批数据的函数；其模块会被导入",
    "preflight_collect_batches": "描述多少批数据（默认：%(default)s）",
    "preflight_collect_seconds": "在该秒数后停止脚本，与 Ctrl-C 相同",
    "preflight_collect_overwrite": "FILE 已存在时替换",
    "preflight_collect_json": "以 JSON 输出采集的内容",
    "preflight_compare": "比对两份设置，或一份设置与一份采集结果",
    "preflight_compare_describes": (
        "列出差异，影响数值的在前。退出码：0 相同，1 不同，2 无法读取。"
    ),
    "preflight_compare_a": "`preflight collect` 写出的文件，或一份采集结果的 dump_path：标杆",
    "preflight_compare_b": "另一份，待比对",
    "preflight_compare_output_path": "将 preflight.xlsx 和 preflight.json 写入该目录",
    "preflight_compare_json": "以 JSON 输出结果",
    "replay": "以更高精度重新计算采集到的算子或 Cell：两次运行中哪一次是错的",
    "replay_describes": (
        "写出一个目录，其中的脚本重新计算采集到的算子或 Cell 的前向和反向：按采集的 dtype、以 "
        "float32 和 float64 计算，并运行该脚本。给出两次运行时：哪一次是错的。不给 ENTRY 时：对采集"
        "到的全部算子排序。退出码：0 差距可由舍入误差解释，1 不能，2 无法判定。"
    ),
    "replay_what": "RUN、RUN ENTRY 或 RUN_A RUN_B ENTRY：运行的 dump_path，条目名",
    "replay_output": "目录：replay.py 和采集到的数据；不给 ENTRY 时为表格",
    "replay_network": "Cell 的条目需要：返回其网络的 MODULE:FUNCTION，或 MindFormers 模型的 YAML",
    "replay_phase": "多个阶段都有该条目时，指定阶段",
    "replay_step": "step（默认：有其元素的第一个）",
    "replay_rank": "rank（默认：第一个）",
    "replay_device": "在哪里计算：CPU、GPU 或 Ascend（默认：由 MindSpore 决定）",
    "replay_compute_dtype": (
        "计算所用的最低 dtype（当它低于输入和权重的 dtype 时），例如 bfloat16：舍入误差的上限随之"
        "放宽"
    ),
    "replay_no_run": "只写目录，不运行脚本",
    "replay_seed": "只采集了统计量时，随机输入的种子（默认：0）",
    "replay_json": "以 JSON 输出结果",
    "compare_replay": "在两侧重新计算首个差异点的条目，写入 OUT/replay，并说明哪一侧是错的",
    "compare_network": (
        "--replay 遇到 Cell 时需要：返回其网络的 MODULE:FUNCTION，或 MindFormers 模型的 YAML"
    ),
}
