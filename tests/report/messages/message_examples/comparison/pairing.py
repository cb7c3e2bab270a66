"""How two runs were brought together."""

YES_OR_NO = (True, False)
EXAMPLES = {
    "other_floats": [{"a": ["Float32"], "b": ["BFloat16", "Float32"]}],
    "rows": [
        {"alike": alike, "moved": moved, "matched": matched, "assumed": assumed}
        for alike in ("inputs", "bytes", "nearest")
        for moved in YES_OR_NO
        for matched in YES_OR_NO
        for assumed in YES_OR_NO
    ],
    "batch_sizes": [
        {"a": "x", "b": "y", "a_rows": [4], "b_rows": rows, "how": "z", "updated": updated}
        for updated in YES_OR_NO
        for rows in ([2, 1], [4])
    ],
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
