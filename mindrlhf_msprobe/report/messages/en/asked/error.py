"""What was asked for wrongly, or cannot be done, in English."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.en.words import few


def _estimate_no_cell(path: str, given: Sequence[str], of: int, cell: str, phase: str) -> str:
    return (
        f"{path}: {' and '.join(given)} leave{'s' * (len(given) == 1)} no cell of the {of} that "
        f"were recorded, such as {cell}; expected regular expressions that match names of cells, "
        f"which `mindrlhf-msprobe show {path} {phase}` lists."
    )


def _holds_runs(path: object, runs: Sequence[str]) -> str:
    return f"{path} is not a run, but holds runs: {few(runs)}. Give one of them."


TEXTS = {
    "together": lambda of: "".join(of),
    "too_large_yaml": (
        "{path}: is larger than {value} MiB, which no file of {of} is. Give the path of {file}."
    ),
    "no_mapping": (
        "{path}: expected a mapping of {of}{either} at the top of the file, found {kind}."
    ),
    "no_rules": "{path}: holds no {kind}; expected lines such as {example!r}.",
    "no_such_file": "{path}: there is no such file. Give the path of {file}.",
    "no_utf8": "{path}: cannot be read as UTF-8 text: {error}",
    "of_file": "{path}: {error}",
    "nested_yaml": "{path}: is not valid YAML: it is nested too deeply",
    "no_yaml": "{path}: is not valid YAML: {why}",
    "repeated_key": (
        "{path}: line {line}: {value!r} stands there once more, after line {value2}. YAML "
        "would take the last and lose the other; keep one."
    ),
    "no_record_left": (
        "include {list} and exclude {list2} leave no record to compare; expected patterns "
        "that leave one at least."
    ),
    "keys_and_phases": "keys and phases are both given; expected one: phases hold no key data.",
    "two_mappings": "mapping and {value} are both given; expected one of them.",
    "lang": "lang is {lang_!r}; expected {join}.",
    "engine": "engine is {engine!r}; expected local or ray.{nearest}",
    "workers": "workers is {workers!r}; expected a whole number, 1 or larger.",
    "workers_least": "workers is {workers}; expected 1 or larger.",
    "expected": "{name} is {value!r}; expected {what}.",
    "same_directory_key": (
        "A and B are the same directory, {a}, and keys names {value} alone: comparing it "
        "with itself proves nothing. Expected two keys, e.g. {value}=OTHER."
    ),
    "same_directory": (
        "A and B are the same directory, {a}: comparing a run with itself proves nothing. "
        "Give the dump_path of two runs, or two phases (--phases X,Y), two ranks (--ranks "
        "M,N) or two keys (--keys X=Y) of this one."
    ),
    "inside_each_other": (
        "one of {a} and {b} lies inside the other. Give the dump_path of two runs in "
        "directories of their own, or the same phase's directory of two runs."
    ),
    "rule_unused": (
        "the tolerance rule {pattern!r} matches no record of either run. It is a regular "
        "expression, searched in names such as those `mindrlhf-msprobe show RUN` lists."
    ),
    "name_unused": (
        "the name pattern {pattern!r} matches no cell of A ({path}). A mapping leads from "
        "the names of A to those of B; patterns match whole names."
    ),
    "tables_unwritten": "the tables cannot be written into {output}: {name}: {error}.",
    "empty_path": "{name} is '', an empty path; expected the path of a file or directory.",
    "no_phase": "{path} recorded no phase {name!r}.{nearest} It holds: {value}.",
    "no_rank": "{path} recorded no rank {rank}. It holds: {join}{value}.",
    "repetition": "the noise run {path} is {what}; expected a further run of A's configuration.",
    "output_inside": (
        "the output directory {output} {where}: tables do not belong among what is compared. "
        "Give another one with -o."
    ),
    "ray_fails": "the Ray cluster cannot compare: {why}. {install}",
    "ray_other_copy": (
        "the Ray workers run another copy of mindrlhf_msprobe ({where}) than this process "
        "({value}, {value2}), so their results may be others. {install} If they can read "
        "this one, they take it after ray.init(runtime_env="
        "{{'env_vars': {{'PYTHONPATH': {str!r}}}}})."
    ),
    "ray_begins": (
        "the Ray cluster cannot compare: its workers fail before they begin ({why}). What "
        "became of them stands in Ray's logs, on the machine they ran on."
    ),
    "no_ray": (
        "the engine ray needs the package ray ({error}). Install it with: pip install "
        "'mindrlhf_msprobe[ray]'"
    ),
    "ray_unreached": "{where} cannot be reached: {error}",
    "no_tokenizers": (
        "a tokenizer needs the package tokenizers ({error}). Install it with: pip install "
        "'mindrlhf_msprobe[tokenizer]'"
    ),
    "no_tokenizer": (
        "{file} is not a tokenizer: {error}. Give a tokenizer.json or the directory that holds it."
    ),
    "tolerance": (
        "tolerance is {tolerance!r}; expected Tolerance(rtol=…, atol=…), Tolerances, or the "
        "path of a YAML file with rules."
    ),
    "rule_form": (
        "{path}: {text!r}: {values!r}; expected a pattern and its tolerance, e.g. 'lm_head: "
        "{{rtol: 1e-3, atol: 1e-6}}'."
    ),
    "rule_key": "{path}: {text!r} has the key {name!r}; expected rtol and atol.{nearest}",
    "rule_pattern": "{path}: the pattern {text!r} cannot be used: {error}.",
    "rule_value": "{path}: {text!r}: {error}.",
    "steps_none": "steps is {given!r}, which names none; expected {steps}.",
    "pattern_unused": (
        "{option} {text!r} matches no record of either run. It is a regular expression, "
        "searched in the names of records, which stand in the tables of a comparison.{hint}"
    ),
    "flag": "{name} is {flag!r}; expected True or False.",
    "steps": "steps is {given!r}; expected {steps}.",
    "steps_order": "steps is {given!r}: {last} comes before {first}; expected {steps}.",
    "pattern": (
        "{name} is {text!r}; expected a regular expression, which is searched in the names "
        "of records."
    ),
    "key_twice": "keys is {given!r}, which names {left!r} twice; expected it once.",
    "keys": "keys is {given!r}; expected {keys}.",
    "steps_unknown": (
        "steps names {asked}, of which neither run recorded anything. They hold: {value}."
    ),
    "pattern_unusable": "{name} is {text!r}, which cannot be used: {error}.",
    "no_key": "{who} {name!r}.{nearest} Keys: {value}.",
    "mapping_form": "{where}: {found}; expected {expected}, e.g. {value!r}.",
    "mapping_given": "{value} is {given!r}; expected the path of a YAML file{more}.",
    "mapping_empty": "{path}: is empty; expected lines such as {value!r}.",
    "names_form": "{path}: {source!r}: {target!r}; expected a name pattern and a name.",
    "names_circle": (
        "{path}: the names go in a circle, {names}; expected names of A that lead to names of B"
    ),
    "suggestion_exists": "{path} is already there; rename it, or choose another -o",
    "suggestion_unwritten": "{path} cannot be written: {why}",
    "nothing_to_suggest": (
        "{a} and {b}: no step of a rank in which both recorded cells; expected two runs of one "
        "network"
    ),
    "names_pattern": "{path}: {source!r}: {target!r} is not a pair of name patterns: {error}.",
    "no_earlier": (
        "after is {path}, which holds no {verdict_file}; expected the output directory of an "
        "earlier comparison."
    ),
    "earlier_unusable": (
        "{file} cannot be used as the verdict of an earlier comparison: {reason}. Give the "
        "output directory that a comparison wrote."
    ),
    "foreign_output": (
        "{value}{more} is not as a comparison wrote it: it was there before, or was changed "
        "since. It was left as it is. Move it away, or give another directory with -o."
    ),
    "file_unwritten": "{path} cannot be written: {why}",
    "output_unwritten": (
        "the output directory {output} cannot be written: {reason}. Give another one with -o."
    ),
    "manifest_unread": "{path} {why_unread}.",
    "merge_two": "expected two or more directories of one run, got {len}",
    "merge_exists": "{target} exists already. Give a directory that is made by the merge.",
    "merge_no_run": "{root} is not a run of this package: it holds no {run_file}.",
    "merge_unmade": "{target} cannot be made: {value}{at}.",
    "part_of_run": "{path} is a part of the run {root}. Give that one.",
    "holds_runs": _holds_runs,
    "no_run_there": "{root} {what}. Give the dump_path of a run.",
    "merge_inside": "{target} lies inside {root}, which is merged. Give another directory.",
    "merge_rank": "{path} does not say that it is of rank {rank}, but {world}.",
    "merge_running": (
        "{root} is being written by a job that still runs ({holder_in_words}, as rank "
        "{rank}). Merge when it has ended."
    ),
    "unread": "{value} cannot be read: {value2}.",
    "merge_link": "{name} is a symbolic link; a run has none. Put what it names there.",
    "merge_same": "{root} and {other} are the same directory, or one lies inside the other",
    "merge_other_job": (
        "{where}: {name} is {short} in the one and {short2} in the other. Only what one job "
        "wrote is merged; two runs are compared with `mindrlhf-msprobe compare`."
    ),
    "merge_step_twice": (
        "step {step} of rank {rank} lies in two of the directories: {value} and {path}. "
        "Every rank's step must have been written by one process."
    ),
    "merge_rank_twice": (
        "{root} and {root2} both are of rank {rank}, and one of them holds no step of it. "
        "Every rank must have been written by one process."
    ),
    "merge_a_link": "{path} is a symbolic link; a run has none.",
    "merge_array": "{path} {error}.",
    "merge_no_file": "{path} is neither a file nor a directory; a run has none.",
    "estimate_nothing": "{path} holds nothing to estimate from: {what}.",
    "estimate_no_cell": _estimate_no_cell,
    "no_record": "{path} holds no phase, entry, record or key called {name!r}{where}.{hint}",
    "no_run": (
        "{path} is not a run: it holds neither {run_file} nor layer data "
        "(<phase>/step<N>/rank<N>) nor key data ({key_data_dir}/<key>/step<N>).{empty}"
    ),
    "msadapter_dump": (
        "{path} is a dump of MSAdapter (framework {framework}), which is not read: its operators "
        "are neither those of MindSpore nor those of PyTorch. Dump the network on MindSpore or on "
        "PyTorch, or save what is to be compared by `probe.save_data` and compare the key data."
    ),
    "kernel_dump": (
        "{path} is a dump of kernels (level {level}), which is not read: their inputs belong to no "
        "cell and no operator of the network. Dump with level L0, L1 or mix, or a graph with "
        "MindSpore's Dump (MINDSPORE_DUMP_CONFIG, e2e_dump_settings.enable: true)."
    ),
    "acl_dump": (
        "{path} holds an ACL dump of kernels ({file}), which is not read: its format is that of "
        "the CANN version that wrote it. Dump with level L0, L1 or mix, or a graph with "
        "MindSpore's Dump as .npy (MINDSPORE_DUMP_CONFIG, e2e_dump_settings.enable: true)."
    ),
    "nearest": " Did you mean {name!r}?",
    "itself_a": "run A itself",
    "itself_b": "run B itself",
    "given_twice": "given twice",
    "output_is": "is the run {run}",
    "output_lies_inside": "lies inside the run {run}",
    "two_phases": "the names of two phases",
    "two_numbers": "two numbers",
    "no_phase_at_all": "no phase",
    "no_step_at_all": "no step",
    "no_keys_at_all": "none",
    "some": "{names}{more}",
    "more": ", … {count} more",
    "steps_form": "step numbers and ranges of them, e.g. 2-5 or 2,4-6",
    "keys_form": (
        "names of keys, e.g. loss,rewards, or two to compare with each other: values=returns"
    ),
    "nearest_names": " The nearest names: {names}.",
    "nearest_records": " Nearest: {names}.",
    "neither_holds": "neither run holds the key",
    "a_does_not_hold": "A does not hold the key",
    "b_does_not_hold": "B does not hold the key",
    "or_true": " or True",
    "or_dict": " or a dict",
    "no_directory": "is not a directory",
    "no_path": "does not exist",
    "no_data": "neither layer nor key data",
    "none_of": "none of {names}",
    "in_step": " in step {number}",
    "in_rank": " in rank {number}",
    "empty": " It is empty.",
    "and_more": " (and {count} more)",
    "path_no_directory": "{path} is not a directory",
    "path_directory": "{path} is a directory",
    "held_by": "process {pid} on {host}",
    "held_by_another": "another process",
    "not_one_job": "{root} and rank {rank} in {other} are not of one job",
    "install": "Install mindrlhf_msprobe, in this version, on each of its machines.",
    "kind_empty": "empty",
    "kind_a": "a {kind}",
    "or_items": " or {items}",
    "trainers_file": "the trainer's YAML file",
    "settings": "settings",
    "rules_file": "a YAML file of {kind}s",
    "rules": "{kind}s",
    "rule": "rule",
    "name_pattern": "name pattern",
    "mapping_file": "msprobe's {kind}",
    "names": "names",
    "list_of_apis": "a list of APIs",
    "no_tag": "a value does not fit its tag ({kind})",
    "too_large": "larger than {most} bytes",
    "earlier_no_object": "it holds no JSON object",
    "earlier_status": "its status is none that a comparison ends in",
    "earlier_divergence": "its first divergence is no JSON object",
    "at_line": "{path}: line {line}",
    "yaml_values": "holds more than {most} values, which no such file does",
    "yaml_levels": "is not valid YAML: it is nested too deeply, above {most} levels",
    "yaml_itself": "line {line}: a value holds itself. Write it without the alias",
    "yaml_number": "line {line}: a number of {length} characters; expected at most {most}",
    "yaml_keys": "line {line}: more than {most} keys of one mapping are no texts",
    "yaml_aliases": (
        "line {line}: with its aliases written out it stands for more than {most} values. Write it "
        "without so many aliases (&, *, <<)"
    ),
    "is_directory": "is a directory",
    "ray_cluster": "the Ray cluster {address}",
    "ray_here": "Ray on this machine",
    "on_machine": "{what} (on {machine})",
    "of_machine": "{what} on {machine}",
    "merge_taken": "{target} cannot be made: it was made by somebody else meanwhile.",
    "earlier_no_number": "{name} of its first divergence is no whole number",
    "earlier_no_name": "{name} of its first divergence is no name",
    "left_of_step": (
        "dump_path {path}: what an interrupted attempt left of step {step} cannot be removed: "
        "{why}."
    ),
    "callback_phase": (
        "ProbeCallback(phase={phase}) is not known.{nearest} Phases: {known}. A phase of your own "
        "is declared in msprobe_config.phases."
    ),
    "holds_dumps": "dump_path {root} holds dumps of rank {rank} up to step {last}",
    "what_was_recorded": "what was recorded",
    "what_a_journal_names": "what a {journal} names; dumps of another tool stay",
    "own_rank_written": (
        "dump_path {root} is being written by a job that still runs ({holder}, as "
        "rank {rank}). Give this job another dump_path, or start it when that one "
        "has ended. If both are of one job, each must know its rank when its probe "
        "starts: set RANK_ID, or call mindspore.communication.init() before."
    ),
    "unknown_time": "at an unknown time",
    "another_world": "{shown}; this job is {world}",
    "started_before": "{state}, started {started}, before this process",
    "merge_other_configurations": "{path} says something else than {taken}, which was taken",
    "no_config": (
        "Probe() got a {name}, but it takes a ProbeConfig. For a YAML path, a mapping or a "
        "trainer's own configuration, call Probe.from_config(…)."
    ),
    "start_at": "start_at({step!r}): expected the number of a step, 0 or larger.",
    "phases_of_a_role": (
        "phase({name!r}): expected phases of different roles, each of which records its own "
        "network."
    ),
    "unknown_phase": (
        "{call}({name!r}) is not known.{nearest} Phases: {join}. A phase of your own is declared "
        "in msprobe_config.phases."
    ),
    "no_configurations": (
        "save_configs() got {as_text} ({name}); expected a mapping of name to configuration."
    ),
    "after_close": (
        "{call}() after close(): this run has ended. Make a new probe with another dump_path."
    ),
    "no_network": (
        "phase({name!r}) before a network was watched for its role: call "
        "probe.watch({role}=cell) first, or give phase({name!r}, model=cell)."
    ),
    "unknown_role": (
        "watch() got the role {role!r}; expected one of {join}.{nearest} A role of your own is "
        "declared in msprobe_config.phases."
    ),
    "model_of_phases": "phase({name!r}, model=…): a model is that of one phase.",
    "step_in_phase": (
        "step() inside the phase {name!r}: a step ends after its phases. Move the call behind "
        "the `with probe.phase({name!r})` block."
    ),
    "nested_phase": (
        "phase({name!r}) while the phase {name2!r} is still open: phases do not nest, and a "
        "decorated function does not call itself. Leave {name2!r} first; for one call that is "
        "several phases at once, name them together: phase([{name2!r}, {name!r}])."
    ),
    "resume_without_manifest": (
        "{what}, but not their {name}, so there is no run to resume. Bring {name} back, give "
        "another dump_path, or set existing: overwrite to replace {replaced}."
    ),
    "foreign_dumps": (
        "dump_path {root} already holds dumps of another tool, or key data without their "
        "{run_file}, and existing: overwrite removes nothing of another tool. Give another "
        "dump_path, or move them away."
    ),
    "resume_foreign": (
        "{what}. They are of another tool, so there is no run to resume, and existing: overwrite "
        "does not remove them. Give another dump_path, or move them away."
    ),
    "holds_a_run": "dump_path {root} already holds a run, started {started}. {advice}",
    "holds_journals": (
        "dump_path {root} already holds a run without its {run_file}. Give another dump_path, or "
        "set existing: overwrite to replace what a journal of it names."
    ),
    "foreign_manifest": (
        "{value} is not a manifest of this package, so it is not removed. Move it away, or give "
        "another dump_path."
    ),
    "resume_foreign_manifest": (
        "{path} is not a manifest of this package, so there is no run to resume. Move it away, "
        "or give another dump_path."
    ),
    "being_written": (
        "dump_path {root} is being written by another job that still runs ({holder_in_words}, as "
        "rank {rank}; {name} says {why}). Give this job another dump_path, or start it when that "
        "one has ended."
    ),
    "of_another_job": (
        "dump_path {root} already holds the run of another job ({name} says {why}). {advice}"
    ),
    "link_in_run": (
        "dump_path {root}: {relative_to} is a symbolic link, and links in a run are not "
        "followed: what it leads to would be mixed with this run. Remove the link, or give a "
        "dump_path on the disk that it leads to."
    ),
    "key_no_text": (
        "key data are saved under a name, got {key!r} ({name}); expected a text such as "
        "'advantages'."
    ),
    "key_no_directory": (
        "the key {key!r} cannot name a directory inside {key_data_dir}/; expected a name without "
        "'/', '\\' or control characters and other than '.' and '..'."
    ),
    "key_too_long": (
        "the key {value!r}… is {length} bytes long; expected at most {max_key_bytes}, because it "
        "becomes part of file names."
    ),
    "key_no_unicode": "the key {key!r} is not valid Unicode text.",
    "dump_path_unwritten": (
        "dump_path {root} cannot be written: {value}. Give a directory in which this process may "
        "create files."
    ),
    "token_range": (
        "{call} is {token_range!r}; expected two whole numbers, the first token and the last "
        "one, 0 or larger."
    ),
    "key_without_data": (
        "save_data() got {name!r} without data; expected save_data('loss', loss), "
        "save_data({{'loss': loss}}) or save_data(loss=loss)."
    ),
    "no_mindspore": (
        "{call} got {name}, which is not a cell here: MindSpore cannot be imported ({error})."
    ),
    "tokens_shapes": (
        "phase({name!r}).tokens(…): the shapes are {given}; expected ids "
        "[batch, length] or [tokens], lengths [batch], positions in the shape of ids."
    ),
    "no_function": "phase({name!r}) cannot decorate {function!r}; expected a function.",
    "late_function": (
        "phase({name!r}) cannot decorate {qualname}, whose body runs after it returned; use "
        "`with probe.phase(…)` inside it."
    ),
    "compiled_already": (
        "{call} got {name}, but {where} has been compiled already, and a compiled graph cannot "
        "be given probes. Call probe.watch() after the networks are built and before the first "
        "one runs, trains or is compiled."
    ),
    "no_cell": (
        "{call} got {kind}, which is not a cell; expected a mindspore.nn.Cell (the network "
        "itself, not its class, parameters or trainer)."
    ),
    "data_after_close": (
        "the data {key!r} came after close(): this run has ended. Make a new probe with another "
        "dump_path."
    ),
    "start_too_late": (
        "start_at({step}) after something was recorded in step {step2}; call it before the first "
        "phase and the first save_data()."
    ),
    "advice": (
        "Give another dump_path, or set existing: resume to continue that run, or existing: "
        "overwrite to replace it."
    ),
    "compare_distributed": (
        "compare_distributed(dir1={dir1!r}, dir2={dir2!r}, output_path={output_path!r}); "
        "expected two directories to compare and one to write into."
    ),
    "compare_input": (
        "compare(input_param={input_param!r}); expected a dict with {value} and {value2}."
    ),
    "compare_dump": (
        "compare(): input_param has {value} {dump!r}; expected the path of a dump.json."
    ),
    "unknown_option": "{call}() got the unknown option {name}={value!r}.{nearest}",
    "debugger_first": (
        "PrecisionDebugger.{call}() before PrecisionDebugger(config_path=…): nothing says what "
        "to record."
    ),
    "config_path": "config_path is {path!r}; expected the path of msprobe's config.json.",
    "no_json_object": "{path}: expected a JSON object, found a {name}.",
    "task": (
        "{where}: task is {task!r}, which is not offered; expected {join}. Use msprobe itself "
        "for it."
    ),
    "level": (
        "{where}: level is {level!r}, which is not offered; expected {level2}. Use msprobe "
        "itself for {level}."
    ),
    "no_config_json": "{path}: there is no such file. Give the path of msprobe's config.json.",
    "unread_json": "{path}: cannot be read as JSON: {error}",
    "not_offered": "{where}: {name} is {value!r}, which is not offered; remove it.",
    "not_offered_there": "{where}.{name} is {value!r}, which is not offered; remove it.",
    "string_list": "save_string_list({name!r}, {string_list!r}); expected a list of texts.",
    "seed": "seed_all(seed={seed!r}); expected a whole number from 0 to {largest}.",
    "seed_flag": "seed_all({name}={value!r}); expected True or False.",
    "empty_list": "{call} got an empty list; expected cells in it.",
    "model_item": "{call}: model[{number}] is a {name}; expected a mindspore.nn.Cell.",
    "no_model": (
        "{call} was called without a model; expected a mindspore.nn.Cell, or a list of them, at "
        "the first call."
    ),
    "micro_batch": (
        "SingleSave.save_ex(micro_batch={given!r}); expected a whole number from 0 to "
        "{largest_micro_step}, or None."
    ),
    "no_key_data": (
        "{directory} holds no key data: there is no {value}. Give the dump_path of a run with "
        "key data ({key_data_dir}/<key>/step<N>/rank<N>)."
    ),
    "fmk": (
        "SingleSave(fmk={fmk!r}); expected one of {join}. It is taken for the sake of old "
        "scripts: tensors are known by themselves."
    ),
    "single_dump_path": "SingleSave(dump_path={dump_path!r}); expected a directory's path.",
    "single_first": "SingleSave.{call}() before SingleSave(dump_path): nothing says where to save.",
    "num_processes": (
        "num_processes is {num_processes!r}; expected a whole number from 1 to {most_processes}."
    ),
    "no_script": (
        "{script!r} {what}; expected the Python script that starts the training, e.g. main.py, "
        "and behind it what the script takes."
    ),
    "callback_network": (
        "ProbeCallback(network=…) got {name}, which is no cell of the {name2} that is trained; "
        "expected the network, or a cell of it."
    ),
    "callback_again": (
        "this ProbeCallback has recorded the training of another network: {error} Two trainings "
        "are two runs: give each a callback with a dump_path of its own."
    ),
    "it": "it",
    "inside": "it, inside {of},",
    "shapes": "shapes {a} and {b} differ",
    "elements": "elements of dtype {dtype} cannot be compared",
    "no_finding": "there is no such finding",
    "no_msprobe_name": lambda module, name, names: (
        f"module {module!r} has no attribute {name!r}: msprobe is not installed, and "
        f"mindrlhf_msprobe stands in with {names or 'its modules'} alone"
    ),
    "compare_to_ranks": (
        "compare_to: {path} was recorded by a job of {recorded} rank(s), and this one has {own}: "
        "each rank is compared with the same one, which has other data or another part of the "
        "network there. Give a run of as many ranks, or compare both with `mindrlhf-msprobe "
        "compare` and --layout when this one has been recorded."
    ),
    "compare_to_itself": (
        "compare_to: {path} is this run's own dump_path. Give the dump_path of another run."
    ),
    "playback_itself": (
        "{path} is this run's own dump_path: a run cannot be given its own values. Give the "
        "dump_path of another run."
    ),
    "playback_nothing": "nothing",
    "playback_no_calls": (
        "{path} holds no {key} of rank {rank}, so there is nothing to play; of key data it holds "
        "{keys}. Record it with key_data_dump: true and a trainer that calls probe.rollout(…) or "
        "probe.replace(…), or MindRLHF's GRPO."
    ),
    "playback_no_steps": (
        "rollout_steps: [{first}, {last}]: {path} has no rollout of these steps; it has those of "
        "steps {steps}."
    ),
    "playback_unread": (
        "{path}: {key} of step {step}, call {call}, cannot be played: {why}. Record that run "
        "again, or leave its step out by rollout_steps."
    ),
    "playback_no_call": (
        "step {step} asks for call {call} of {key} in step {source}, and {path} has {calls} of "
        "that step; it has steps {first} to {last}. Play a run that is as long, or give "
        "rollout_order: cycle, or rollout_steps: [{first}, {last}]."
    ),
    "playback_no_batch": (
        "{path} does not say of which batch the rollout of step {step}, call {call}, is. Record "
        "that run again."
    ),
    "playback_difference": "{at}: recorded {a}, given {b}",
    "playback_differs": lambda name, path, step, call, differences, more, batch: (
        f"{'the batch' if batch else name} is not the one of {path}, step {step}, call {call}: "
        + "; ".join(map(str, differences))
        + (f"; and {more} more" if more else "")
        + ". Give both trainings the same data in the same order, or play another run."
    ),
    "playback_items": "a {kind} of {count}",
    "playback_tensor": "a tensor",
    "playback_text": "a text",
    "playback_whole": "the value itself",
    "playback_form": "what was recorded is no value that can be played: {form}",
    "playback_no_generator": (
        "generators of rollout(): {name} is no random generator whose state can be kept. Expected "
        "a list of random.Random, numpy.random.Generator or RandomState, mindspore.Generator, or "
        "torch.Generator"
    ),
    "playback_generators": (
        "generators of rollout(): the recorded call was given [{a}], this one [{b}]. Give the same "
        "kinds in the same order."
    ),
    "playback_class": (
        "a value of type {name} was recorded, and this training has imported none that has the "
        "same fields. Import it before the first rollout."
    ),
    "playback_opaque": (
        "a value of type {name} does not come back when it is played; return tensors, arrays, "
        "texts and numbers in lists, tuples, dicts, dataclasses or named tuples."
    ),
    "playback_name": (
        "replace({name!r}, …): expected a name of letters, digits and underscores, such as "
        "advantages."
    ),
}
