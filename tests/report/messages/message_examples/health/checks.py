"""Parameters of the texts that checks say whatever the rule."""

_COUNTS = {"path": "run", "error": 1, "warning": 2, "note": 0}

EXAMPLES = {
    "lacks": [
        {"kind": "key", "names": "loss, kl", "count": 1},
        {"kind": "phase", "names": "actor_update", "count": 1},
        {"kind": "ranks", "names": "", "count": 2},
        {"kind": "steps", "names": "", "count": 8},
        *(
            {"kind": kind, "names": "", "count": 1}
            for kind in (
                "numbers",
                "layers",
                "parameters",
                "gradients",
                "backward",
                "fingerprints",
                "elements",
                "healthy",
            )
        ),
    ],
    "run_healthy": [_COUNTS, {**_COUNTS, "error": 0, "warning": 0, "note": 3}],
    "run_unhealthy": [_COUNTS],
    "run_not_checked": [_COUNTS],
    "again": [
        {"times": 3, "last": 7, "ranks": ""},
        {"times": 3, "last": 7, "ranks": "0, 2"},
    ],
    "scope": [{"rules": 1, "steps": 2, "ranks": 1, "entries": 300, "saves": 4}],
    "took": [{"runs": 2, "seconds": 0.25}],
    "in_file": [{"path": "rules.yaml", "line": 3}, {"path": "rules.yaml", "line": 0}],
}
