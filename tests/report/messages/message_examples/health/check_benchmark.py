"""Parameters of the texts of results of second runs."""

EXAMPLES = {
    "changes": [
        {"path": "0", "stage": "forward", "change": 0.03, "by": 1e-7, "mode": "bit_noise"},
        {"path": "0", "stage": "backward", "change": None, "by": 1e-7, "mode": "add_noise"},
        {"path": "0", "stage": "forward", "change": None, "by": None, "mode": "change_value"},
        {"path": "0", "stage": "forward", "change": 0.3, "by": 0.0, "mode": "improve_precision"},
    ],
    "not_deterministic": [
        {"path": "0", "stage": "forward", "differing": 3, "size": 8},
        {"path": "input.0", "stage": "backward", "differing": 3, "size": 8},
    ],
}
