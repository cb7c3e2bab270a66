"""What the demo says."""

from __future__ import annotations

from typing import Any

TEXTS: dict[str, Any] = {
    "training": "Training twice",
    "output": (
        "--output {path} cannot be used: {error}. Give a directory in which files may be created."
    ),
    "range": "{option} is {value}; expected {expected}.",
    "one_or_more": "1 or more",
    "fault_step": (
        "--fault-step is {value}; expected 0 … {last}, a step of the training (--steps {steps})."
    ),
    "holds_a_run": "{run} already holds a run. Give another --output, or remove {output}.",
    "fault_form": (
        "--fault is {value}; expected PHASE:CELL, for example {example}, or one of {names}."
        "{nearest}"
    ),
    "no_update_before": (
        "--fault {name} cannot begin in step 0: no update precedes it. Give --fault-step 1 or "
        "larger, and --steps 2 or more."
    ),
    "nothing_decoded": (
        "--fault {name} needs a token that is decoded: with rl_config.response_length: 1 there is "
        "none; give 2 or more."
    ),
    "fault_phase": (
        "--fault names the phase {name}, which is not known.{nearest} Phases: {phases}."
    ),
    "minibatches": "{path}: rl_config.minibatches is larger than rl_config.batch_size.",
    "nothing_recorded": (
        "{path}: with {section}.{setting}: {value} nothing would be recorded; the demo is rank 0 "
        "and needs msprobe: true."
    ),
    "no_settings": "{place} is {value}; expected settings such as {example}.",
    "unknown_key": "unknown key {key} in {place}.{nearest} Valid keys: {keys}.",
    "number": lambda place, value, usual, whole: (
        f"{place} is {value}; expected "
        f"{'a whole number, 1 or larger' if whole else 'a number that is not negative'}, such as "
        f"{usual}."
    ),
    "no_example": "the example {name} is missing from this installation; install it again.",
    "needs": lambda names: (
        f"the demo trains for real and needs {' and '.join(names)}: install the package with "
        f'its demo extra, pip install ".[demo]" in a checkout.'
    ),
    "cannot_build": "the training cannot be built: {error}",
    "no_cell": "{network} has no cell {name}.{nearest} It has {cells}.",
    "never_ran": lambda cell, phase, cells: (
        f"the cell {cell!r} never runs in {phase}, so no fault was planted."
        + (f" Cells that ran in it: {', '.join(cells)}." if cells else "")
    ),
    "none_identical": ("No fault was planted, and both runs agree bit for bit. As it should be."),
    "none_within": (
        "No fault was planted, and nothing differs; but statistics alone do not prove that both "
        "runs agree bit for bit: leave fingerprint: true."
    ),
    "none_otherwise": "No fault was planted, but the verdict is {status}.",
    "planted": "Planted: {fault} from step {step} on.",
    "found": "Found: {phase}:{cell} at step {step}.",
    "not_shown": "The verdict is {status}: what was recorded does not show it.",
    "not_recorded": "The configuration does not record that place.",
    "as_planted": "The verdict is what was planted.",
    "no_cell_computes": (
        "The verdict blames what was sampled and no cell: as it must, the fault lies in the "
        "sampler."
    ),
    "phase_only": (
        "This configuration does not record the planted cell at that step; the verdict points to "
        "its phase. Record that phase's layers to see the cell."
    ),
    "otherwise": "The verdict is not what was planted.",
    "next": "What to do next:",
    "open_page": "open {file} in a browser: where the runs diverge, step by step, and why",
    "open_table": "open {file}: every record in the order it was made",
    "look": "look at what was recorded: {run}",
    "mismatch": "compare rollout and training of run_b token by token: {command}",
    "again": "compare again: {command}",
    "trainer": "see how a trainer uses the probe: {file}",
    "no_tensor": "there is no tensor to disturb in an output of {kind}",
}
