"""Parameters of the texts of errors."""

NO_CELL = {"path": "run", "of": 3, "cell": "wte", "phase": "actor_update"}

DIFFERS = {"name": "advantages", "path": "run_a", "step": 1, "call": 0, "differences": ["[0]: …"]}

EXAMPLES = {
    "playback_differs": [
        {**DIFFERS, "more": 0, "batch": True},
        {**DIFFERS, "more": 2, "batch": False},
    ],
    "together": [{"of": [" in step 1", " in rank 2"]}],
    "holds_runs": [{"path": "runs", "runs": ["a", "b"]}],
    "estimate_no_cell": [
        {"given": ["include"], **NO_CELL},
        {"given": ["include", "exclude"], **NO_CELL},
    ],
    "no_msprobe_name": [{"module": "msprobe", "name": "x", "names": n} for n in ("", "save")],
}
