"""Parameters of the texts of a run against its own past."""

EXAMPLES = {
    "jump": [{"factor": 12.0, "others": 0}, {"factor": 12.0, "others": 3}],
    "gradients": [{"ratio": 1e6, "explode": True}, {"ratio": 1e6, "explode": False}],
    "kurtosis": [
        {"kurtosis": 80.0, "median": 3.1, "others": 0},
        {"kurtosis": 80.0, "median": 3.1, "others": 3},
    ],
    "kurtosis_high": [{"kurtosis": 2e3, "others": 0}, {"kurtosis": 2e3, "others": 3}],
    "dead": [{"count": 2}, {"count": 1}],
    "routing": [{"share": 0.99}],
}
