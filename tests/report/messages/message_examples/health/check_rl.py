"""Parameters of the texts of what reinforcement learning must satisfy."""

EXAMPLES = {
    "reference": [{"mean": 0.25, "random": False}, {"mean": 0.25, "random": True}],
    "advantages": [{"mean": 0.25, "grouped": False}, {"mean": 0.25, "grouped": True}],
    "identical": [{"count": 8, "all": True}, {"count": 8, "all": False}],
    "clip_fraction": [{"fraction": 0.75, "low": 0.8, "high": 1.2, "steps": 5}],
    "ratio": [{"mean": 0.25}],
    "kl_negative": [{"key": "kl", "least": -0.5}],
    "entropy_collapse": [{"now": 0.01, "before": 2.0}],
}
