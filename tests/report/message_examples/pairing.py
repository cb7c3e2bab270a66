"""How two runs were brought together."""

EXAMPLES = {
    "no_common_phase": [{"a": ["x"], "b": ["y", "z"]}],
    "missing_ranks": [
        {"count": 1, "ranks": [1], "more": False, "side": "A"},
        {"count": 12, "ranks": [1, 2], "more": True, "side": "B"},
    ],
    "left_out": [{"side": "A", "dumps": ["x", "y"], "more": True}],
    "below": [{"phase": "p", "a": "model", "b": ""}],
    "noise_run": [
        {"path": "x", "roles": ["actor"], "settings": [], "more": False},
        {"path": "x", "roles": [], "settings": ["a", "b"], "more": True},
    ],
    "unused_names": [
        {"mapping": "cell_mapping", "first": "x", "more": 0},
        {"mapping": "cell_mapping", "first": "x", "more": 2},
    ],
}
