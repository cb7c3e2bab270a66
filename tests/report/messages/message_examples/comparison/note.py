"""What stands beside the status of a record."""

RUNS = [{"repetitions": 1}, {"repetitions": 3}]
EXAMPLES = {
    "all": [{"notes": []}, {"notes": ["x", "y"]}],
    "in_one": [{"side": "A", "nan": 1, "inf": 0}, {"side": "B", "nan": 2, "inf": 3}],
    "in_both": [{"nan_a": 1, "inf_a": 0, "nan_b": 0, "inf_b": 2}],
    "two_tries": [{"first": "x", "second": "x"}, {"first": "x", "second": "y"}],
    "repetitions_identical": RUNS,
    "repetitions_identical_but": RUNS,
    "repetitions_alike": RUNS,
    "repetitions_finite": RUNS,
    "repetitions_unlike_non_finite": RUNS,
    "repetitions_differ_otherwise": RUNS,
    "repetitions_differ": RUNS,
    "parts_differ": [
        {"side": "B", "ranks": [1], "others": [0]},
        {"side": "B", "ranks": [0, 1], "others": [2, 3]},
        {"side": "A", "ranks": [0, 1], "others": []},
    ],
    "sum_differs": [{"side": "A", "ranks": [0, 1]}],
    "copies_differ": [{"side": "A", "ranks": [1]}, {"side": "B", "ranks": [2, 5]}],
    "copies_added": [
        {"side": "A", "ranks": [0, 1], "how": "partial"},
        {"side": "B", "ranks": [2, 5], "how": "mean"},
    ],
    "noise": [{"repetitions": 2, "ratio": 7.5, "spread": 1e-3, "margin": 5.0}],
    "records_agree": [{"records": 1}, {"records": 2}],
}
