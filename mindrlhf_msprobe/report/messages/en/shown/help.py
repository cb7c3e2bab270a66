"""What `--help` says."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "accuracy": "show what a second computation in float64 found wrong (task: accuracy_check)",
    "accuracy_describes": (
        "Show what the second computation in higher precision thinks of a run that was recorded "
        "with task: accuracy_check: a ranked table, the first operator or cell that is wrong. Exit "
        "codes: 0 ordinary, 1 wrong, 2 undecided."
    ),
    "accuracy_path": "the dump_path of a run",
    "accuracy_output_path": "write accuracy_check.xlsx and verdict.json into this directory",
    "accuracy_json": "print the result as JSON",
    "check": "check one run by itself: NaN, RL invariants, weights, history, ranks",
    "check_describes": (
        "Check runs, each by itself, without a baseline: where NaN or Inf first arose, what RL "
        "must satisfy, weights, history, ranks. Exit codes: 0 nothing found, 1 an error or a "
        "warning, 2 nothing could be checked."
    ),
    "check_runs": "the dump_path of a run",
    "check_rules": "YAML: rules that are off, thresholds, severities",
    "check_rule": "a rule of your own, a Python function (repeatable)",
    "check_healthy": "a run that is known to be healthy (repeatable)",
    "check_output_path": "write checks.xlsx into this directory, or into this .xlsx file",
    "check_json": "print the findings as JSON",
    "compare": "compare two runs and find the first divergence",
    "compare_describes": (
        "Compare two runs, write tables and verdict.json, and name the first divergence and "
        "its cause. Exit codes: 0 the same, 1 diverged (or what --fail-on says), 2 could not "
        "decide."
    ),
    "compare_runs": (
        "the dump_path of two runs, or two checkpoints: A is the baseline, B is under test"
    ),
    "compare_target_path": "run B, under test, as msprobe calls it",
    "compare_golden_path": "run A, the baseline, as msprobe calls it",
    "compare_output_path": ("directory for tables and verdict.json (default: %(default)s)"),
    "compare_rtol": "relative tolerance (default: 0)",
    "compare_atol": "absolute tolerance (default: 0)",
    "compare_tolerance": (
        "YAML with tolerance rules: a regular expression on record names → {{rtol, atol}}; "
        "the first that matches counts, --rtol and --atol hold for the rest"
    ),
    "compare_noise": (
        "a further run of A's configuration, to learn the natural spread from (repeatable)"
    ),
    "compare_mapping": "YAML: name pattern of A's cells → their name in B; suggest: propose one",
    "compare_data_mapping": "msprobe's mapping, YAML: record of B (NPU) → of A (Bench)",
    "compare_tokenizer": "tokenizer.json, to show token ids as text",
    "compare_phases": "compare phase X of A with phase Y of B, or of A itself",
    "compare_ranks": "compare rank M of A with rank N of B, or of A itself",
    "compare_layout": "YAML: how ranks divide the work, where A and B do otherwise",
    "compare_steps": "compare these steps only, e.g. 2-5 or 2,4-6",
    "compare_keys": (
        "compare these key data only; X=Y compares X of A with Y of B, or of A itself"
    ),
    "compare_first_only": ("end at the first divergence, and write the tables of its place alone"),
    "compare_common": (
        "what one run alone has (steps, ranks, phases, keys, cells) is no divergence"
    ),
    "compare_after": (
        "the output of the comparison that proposed this recording: what it found is used"
    ),
    "compare_csv": "write the tables as CSV as well",
    "compare_all_rows": (
        "list every record in the tables; else, of more than 50 000, those of cells that "
        "agree are one row a phase, step and rank"
    ),
    "compare_workers": "processes that compare (default: one a core)",
    "compare_engine": "(default: %(default)s)",
    "compare_address": "of a Ray cluster (default: one on this machine)",
    "compare_fail_on": (
        "what exit code 1 means: `diverged` (default), or `suspicious`: also NaN or Inf on which "
        "both runs agree"
    ),
    "compare_json": "print verdict.json instead of text",
    "show": ("list what a run holds, or show one phase, key, entry or record"),
    "show_describes": (
        "List a run's phases, steps, ranks, keys and sizes. With a phase, list its entries; "
        "with a key, one row a save; with an entry or a record, show the statistics and "
        "first values, and with --step so of a key. Exit codes: 0; 2 if any of it could not "
        "be read, or there is no such thing: the rest is shown."
    ),
    "show_path": "the dump_path of a run",
    "show_name": "a phase, a key, an entry, a record",
    "show_step": "of this step only",
    "show_rank": "of this rank only",
    "show_code": (
        "show the user's code that called an entry, with the lines around; of a cell in a compiled "
        "graph its construct"
    ),
    "show_json": "print JSON instead of text",
    "merge": ("put the directories of one run together, which nodes recorded apart"),
    "merge_describes": (
        "Put together what the nodes of one job recorded into directories of their own, as "
        "if they had shared one. Files are hard-linked, or copied where they cannot be; "
        "MERGED appears whole or not at all. Exit codes: 0 merged, 2 refused."
    ),
    "merge_runs": "the dump_path of a node; two or more",
    "merge_output_path": "the directory to make",
    "merge_json": "print JSON instead of text",
    "estimate": "say how much room a recording with full tensors would take",
    "estimate_describes": (
        "From a run of one step with task: statistics, say how many bytes a step of a rank "
        "would take with other settings, and whether they fit into the file system of RUN. "
        "Exit codes: 0 it fits, 1 it does not, 2 could not decide."
    ),
    "estimate_path": "the dump_path of a run",
    "estimate_config": (
        "the YAML file of the recording that is meant: its msprobe_config says all of the following"
    ),
    "estimate_task": "as task (default: tensor)",
    "estimate_directions": ("as directions, with commas between (default: forward,backward)"),
    "estimate_steps": "training steps (default: 1, or as many as FILE names)",
    "estimate_ranks": "ranks (default: as many as recorded, or as FILE names)",
    "estimate_json": "print JSON instead of text",
    "run": ("run a script of MindRLHF and record what its msprobe_config says"),
    "run_describes": (
        "Run a Python script as `python SCRIPT …` would, and record the trainings of "
        "MindRLHF whose YAML file has a msprobe_config section. Everything behind SCRIPT "
        "goes to the script; so do exit codes and exceptions the other way. Under msrun:\n"
        "  msrun … $(command -v mindrlhf-msprobe) run SCRIPT …"
    ),
    "run_script": "the script that starts the training",
    "demo": ("run a real PPO training twice, plant a fault in the second, and find it"),
    "demo_describes": (
        "Run a small PPO training on CPU twice, with a small error planted in one cell of "
        "the second run, compare the two and name the cell. Exit codes: 0 the verdict is "
        "what was planted, 1 it is not, 2 could not decide."
    ),
    "demo_output": "directory for runs and tables",
    "demo_steps": "training steps (default: %(default)s)",
    "demo_seed": "seed (default: %(default)s)",
    "demo_fault": (
        "where the error is planted, e.g. actor_update:lm_head (default: one linear layer of "
        "the reference's second block); cells of actor_generate_sequences are those of the "
        "rollout network. Or what makes inference part from training:\n"
        "not-synchronised: after updates the rollout network's last layer keeps its weights\n"
        "rotary-off-by-one: in decoding, positions are rotated as if one place later\n"
        "lm-head-dtype: the rollout network computes its logits in float16\n"
        "mask-padding: the rollout network's mask lets the padding of the prompts in\n"
        "temperature: the sampler divides the logits by 0.8, training does not"
    ),
    "demo_no_fault": (
        "plant nothing: both runs agree; without --config they are recorded with task: sketch, "
        "for mismatch"
    ),
    "demo_fault_step": (
        "the step from which on the error is there (default: 1, or 0 with --steps 1)"
    ),
    "demo_config": "the trainer's YAML (default: yaml_examples/ppo_demo.yaml)",
    "compare_of_msprobe": (
        "msprobe's mapping, YAML: {what}; without FILE the names that need none"
    ),
    "compare_cell_mapping": "name and class of B's cells (NPU) → of A's (Bench)",
    "compare_api_mapping": "APIs of B (NPU) → of A (Bench)",
    "compare_layer_mapping": (
        "class of a layer of B (NPU) → what is inside it, in B → in A (Bench)"
    ),
    "compare_include": (
        "compare only records in whose name this regular expression is found (repeatable)"
    ),
    "compare_exclude": (
        "compare no record in whose name this regular expression is found (repeatable)"
    ),
    "estimate_include": "as include (repeatable)",
    "estimate_exclude": "as exclude (repeatable)",
    "version": "show the version and exit",
    "lang": ("language of the answer, and of what is written (default: the locale's)"),
    "describes": ("Find where two trainings on MindSpore first diverge, and why."),
    "trend": "one quantity over the steps, of one run or two; the gradients of two runs",
    "trend_describes": (
        "Plot a quantity over the steps, of one run or of two, or write it as CSV or for "
        "TensorBoard. Without a choice: the mean of every key, and every derived quantity: ratio, "
        "clip_fraction, kl_k1, kl_k3, response_length, gradient_norm, update_to_weight, "
        "adam_first_moment, adam_second_moment, rollout_corr. Exit codes: 0 shown, 2 nothing to "
        "show or not all could be read; with --gradients 0 alike, 1 suspicious, 2 nothing to "
        "compare."
    ),
    "trend_run": "the dump_path of a run, or msprobe's dumps",
    "trend_run2": "a second run, in the same plots and columns",
    "trend_record": "records whose names match this regular expression",
    "trend_key": "key data of this name (repeatable)",
    "trend_derived": "a derived quantity, with its layers (repeatable)",
    "trend_statistic": "mean, max, min, norm, nan_count or inf_count (default: the mean of key "
    "data, the norm of records)",
    "trend_phase": "of this phase only",
    "trend_rank": "of this rank only",
    "trend_csv": "write every value into this file, a row each",
    "trend_tensorboard": "write event files for TensorBoard below this directory (tensorboardX)",
    "trend_plots": "how many series are plotted at most (default: 12)",
    "trend_json": "print the series as JSON",
    "trend_gradients": "how alike the gradients of RUN and RUN2 are, by update and parameter",
    "trend_first": "with --gradients: below it the first similarity is suspicious (default: 0.97)",
    "trend_fall": "with --gradients: a fall by more than this is suspicious (default: 0.03)",
    "trend_measure": "with --gradients: cosine of the elements, or the share of equal signs "
    "(default: cosine where both runs have the elements)",
    "report": "write one offline HTML page of a run, or of two and how they compare",
    "report_describes": (
        "Write one HTML file that opens anywhere without a network: the answer, the step as "
        "it ran, where in the network, the course of the training, texts, findings. One run: "
        "its check. Two: their comparison, A being the baseline, and the check of each. Exit "
        "codes: those of check and of compare."
    ),
    "report_runs": "the dump_path of a run, or of A and B",
    "report_output_path": "the file to write, e.g. report.html",
    "report_rtol": "relative tolerance (default: 0)",
    "report_atol": "absolute tolerance (default: 0)",
    "report_tolerance": "YAML with tolerance rules, as for compare",
    "report_noise": "a further run of A's configuration (repeatable), as for compare",
    "report_mapping": "YAML: name pattern of A's cells → their name in B; suggest: propose one",
    "report_tokenizer": "tokenizer.json, to show token ids as text",
    "report_rules": "YAML: rules that are off, thresholds, severities, as for check",
    "report_healthy": "a run that is known to be healthy (repeatable), as for check",
    "compare_html": "write one offline HTML page of the comparison",
    "check_html": "write one offline HTML page of the run (needs a single RUN)",
    "mismatch": "compare rollout and training token by token: where they first part",
    "mismatch_describes": (
        "Hold the phase that generated against the one that computed log-probabilities, row "
        "by row of the same token: weights, inputs, then the first cell whose rows part and "
        "why. Exit codes: 0 they agree, 1 they part, 2 could not decide."
    ),
    "mismatch_runs": "the dump_path of a run; or of two, the rollout's and the training's",
    "mismatch_step": "of these steps only (repeatable, or 2,3)",
    "mismatch_phases": (
        "the phases of rollout and training (default: "
        "actor_generate_sequences,actor_compute_log_prob)"
    ),
    "mismatch_mapping": "YAML: name pattern of the rollout's cells → their name in the training",
    "mismatch_tokenizer": "tokenizer.json, to show tokens as text",
    "mismatch_output_path": "write mismatch.xlsx and mismatch.json into this directory",
    "mismatch_html": "write one offline HTML page of it",
    "mismatch_json": "print the result as JSON",
    "preflight": "collect and compare what a training would run with, without running it",
    "preflight_describes": (
        "Collect what a training would run with, and compare two collections, or one and a run."
    ),
    "preflight_collect": "write what a training would run with into one file",
    "preflight_collect_describes": (
        "Write versions, packages, environment variables, determinism, configuration files, "
        "fingerprints of checkpoints, the first batches of a data set and, of a command behind --, "
        "seeds and random calls into one JSON file. Exit codes: 0 written, 1 written, but the "
        "script failed, 2 not written."
    ),
    "preflight_collect_output": "the file that is written",
    "preflight_collect_config": "a YAML or JSON file of settings; NAME=F names it (repeatable)",
    "preflight_collect_checkpoint": (
        "a checkpoint, a file or a directory; NAME=C names it (repeatable)"
    ),
    "preflight_collect_data": (
        "a function without arguments that returns the batches of a data set; its module is "
        "imported"
    ),
    "preflight_collect_batches": "how many batches are described (default: %(default)s)",
    "preflight_collect_seconds": "stop the script after so many seconds, as Ctrl-C does",
    "preflight_collect_overwrite": "replace FILE if it exists",
    "preflight_collect_json": "print what was collected as JSON",
    "preflight_compare": "compare two collections, or one and a run",
    "preflight_compare_describes": (
        "Say what differs, what changes numbers first. Exit codes: 0 the same, 1 different, 2 "
        "could not be read."
    ),
    "preflight_compare_a": "a file of `preflight collect`, or the dump_path of a run: the baseline",
    "preflight_compare_b": "another one, under test",
    "preflight_compare_output_path": "write preflight.xlsx and preflight.json into this directory",
    "preflight_compare_json": "print the result as JSON",
    "replay": "compute a recorded operator or cell again, also in more bits: which run is wrong?",
    "replay_describes": (
        "Write a folder with a script that computes a recorded operator or cell again, forward and "
        "backward: as it was recorded, in float32 and in float64; and run it. With two runs: which "
        "of them is wrong? Without ENTRY: all recorded operators, ranked. Exit codes: 0 rounding "
        "explains what is apart, 1 it does not, 2 could not decide."
    ),
    "replay_what": "RUN, RUN ENTRY or RUN_A RUN_B ENTRY: dump_path of runs, name of an entry",
    "replay_output": "the folder: replay.py, and what was recorded; without ENTRY the table",
    "replay_network": (
        "for a cell: MODULE:FUNCTION that returns its network, or the YAML of a MindFormers model"
    ),
    "replay_phase": "the phase that the entry is of, where several have it",
    "replay_step": "the step (default: the first that has its elements)",
    "replay_rank": "the rank (default: the first)",
    "replay_device": "where it is computed: CPU, GPU or Ascend (default: as MindSpore chooses)",
    "replay_compute_dtype": (
        "the lowest dtype that it computes in, where that is below those of inputs and weights, "
        "e.g. bfloat16: rounding explains more then"
    ),
    "replay_no_run": "write the folder and do not run the script",
    "replay_seed": "of random inputs, where statistics alone were recorded (default: 0)",
    "replay_json": "print the result as JSON",
    "compare_replay": (
        "compute the entry at which they first diverge again on both sides, into OUT/replay, and "
        "say which of them is wrong"
    ),
    "compare_network": (
        "for --replay at a cell: MODULE:FUNCTION that returns its network, or the YAML of a "
        "MindFormers model"
    ),
}
