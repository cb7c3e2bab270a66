"""Parameters of the texts of the command line."""

EXAMPLES = {
    "merged": [
        {"path": "p", "directories": 2, "ranks": "0-1", "steps": steps, "files": 9, "copied": 0}
        for steps in ("", "0-3")
    ],
}
