"""Parameters of the texts of the command line."""

EXAMPLES = {
    "code_of_entry": [{"name": ""}, {"name": "actor_update"}],
    "two_runs": [{"runs": [], "hint": ""}, {"runs": ["a", "b", "c"], "hint": ""}],
    "merged": [
        {"path": "p", "directories": 2, "ranks": "0-1", "steps": steps, "files": 9, "copied": 0}
        for steps in ("", "0-3")
    ],
}
