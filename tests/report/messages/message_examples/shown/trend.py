_NAMED = {"path": "run", "name": "los", "near": ["loss", "kl_loss"]}
_SUMMARY = {"first": "1", "last": "2", "low": "1", "high": "2"}
_ROWS = {"key": "log_prob", "count": 2, "shape": [4, 4]}

EXAMPLES = {
    "summary": [{"count": 3, "steps": 3, **_SUMMARY}, {"count": 1, "steps": 2, **_SUMMARY}],
    "not_finite": [{"steps": "3, 4", "more": 0}, {"steps": "3, 4", "more": 2}],
    "none_finite": [{"count": 1}, {"count": 2}],
    "more_series": [{"count": 2}],
    "nothing_matches": [
        {"path": "run", "asked": "los", "near": ["loss"]},
        {"path": "run", "asked": "x", "near": []},
    ],
    "unknown_statistic": [_NAMED],
    "unknown_derived": [_NAMED],
    "unknown_key": [_NAMED, {**_NAMED, "near": []}],
    "unknown_phase": [_NAMED],
    "unknown_rank": [_NAMED],
    "no_key": [{"names": ["log_prob"]}, {"names": ["response_mask", "responses"]}],
    "rows_unknown": [{**_ROWS, "other": "old_log_prob", "other_count": 1, "other_shape": [8, 4]}],
    "similarity_summary": [{"count": 2, "first": "1", "last": "0.9", "parameters": 1, "size": 12}],
    "gradients_alike": [{"updates": 1, "parameters": 2}],
    "gradients_fall": [{"place": "step 1", "count": 1}, {"place": "step 1", "count": 2}],
    "steps_alone": [{"side": "A", "steps": "1, 2", "more": 0}],
}
