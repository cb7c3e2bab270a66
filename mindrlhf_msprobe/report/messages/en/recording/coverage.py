"""Why something was not recorded, or is not compared."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.common.text.numbers import few_ranges
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import reasons, spans


def _graph_mode(why: object) -> str:
    return f"not recorded in graph mode: {reasons(why)}"


def _left_out(what: object, why: object) -> str:
    return f"{what} not recorded: {reasons(why)}"


def _backward(why: object) -> str:
    return f"backward {reasons(why)}"


_REMOVED = {"tensors": "elements of layer data", "layers": "layer data", "key_data": "key data"}


def _thinned_steps(what: str, ranks: Sequence[int], steps: Sequence[Sequence[int]]) -> str:
    one = steps[0][0] == steps[-1][1]
    on = f" of rank {spans(ranks)}" if [*ranks] != [0] else ""
    return f"{_REMOVED[what]} of step{'s' * (not one)} {few_ranges(steps)}{on}, removed (keep_mb)"


TEXTS: dict[str, Text] = {
    "rollout_played": "rollouts of {path} were played instead",
    "cannot_be_saved": "a value of type {type} cannot be saved",
    # What a graph does not hand over, of a cell or of a value.
    "graph_mode": _graph_mode,
    "vectorised": "calls under vmap, jacrev or jacfwd",
    "dtype": "a tensor of dtype {dtype}",
    "dict_keys": "a dict with keys that are neither texts nor numbers",
    "dynamic_shape": "a tensor whose shape is dynamic",
    "object_of_graph": "an object that is made while the graph runs",
    "value_of_graph": "a value of type {type} that only the running graph knows",
    "kept_by_graph": "the graph did not hand over its {dtype} elements",
    "accuracy_in_graph": "a graph computes it: there is no second opinion on it",
    "overflow_in_graph": (
        "its elements where something overflows: task: overflow_check holds no tensors of compiled "
        "cells; `check` names the entry to record with task: tensor"
    ),
    "operator_replaced": (
        "MindSpore's own: {by} stands in its place, and its calls are recorded by its name"
    ),
    "operator_held": (
        "calls of {operator} by it: recording replaces the names that modules and cells hold "
        "themselves; hold it as one of those"
    ),
    "operators_in_graph": "the operators in it: a graph runs them, not Python",
    "elements_reduced": "its elements: the graph was compiled for statistics alone",
    "gradients_passes_parameter": (
        "gradients where it takes or returns a Parameter of the network"
    ),
    "changed_in_place": "its calls in a graph that changes tensors in place and is differentiated",
    "not_compiled": "its calls in a graph that does not compile with probes ({error})",
    "python_in_graph": "its calls in a graph with values that Python computes while it runs",
    "gradients_in_python": "its gradients: Python differentiates the jitted code around it",
    "gradients_own_bprop": "its gradients: it has a bprop of its own",
    "gradients_recomputed": "its gradients: it is recomputed as a part of another cell",
    "gradients_casts_inputs": (
        "its gradients, and the dtype its inputs had before: to_float casts them"
    ),
    "optimizer_itself": "the optimizer's own call; the gradients that enter it are recorded",
    "optimizer_not_watched": "the optimizer was not given to watch(optimizers=…)",
    "parameters_in_tuple": "its parameters: it holds them in a tuple",
    "inside_recurrent": "a cell inside MindSpore's recurrent cells, which takes Parameters",
    "compiled_before_watch": "{cell} was compiled before watch()",
    "replaced": (
        "it was replaced after it was compiled, and graphs that were compiled before run the old "
        "cell; the one in its place is recorded in graphs that are compiled with it"
    ),
    # Phases and key data that a trainer cannot give.
    "left_out": _left_out,
    "backward": _backward,
    "saved_vectorised": "{call}() stands under vmap, jacrev or jacfwd",
    "saved_without_probe": "the graph that saves it was compiled while no probe took key data",
    # What the configuration of a run leaves out.
    "key_follows": "{key} is what mismatch -o wrote: it follows from other key data",
    "key_data_off": "key data not recorded (key_data_dump: false)",
    "phase_off": "{phase} not recorded ({switch}: false)",
    "optimizer_state_off": "the state of optimizers not recorded (optimizer_state: false)",
    "parameters_off": "parameters not recorded (parameters: false)",
    "part_off": "{part} not recorded (parts: {parts})",
    "no_operators": "operators not recorded (level: L0)",
    "no_cells": "cells not recorded (level: L1)",
    "direction_off": "{direction} not recorded (directions: {directions})",
    "rank_off": "rank {rank} not recorded (ranks: {ranks})",
    "before_start": "the run began at step {step} (initial_step)",
    "step_not_chosen": "step {step} is none of those recorded (steps: {steps})",
    "step_interval": (
        "steps between those that are recorded (step_interval: {interval}, from step {first} on)"
    ),
    "thinned_tensors": "elements of old steps, which keep_mb has removed",
    "thinned_layers": "layer data of old steps, which keep_mb has removed",
    "thinned_key_data": "key data of old steps, which keep_mb has removed",
    "step_outside": "step {step} lies outside step_start {first} … step_end {last}",
    "steps_outside": "layers of steps outside step_start {first} … step_end {last}",
    "steps_not_chosen": "layers of other steps than {steps} (steps)",
    "thinned_steps": _thinned_steps,
    "token_outside": (
        "token {token} lies outside token_range_start {first} … token_range_end {last}"
    ),
    "cells_left_out": "cells left out by include/exclude",
    "entries_left_out": "entries left out by entries: {entries}",
    "outside_scope": "entries may lie outside scope {first} … {last}",
    "not_reached": "not reached: the run had stopped in step {step}",
    # What another tool does not record.
    "msprobe_no_gradient": "msprobe records no gradient that is None",
    "msprobe_no_root": "msprobe records no outermost cell",
    "msprobe_never_saved": "key data that msprobe saved in no step of the other run",
    "monitor_never_saved": "scalars that MindFormers' monitor wrote in no step of the other run",
    # What cannot be compared.
    "other_framework_value": "values that the other framework passes otherwise, or not at all",
    "other_framework_operator": "operators that the other framework does not call there",
    "of_micro_batch": "key data of single micro-batches, where the other run has other ones",
    "other_framework_cell": "cells that the other framework has no cell for",
    "other_framework_buffer": "running means and variances: msprobe records no buffers of PyTorch",
    "shared_parameter": "gradients of a weight that two cells share: the other run has them once",
    "other_framework_gradient": "gradients that msprobe has of a step inside an operator",
    "outside_network": "cells outside the network that both runs have",
    "no_gradient_flowed": "entries through which no gradient flowed",
    "gradients_beside_nan": "gradients that cannot be known beside NaN or infinity",
    "gradients_at_optimizer": (
        "gradients of parameters, the one run's as they arose, the other's as they entered the "
        "optimizer: after unscaling and clipping, if the training does that"
    ),
    "gradients_in_several_places": (
        "gradients of a tensor that a cell was given in several places, or returned as it was: the "
        "one run recorded them together, the other each by itself"
    ),
    "values_of_type": "values of type {type} cannot be compared",
    "varies_among_repetitions": ("calls and keys that also come and go among the repetitions of A"),
    # What the caller left out.
    "records_left_out": "records left out by --include/--exclude",
    "only_one_has_steps": "of steps and ranks that one run alone has (--common)",
    "only_one_has_phases": "of phases that one run alone has (--common)",
    "only_one_has_cells": "of cells, calls and values that one run alone has (--common)",
    "only_one_has_keys": "of keys that one run alone has (--common)",
    "only_one_has_saves": "of saves that one run alone has (--common)",
    # Two phases or keys that are called otherwise.
    "phase_without_backward": "records of backward passes, which the other phase does not have",
    "phase_with_fewer_calls": "calls that the other phase does not make",
    "phase_without_cells": "cells that do not run in the other phase",
    "texts_beside_tokens": "key data that one run saved as texts and the other as token ids",
    "batch_statistics": (
        "tensors of batches of unlike size, of which only statistics were recorded (task: tensor "
        "makes them comparable)"
    ),
    "batch_no_rows": "values without rows, which may depend on the size of the batch",
    "batch_other_sizes": "tensors that differ in more than the number of rows",
    "batch_uneven_calls": "cells that do not run equally often for each batch",
    "batch_operators": "operators, of which it is not known where the rows of a batch lie",
    "batch_gradients": "gradients, which depend on all rows of a batch",
    "batch_after_update": (
        "calls after the weights were, or may have been, updated within the phase"
    ),
    "batch_unknown_rows": "micro-batches with rows that the other phase was not given",
    "key_unknown_rows": "saves of some rows of a larger one, and which rows is not known",
}
