"""Parameters of the texts of a run against its own past."""

EXAMPLES = {
    "jump": [{"factor": 12.0, "others": 0}, {"factor": 12.0, "others": 3}],
    "gradients": [{"ratio": 1e6, "explode": True}, {"ratio": 1e6, "explode": False}],
    "routing": [{"share": 0.99}],
}
