"""What the script of `replay` says, in English; it finds them in words.json beside it."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "describes": "compute a recorded entry again, and say how far the record is from it",
    "help_device": "where it is computed: CPU, GPU or Ascend (default: as MindSpore chooses)",
    "help_json": "write the distances and the answer into this file, too",
    "no_mindspore": (
        "replay.py computes with MindSpore and numpy, which cannot be imported here: {error}. Run "
        "it where both are installed; the folder can be copied as it is."
    ),
    "title": "{side}: {entry}, {phase}, step {step}, rank {rank} of {run}",
    "device": "computed by {device}",
    "again": "again, as recorded",
    "Float32": "in Float32",
    "Float64": "in Float64",
    "formula": "by its formula in numpy",
    "is_ordinary": "rounding explains it ({share} of what it may do)",
    "is_wrong": "wrong: {share} times what rounding may do",
    "is_ordinary_formula": (
        "rounding explains it ({share} of what it may do, by its formula in numpy)"
    ),
    "is_wrong_formula": "wrong: {share} times what rounding may do, by its formula in numpy",
    "not_judged": "not judged (--no-run)",
    "is_undecided": "undecided",
    "is_equal": "the same",
    "is_other": "other integers",
    "agrees": "{side} agrees with {dtype} to {ulp} ulp: rounding explains it.",
    "agrees_formula": (
        "{side} agrees with {dtype} to {ulp} ulp, by its formula in numpy: rounding explains it."
    ),
    "same": "{side} is the same when it is computed again.",
    "off": "{side} is off by {by} ({value}): rounding does not explain it.",
    "off_formula": (
        "{side} is off by {by} ({value}), by its formula in numpy: rounding does not explain it."
    ),
    "not_finite": "{side} is wrong: {value} is NaN or infinite where {dtype} is not.",
    "undecided": "{side}: whether it is right could not be decided.",
    "inputs_agree": "What went in is the same in A and B, bit for bit.",
    "inputs_differ": "What went in differs between A and B: each is judged by its own.",
    "one_is_wrong": "{side} is the wrong one.",
    "both_wrong": "Both are wrong.",
    "no_kernel": "{run} it cannot be computed here: {error}",
    "not_computed": "it cannot be computed here as recorded: {error}",
    "not_returned": "{value} was recorded, and is not returned here, or in another shape",
    "random": "{value} is another one each time: it draws random numbers",
    "by_mask": "{value}: random; judged with the mask that is in the recorded output",
    "dropped_other": (
        "{value}: {dropped} of the elements are zero that were not, where it drops {p} by chance"
    ),
    "differs_between_runs": "{value}: the last bits differ from run to run here",
    "wrong_here": (
        "{value}, computed again as recorded, is {share} times what rounding may do from the exact "
        "one: here, too, it is computed that way"
    ),
    "cast_inside": (
        "{value} came as {dtype}, although it was computed in more bits: something inside it does "
        "not take them"
    ),
    "fewer_bits": (
        "{value} is what this machine's operator gives, but that computes in {lowest} when given "
        "{dtype}, too: whether it is right is left open"
    ),
    "recomputed_other": (
        "forward alone: its gradients are those of a run that MindSpore repeated (recompute) with "
        "other inputs, as random numbers were drawn again in between"
    ),
    "recomputed_unknown": (
        "forward alone: its gradients are those of a run that MindSpore repeated (recompute), and "
        "whether that was given the same is not in the record"
    ),
    "no_cell": (
        "the network that was built, a {network}, has no cell {cell}; expected the network that "
        "was recorded"
    ),
    "no_network": "what builds the network returned a {kind}; expected a mindspore.nn.Cell",
    "other_class": (
        "cell {cell} is a {built} in the network that was built, and was a {recorded} when it was "
        "recorded; expected the same network"
    ),
    "no_parameter": (
        "the network that was built has no parameter {parameter}, which was recorded; expected the "
        "same network"
    ),
    "other_shape": (
        "parameter {parameter} has shape {built} in the network that was built, and had {recorded} "
        "when it was recorded; expected the same network"
    ),
    "not_recorded": (
        "parameter {parameter} was not recorded (of {count} that lack); record the cells inside, "
        "too, with parameters: true"
    ),
    "other_output": (
        "{value} has shape {built} here, and had {recorded} when it was recorded; expected the "
        "same network, in the same mode (set_train)"
    ),
}
