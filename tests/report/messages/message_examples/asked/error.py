"""Parameters of the texts of errors."""

NO_CELL = {"path": "run", "len": 3, "min": "wte", "value2": "actor_update"}

EXAMPLES = {
    "together": [{"of": [" in step 1", " in rank 2"]}],
    "holds_runs": [{"path": "runs", "runs": ["a", "b"]}],
    "estimate_no_cell": [
        {"join": "include", "value": "s", **NO_CELL},
        {"join": "include and exclude", "value": "", **NO_CELL},
    ],
}
