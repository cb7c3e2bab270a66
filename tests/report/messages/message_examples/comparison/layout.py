"""What is said of runs whose ranks divide the work."""

EXAMPLES = {
    "no_axes": [{"side": ""}, {"side": "a"}],
    "place": [{"rank": "x", "axes": ["dp", "tp"]}],
    "rule": [{"rule": "x: 1", "axes": ["dp", "tp"]}],
    "joined": [{"side": "A", "ranks": n, "axes": "dp 2"} for n in (1, 2)],
    "order": [{"axis": "cp", "order": "'x'", "axes": ["cp"]}],
}
