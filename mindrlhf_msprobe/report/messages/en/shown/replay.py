"""What `replay` says, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "several_phases": (
        "{entry} was recorded in several phases: {phases}. Give one of them with --phase."
    ),
    "no_entry": (
        "{path}: no entry {name}.{hint} Expected an operator's or a cell's, as `mindrlhf-msprobe "
        "show {path} PHASE` lists them."
    ),
    "no_call": (
        "{entry} is the entry of no call; expected one of an operator or of a cell, forward or "
        "backward."
    ),
    "unread_entry": "{path}: entry {entry} cannot be read",
    "no_inputs": (
        "{entry}: its inputs were not recorded; record it with directions: [forward, backward]"
    ),
    "no_elements": (
        "{record} was recorded by statistics alone, and replay needs its elements. Record step "
        "{step} of {phase} again, with msprobe_config: {{task: tensor, step_start: {step}, "
        "step_end: {step}}}"
    ),
    "no_elements_of_operator": (
        "{record} was recorded by statistics alone, and replay needs its elements. Record step "
        "{step} of {phase} again, with msprobe_config: {{task: tensor, step_start: {step}, "
        "step_end: {step}, level: mix}}"
    ),
    "unread": "{record} cannot be read: {why}",
    "argument": (
        "argument {argument} is a {kind}, whose content is not in a record; expected tensors, "
        "numbers, None, slices, dtypes, words, and structures of them"
    ),
    "other_folder": (
        "{path} holds other files, such as {held}; expected a new directory, or one that replay "
        "wrote."
    ),
    "unwritten": "{path} cannot be written: {why}",
    "no_yaml": "--network {path}: there is no such file; expected the YAML of a MindFormers model",
    "network": (
        "--network is {network}; expected MODULE:FUNCTION, which returns the network and is "
        "imported from the current directory or the Python path, or the YAML of a MindFormers model"
    ),
    "needs_network": (
        "{entry} is a cell's, so replay needs its network: give --network MODULE:FUNCTION, which "
        "returns it, or the YAML of a MindFormers model."
    ),
    "unknown_operator": (
        "{operator} is no operator of the installed MindSpore ({version}); expected one of those "
        "that are recorded. Nothing that a dump names is imported."
    ),
    "side_effects": (
        "{operator} writes files, prints or communicates, or runs code of its own, so it is not "
        "computed again."
    ),
    "primitive": (
        "{operator}: the attributes of the primitive are not in the record, and none of those that "
        "were tried gives what was recorded. Give the --network that holds it, or replay the cell "
        "around it."
    ),
    "needs_mindspore": (
        "replay computes with MindSpore, which cannot be imported here: {error}. Run it where "
        "MindSpore is installed."
    ),
    "dtype": "--compute-dtype is {dtype}; expected one of {expected}",
    "runs_and_entry": "got {given}; expected RUN, RUN ENTRY, or RUN_A RUN_B ENTRY",
    "failed": "{script} failed: {why}. Run it by itself to see all of what it says.",
    "refused": "{why}",
    "written": "Folder: {folder}   Again: {command}",
    "no_operators": (
        "{path} holds no entry of an operator; record some, with msprobe_config: {{level: mix}}, "
        "or give the ENTRY of a cell."
    ),
    "table_title": "{calls} calls of operators in {path}, the most suspicious first",
    "row": "{verdict}: {entry}, {phase}, step {step}, rank {rank}",
    "apart": (
        "{value}: {share:.2g} of what rounding explains, {ulp:.2g} ulp, relative {relative:.1e}"
        "{drawn}"
    ),
    "drawn_row": " (random inputs)",
    "wrong": "wrong",
    "ordinary": "ordinary",
    "undecided": "undecided",
    "unjudged": "not judged",
    "drawn": "random",
    "recorded": "recorded",
    "more": "  … and {count} more, which the table has",
    "table_summary": "{wrong} wrong, {ordinary} ordinary, {undecided} undecided",
    "table_unjudged": (
        "{count} not judged: no opinion, and no floating-point arithmetic, or random numbers"
    ),
    "table_drawn": (
        "{drawn} were computed from random inputs in the recorded range, as statistics alone were "
        "recorded: that judges the operator as it computes here, not what was recorded."
    ),
    "table_file": "Table: {file}",
    "computing": "computing again",
    "unit": "operators",
    "command": "Which one is wrong: {command}",
    "nothing_computed": (
        "--replay: the runs do not diverge at what an operator or a cell computes (cause: "
        "{cause}), or are one run; there is nothing to compute again."
    ),
}
