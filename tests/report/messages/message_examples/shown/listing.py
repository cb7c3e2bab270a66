"""Parameters of the texts of `show` and `estimate`."""

_WHERE = {"phases": "actor_update", "steps": "0-2", "ranks": "0"}

EXAMPLES = {
    "code_of": [
        {"entry": "Mint.add.0.forward", "cell": cell, **_WHERE} for cell in (None, "", "layers.0")
    ],
    "attributes": [{"attributes": "transpose_a=False, transpose_b=True"}],
    "code_called": [
        {"line": "/net.py:8: return mint.add(x, y)", "cell": cell}
        for cell in (None, "", "layers.0")
    ],
    "code_inside": [{"cell": cell} for cell in ("", "layers.0")],
    "states": [{"state": "running"}, {"state": "finished"}],
    "changes": [
        {"first": None, "then": [[2, "0.5"]], "left": 0},
        {"first": "1.0", "then": [[1, "0.5"], [9, "0.7"]], "left": 3},
    ],
    "estimated": [
        {"step_size": "3 MB", "steps": n, "ranks": n, "total": "9 MB", "free": "1 GB", "path": "p"}
        for n in (1, 3)
    ],
    "holds_none": [
        {"path": "run", "what": what, "number": 7, "held": held}
        for what, held in (("step", [0, 1, 2, 5]), ("rank", []))
    ],
}
