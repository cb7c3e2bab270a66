"""Parameters of the texts that explain the first divergence."""

from mindrlhf_msprobe.common.message import message

_CELL = "Cell.root.Net.forward.0"

EXAMPLES = {
    "happened": [
        {"record": f"{_CELL}.input.0", "argument": "input_ids", "status": status, "note": note}
        for status in ("unreadable", "only_in_a", "only_in_b", "dtype_mismatch", "non_finite")
        for note in ("", "the fingerprints differ")
    ]
    + [{"record": "loss", "argument": "", "status": "different", "note": ""}]
    + [{"record": "loss", "argument": "", "status": "shape_mismatch", "note": "[2] against [3]"}],
    "left_out": [{"records": 1, "inside": True}, {"records": 12, "inside": False}],
    "given_left_out": [{"given": [f"{_CELL}.input.0", f"{_CELL}.input.1"]}],
    "unreadable": [{"fingerprints_agree": known} for known in (None, True, False)],
    "not_reached": [
        {"stopped": "A", "other": "B", "records": 1},
        {"stopped": "B", "other": "A", "records": 189},
    ],
    "cell_computed": [
        {"given": given, "inside": inside}
        for given in ("inputs", "inputs_and_parameters", "gradient")
        for inside in (True, False)
    ],
    "born": [
        {
            "record": "Mint.matmul.7.forward.output.0",
            "operator": "Mint.matmul",
            "cell": cell,
            "line": line,
            "distance": 1.0,
            "entered": entered,
        }
        for cell, line, entered in (("layers.1", "model.py:36", 1.2e-07), ("", "", 0.0))
    ],
    "not_mindspores": [{"runs": "B", "by": "trainer.softmax"}],
    "operator_computed": [{"given": given} for given in ("inputs", "gradient")],
    "one_attribute": [{"name": "transpose_b", "a": "False", "b": "True"}],
    "other_attributes": [
        {
            "changes": [
                message("explanation.one_attribute", name=name, a="False", b="True")
                for name in ("transpose_a", "transpose_b")
            ]
        }
    ],
    "recorded_late": [{"record": "Cell.first.Dense.forward.0.input.0"}],
    "container_of_operator": [
        {"container": _CELL, "given": given} for given in ("input", "gradient")
    ],
    "called_in_one_run": [{"container": None}, {"container": _CELL}],
    "optimizer_state": [
        {"gradients": gradients, "before": before, "step": 3}
        for gradients in (True, False)
        for before in (True, False)
    ],
    "container_or_mask": [
        {"container": _CELL, "given": given, "masks": "layers.0.input.mask"}
        for given in ("input", "gradient")
    ],
    "container": [{"container": _CELL, "given": given} for given in ("input", "gradient")],
    "file_changed": [{}, {"run": "B"}],
    "not_on_disk": [{"run": "B", "why": message("unread.entries_missing", manifest="run.json")}],
    "nothing_of_step": [{"run": "A", "step": 3}],
    "nothing_of_phase": [{"run": "B", "phase": "actor_update"}],
    "ran_in_one_run": [{"container": None}, {"container": _CELL}],
    "step_input": [{"not_recorded": None}, {"not_recorded": "actor_generate_sequences"}],
    "cells_agree": [
        {"phase": phase, "close": close, "records": 40}
        for phase in (None, "actor_compute_log_prob")
        for close in (0, 3)
    ],
    "made_of_logits": [{"key": "log_prob", "phase": "actor_update", "record": f"{_CELL}.output.0"}],
    "made_of_output": [
        {"key": "values", "phase": "critic_compute_values", "record": f"{_CELL}.output.0"}
    ],
    "own_arithmetic": [
        {"key": key, "keys": ["prompts", "responses"], "rewards": key == "rewards"}
        for key in ("rewards", "advantages")
    ],
    "one_network": [{"run": "B", "role": "reference", "other": "actor"}],
    "phase_not_recorded": [{"phase": "critic_compute_values", "switch": "critic_train_dump"}],
    "nth_call": [
        {
            "phase": "actor_update",
            "earlier": earlier,
            "between": between,
            "updated": updated,
            "weights_moved": moved,
            **kept,
        }
        for earlier, between, updated, moved, kept in (
            (1, [], False, None, {}),
            (1, [], False, True, {"kept_in": "B"}),
            (2, ["critic_update"], True, True, {}),
            (11, ["actor_compute_log_prob", "critic_update"], False, False, {}),
        )
    ],
}
