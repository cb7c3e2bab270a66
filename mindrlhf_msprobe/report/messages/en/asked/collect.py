"""What `preflight` says of its arguments and of what it collected, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import section_words

TEXTS: dict[str, Text] = {
    "a_configuration": "the configuration",
    "a_number": "a whole number from 1 to 999999",
    "a_time": "a number of seconds, larger than 0",
    "no_path": ("{option} {path}: there is no such file or directory; expected PATH or NAME=PATH"),
    "same_name": (
        "{option}: {first} and {second} would both be called {name}; give names of your own, as "
        "NAME=PATH"
    ),
    "directory": "{path} is a directory; expected a YAML or JSON file",
    "too_large": "{path} is larger than {most}, which no such file is; give another file",
    "no_json_configuration": (
        "{path} is no JSON: {why}. Expected an object of settings; correct the file."
    ),
    "no_object": "{path} holds a {kind}; expected an object of settings",
    "unread": "{path} cannot be read: {why}",
    "no_regular_file": "{path} is no regular file; expected a checkpoint",
    "many_files": "{path} holds more than {most} files; give the directory of one checkpoint",
    "empty_checkpoint": "{path} holds no file; expected a checkpoint, or a directory of its files",
    "checkpoint_as_files": (
        "{name}: no parameters could be read, so its files are fingerprinted as a whole: {why}"
    ),
    "data_form": ("--data is {source!r}; expected MODULE:FUNCTION, such as my_data:batches"),
    "data_import": (
        "--data {source}: the module cannot be imported: {why}. Expected one that `python -c "
        '"import …"` imports in this directory.'
    ),
    "no_function": "--data {source}: {module} has no {name}; expected a function of that module",
    "data_not_callable": (
        "--data {source} is a {kind}; expected a function without arguments that returns the "
        "batches"
    ),
    "data_raised": (
        "--data {source} failed: {why}. Expected a function without arguments that returns the "
        "batches."
    ),
    "data_nothing": "--data {source} returned None; expected the batches: end it with `return`",
    "data_kind": "--data {source} returned a {kind}; expected a list, a generator, a data set",
    "data_empty": "--data {source} returned no batch; expected at least one",
    "no_command": (
        "there is no command behind --; expected one, such as -- python main.py. Is a variable "
        "empty? Leave -- out to collect without one"
    ),
    "no_program": "{program} is no program that can be found; expected one behind --",
    "no_program_python": (
        "{program} is no program that can be found; expected one behind --, such as -- python "
        "{program}"
    ),
    "not_started": "{program} cannot be started: {why}",
    "no_output": "-o {path}: expected the name of a file",
    "exists": "{path} exists already; give another file, or --overwrite to replace it",
    "unwritten": "{path} cannot be written: {why}",
    "above": "{above} is no directory that may be written to",
    "no_file": (
        "{path}: there is no such file; expected one that `preflight collect` wrote, or the "
        "dump_path of a run"
    ),
    "no_json": (
        "{path} cannot be read as JSON: {why}. It may have been cut off; collect it again."
    ),
    "other_file": "{path} is no file of `preflight collect`; expected one, or a run",
    "no_pack": "{path} is no config_check_pack.zip of msprobe that can be read: {why}",
    "other_archive": (
        "{path} is an archive, and no config_check_pack.zip of msprobe; expected one, a file of "
        "`preflight collect`, or a run"
    ),
    "schema": (
        "{path} has the schema {schema}, this version reads {known}; collect it again with this "
        "version, or compare with the version that wrote it"
    ),
    "no_manifest": "{path} has no run.json, so nothing is known of what it ran with",
    "empty_path": "the path of a side is empty; expected a file of `preflight collect` or a run",
    "same_file": "A and B are both {path}; expected two",
    "script_failed": "the script failed with exit code {code}; what it did was collected",
    "nothing_noted": (
        "no Python process said what it drew: the command starts none, starts it with -I, -E or "
        "-S, or clears PYTHONPATH"
    ),
    "written": "Collected: {file}",
    "holds": lambda section, count: f"  {section_words(section)}: {count}",
    "script_ended": "  the script ended with exit code {code}",
    "script_stopped": "  the script was stopped after {seconds} s",
    "different": "DIFFERENT: {count}",
    "same": "SAME: nothing differs that both say.",
    "not_compared": "Not compared:",
    "in_the_table": "; -o DIR writes all",
    "tables": "Tables: {files}",
}
