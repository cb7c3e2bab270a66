"""Examples of what the report page says of itself."""

_LEFT_OUT = [{"count": 1}, {"count": 1200}]

EXAMPLES = {
    "written": [{"file": "report.html", "bytes": 2_500_000, "seconds": 3.25}],
    "mismatch_values_left": [
        {"names": ["a output.0"], "why": "x"},
        {"names": [f"a.{number} output.0" for number in range(9)], "why": "x"},
    ],
    "mismatch_weights_left": [{"names": ["a.weight"]}, {"names": ["a", "b", "c", "d", "e"]}],
    "mismatch_rows_left": [{"left": 3, "tokens": 9}],
    "loading": [{"size": 1_186_726}],
    "mismatch_no_phases": [
        {"rollout": "actor_generate_sequences", "training": "actor_compute_log_prob"}
    ],
    "one_or_two_runs": [{"runs": ["a", "b", "c"]}],
    "of_one_run": [{"runs": ["a", "b"]}],
    **dict.fromkeys(
        (
            "curves_left_out",
            "findings_left_out",
            "places_left_out",
            "tensors_left_out",
            "texts_left_out",
        ),
        _LEFT_OUT,
    ),
}
