"""Why a call did not run again on disturbed inputs."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "compiled": "{cell} is compiled: operators cannot be disturbed inside a graph",
    "hooks": "{cell} has forward hooks of others, which a second run would call once more",
    "object": "{path} is a {kind}, which a second run could change",
    "output_object": "the output holds a {kind}, which cannot be made anew",
    "communicates": "{operator} inside it exchanges data with other ranks",
    "own_state": "{operator} writes into a tensor that the cell keeps",
    "writes": "it writes the trained parameter {parameter}",
    "in_place": "{operator} writes into what it is given",
    "changed": "it has written into its own inputs",
    "draws": "{operator} inside it draws random numbers, other ones in a second run",
    "counts": (
        "the gradient of {operator} calls a kernel that counts its calls, the training's among them"
    ),
    "nothing_to_disturb": "no input is a floating number that can be disturbed",
    "nothing_to_improve": (
        "nothing in it has 16 bits; of float32 task: accuracy_check gives a second opinion"
    ),
    "no_output": "no output is a floating number",
    "shapes": "output {path} has another shape, or is missing, in the second run",
    "raised": "the second run raised {why}",
    "differentiated": "the phase ended while something was being differentiated",
    "too_many": "its inputs would take more than buffer_mb until the phase ends",
}
