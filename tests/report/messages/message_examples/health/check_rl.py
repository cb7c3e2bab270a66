"""Parameters of the texts of what reinforcement learning must satisfy."""

EXAMPLES = {
    "reference": [{"mean": 0.25, "random": False}, {"mean": 0.25, "random": True}],
    "advantages": [{"mean": 0.25, "grouped": False}, {"mean": 0.25, "grouped": True}],
    "identical": [{"count": 8, "all": True}, {"count": 8, "all": False}],
    "equal_rewards": [{"equal": 3, "count": 8}, {"equal": 1, "count": 1}],
    "empty": [{"empty": 3, "count": 8}, {"empty": 1, "count": 1}],
    "cut": [{"cut": n, "count": 8, "limit": 64} for n in (1, 3)],
    "pad_inside": [{"bad": n, "count": 8} for n in (1, 3)],
    "pad_sampled": [{"pad": 0, "bad": n, "count": 8} for n in (1, 3)],
    "repeated_prompts": [{"repeated": n, "count": 8} for n in (1, 3)],
    "same_prompts": [{"count": n} for n in (1, 8)],
    "clip_fraction": [{"fraction": 0.75, "low": 0.8, "high": 1.2, "steps": 5}],
    "rollout_gap": [
        {"mean": 0.05, "p99": 0.4, "probability": 0.02, "limit": 0.01, "float32": False},
        {"mean": 0.05, "p99": 0.4, "probability": 0.02, "limit": 1e-4, "float32": True},
    ],
    "ratio": [{"mean": 0.25}],
    "kl_negative": [{"key": "kl", "least": -0.5}],
    "entropy_collapse": [{"now": 0.01, "before": 2.0}],
}
